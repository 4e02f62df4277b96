//! Work on another stack than the calling thread's, which may be a program's, with a few KiB left.

use crate::{Result, mm};

const GUARD: usize = 4096;

/// (By its name `.ci/fault-path` knows where another stack begins.)
#[inline(never)]
extern "C" fn run<F: FnMut()>(work: *mut F) {
    // SAFETY: the callers pass work that they borrow mutably for the duration.
    unsafe { (*work)() };
}

/// Does `work` where the caller is, for want of another stack.
pub fn call_here<F: FnMut()>(work: &mut F) {
    run(work);
}

/// Does `work` on the stack that ends at `top`. It must not unwind: that ends the process.
///
/// # Safety
/// Below `top`, a multiple of 16, is a mapped stack that is large enough and that nobody else uses.
/// A handler of the program's that begins meanwhile runs on it, unless it has an alternate stack,
/// and must return: block signals where either does harm.
pub unsafe fn call<F: FnMut()>(top: usize, work: &mut F) {
    // SAFETY: by contract; `top` is aligned as the calling convention asks; r12 is preserved by what
    // is called and brings the former stack back; `run` does not unwind, being `extern "C"`.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = sym run::<F>,
            in("rdi") work as *mut F,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Does `work` on a stack of `len` bytes (a multiple of the page size), which is mapped for it and
/// goes afterwards. For what is done once: mapping it takes some microseconds.
///
/// # Errors
/// There is no memory, or no mapping left, for the stack: nothing was done.
///
/// # Safety
/// As [`call`], for what `len` is enough for.
pub unsafe fn call_on_new<R>(len: usize, work: impl FnOnce() -> R) -> Result<R> {
    let base = mm::map_own(GUARD + len, mm::PROT_RW)?;
    // SAFETY: within the mapping just made. Without a guard an overflow would only be harder to
    // find.
    let _ = unsafe { mm::protect(base, GUARD, mm::PROT_NONE) };
    let (mut work, mut result) = (Some(work), None);
    let mut once = || result = work.take().map(|work| work());
    // SAFETY: the stack just mapped; the rest by contract.
    unsafe { call(base + GUARD + len, &mut once) };
    // SAFETY: the mapping made above, on which nobody runs any more.
    let _ = unsafe { mm::unmap(base, GUARD + len) };
    Ok(result.expect("`call` does the work"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_on_another_stack_which_goes() {
        let here = 0u8;
        let far = |there: usize| there.abs_diff((&raw const here).addr()) > 1 << 20;
        let work = || {
            let local = std::hint::black_box([7u8; 100 << 10]);
            (
                local.as_ptr().addr(),
                local.iter().map(|&b| usize::from(b)).sum::<usize>(),
            )
        };
        // SAFETY: no handler of a signal runs in this test.
        let (there, sum) = unsafe { call_on_new(256 << 10, work) }.expect("memory for a stack");
        assert_eq!(sum, 7 * (100 << 10));
        assert!(far(there));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
        let begins = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let number = |digits| usize::from_str_radix(digits, 16).ok();
            Some((number(from)?..number(to)?).contains(&there))
        };
        assert!(!maps.lines().any(|l| begins(l) == Some(true)), "{maps}");
    }
}
