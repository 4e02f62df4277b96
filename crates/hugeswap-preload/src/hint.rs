//! Reservations at addresses that a program would like to have (a hint, not MAP_FIXED) and that are
//! not in the window.
//!
//! The kernel follows such a hint where it can, and then the memory is not managed. Most programs
//! take any address in the end: V8 hints at random, a JVM goes on with a heap that is not below 32
//! GiB, Go has a list of 128 hints. So a reservation is made in the window, whatever the hint says,
//! with two exceptions: generated code is to be near other code, and a program that gives the
//! reservation back again and again can use no other address (ZGC's heap has its colours in its
//! addresses). And where a program says that it is to be that address or none (MAP_FIXED_NOREPLACE, as JVMs from 25 on
//! do), that is refused as if the address were taken, until the program has tried many.

use crate::static_program;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Below this address a hint is about short pointers, which a program can do without.
const SHORT: usize = 1 << 40;
/// How far a jump can go, and more.
const REACH: usize = 4 << 30;

/// A program that has given back so many reservations of one length uses no other address,
const PATIENCE: usize = 200;
/// and so does one that was refused so many.
const PATIENCE_EXACT: usize = 100;

/// The last reservation (address, length) that was made elsewhere than the hint said.
static GIVEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// The length of the last one that was given back at once, or refused, and how many of that length were.
static GIVEN_BACK: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Is a reservation of `len` bytes with this hint (0: none) left to the kernel?
pub fn is_for_the_kernel(hint: usize, len: usize) -> bool {
    // SAFETY: looks up a number.
    let executable = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize;
    let code = [executable, libc::getauxval as *const () as usize];
    hint != 0
        && (code.iter().any(|at| at.abs_diff(hint) < REACH)
            || hint >= SHORT
                && GIVEN_BACK[0].load(Relaxed) == len
                && GIVEN_BACK[1].load(Relaxed) >= PATIENCE)
}

/// May a reservation that is to be at `at` or nowhere be refused? Counts it, if so.
///
/// (A program that is attached has made its heap's, and its libraries are not where this object's
/// are.)
pub fn may_be_refused(at: usize, len: usize) -> bool {
    if at == 0 || static_program::attached::is_on() {
        return false;
    }
    note_given_back(len);
    GIVEN_BACK[1].load(Relaxed) <= PATIENCE_EXACT
}

/// A reservation was made at `at`, which is not what the hint said.
pub fn note_given(at: usize, len: usize) {
    GIVEN[0].store(at, Relaxed);
    GIVEN[1].store(len, Relaxed);
}

/// The program unmaps `[at, at+len)`.
pub fn note_unmapped(at: usize, len: usize) {
    if GIVEN[0].load(Relaxed) == at && GIVEN[1].load(Relaxed).next_multiple_of(4096) == len {
        note_given_back(GIVEN[1].load(Relaxed));
    }
}

fn note_given_back(len: usize) {
    if GIVEN_BACK[0].swap(len, Relaxed) != len {
        GIVEN_BACK[1].store(0, Relaxed);
    }
    GIVEN_BACK[1].fetch_add(1, Relaxed);
}
