//! Compressed memory within the limit of a cgroup: the kernel does not count what a zram device takes
//! to anybody, nor what zswap does where cgroups are of version 1, so the limit is made smaller by it
//! all the time.

use super::keeper::Hierarchy;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often the device is asked.
const EVERY: Duration = Duration::from_millis(10);
/// The smallest limit: with less not even a program's code stays.
const LEAST: u64 = 4 << 20;

/// What compresses, and tells how much memory it takes.
pub struct Taker {
    stat: PathBuf,
    taken: fn(&str) -> u64,
}

impl Taker {
    /// The zram device `area`.
    pub fn zram(area: &Path) -> Taker {
        let name = area.file_name().unwrap_or_default();
        Taker {
            stat: Path::new("/sys/block").join(name).join("mm_stat"),
            taken: of_zram,
        }
    }

    /// zswap, of all programs.
    pub fn zswap() -> Taker {
        Taker {
            stat: PathBuf::from("/proc/meminfo"),
            taken: of_zswap,
        }
    }
}

/// Does `work` while the limit of `cgroup` is `memory` bytes less what `taker` takes. It is `memory`
/// again afterwards.
pub fn limited<T>(taker: &Taker, cgroup: &Path, memory: u64, work: impl FnOnce() -> T) -> T {
    limited_by(taker, &Hierarchy::limit_of(cgroup), memory, work)
}

/// [`limited`], of the cgroup's file with its limit.
fn limited_by<T>(taker: &Taker, limit: &Path, memory: u64, work: impl FnOnce() -> T) -> T {
    let Taker { stat, taken } = taker;
    let over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut before = 0;
            while !over.load(Relaxed) {
                let taken = std::fs::read_to_string(stat).map_or(before, |t| taken(&t));
                // (While nothing can be brought out the limit cannot become smaller; the next time
                // perhaps.)
                let left = memory.saturating_sub(taken).max(LEAST);
                if taken == before || std::fs::write(limit, left.to_string()).is_ok() {
                    before = taken;
                }
                std::thread::sleep(EVERY);
            }
        });
        let done = work();
        over.store(true, Relaxed);
        done
    });
    // (For the next run, which begins with nothing compressed.)
    let _ = std::fs::write(limit, memory.to_string());
    done
}

/// Bytes of memory that a zram device takes, by its `mm_stat`.
fn of_zram(stat: &str) -> u64 {
    let mut words = stat.split_whitespace();
    words.nth(2).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Bytes of memory that zswap takes, by `/proc/meminfo`, which counts KiB.
fn of_zswap(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("Zswap:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_number_is_what_it_takes() {
        let line =
            "  104857600 31457280 33554432        0 34603008      128        0        0        0\n";
        assert_eq!(of_zram(line), 33_554_432);
        assert_eq!(of_zram(""), 0);
    }

    #[test]
    fn zswap_takes_what_meminfo_says() {
        let text = "MemTotal:       24000000 kB\nZswap:              2048 kB\nZswapped:           8192 kB\n";
        assert_eq!(of_zswap(text), 2 << 20);
        assert_eq!(of_zswap("MemTotal: 1 kB\n"), 0);
    }

    #[test]
    fn the_limit_is_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let [stat, limit] = ["mm_stat", "memory.max"].map(|name| dir.path().join(name));
        let mib = |n: u64| (n << 20).to_string();
        std::fs::write(&limit, mib(64)).unwrap();
        let becomes = |left: u64| {
            while std::fs::read_to_string(&limit).unwrap() != mib(left) {
                std::thread::sleep(EVERY);
            }
        };
        let taker = Taker {
            stat: stat.clone(),
            taken: of_zram,
        };
        let done = limited_by(&taker, &limit, 64 << 20, || {
            for (takes, left) in [(24, 40), (0, 64), (63, 4)] {
                std::fs::write(&stat, format!("1 1 {}", mib(takes))).unwrap();
                becomes(left);
            }
            7
        });
        assert_eq!(done, 7);
        assert_eq!(std::fs::read_to_string(&limit).unwrap(), mib(64));
    }
}
