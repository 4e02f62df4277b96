//! Where a page of a swap area lies: an ordered map from page of the area to page of a backing.
//!
//! A swap file is rarely in one piece on its device, and an area may lie on several devices. [`Extents`] holds the
//! pieces (extents), merged where they continue each other, and answers for any page which extent it is in and how
//! much of that follows. Pages are counted in whatever size the owner of the map chooses; for swap they are of 4 KiB, which
//! makes an area up to 16 TiB and a backing up to 4 PiB.
//!
//! **Concurrency.** A map never changes once it is made: any number of threads look up at once, without a lock and
//! without writing anything, so no cache line moves between processors. An area that changes gets a new map
//! (`Extents::new(old.iter().chain(...))`); how that is published, and when the old one is dropped, is up to its
//! owner. A look-up does not allocate.
//!
//! **Structure.** Entries of 10 bytes, in order: the first page (4 bytes) and the place (5 bytes of page, 1 of backing).
//! An entry ends where the next begins; gaps are entries too. Over them lies a directory: the area is cut into half as many
//! buckets of equal size as there are entries, and for each the last entry that begins before it is known (4 bytes). A look-up multiplies
//! the page by a constant (its bucket), reads the directory, and counts which of the next four entries begin no later;
//! if all do (a bucket with many small extents), it searches the rest of the bucket by halves. That is 12 bytes
//! an extent, two or three cache lines a look-up, no branch that is hard to foresee, O(1) for extents spread evenly
//! or at random (of exponential sizes, 4 look-ups in 100 go on to the search), and O(log n) at worst.
//!
//! Bucketing by a linear function of the key is that of distribution counting and address-calculation
//! search (Knuth, The Art of Computer Programming 3, 5.2 and 6.2.1); counting the smaller keys of a short block
//! without a branch is that of Khuong and Morin, "Array Layouts for Comparison-Based Searching" (2017), and of Slotin's static
//! B-trees (Algorithmica, "S-tree", 2022). Those two were measured too, of 84,656 extents with exponentially distributed sizes, on
//! one thread of an EPYC with 1 MiB of second-level cache; nanoseconds a look-up at a random page, each waiting for the one before / one after the other:
//!
//! | structure | waiting | in a row | bytes an extent |
//! | --- | --- | --- | --- |
//! | an index into an array of 8 bytes (no search at all) | 7.3 | 0.8 | 8 |
//! | this, 4 entries at once, 2 extents a bucket | 20 | 6.4 | 12 |
//! | the same, 1 extent a bucket | 23 | 6.7 | 14 |
//! | the same, begins and places in two arrays, 8 begins at once | 32 | 9 | 14 |
//! | the same, a loop that ends at the first larger key | 23 | 13 | 12 |
//! | interpolation, then linear | 53 | 41 | 12 |
//! | binary search | 65 | 27 | 12 |
//! | static B-tree, 16 wide | 75 | 35 | 12.3 |
//! | Eytzinger layout | 90 | 44 | 20 |
//! | `BTreeMap::range` | 87 | 82 | not measured |

#[cfg(test)]
mod tests;

/// Entries compared at once.
const WINDOW: usize = 4;
/// Bytes of an entry.
const ENTRY: usize = 10;
/// The place of a gap. No extent ends there: see [`PLACE_PAGES`].
const NOWHERE: u64 = (1 << 48) - 1;
/// Extents must end at or before this page of their backing.
const PLACE_PAGES: u64 = (1 << 40) - 1;

/// A page of a backing (a file, a device).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which backing, by a number that the owner of the map gave it.
    pub backing: u8,
    /// Which page of it.
    pub page: u64,
}

/// Pages of an area that follow each other on a backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First page in the area.
    pub first: u32,
    /// How many.
    pub pages: u32,
    /// Where the first lies.
    pub place: Place,
}

/// A part of a range: pages that follow each other on a backing, or that lie nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// First page in the area.
    pub first: u32,
    /// How many.
    pub pages: u32,
    /// Where the first lies; `None`: a gap.
    pub place: Option<Place>,
}

/// Why no map could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The extent at this page begins before the end of the one before.
    Order(u32),
    /// The extent at this page ends beyond page 2^32 - 1 of the area, or 2^40 - 1 of its backing.
    Range(u32),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Order(page) => write!(f, "the extent at page {page} overlaps another"),
            Refused::Range(page) => write!(f, "the extent at page {page} ends too far out"),
        }
    }
}

impl std::error::Error for Refused {}

/// The map; see the head of this file.
pub struct Extents {
    /// In order; after the last comes one that begins at `end`, and padding that begins beyond any page.
    entries: Box<[[u8; ENTRY]]>,
    /// For each bucket, and one more, the last entry that begins in an earlier one (the first entry, if none does).
    directory: Box<[u32]>,
    /// Buckets a page, times 2^32, rounded down.
    scale: u64,
    /// Where the last extent ends.
    end: u32,
    /// Entries that are extents, not gaps.
    extents: u32,
}

fn entry(first: u32, place: u64) -> [u8; ENTRY] {
    let mut e = [0; ENTRY];
    e[..4].copy_from_slice(&first.to_le_bytes());
    e[4..].copy_from_slice(&place.to_le_bytes()[..ENTRY - 4]);
    e
}

fn first_of(e: &[u8; ENTRY]) -> u32 {
    u32::from_le_bytes([e[0], e[1], e[2], e[3]])
}

fn place_of(e: &[u8; ENTRY]) -> u64 {
    u64::from_le_bytes([e[4], e[5], e[6], e[7], e[8], e[9], 0, 0])
}

impl Place {
    fn pack(self) -> u64 {
        u64::from(self.backing) << 40 | self.page
    }

    /// The place `skip` pages after one packed; `None` in a gap.
    fn unpack(packed: u64, skip: u32) -> Option<Place> {
        (packed != NOWHERE).then_some(Place {
            backing: (packed >> 40) as u8,
            page: (packed & ((1 << 40) - 1)) + u64::from(skip),
        })
    }
}

impl Extents {
    /// A map of these extents, which must come in order. Those that continue each other are merged, empty ones left out.
    ///
    /// # Errors
    /// Overlapping extents, and those that end too far out (see [`Refused`]).
    pub fn new(extents: impl IntoIterator<Item = Extent>) -> Result<Extents, Refused> {
        let mut entries: Vec<[u8; ENTRY]> = Vec::new();
        let (mut end, mut next_place, mut count) = (0, NOWHERE, 0);
        for e in extents {
            let refused = Refused::Range(e.first);
            let e_end = e.first.checked_add(e.pages).ok_or(refused)?;
            let last = e.place.page.checked_add(u64::from(e.pages));
            if last.is_none_or(|l| l > PLACE_PAGES) {
                return Err(refused);
            }
            if e.first < end {
                return Err(Refused::Order(e.first));
            }
            if e.pages == 0 {
                continue;
            }
            if e.first > end {
                entries.push(entry(end, NOWHERE));
            }
            // After a gap too: what lies in between belongs to nobody.
            if e.first > end || e.place.pack() != next_place {
                entries.push(entry(e.first, e.place.pack()));
                count += 1;
            }
            end = e_end;
            next_place = e.place.pack() + u64::from(e.pages);
        }
        Ok(Extents::index(entries, end, count))
    }

    /// Builds the directory over the entries of a map.
    fn index(mut entries: Vec<[u8; ENTRY]>, end: u32, extents: u32) -> Extents {
        let n = entries.len();
        let buckets = (n / 2).max(1);
        // Rounded down, so that page `end - 1` is in the last bucket at most.
        let scale = ((buckets as u64) << 32) / u64::from(end.max(1));
        let mut directory = Vec::with_capacity(buckets + 1);
        let mut before = 0;
        for bucket in 0..=buckets as u64 {
            while before < n && (u64::from(first_of(&entries[before])) * scale) >> 32 < bucket {
                before += 1;
            }
            directory.push(before.saturating_sub(1) as u32);
        }
        entries.reserve_exact(1 + WINDOW);
        entries.push(entry(end, NOWHERE));
        entries.extend([entry(u32::MAX, NOWHERE); WINDOW]);
        Extents {
            entries: entries.into(),
            directory: directory.into(),
            scale,
            end,
            extents,
        }
    }

    /// The entry that a page before `end` is in.
    #[inline]
    fn find(&self, page: u32) -> usize {
        let bucket = ((u64::from(page) * self.scale) >> 32) as usize;
        let low = self.directory[bucket] as usize;
        // The entry at `low` begins at or before the page.
        let window = &self.entries[low + 1..low + 1 + WINDOW];
        let mut not_after = 0;
        for e in window {
            not_after += usize::from(first_of(e) <= page);
        }
        if not_after < WINDOW {
            low + not_after
        } else {
            self.search(low + WINDOW, bucket, page)
        }
    }

    /// The same in a crowded bucket; the entry at `low` begins at or before the page.
    #[cold]
    fn search(&self, low: usize, bucket: usize, page: u32) -> usize {
        let high = (self.directory[bucket + 1] as usize).max(low);
        let rest = &self.entries[low + 1..=high];
        low + rest.partition_point(|e| first_of(e) <= page)
    }

    /// Where a page lies, and how many follow it there: to the end of its extent, or of the gap it is in.
    #[inline]
    pub fn look_up(&self, page: u32) -> Run {
        if page >= self.end {
            return Run {
                first: page,
                pages: u32::MAX - page,
                place: None,
            };
        }
        self.from(self.find(page), page)
    }

    /// What of entry `i` begins at `page`, which is in it.
    #[inline]
    fn from(&self, i: usize, page: u32) -> Run {
        let pair = &self.entries[i..i + 2];
        Run {
            first: page,
            pages: first_of(&pair[1]) - page,
            place: Place::unpack(place_of(&pair[0]), page - first_of(&pair[0])),
        }
    }

    /// The runs that `pages` pages from `first` on consist of, in order, gaps among them: what a transfer is to
    /// be split into. One look-up; the rest are neighbours.
    pub fn runs(&self, first: u32, pages: u32) -> impl Iterator<Item = Run> + '_ {
        let stop = first.saturating_add(pages);
        let mut at = first;
        let mut i = if first < self.end {
            self.find(first)
        } else {
            self.entries.len() - 1 - WINDOW
        };
        std::iter::from_fn(move || {
            if at >= stop {
                return None;
            }
            let mut run = self.from(i, at);
            run.pages = run.pages.min(stop - at);
            at += run.pages;
            i += 1;
            Some(run)
        })
    }

    /// All extents, merged, in order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let runs = self.runs(0, self.end);
        runs.filter_map(|r| {
            Some(Extent {
                first: r.first,
                pages: r.pages,
                place: r.place?,
            })
        })
    }

    /// Extents, merged.
    pub fn len(&self) -> usize {
        self.extents as usize
    }

    /// No page lies anywhere?
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// The page after the last that lies somewhere.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Bytes of memory that the map takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.directory) + size_of::<Extents>()
    }
}
