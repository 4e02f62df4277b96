//! The demo's data: log lines of several machines, one machine after the other, each nearly in order of
//! time, like logs that were collected. Sorting by time interleaves them. The same size always gives the
//! same bytes.

use hugeswap_support::random::{below, next};
use std::io::{self, Write};

/// Machines whose logs are in the file.
const MACHINES: u64 = 8;
/// Lines are out of order by less than this, microseconds.
const JITTER_US: u64 = 2_000_000;
/// Mean time between two lines of one machine, microseconds.
const STEP_US: u64 = 40_000;
/// Length of every line, bytes, line break included.
pub const LINE: usize = 48;

/// The number of lines in about `bytes` bytes.
pub fn lines(bytes: u64) -> u64 {
    bytes / (LINE as u64 * MACHINES) * MACHINES
}

/// Writes `lines` lines and calls `progress` with the bytes written so far.
pub fn write(out: &mut impl Write, lines: u64, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    const AT_ONCE: usize = 20_000;
    let mut block = Vec::with_capacity(AT_ONCE * LINE);
    let mut done = 0;
    for machine in 0..MACHINES {
        let mut state = machine;
        let mut now = 0;
        for _ in 0..lines / MACHINES {
            now += below(2 * STEP_US, &mut state);
            let time = now + below(JITTER_US, &mut state);
            line(&mut block, time, machine, next(&mut state));
            if block.len() >= AT_ONCE * LINE {
                out.write_all(&block)?;
                done += block.len() as u64;
                block.clear();
                progress(done);
            }
        }
    }
    out.write_all(&block)?;
    progress(done + block.len() as u64);
    Ok(())
}

/// `2026-123T23:59:59.123456 web3 GET /1234567 1234\n`: an ordinal date, a machine, a request.
fn line(out: &mut Vec<u8>, us: u64, machine: u64, word: u64) {
    let start = out.len();
    let seconds = us / 1_000_000;
    out.extend_from_slice(b"2026-");
    digits(out, seconds / 86_400 + 1, 3);
    out.push(b'T');
    digits(out, seconds / 3600 % 24, 2);
    out.push(b':');
    digits(out, seconds / 60 % 60, 2);
    out.push(b':');
    digits(out, seconds % 60, 2);
    out.push(b'.');
    digits(out, us % 1_000_000, 6);
    out.extend_from_slice(b" web");
    digits(out, machine, 1);
    out.extend_from_slice([b" GET /", b" PUT /"][(word & 1) as usize]);
    digits(out, (word >> 1) % 10_000_000, 7);
    out.push(b' ');
    digits(out, (word >> 32) % 10_000, 4);
    out.push(b'\n');
    debug_assert_eq!(out.len() - start, LINE);
}

/// The last `width` decimal digits of `value`.
fn digits(out: &mut Vec<u8>, mut value: u64, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    for d in out[start..].iter_mut().rev() {
        *d = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(n: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let mut last = 0;
        write(&mut out, n, &mut |done| last = done).unwrap();
        assert_eq!(last as usize, out.len());
        out
    }

    #[test]
    fn the_same_every_time_and_as_long_as_said() {
        let n = lines(100_000);
        let data = made(n);
        assert_eq!(data.len() as u64, n * LINE as u64);
        assert_eq!(data, made(n));
        assert!(
            data.chunks_exact(LINE)
                .all(|l| l[LINE - 1] == b'\n' && l.iter().filter(|&&b| b == b'\n').count() == 1)
        );
        assert!(data.is_ascii());
    }

    #[test]
    fn unsorted_but_nearly_in_order() {
        let data = made(lines(1 << 20));
        let all: Vec<&[u8]> = data.chunks_exact(LINE).collect();
        assert!(!all.is_sorted());
        let machines = all.chunk_by(|a, b| a[28] == b[28]).count();
        assert_eq!(machines as u64, MACHINES);
    }
}
