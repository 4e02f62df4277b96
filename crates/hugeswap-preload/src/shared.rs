//! Shared anonymous memory. A large mapping becomes a shared region of the pool, for this process
//! and for the children that it will fork.
//!
//! Regions have addresses of their own, right behind the window, so that the filter catches system
//! calls on them too. These addresses are reserved once and stay reserved: memory that the program
//! unmaps becomes a mapping without access. When the program unmaps or protects parts of units, or
//! needs the kernel to do something with the memory, these units are *kept*: they stay in memory
//! for good, and ordinary calls work on them. A region that the program moves, or maps something
//! over, is *let go of* as a whole: the kernel owns it from then on.
//!
//! Memory files ([`crate::files`]) are regions as well. Such a region is mapped once, as a whole,
//! and stays mapped until the file is gone. The program's mappings of the file are *views* of that
//! one mapping. There may be any number of views: the same addresses are used again for the same
//! bytes.
//!
//! The engine is never called under the lock. A program that uses a part of a region while another
//! thread unmaps the same part is in error.

use crate::lock::Lock;
use crate::mmap::kernel;
use crate::views::File;
use crate::{filter, real, state, views};
use hugeswap_engine::shared::SharedError;
use hugeswap_engine::{Engine, SHARED_BASE, SHARED_LEN};
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::{Errno, Result, mm};
use libc::{c_int, c_void};
use std::ops::Range;

const UNIT: usize = 2 << 20;
const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// What the program has at some addresses of a region.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Nothing: it was unmapped, or not inherited.
    Hole,
    /// The region's memory, with this access. `inherited`: forked children have it too.
    Mapped { access: c_int, inherited: bool },
}

struct Part {
    at: Range<usize>,
    what: What,
}

pub(crate) struct Region {
    pub at: Range<usize>,
    /// Parts that cover all of `at`, in the order of addresses.
    parts: Vec<Part>,
    /// The kernel owns it: the engine let go of it, or never had it.
    pub foreign: bool,
    /// The file whose bytes the region has, if it is not anonymous memory.
    pub file: Option<File>,
}

pub(crate) struct Regions {
    /// Sorted by address.
    pub all: Vec<Region>,
    /// Whether the addresses could be reserved; `None` before the first attempt.
    reserved: Option<bool>,
}

pub(crate) static REGIONS: Lock<Regions> = Lock::new(Regions {
    all: Vec::new(),
    reserved: None,
});

pub(crate) fn reserve(at: Range<usize>) {
    // SAFETY: the addresses are ours to give, and nobody has anything there.
    let _ = unsafe { mm::map_anon(at.start, at.len(), mm::PROT_NONE, true) };
}

pub(crate) fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

impl Regions {
    /// True if the addresses for regions are reserved. The first call reserves them.
    pub fn prepare(&mut self) -> bool {
        *self.reserved.get_or_insert_with(|| {
            // SAFETY: a new mapping, only if nothing is there.
            let got = unsafe { mm::map_anon(SHARED_BASE, SHARED_LEN, mm::PROT_NONE, false) };
            if let Ok(at) = got
                && at != SHARED_BASE
            {
                // SAFETY: mapped a moment ago (by a kernel that took the address for a hint).
                let _ = unsafe { mm::unmap(at, SHARED_LEN) };
            }
            got == Ok(SHARED_BASE)
        })
    }

    /// Adds a region of `len` bytes, whole pages, with unused addresses behind it. Returns its
    /// address, or `None` if no addresses are left.
    pub fn take(&mut self, len: usize, file: Option<File>) -> Option<usize> {
        let mut at = SHARED_BASE;
        let mut i = 0;
        let room = len.next_multiple_of(UNIT) + UNIT;
        while i < self.all.len() && self.all[i].at.start < at + room {
            at = self.all[i].at.end.next_multiple_of(UNIT) + UNIT;
            i += 1;
        }
        if room > (SHARED_BASE + SHARED_LEN).saturating_sub(at) {
            return None;
        }
        let what = What::Mapped {
            access: RW,
            inherited: true,
        };
        let at = at..at + len;
        let parts = vec![Part {
            at: at.clone(),
            what,
        }];
        let start = at.start;
        let new = Region {
            at,
            parts,
            foreign: false,
            file,
        };
        self.all.insert(i, new);
        Some(start)
    }

    pub fn of(&mut self, addr: usize) -> Option<&mut Region> {
        self.all.iter_mut().find(|r| r.at.contains(&addr))
    }

    pub fn forget(&mut self, at: usize) {
        self.all.retain(|r| r.at.start != at);
    }
}

impl Region {
    /// Is all of the range mapped?
    fn has(&self, at: &Range<usize>) -> bool {
        let meets = |p: &&Part| !overlap(&p.at, at).is_empty();
        self.file.as_ref().is_none_or(|f| f.has(at))
            && at.start >= self.at.start
            && at.end <= self.at.end
            && self
                .parts
                .iter()
                .filter(meets)
                .all(|p| p.what != What::Hole)
    }

    /// Notes that all of the region has this access.
    pub fn protected_whole(&mut self, access: c_int) {
        let what = What::Mapped {
            access,
            inherited: true,
        };
        self.parts = vec![Part {
            at: self.at.clone(),
            what,
        }];
    }

    /// Applies `change` to the parts of a range, splitting those that reach beyond it.
    fn change(&mut self, at: &Range<usize>, change: impl Fn(What) -> What) {
        let mut parts: Vec<Part> = Vec::with_capacity(self.parts.len() + 2);
        for p in &self.parts {
            let inside = overlap(&p.at, at);
            let pieces = [
                (p.at.start..inside.start.clamp(p.at.start, p.at.end), p.what),
                (inside.clone(), change(p.what)),
                (inside.end.clamp(p.at.start, p.at.end)..p.at.end, p.what),
            ];
            let pieces = match inside.is_empty() {
                true => [
                    (p.at.clone(), p.what),
                    (p.at.end..p.at.end, p.what),
                    (p.at.end..p.at.end, p.what),
                ],
                false => pieces,
            };
            for (at, what) in pieces.into_iter().filter(|(at, _)| !at.is_empty()) {
                match parts.last_mut() {
                    Some(last) if last.what == what => last.at.end = at.end,
                    _ => parts.push(Part { at, what }),
                }
            }
        }
        self.parts = parts;
    }

    fn is_gone(&self) -> bool {
        self.parts.iter().all(|p| p.what == What::Hole)
    }

    /// First addresses of the units that the range covers in part.
    fn cut_by(&self, at: &Range<usize>) -> [Option<usize>; 2] {
        let unit = |addr: usize| addr & !(UNIT - 1);
        let first = Some(unit(at.start)).filter(|&u| u < at.start);
        let whole_end = at.end.is_multiple_of(UNIT) || at.end == self.at.end;
        [first, Some(unit(at.end)).filter(|_| !whole_end)]
    }
}

/// True if this process can have regions. Without the filter, the C library's own system calls for
/// its locks would fail.
pub fn can_be() -> bool {
    state::careful().is_some() && filter::on()
}

/// Maps a new region of `len` bytes, whole pages. Returns its address, or `MAP_FAILED` with errno
/// set. `None`: the kernel is to make the mapping.
pub fn map(engine: &Engine, len: usize, flags: c_int) -> Option<*mut c_void> {
    if engine.pool().knob(Knob::SharedAnonymous) == 0 || !can_be() {
        return None;
    }
    let at = {
        let mut regions = REGIONS.lock();
        if !regions.prepare() {
            return None;
        }
        regions.take(len, None)?
    };
    let errno = real::errno();
    let made = engine.share_nameless(at, len);
    real::set_errno(errno);
    match made {
        Ok(()) => {
            state::note_descriptors(engine);
            Some(at as *mut c_void)
        }
        Err(e) => {
            reserve(at..at + len);
            REGIONS.lock().forget(at);
            let promised = flags & libc::MAP_NORESERVE == 0;
            (matches!(e, SharedError::NoRoom) && promised).then(|| {
                real::set_errno(libc::ENOMEM);
                libc::MAP_FAILED
            })
        }
    }
}

/// True if all of `[addr, addr+len)` is mapped and in one region.
pub fn is_mapped(addr: usize, len: usize) -> bool {
    let at = addr..addr.saturating_add(len.max(1));
    REGIONS.lock().of(addr).is_some_and(|r| r.has(&at))
}

/// May the program write to this byte?
pub fn is_writable(addr: usize) -> bool {
    let writable = |p: &Part| match p.what {
        What::Mapped { access, .. } => p.at.contains(&addr) && access & libc::PROT_WRITE != 0,
        What::Hole => false,
    };
    REGIONS
        .lock()
        .of(addr)
        .is_some_and(|r| r.parts.iter().any(writable))
}

/// The mapped parts of a range that are in regions of the engine.
fn pieces(at: &Range<usize>) -> Vec<Range<usize>> {
    let regions = REGIONS.lock();
    let managed = regions.all.iter().filter(|r| !r.foreign);
    let parts = managed
        .flat_map(|r| &r.parts)
        .filter(|p| p.what != What::Hole);
    parts
        .map(|p| overlap(&p.at, at))
        .filter(|at| !at.is_empty())
        .collect()
}

/// The first part of a range that is mapped and in a region of the engine. Allocates nothing.
pub fn first_mapped(at: &Range<usize>) -> Option<Range<usize>> {
    let regions = REGIONS.lock();
    let managed = regions.all.iter().filter(|r| !r.foreign);
    let parts = managed
        .flat_map(|r| &r.parts)
        .filter(|p| p.what != What::Hole);
    parts.map(|p| overlap(&p.at, at)).find(|at| !at.is_empty())
}

/// The first part of a range that is in use. All of a file's region is in use.
pub fn first_used(at: &Range<usize>) -> Option<Range<usize>> {
    let regions = REGIONS.lock();
    let used = |r: &Region, p: &Part| r.file.is_some() || p.what != What::Hole;
    let parts = regions.all.iter().flat_map(|r| {
        let parts = r.parts.iter().filter(|p| used(r, p));
        parts.map(|p| overlap(&p.at, at))
    });
    parts.into_iter().find(|at| !at.is_empty())
}

/// Keeps the shared memory that the range meets in memory from now on, where the kernel can use it.
pub fn keep(engine: &Engine, addr: usize, len: usize) -> Result<()> {
    let all = pieces(&(addr..addr.saturating_add(len)));
    all.into_iter()
        .try_for_each(|at| engine.keep_shared(at.start, at.len()))
}

/// Unmaps everything that the program has in a range.
pub fn unmap(engine: &Engine, at: Range<usize>) {
    for rest in views::unmap(engine, at) {
        unmap_nameless(engine, rest);
    }
}

fn unmap_nameless(engine: &Engine, at: Range<usize>) {
    let mut cut: Vec<usize> = Vec::new();
    {
        let regions = REGIONS.lock();
        if regions.reserved != Some(true) {
            drop(regions);
            kernel(libc::SYS_munmap, [at.start, at.len(), 0, 0, 0, 0]);
            return;
        }
        for r in regions.all.iter().filter(|r| !r.foreign) {
            let inside = overlap(&r.at, &at);
            if !inside.is_empty() {
                cut.extend(r.cut_by(&inside).into_iter().flatten());
            }
        }
    }
    for unit in cut {
        // If this fails, this process can neither evict the rest of the unit nor bring it in. A
        // fault there reports that.
        let _ = keep(engine, unit, UNIT);
    }
    let mut gone: Vec<(Range<usize>, bool)> = Vec::new();
    {
        let mut regions = REGIONS.lock();
        for r in &mut regions.all {
            let inside = overlap(&r.at, &at);
            if inside.is_empty() {
                continue;
            }
            r.change(&inside, |_| What::Hole);
            if r.is_gone() {
                gone.push((r.at.clone(), r.foreign));
            }
        }
    }
    reserve(at);
    for (at, foreign) in gone {
        if !foreign {
            engine.unmap_shared(at.start);
            reserve(at.clone());
        }
        REGIONS.lock().forget(at.start);
    }
}

/// Hands the regions that the range meets over to the kernel, for good.
pub fn let_go(engine: &Engine, at: &Range<usize>) -> Result<()> {
    let meets = |r: &&Region| !r.foreign && !overlap(&r.at, at).is_empty();
    let all: Vec<Range<usize>> = {
        let regions = REGIONS.lock();
        let met = regions.all.iter().filter(meets);
        met.map(|r| r.at.clone()).collect()
    };
    for region in all {
        keep(engine, region.start, region.len())?;
        engine.let_go_shared(region.start);
        let mut regions = REGIONS.lock();
        if let Some(r) = regions.of(region.start) {
            r.foreign = true;
        }
    }
    Ok(())
}

/// Prepares a range in which the kernel will map something that is not ours.
pub fn make_way(engine: &Engine, at: Range<usize>) -> Result<()> {
    let_go(engine, &at)?;
    let mut regions = REGIONS.lock();
    if !regions.prepare() {
        return Ok(());
    }
    let what = What::Mapped {
        access: RW,
        inherited: true,
    };
    // Addresses of the range that are in no region become a region, so that nothing else is placed
    // there.
    let mut from = at.start;
    let mut i = 0;
    while from < at.end {
        let Some(r) = regions.all.get_mut(i).filter(|r| r.at.start < at.end) else {
            let new = from..at.end;
            regions.all.insert(i, foreign(new));
            break;
        };
        if r.at.end > from {
            if r.at.start > from {
                let new = from..r.at.start;
                from = r.at.start;
                regions.all.insert(i, foreign(new));
                i += 1;
                continue;
            }
            let inside = overlap(&r.at, &at);
            from = inside.end;
            r.change(&inside, |_| what);
        }
        i += 1;
    }
    Ok(())
}

fn foreign(at: Range<usize>) -> Region {
    let what = What::Mapped {
        access: RW,
        inherited: true,
    };
    Region {
        parts: vec![Part {
            at: at.clone(),
            what,
        }],
        at,
        foreign: true,
        file: None,
    }
}

/// Is this address in a region of the engine?
pub fn is_managed(addr: usize) -> bool {
    REGIONS.lock().of(addr).is_some_and(|r| !r.foreign)
}

/// The end of the region that `addr`, an address of shared memory, is in. `Err`: it is in none, and
/// this is where the next one begins.
pub fn end_of_region(addr: usize) -> std::result::Result<usize, usize> {
    let mut regions = REGIONS.lock();
    if let Some(region) = regions.of(addr) {
        return Ok(region.at.end);
    }
    let next = regions.all.iter().find(|r| r.at.start > addr);
    Err(next.map_or(usize::MAX, |r| r.at.start))
}

/// Prepares a change of access to a range of a region; after `Ok(())` the kernel may make the
/// change. Fails with `EACCES` if other views have the same bytes, and with `ENOMEM` if a part of
/// the range is not mapped or cannot be kept.
pub fn before_protect(engine: &Engine, at: &Range<usize>) -> Result<()> {
    let cut = {
        let mut regions = REGIONS.lock();
        let r = regions
            .of(at.start)
            .filter(|r| r.has(at))
            .ok_or(Errno::ENOMEM)?;
        // The other views of the same bytes would be protected, too.
        if r.file.as_ref().is_some_and(|f| f.views_in(at) > 1) {
            return Err(Errno(libc::EACCES));
        }
        r.cut_by(at)
    };
    let mut cut = cut.into_iter().flatten();
    cut.try_for_each(|unit| keep(engine, unit, UNIT))
}

/// Notes that the kernel has changed the access to a range.
pub fn protected(at: &Range<usize>, access: c_int) {
    note(at, |what| match what {
        What::Mapped { inherited, .. } => What::Mapped { access, inherited },
        What::Hole => What::Hole,
    });
}

/// Notes whether forked children are to have a range.
pub fn inherit(at: &Range<usize>, inherited: bool) {
    note(at, |what| match what {
        What::Mapped { access, .. } => What::Mapped { access, inherited },
        What::Hole => What::Hole,
    });
}

fn note(at: &Range<usize>, change: impl Fn(What) -> What) {
    if let Some(r) = REGIONS.lock().of(at.start) {
        r.change(at, change);
    }
}

/// `mremap` from `old` to `new` bytes, both whole pages, in a region of the engine. An `old` of 0
/// asks for a second mapping. Returns the address, or `MAP_FAILED` with errno set.
pub fn remap(
    engine: &Engine,
    at: usize,
    old: usize,
    new: usize,
    flags: usize,
    to: usize,
) -> *mut c_void {
    let failed = |e: Errno| {
        real::set_errno(e.0);
        libc::MAP_FAILED
    };
    let range = at..at.saturating_add(old);
    if old > 0 && !is_mapped(at, old) {
        return failed(Errno(libc::EFAULT));
    }
    let in_place = flags & !(libc::MREMAP_MAYMOVE as usize) == 0;
    if in_place && old > 0 && new <= old {
        if new < old {
            unmap(engine, at + new..at + old);
        }
        return at as *mut c_void;
    }
    // Other views may be at the same addresses.
    if REGIONS.lock().of(at).is_some_and(|r| r.file.is_some()) {
        return failed(Errno::ENOMEM);
    }
    if let Err(e) = let_go(engine, &(at..range.end.max(at + 1))) {
        return failed(e);
    }
    let now = kernel(libc::SYS_mremap, [at, old, new, flags, to, 0]);
    const DONTUNMAP: usize = 4;
    if now != usize::MAX && now != at && old > 0 && flags & DONTUNMAP == 0 {
        unmap(engine, range);
    }
    now as *mut c_void
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    REGIONS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    REGIONS.after_fork();
}

/// In a forked child, whose engine has mapped every region anew and whole: restores what the parent
/// had unmapped, protected or excluded from children.
pub fn settle_child(engine: &Engine) {
    let mut regions = REGIONS.lock();
    views::settle_child(engine, &mut regions);
    for r in regions.all.iter_mut().filter(|r| !r.foreign) {
        // (A region that could not be mapped is now a mapping without access, and a message has
        // named it.)
        if !engine.is_shared(r.at.start) {
            r.foreign = true;
            continue;
        }
        let at = r.at.clone();
        if let Some(f) = &mut r.file {
            // The mapping stays whole: it serves other views, too.
            let not = |p: &&Part| matches!(p.what, What::Mapped { inherited, .. } if !inherited);
            for p in r.parts.iter().filter(not) {
                f.remove(&p.at);
            }
        } else {
            r.change(&at, |what| match what {
                What::Mapped {
                    inherited: false, ..
                } => What::Hole,
                other => other,
            });
        }
        for p in &r.parts {
            match p.what {
                What::Hole => reserve(p.at.clone()),
                What::Mapped { access: RW, .. } => {}
                What::Mapped { access, .. } => {
                    // SAFETY: the access that the program gave it.
                    let _ = unsafe { mm::protect(p.at.start, p.at.len(), access as u32) };
                }
            }
        }
    }
}
