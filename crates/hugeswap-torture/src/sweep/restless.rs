//! What an operator does to a pool in use: settings change, swap areas come and go. And, at the
//! end, what an operator would look for: swap that nobody gave back.

use super::trial::Place;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(300);
const SETTINGS: &[&str] = &[
    "thp.enabled=always",
    "thp.enabled=never",
    "thp.enabled=madvise",
    "thp.swapin=auto",
    "thp.swapin=always",
    "thp.swapin=never",
    "thp.defrag=always",
    "thp.defrag=never",
    "thp.defrag=madvise",
    "readahead.max=0",
    "readahead.max=8",
    "swappiness=0",
    "swappiness=200",
    "swap.io_uring=off",
    "swap.io_uring=on",
    "swap.clean_drop=off",
    "swap.clean_drop=on",
    "vm.throttle_max_usec=0",
    "vm.throttle_max_usec=200000",
    "khugepaged.scan_sleep_ms=10",
    "khugepaged.scan_sleep_ms=10000",
    "zswap.enabled=always",
    "zswap.enabled=never",
    "zswap.enabled=auto",
    "zswap.compressor=lz4",
    "zswap.compressor=zstd-fast",
    "zswap.compressor=zstd",
    "zswap.compressor=auto",
];

/// Disturbs a pool now and then, in an order that follows from a seed.
pub struct Restless {
    turn: u64,
    next: Instant,
}

impl Restless {
    pub fn new(seed: u64) -> Restless {
        Restless {
            turn: seed.wrapping_mul(7),
            next: Instant::now() + PAUSE,
        }
    }

    /// Does the next thing, if it is time. What is refused is refused: the pool may be about to end.
    pub fn disturb(&mut self, place: &Place, pid: u32) {
        if Instant::now() < self.next {
            return;
        }
        self.turn += 1;
        let setting = SETTINGS[(self.turn * 5 % SETTINGS.len() as u64) as usize];
        let area = format!("{},size=8G", place.dir.display());
        match self.turn % 4 {
            0 => ctl(place, pid, &["swap", "add", &area]),
            2 => ctl(place, pid, &["swap", "off", &oldest(place, pid)]),
            _ => ctl(place, pid, &["set", setting]),
        }
        self.next = Instant::now() + PAUSE;
    }
}

fn ctl(place: &Place, pid: u32, args: &[&str]) {
    let _ = command(place, pid, args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn command(place: &Place, pid: u32, args: &[&str]) -> Command {
    let mut c = Command::new(&place.hugeswap);
    c.args(["ctl", "--pool", &pid.to_string()])
        .args(args)
        .stdin(Stdio::null());
    c
}

/// The areas of a pool: number and bytes in use.
fn areas(place: &Place, pid: u32) -> Option<Vec<(u64, u64)>> {
    let out = command(place, pid, &["swap", "list", "--json"])
        .output()
        .ok()?;
    let list: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    let one = |a: &serde_json::Value| Some((a["area"].as_u64()?, a["used_bytes"].as_u64()?));
    list.as_array()?.iter().map(one).collect()
}

fn oldest(place: &Place, pid: u32) -> String {
    let areas = areas(place, pid).unwrap_or_default();
    match areas.as_slice() {
        [first, _, ..] => first.0.to_string(),
        _ => "none".into(),
    }
}

/// More than a few units of a pool's swap in use although the program has unmapped everything.
/// What is put aside for children that have just ended takes a moment to come back.
pub fn left_in_swap(place: &Place, pid: u32) -> Option<String> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let kept = 4 << 20;
    let began = Instant::now();
    loop {
        let Some(areas) = areas(place, pid) else {
            return Some("hugeswap ctl swap list --json could not be read".into());
        };
        let used: u64 = areas.iter().map(|a| a.1).sum();
        if used <= kept {
            return None;
        }
        if began.elapsed() > PATIENCE {
            return Some(format!(
                "{used} bytes of swap are in use after everything was unmapped: more than {kept}"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
