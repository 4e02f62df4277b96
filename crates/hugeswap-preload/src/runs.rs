//! Who owns the parts of a range of the window: the engine, the kernel, or nobody yet.

use crate::marks::units;
use hugeswap_engine::Engine;
use hugeswap_sys::Errno;

const UNIT: usize = 2 << 20;

/// The owner of a mapped part of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The engine.
    Engine,
    /// The kernel.
    Kernel,
    /// No owner yet: the program has reserved the part, and cannot touch it.
    Reserved,
}

/// A mapped part of a range, with one owner.
#[derive(Clone, Copy)]
pub struct Run {
    pub at: usize,
    pub len: usize,
    pub owner: Owner,
}

/// The mapped parts of `[addr, addr+len)`, in address order.
pub fn runs(engine: &Engine, addr: usize, len: usize) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    let mut add = |at: usize, len: usize, owner: Owner| match all.last_mut() {
        Some(last) if last.owner == owner && last.at + last.len == at => last.len += len,
        _ => all.push(Run { at, len, owner }),
    };
    for (at, len) in engine.mapped_in(addr, len) {
        let mut next = at;
        let end = (at + len, 0);
        for (held, n) in engine.reserved_in(at, len).into_iter().chain([end]) {
            add_committed(engine, next, held, &mut add);
            if n > 0 {
                add(held, n, Owner::Reserved);
            }
            next = held + n;
        }
    }
    all
}

/// Calls `add` for the parts of `[from, to)`, which is mapped and not reserved.
fn add_committed(
    engine: &Engine,
    from: usize,
    to: usize,
    add: &mut impl FnMut(usize, usize, Owner),
) {
    if from == to {
        return;
    }
    if !engine.is_any_foreign(from, to - from) {
        return add(from, to - from, Owner::Engine);
    }
    for unit in units(from, to) {
        let (from, to) = (unit.max(from), (unit + UNIT).min(to));
        let owner = match engine.is_foreign(from, to - from) {
            true => Owner::Kernel,
            false => Owner::Engine,
        };
        add(from, to - from, owner);
    }
}

/// Makes the bytes of `[addr, addr+len)`, which is mapped, zero.
pub fn discard(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    // (What is reserved holds nothing.)
    let all = runs(engine, addr, len).into_iter();
    let mut held = all.filter(|run| run.owner != Owner::Reserved);
    held.try_for_each(|run| engine.discard(run.at, run.len))
}
