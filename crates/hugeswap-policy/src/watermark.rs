//! When reclaim starts and stops: the kernel's min, low and high, in units.
//!
//! "Available" is what a fault can have at once: free frames and watched clean
//! units. Below `low` kswapd wakes and works up to `high`; at 0 a faulting
//! thread waits (a stall).

/// The marks of one process, in units of 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// kswapd wakes below this.
    pub low: u64,
    /// kswapd stops here.
    pub high: u64,
}

impl Watermarks {
    /// Marks for a budget of `frames` units: low 1/16 and high 1/8 of it, so that write-behind and
    /// readahead always have room, capped so that a large budget is not left idle.
    pub fn for_budget(frames: u64) -> Watermarks {
        // Of very little most must be for use: an access may need two units at once.
        let high = (frames / 8).max((frames / 4).min(3)).clamp(1, 64);
        let low = (high / 2).max(1);
        Watermarks { low, high }
    }

    /// The same where hardly anything but base pages is asked for: those are made available as fast as they are used, and what
    /// is kept free of them is lost to the program (a whole unit that is watched is not).
    pub fn for_pages(frames: u64) -> Watermarks {
        let high = Watermarks::for_budget(frames).high.min(8);
        Watermarks {
            low: (high / 2).max(1),
            high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_and_below_the_budget() {
        for frames in 1..5000 {
            for w in [
                Watermarks::for_budget(frames),
                Watermarks::for_pages(frames),
            ] {
                assert!(w.low >= 1 && w.low <= w.high);
                assert!(w.high <= frames);
                assert!(frames < 3 || frames - w.high >= 2);
            }
        }
    }
}
