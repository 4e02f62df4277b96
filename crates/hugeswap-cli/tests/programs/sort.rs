//! GNU sort with a buffer as large as it likes.

use crate::util::*;
use std::io::{BufWriter, Write};
use std::path::Path;

const INPUT: u64 = 60 << 20;

pub fn cases() -> Vec<Case> {
    vec![case("sort", sort)]
}

fn sort() {
    let dir = directory();
    let input = dir.path().join("input");
    write_lines(&input);
    let program = |out: &str| {
        Program::new(dir.path(), "sort").args(["-S", "1G", "--parallel=2", "-o", out, "input"])
    };
    let plain = program("plain").plain();
    for mode in Mode::permitted() {
        let managed = program("managed").managed(&Setup::new(mode, 64).on_disk());
        managed.same_as(&plain);
        same_files(&dir.path().join("plain"), &dir.path().join("managed"));
    }
}

/// A file of lines of letters and digits, of many lengths, in no order.
fn write_lines(path: &Path) {
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path).expect("create"));
    let (mut random, mut written) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    while written < INPUT {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let width = 8 + (random >> 58) as usize;
        written += writeln!(out, "{random:016x} {:width$}", random % 1_000_003)
            .map(|()| 18 + width as u64)
            .expect("write");
    }
    out.flush().expect("write");
}
