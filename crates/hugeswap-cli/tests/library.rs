//! The command line looks at a process that uses the library: this one.

use assert_cmd::Command;
use hugeswap::{Advice, Error, Pool, SharedError};
use serde_json::Value;

const UNIT: usize = 2 << 20;

fn look(more: &[&str]) -> String {
    let pid = std::process::id().to_string();
    let mut c = Command::cargo_bin("hugeswap").unwrap();
    c.args(["pagemap", &pid]).args(more);
    let out = c.assert().code(0).stderr("").get_output().stdout.clone();
    String::from_utf8(out).unwrap()
}

#[test]
fn pagemap_shows_shared_regions() {
    let builder = Pool::builder().memory(64 << 20).swap("/var/tmp");
    let pool = builder
        .fault_mode(hugeswap::FaultMode::Signal)
        .build()
        .unwrap();
    let shared = match pool.shared(4 * UNIT, "seen") {
        Err(Error::Shared(SharedError::NoUserfaultfd(e))) => {
            return println!("skipped: no userfaultfd: {e}");
        }
        made => made.unwrap(),
    };
    let mut own = pool.region(3 * UNIT).unwrap();
    own.as_mut_slice()[..UNIT].fill(1);
    shared.write_at(0, &[2; UNIT]).unwrap();
    shared.write_at(UNIT, &[3; UNIT]).unwrap();
    while shared.is_resident(0) {
        shared.advise(0, UNIT, Advice::PageOut).unwrap();
    }
    // One in swap, one in memory, two zero.
    let found: Value = serde_json::from_str(&look(&["--json"])).unwrap();
    let at = shared.as_ptr() as u64;
    let unit = UNIT as u64;
    let ranges = found["ranges"].as_array().unwrap();
    let mut end = 0;
    for range in ranges {
        assert!(range["start"].as_u64().unwrap() >= end, "in order: {found}");
        end = range["end"].as_u64().unwrap();
    }
    let of_shared: Vec<_> = ranges
        .iter()
        .filter(|r| (at..at + 4 * unit).contains(&r["start"].as_u64().unwrap()))
        .map(|r| {
            let n = |name: &str| r[name].as_u64().unwrap();
            let words: Vec<_> = r["categories"].as_array().unwrap().iter().collect();
            let has = |w: &str| words.iter().any(|x| x.as_str() == Some(w));
            let what = (
                has("file"),
                has("present"),
                has("shared"),
                has("swapped"),
                has("zero"),
            );
            assert_eq!(has("swapped"), r["swap_offset"].is_u64());
            ((n("start") - at) / unit, (n("end") - at) / unit, what)
        })
        .collect();
    assert_eq!(
        of_shared,
        [
            (0, 1, (true, false, false, true, false)),
            (1, 2, (true, true, true, false, false)),
            (2, 4, (false, false, false, false, true)),
        ]
    );
    let by = |word: &str| found["by_category"][word].as_u64().unwrap_or(0);
    assert_eq!(
        (by("shared"), by("file"), by("swapped")),
        (unit, 2 * unit, unit)
    );
    assert!(by("present") >= 2 * unit, "its own is there too");
    // As lines, a part, and a map.
    let line = look(&["--ranges", "--only", "file,swapped"]);
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with(&format!("{at:012x}-")), "{line}");
    let range = format!("{:x}-{:x}", at + unit, at + 2 * unit);
    let part = look(&["--ranges", "--range", &range]);
    assert_eq!(part.lines().count(), 1, "{part}");
    assert!(part.contains("shared"), "{part}");
    let map = look(&["--range", &format!("{at:x}-{:x}", at + 4 * unit)]);
    assert!(map.contains("in swap") && map.contains("zero"), "{map}");
}
