//! UFFDIO_MOVE of one unit, all of it or none.
//!
//! The kernel may stop in the middle of a unit that is mapped by base pages. Linux 6.18 may also
//! say EEXIST after it has moved some or all of them (an error left over from an attempt that it
//! repeated itself). So the page table is asked which pages have moved. Then the rest follows; if
//! it cannot, the part goes back, and a caller that gets an error has the unit where it was.

use crate::{PAGE, UNIT};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_sys::{Errno, Result, fs, mm, process, uffd};

/// Attempts where nothing else helps. EBUSY (a page is pinned for direct I/O, which may just have
/// ended) and EAGAIN pass.
pub const PATIENCE: u32 = 20_000;
/// Attempts where there is another way, or another unit.
pub const LITTLE_PATIENCE: u32 = 200;
/// Attempts after which the processor is left to other threads in between.
const SPINS: u32 = 100;
/// How often [`PATIENCE`] attempts are made where a part has moved, and neither the rest follows
/// nor the part goes back.
const ROUNDS: u32 = 3000;

/// Moves the unit at `from` to the empty, registered place `to`. `pagemap`: /proc/self/pagemap, or
/// -1; `patience`: attempts that may fail.
///
/// # Safety
/// Both are private anonymous memory of the caller's to give, one unit each, and no other thread
/// moves either.
pub unsafe fn unit(fd: i32, pagemap: i32, from: usize, to: usize, patience: u32) -> Result<()> {
    let mut done = 0;
    // SAFETY: the caller's promise.
    let Err(e) = (unsafe { pages(fd, pagemap, (from, to), UNIT, &mut done, patience) }) else {
        return Ok(());
    };
    if done == 0 {
        return Err(e);
    }
    let mut back = 0;
    // SAFETY: as above, the other way round: what went comes back to where nothing stands now.
    if unsafe { pages(fd, pagemap, (to, from), done, &mut back, PATIENCE) }.is_ok() {
        return Err(e);
    }
    // There is no way back where `from` is not registered. Then it is a frame of ours, and what
    // holds it will let go. What stands at `to` already is passed over.
    for _ in 0..ROUNDS {
        done = 0;
        // SAFETY: as above.
        match unsafe { pages(fd, pagemap, (from, to), UNIT, &mut done, PATIENCE) } {
            Ok(()) => return Ok(()),
            Err(Errno::EBUSY | Errno::EAGAIN) => {}
            Err(_) => break,
        }
    }
    end_rather_than_lose()
}

/// Ends the process: a part of a unit is where it was, another where it was to be, and no call
/// changes that.
#[cold]
pub fn end_rather_than_lose() -> ! {
    fs::complain(&[
        b"hugeswap: the kernel moved a part of a unit and neither the rest nor the part back; ending rather than losing it\n",
    ]);
    process::kill_self();
}

/// Moves `[from, from+len)` from offset `done` on. `done` is how far it came.
unsafe fn pages(
    fd: i32,
    pagemap: i32,
    (from, to): (usize, usize),
    len: usize,
    done: &mut usize,
    patience: u32,
) -> Result<()> {
    let mut tries = 0;
    while *done < len {
        // SAFETY: passed on to the caller.
        let m = unsafe { uffd::move_pages(fd, to + *done, from + *done, len - *done) };
        if m.moved > 0 {
            *done += m.moved as usize;
            continue;
        }
        match m.error {
            None => return Ok(()),
            Some(Errno::EEXIST) => {
                match moved_pages(pagemap, from + *done, to + *done, len - *done) {
                    0 => return Err(Errno::EEXIST),
                    n => *done += n * PAGE,
                }
            }
            Some(Errno::EAGAIN | Errno::EBUSY) if tries < patience => {
                tries += 1;
                if tries > SPINS {
                    process::yield_now();
                }
            }
            Some(e) => return Err(e),
        }
    }
    Ok(())
}

/// How many pages at the beginning stand at `to` and no longer at `from`.
fn moved_pages(pagemap: i32, from: usize, to: usize, len: usize) -> usize {
    let (mut a, mut b) = ([false; UNIT_PAGES as usize], [false; UNIT_PAGES as usize]);
    let n = len / PAGE;
    if !populated(pagemap, from, &mut a[..n]) || !populated(pagemap, to, &mut b[..n]) {
        return 0;
    }
    a[..n]
        .iter()
        .zip(&b[..n])
        .take_while(|(a, b)| !**a && **b)
        .count()
}

/// Writes to `out` which pages from `at` on exist, in memory or in the kernel's own swap. False if
/// the kernel does not tell.
fn populated(pagemap: i32, at: usize, out: &mut [bool]) -> bool {
    let mut seen = [0u8; UNIT_PAGES as usize];
    if pagemap >= 0 && mm::populated(pagemap, at, out).is_ok() {
        return true;
    }
    if mm::resident(at, out.len() * PAGE, &mut seen).is_err() {
        return false;
    }
    out.iter_mut().zip(&seen).for_each(|(o, s)| *o = s & 1 == 1);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two registered units; `None` where userfaultfd is not to be had.
    fn two_units() -> Option<(i32, usize, usize)> {
        let (fd, _) = uffd::open(uffd::USER_MODE_ONLY, uffd::feature::MOVE)
            .inspect_err(|e| println!("skipped: no userfaultfd: {e}"))
            .ok()?;
        let raw = mm::map_own(3 * UNIT, mm::PROT_RW).unwrap();
        let a = raw.next_multiple_of(UNIT);
        // By base pages, as after a race.
        // SAFETY: advice that discards nothing.
        unsafe { mm::advise(a, 2 * UNIT, libc::MADV_NOHUGEPAGE) }.unwrap();
        // SAFETY: mapped above.
        unsafe { std::slice::from_raw_parts_mut(a as *mut u8, UNIT) }
            .chunks_mut(PAGE)
            .enumerate()
            .for_each(|(i, p)| p.fill(i as u8));
        uffd::register(fd, a, 2 * UNIT, uffd::mode::MISSING).unwrap();
        Some((fd, a, a + UNIT))
    }

    fn check(at: usize) {
        // SAFETY: mapped by `two_units`.
        let b = unsafe { std::slice::from_raw_parts(at as *const u8, UNIT) };
        for (i, p) in b.chunks(PAGE).enumerate() {
            assert!(p.iter().all(|&v| v == i as u8), "page {i}");
        }
    }

    /// What the kernel leaves behind when it says EEXIST after having moved a few pages.
    #[test]
    fn a_move_that_was_cut_short_is_finished() {
        for pages in [1, 7, 511, 512] {
            let Some((fd, a, b)) = two_units() else {
                return;
            };
            // SAFETY: both units are this test's.
            let m = unsafe { uffd::move_pages(fd, b, a, pages * PAGE) };
            assert_eq!(m.moved, (pages * PAGE) as i64);
            // SAFETY: as above.
            unsafe { unit(fd, -1, a, b, PATIENCE) }.unwrap();
            check(b);
            fs::close(fd);
        }
    }

    #[test]
    fn a_move_that_cannot_end_has_not_begun() {
        let Some((fd, a, b)) = two_units() else {
            return;
        };
        let hole = 300 * PAGE;
        // SAFETY: this test's page; its content is put back below.
        unsafe { mm::advise(a + hole, PAGE, libc::MADV_DONTNEED) }.unwrap();
        // SAFETY: both units are this test's.
        assert_eq!(unsafe { unit(fd, -1, a, b, PATIENCE) }, Err(Errno::ENOENT));
        uffd::unregister(fd, a, UNIT).unwrap();
        // SAFETY: mapped by `two_units`.
        unsafe { std::slice::from_raw_parts_mut((a + hole) as *mut u8, PAGE) }.fill(300u32 as u8);
        check(a);
        fs::close(fd);
    }

    #[test]
    fn something_in_the_way_is_an_error() {
        let Some((fd, a, b)) = two_units() else {
            return;
        };
        let from = [9u8; PAGE];
        uffd::copy(fd, b, from.as_ptr() as usize, PAGE, false).unwrap();
        // SAFETY: both units are this test's.
        assert_eq!(unsafe { unit(fd, -1, a, b, PATIENCE) }, Err(Errno::EEXIST));
        check(a);
        fs::close(fd);
    }
}
