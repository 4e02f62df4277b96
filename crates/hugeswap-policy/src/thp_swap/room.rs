//! How much more several swap areas can hold, where some of them grow on the same disk.

/// The space of one swap area, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// Number of the disk that the area grows on; areas of one disk have the same number.
    pub disk: u64,
    /// Free space of that disk, as far as is known.
    pub free: u64,
    /// Room that the area has without growing.
    pub has: u64,
    /// Room that it would have to grow for.
    pub more: u64,
}

/// The room of all areas together: free space of a disk is counted once, whatever number of areas
/// grow there. Does not allocate.
pub fn room(areas: impl Iterator<Item = OnDisk> + Clone) -> u64 {
    let of_one = |(i, a): (usize, OnDisk)| {
        let counted = areas.clone().take(i).any(|b| b.disk == a.disk);
        let there = areas.clone().filter(|b| b.disk == a.disk);
        let more = match counted {
            true => 0,
            false => there.map(|b| b.more).fold(0, u64::saturating_add),
        };
        a.has.saturating_add(more.min(a.free))
    };
    let all = areas.clone().enumerate().map(of_one);
    all.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn area(disk: u64, free: u64, has: u64, more: u64) -> OnDisk {
        OnDisk {
            disk,
            free,
            has,
            more,
        }
    }

    #[test]
    fn a_disk_is_counted_once() {
        let of = |areas: &[OnDisk]| room(areas.iter().copied());
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[area(7, 100, 30, 60)]), 90);
        assert_eq!(of(&[area(7, 100, 30, 600)]), 130);
        let two = [area(7, 100, 30, 80), area(7, 100, 20, 90)];
        assert_eq!(of(&two), 150);
        let apart = [
            area(7, 100, 30, 80),
            area(8, 50, 20, 90),
            area(7, 100, 0, 9),
        ];
        assert_eq!(of(&apart), 30 + 89 + 20 + 50);
        let vast = area(1, u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(of(&[vast, vast]), u64::MAX);
    }

    proptest! {
        #[test]
        fn never_more_than_there_is(areas in prop::collection::vec((0..4u64, 0..100u64, 0..100u64), 0..12)) {
            let free = |disk: u64| disk * 37 + 5;
            let all: Vec<_> = areas.iter().map(|&(d, has, more)| area(d, free(d), has, more)).collect();
            let found = room(all.iter().copied());
            let has: u64 = all.iter().map(|a| a.has).sum();
            let grows: u64 = (0..4)
                .map(|d| {
                    let more: u64 = all.iter().filter(|a| a.disk == d).map(|a| a.more).sum();
                    more.min(free(d))
                })
                .sum();
            prop_assert_eq!(found, has + grows);
            // The order makes no difference.
            prop_assert_eq!(room(all.iter().rev().copied()), found);
        }
    }
}
