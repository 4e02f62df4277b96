//! Where a page of a swap area lies: an ordered map from pages of the area to pages of a backing.
//!
//! A swap file is seldom in one piece on its device, and an area may lie on several devices.
//! [`Extents`] holds the pieces (extents), merged where they continue each other. For any page it
//! returns the extent that the page is in and how much of that follows. The caller chooses the size
//! of a page; at 4 KiB an area has up to 16 TiB and a backing up to 4 PiB.
//!
//! **Concurrency.** A map never changes once it is made. Any number of threads look up at once,
//! without a lock and without writing anything, so no cache line moves between processors. An area
//! that changes gets a new map (`Extents::new(old.iter().chain(...))`); its owner publishes that
//! and drops the old one. A look-up does not allocate.
//!
//! **Structure.** The entries have 10 bytes, in ascending order: the first page (4 bytes) and the
//! place (5 bytes of page, 1 of backing). An entry ends where the next begins; gaps are entries
//! too. Over the entries there is a directory: the area is divided into half as many buckets of
//! equal size as there are entries, and for each bucket the directory has the last entry that
//! begins before it (4 bytes). A look-up multiplies the page by a constant, which gives its bucket,
//! reads the directory, and counts which of the next four entries begin no later. If all four do (a
//! bucket with many small extents), it searches the rest of the bucket by halves. The cost is 12
//! bytes an extent, two or three cache lines a look-up and no branch that is hard to predict: O(1)
//! for extents spread evenly or at random (with exponential sizes, 4 look-ups in 100 go on to the
//! search), and O(log n) at worst.
//!
//! Bucketing by a linear function of the key is that of distribution counting and
//! address-calculation search (Knuth, The Art of Computer Programming 3, 5.2 and 6.2.1). Counting
//! the smaller keys of a short block without a branch is that of Khuong and Morin, "Array Layouts
//! for Comparison-Based Searching" (2017), and of Slotin's static B-trees (Algorithmica, "S-tree",
//! 2022). Those two were measured too, with 84,656 extents of exponentially distributed sizes, on
//! one thread of an EPYC with 1 MiB of second-level cache, in nanoseconds a look-up of a random
//! page, each waiting for the one before ("waiting") or not ("in a row"):
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

/// Number of entries compared at once.
const WINDOW: usize = 4;
/// Size of an entry in bytes.
const ENTRY: usize = 10;
/// The place of a gap. No extent ends there: see [`PLACE_PAGES`].
const NOWHERE: u64 = (1 << 48) - 1;
/// Extents must end at or before this page of their backing.
const PLACE_PAGES: u64 = (1 << 40) - 1;

/// A page of a backing (a file, a device).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Number of the backing, chosen by the owner of the map.
    pub backing: u8,
    /// Page of the backing.
    pub page: u64,
}

/// Pages of an area that follow each other on a backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First page in the area.
    pub first: u32,
    /// Number of pages.
    pub pages: u32,
    /// Place of the first page.
    pub place: Place,
}

/// A part of a range: pages that follow each other on a backing, or a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// First page in the area.
    pub first: u32,
    /// Number of pages.
    pub pages: u32,
    /// Place of the first page, or `None` for a gap.
    pub place: Option<Place>,
}

/// Why a map could not be made.
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

/// An ordered map from pages to places, made once and never changed. See the module for its
/// structure.
pub struct Extents {
    /// In ascending order; after the last comes one that begins at `end`, and padding that begins
    /// beyond any page.
    entries: Box<[[u8; ENTRY]]>,
    /// For each bucket, and one more, the last entry that begins in an earlier one (the first
    /// entry, if none does).
    directory: Box<[u32]>,
    /// Buckets a page, times 2^32, rounded down.
    scale: u64,
    /// Page after the last extent.
    end: u32,
    /// Number of entries that are extents, not gaps.
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

    /// The place `skip` pages after a packed one; `None` in a gap.
    fn unpack(packed: u64, skip: u32) -> Option<Place> {
        (packed != NOWHERE).then_some(Place {
            backing: (packed >> 40) as u8,
            page: (packed & ((1 << 40) - 1)) + u64::from(skip),
        })
    }
}

impl Extents {
    /// Makes a map of `extents`, which must be in ascending order. Extents that continue each other
    /// are merged, and empty ones left out.
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
            // An extent after a gap is never merged with the one before the gap.
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

    /// The entry that contains a page before `end`.
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

    /// [`Extents::find`] in a crowded bucket; the entry at `low` begins at or before the page.
    #[cold]
    fn search(&self, low: usize, bucket: usize, page: u32) -> usize {
        let high = (self.directory[bucket + 1] as usize).max(low);
        let rest = &self.entries[low + 1..=high];
        low + rest.partition_point(|e| first_of(e) <= page)
    }

    /// The place of a page, and how many pages follow it there, to the end of its extent or gap. No
    /// lock, no allocation.
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

    /// The part of entry `i` from `page` on, which is in it.
    #[inline]
    fn from(&self, i: usize, page: u32) -> Run {
        let pair = &self.entries[i..i + 2];
        Run {
            first: page,
            pages: first_of(&pair[1]) - page,
            place: Place::unpack(place_of(&pair[0]), page - first_of(&pair[0])),
        }
    }

    /// The runs, gaps among them, that `pages` pages from `first` on consist of, in ascending
    /// order: the parts that a transfer is split into. Costs one look-up; the other runs are
    /// neighbours.
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

    /// All extents, merged, in ascending order.
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

    /// Number of extents, merged.
    pub fn len(&self) -> usize {
        self.extents as usize
    }

    /// True if no page has a place.
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// The page after the last extent.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Bytes of memory that the map occupies.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.directory) + size_of::<Extents>()
    }
}
