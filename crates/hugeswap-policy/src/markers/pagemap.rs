//! What can be said of a page: in the kernel's 64-bit format of /proc/PID/pagemap, by categories
//! like those of PAGEMAP_SCAN, and by filters over these.
//!
//! ```text
//!  63        62        61             58      57                56                 55           5-54          0-4
//! | present | swapped | file, shared | guard | write-protected | mapped only here | soft-dirty | swap offset | swap area |
//! ```
//!
//! Where writes are tracked, a page that was written since the epoch began is soft-dirty; the
//! others are write-protected, also in swap. The swap offset is in pages of the area. An offset of
//! 50 ones is a page that is lost or poisoned. A guard is swapped, at no place. Frame numbers are
//! not given. A page that was never written, or was discarded, is 0.

use std::ops::{BitAnd, BitOr, BitOrAssign};

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE: u64 = 1 << 61;
const GUARD: u64 = 1 << 58;
const PROTECTED: u64 = 1 << 57;
const EXCLUSIVE: u64 = 1 << 56;
const SOFT_DIRTY: u64 = 1 << 55;
const OFFSET: u32 = 5;
const OFFSET_MAX: u64 = (1 << 50) - 1;
/// The offset of a page that is in swap, at a place that is not known at the moment.
const UNPLACED: u64 = OFFSET_MAX - 1;
const AREA: u64 = 0x1f;

/// A set of categories that a page is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Categories(u32);

macro_rules! categories {
    ($($name:ident = $bit:expr, $word:literal, $doc:literal;)*) => {
        impl Categories {
            $(#[doc = $doc] pub const $name: Categories = Categories(1 << $bit);)*
            /// Every category, with a word for it.
            pub const WORDS: &'static [(Categories, &'static str)] = &[$((Categories::$name, $word),)*];
        }
    };
}

// The numbers of the first are the kernel's (PAGE_IS_*).
categories! {
    TRACKED = 0, "tracked", "Its writes are tracked.";
    WRITTEN = 1, "written", "Tracked, and written since the last epoch began.";
    FILE = 2, "file", "Of a mapped file.";
    PRESENT = 3, "present", "In memory, where the program sees it.";
    SWAPPED = 4, "swapped", "In swap only, or there and in the swap cache; of a file: in the file.";
    ZERO = 5, "zero", "Reads as zeros: neither memory nor swap is taken.";
    HUGE = 6, "huge", "Part of a unit of 2 MiB that comes and goes in one piece.";
    GUARD = 8, "guard", "A guard: touching it is SIGSEGV.";
    POISONED = 16, "poisoned", "Lost: touching it is SIGBUS.";
    IN_TRANSIT = 17, "in-transit", "Just coming, going or being changed; what else is said was true before.";
    DIRTY = 18, "dirty", "In memory, and not the same in swap, as far as is known.";
    WRITEBACK = 19, "writeback", "Being written to swap.";
    PINNED = 20, "pinned", "Held in memory for a system call.";
    SHARED = 21, "shared", "In memory that a forked relative shares.";
    CACHED = 22, "cached", "In the swap cache: in memory, where the program does not see it yet.";
    IDLE = 23, "idle", "Present, and watched: nobody has touched it since reclaim last looked.";
    FOREIGN = 24, "foreign", "The kernel's business, for good.";
}

impl Categories {
    /// No category.
    pub const NONE: Categories = Categories(0);
    /// All categories.
    pub const ALL: Categories = Categories(u32::MAX);

    /// True if all of `other` are in the set.
    pub const fn has(self, other: Categories) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if any of `other` is in the set.
    pub const fn meets(self, other: Categories) -> bool {
        self.0 & other.0 != 0
    }

    /// The set, and if `yes` also the other one.
    #[must_use]
    pub const fn and_if(self, yes: bool, other: Categories) -> Categories {
        if yes {
            Categories(self.0 | other.0)
        } else {
            self
        }
    }

    /// The set as a number.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set of a number; bits without a category are dropped.
    pub fn from_bits(bits: u32) -> Categories {
        let known = Categories::WORDS.iter().fold(0, |all, (c, _)| all | c.0);
        Categories(bits & known)
    }

    /// The category of a word, or `None` if no category has that name.
    pub fn of_word(word: &str) -> Option<Categories> {
        let mut all = Categories::WORDS.iter();
        all.find(|(_, w)| *w == word).map(|(c, _)| *c)
    }

    /// The words of the categories.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let all = Categories::WORDS.iter();
        all.filter(move |(c, _)| self.has(*c)).map(|(_, w)| *w)
    }
}

impl BitOr for Categories {
    type Output = Categories;
    fn bitor(self, other: Categories) -> Categories {
        Categories(self.0 | other.0)
    }
}

impl BitOrAssign for Categories {
    fn bitor_assign(&mut self, other: Categories) {
        self.0 |= other.0;
    }
}

impl BitAnd for Categories {
    type Output = Categories;
    fn bitand(self, other: Categories) -> Categories {
        Categories(self.0 & other.0)
    }
}

/// Where in swap a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapPlace {
    /// Number of the area.
    pub area: u8,
    /// Page of the area.
    pub page: u64,
}

/// The state of neighbouring pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Categories of each of them.
    pub categories: Categories,
    /// Place of the first in swap; the others follow it.
    pub swap: Option<SwapPlace>,
}

/// A state that cannot be: categories that contradict each other or the place, or a marker of
/// private memory on a page of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction(pub State);

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<_> = self.0.categories.words().collect();
        write!(f, "a page cannot be all of {}", words.join(", "))?;
        match self.0.swap {
            Some(_) => write!(f, ", with a place in swap"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Contradiction {}

impl State {
    /// Ok if a page can be all of that. A state that another process reports must pass this before
    /// it is believed.
    pub fn check(self) -> Result<(), Contradiction> {
        let c = self.categories;
        let (present, swapped) = (c.has(Categories::PRESENT), c.has(Categories::SWAPPED));
        let guard = c.has(Categories::GUARD);
        let one_of = [
            present,
            swapped,
            c.has(Categories::ZERO),
            c.has(Categories::POISONED),
            guard,
        ];
        let ways = one_of.iter().filter(|w| **w).count();
        // The state of memory that the kernel owns may be unknown.
        let known = ways == 1 || ways == 0 && c.has(Categories::FOREIGN);
        let of_memory = Categories::DIRTY
            | Categories::WRITEBACK
            | Categories::PINNED
            | Categories::IDLE
            | Categories::SHARED;
        let right = known
            && (present || !c.meets(of_memory))
            && (!present || !c.has(Categories::CACHED))
            && (!guard || !c.meets(Categories::FILE | Categories::HUGE | Categories::CACHED))
            && (c.has(Categories::TRACKED) || !c.has(Categories::WRITTEN))
            && (swapped || self.swap.is_none())
            && self
                .swap
                .is_none_or(|s| u64::from(s.area) <= AREA && s.page < OFFSET_MAX);
        match right {
            true => Ok(()),
            false => Err(Contradiction(self)),
        }
    }

    /// The state of the page `n` after the first.
    #[must_use]
    pub fn nth(self, n: u64) -> State {
        let swap = self.swap.map(|s| SwapPlace {
            page: s.page + n,
            ..s
        });
        State { swap, ..self }
    }

    /// The state as an entry in the kernel's format.
    pub fn entry(self) -> u64 {
        let c = self.categories;
        let writes = match c.has(Categories::TRACKED) {
            false => 0,
            true if c.has(Categories::WRITTEN) => SOFT_DIRTY,
            true => PROTECTED,
        };
        writes | self.entry_without_writes()
    }

    fn entry_without_writes(self) -> u64 {
        let c = self.categories;
        let file = if c.has(Categories::FILE) { FILE } else { 0 };
        if c.has(Categories::GUARD) {
            return SWAPPED | GUARD;
        }
        if c.has(Categories::POISONED) {
            return SWAPPED | OFFSET_MAX << OFFSET | file;
        }
        if c.has(Categories::PRESENT) {
            let exclusive = !c.meets(Categories::SHARED | Categories::FILE);
            return PRESENT | file | if exclusive { EXCLUSIVE } else { 0 };
        }
        match self.swap {
            Some(s) => SWAPPED | s.page.min(UNPLACED) << OFFSET | u64::from(s.area) & AREA | file,
            None if c.has(Categories::SWAPPED) && file == 0 => SWAPPED | UNPLACED << OFFSET,
            None => file,
        }
    }

    /// The state of an entry in the kernel's format, or `None` if [`State::entry`] returns no such
    /// entry.
    pub fn of_entry(entry: u64) -> Option<State> {
        let writes = match (entry & PROTECTED != 0, entry & SOFT_DIRTY != 0) {
            (false, false) => Categories::NONE,
            (true, false) => Categories::TRACKED,
            (false, true) => Categories::TRACKED | Categories::WRITTEN,
            (true, true) => return None,
        };
        let entry = entry & !(PROTECTED | SOFT_DIRTY);
        if entry & GUARD != 0 {
            return (entry == SWAPPED | GUARD).then_some(State {
                categories: writes | Categories::GUARD,
                swap: None,
            });
        }
        let known = PRESENT | SWAPPED | FILE | EXCLUSIVE | OFFSET_MAX << OFFSET | AREA;
        if entry & !known != 0 || entry & PRESENT != 0 && entry & SWAPPED != 0 {
            return None;
        }
        let base = writes.and_if(entry & FILE != 0, Categories::FILE);
        let (page, area) = (entry >> OFFSET & OFFSET_MAX, (entry & AREA) as u8);
        if entry & PRESENT != 0 {
            let exclusive = entry & EXCLUSIVE != 0;
            if page != 0 || area != 0 || exclusive && entry & FILE != 0 {
                return None;
            }
            let shared = !exclusive && entry & FILE == 0;
            let categories = (base | Categories::PRESENT).and_if(shared, Categories::SHARED);
            return Some(State {
                categories,
                swap: None,
            });
        }
        if entry & EXCLUSIVE != 0 {
            return None;
        }
        if entry & SWAPPED == 0 {
            // The offset of a page of a file is one in the file.
            let away = if entry & FILE != 0 {
                Categories::SWAPPED
            } else {
                Categories::ZERO
            };
            return (page == 0 && area == 0).then_some(State {
                categories: base | away,
                swap: None,
            });
        }
        if page == OFFSET_MAX {
            let categories = base | Categories::POISONED;
            return (area == 0).then_some(State {
                categories,
                swap: None,
            });
        }
        let unplaced = page == UNPLACED && area == 0 && entry & FILE == 0;
        Some(State {
            categories: base | Categories::SWAPPED,
            swap: (!unplaced).then_some(SwapPlace { area, page }),
        })
    }
}

/// The pages that a scan looks for, in the manner of PAGEMAP_SCAN: after the categories in
/// `inverted` are turned round, a page must have all of `all` and, if `any` is not empty, at least
/// one of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Categories that count as their opposite.
    pub inverted: Categories,
    /// A page must have all of these.
    pub all: Categories,
    /// A page must have one of these, if there are any.
    pub any: Categories,
    /// The categories that are reported; neighbours with the same ones make one range.
    pub told: Categories,
}

impl Default for Filter {
    /// Every page, with all its categories.
    fn default() -> Filter {
        Filter {
            inverted: Categories::NONE,
            all: Categories::NONE,
            any: Categories::NONE,
            told: Categories::ALL,
        }
    }
}

impl Filter {
    /// True if a page of these categories passes.
    pub const fn takes(&self, categories: Categories) -> bool {
        let seen = Categories(categories.0 ^ self.inverted.0);
        seen.has(self.all) && (self.any.0 == 0 || seen.meets(self.any))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_the_kernels() {
        for (category, bit) in [
            (Categories::TRACKED, 0),
            (Categories::WRITTEN, 1),
            (Categories::FILE, 2),
            (Categories::PRESENT, 3),
            (Categories::SWAPPED, 4),
            (Categories::HUGE, 6),
            (Categories::GUARD, 8),
        ] {
            assert_eq!(category.bits(), 1 << bit);
        }
        let place = SwapPlace {
            area: 3,
            page: 0x1234,
        };
        let swapped = State {
            categories: Categories::SWAPPED,
            swap: Some(place),
        };
        assert_eq!(swapped.entry(), 1 << 62 | 0x1234 << 5 | 3);
        assert_eq!(swapped.nth(7).entry(), 1 << 62 | 0x123b << 5 | 3);
        let present = State {
            categories: Categories::PRESENT | Categories::HUGE,
            swap: None,
        };
        assert_eq!(present.entry(), 1 << 63 | 1 << 56);
        assert_eq!(State::default().entry(), 0);
        let guard = State {
            categories: Categories::GUARD,
            swap: None,
        };
        assert_eq!(guard.entry(), 1 << 62 | 1 << 58);
        let with = |more| State {
            categories: Categories::PRESENT | more,
            swap: None,
        };
        let tracked = with(Categories::TRACKED);
        assert_eq!(tracked.entry(), 1 << 63 | 1 << 57 | 1 << 56);
        let written = with(Categories::TRACKED | Categories::WRITTEN);
        assert_eq!(written.entry(), 1 << 63 | 1 << 56 | 1 << 55);
    }

    #[test]
    fn words_and_categories_are_the_same() {
        let words: std::collections::BTreeSet<_> =
            Categories::WORDS.iter().map(|(_, w)| *w).collect();
        assert_eq!(words.len(), Categories::WORDS.len());
        for (category, word) in Categories::WORDS {
            assert_eq!(Categories::of_word(word), Some(*category));
            assert_eq!(category.words().collect::<Vec<_>>(), [*word]);
            assert_eq!(Categories::from_bits(category.bits()), *category);
        }
        assert_eq!(Categories::of_word("nothing"), None);
        assert_eq!(Categories::from_bits(1 << 9), Categories::NONE);
    }

    #[test]
    fn filters_take_what_they_say() {
        let huge = Categories::PRESENT | Categories::HUGE;
        let mut f = Filter::default();
        assert!(f.takes(Categories::NONE) && f.takes(huge));
        f.all = Categories::PRESENT;
        assert!(f.takes(huge) && !f.takes(Categories::SWAPPED));
        f.any = Categories::DIRTY | Categories::PINNED;
        assert!(!f.takes(huge) && f.takes(huge | Categories::PINNED));
        // Present and not huge.
        let small = Filter {
            inverted: Categories::HUGE,
            all: huge,
            ..Filter::default()
        };
        assert!(!small.takes(huge) && small.takes(Categories::PRESENT));
    }

    #[test]
    fn what_is_on_its_way_to_swap_is_somewhere() {
        let state = State {
            categories: Categories::SWAPPED,
            swap: None,
        };
        assert_eq!(state.entry() & (PRESENT | SWAPPED), SWAPPED);
        assert_eq!(State::of_entry(state.entry()), Some(state));
    }

    proptest! {
        #[test]
        fn an_unknown_entry_is_an_error_and_not_a_guess(entry in any::<u64>()) {
            if let Some(state) = State::of_entry(entry) {
                prop_assert_eq!(state.entry(), entry);
            }
        }

        #[test]
        fn entries_tell_what_they_can(bits in any::<u32>(), area in 0u8..32, page in 0u64..UNPLACED) {
            let categories = Categories::from_bits(bits);
            let swap = categories.has(Categories::SWAPPED).then_some(SwapPlace { area, page });
            let state = State { categories, swap };
            let told = State::of_entry(state.entry());
            let told = told.unwrap_or_else(|| panic!("{state:?}"));
            prop_assert_eq!(told.check(), Ok(()));
            prop_assert_eq!(told.categories.has(Categories::TRACKED), categories.has(Categories::TRACKED));
            if state.check().is_ok() {
                for c in [Categories::FILE, Categories::POISONED, Categories::GUARD, Categories::PRESENT] {
                    prop_assert_eq!(told.categories.has(c), categories.has(c));
                }
            }
        }

        #[test]
        fn what_cannot_be_is_refused(which in 0usize..Categories::WORDS.len(), page in 0u64..OFFSET_MAX) {
            let swap = Some(SwapPlace { area: 1, page });
            let one = Categories::WORDS[which].0;
            let two = State { categories: Categories::GUARD | one, swap: None };
            let alone = Categories::TRACKED | Categories::FOREIGN | Categories::IN_TRANSIT | Categories::GUARD;
            prop_assert_eq!(two.check().is_ok(), alone.has(one), "{:?}", two);
            let placed = State { categories: one, swap };
            prop_assert_eq!(placed.check().is_ok(), one == Categories::SWAPPED, "{:?}", placed);
        }
    }
}
