//! Regions of files ([`crate::files`]): what the program has mapped of them, and when they end.
//!
//! This process maps such a region once, as a whole, and keeps it mapped as long as any process may
//! map the file again: until the file has neither a name nor a descriptor anywhere. Then the kernel
//! removes the inotify watch on the file (`IN_DELETE_SELF`). The watch is looked up in the
//! instance's fdinfo, so that a forked child, which inherits the instance, learns of it as well.
//!
//! A region that is not ready is being mapped, or given up, by one thread; other threads wait.

use crate::shared::{REGIONS, Regions, overlap, reserve};
use crate::state;
use hugeswap_engine::pool::shared::FileKey;
use hugeswap_engine::shared::SharedError;
use hugeswap_engine::{Engine, high_descriptor};
use hugeswap_sys::{Errno, Result, fs, mm, process, raw};
use libc::c_int;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI32, AtomicUsize};

const PAGE: usize = 4096;
const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The watch on `/`, which is never gone. It shows that the instance is ours.
const FIRST: i32 = 1;
/// Size in bytes of the buffer for fdinfo, which has about 120 bytes for each watch.
const ROOM: usize = 64 << 10;

/// The descriptor of the inotify instance, or -1 if there is none. Forked children inherit it.
static INSTANCE: AtomicI32 = AtomicI32::new(-1);
/// Number of regions of which nothing is mapped.
static IDLE: AtomicUsize = AtomicUsize::new(0);

/// The file of a region, and what the program has mapped of it.
pub(crate) struct File {
    key: FileKey,
    /// The watch on the file, or -1 if there is none: then nothing tells when the file is gone.
    watch: i32,
    /// Ranges that the program has mapped of it; they may overlap.
    views: Vec<Range<usize>>,
    ready: bool,
    /// The whole mapping is read-only, because all views are.
    read_only: bool,
}

impl File {
    fn new(key: FileKey) -> File {
        File {
            key,
            watch: -1,
            views: Vec::new(),
            ready: false,
            read_only: false,
        }
    }

    /// Is all of a range in one view?
    pub fn has(&self, at: &Range<usize>) -> bool {
        let mut views = self.views.iter();
        views.any(|v| v.start <= at.start && at.end <= v.end)
    }

    /// How many views a range meets.
    pub fn views_in(&self, at: &Range<usize>) -> usize {
        let meets = |v: &&Range<usize>| !overlap(v, at).is_empty();
        self.views.iter().filter(meets).count()
    }

    /// Unmaps a range from the one view that equals it, or else from one that contains it, or else
    /// from all views that it meets.
    pub fn remove(&mut self, at: &Range<usize>) {
        let whole = |v: &Range<usize>| v.start <= at.start && at.end <= v.end;
        let exact = self.views.iter().position(|v| v == at);
        let one = exact.or_else(|| self.views.iter().position(whole));
        let met: Vec<Range<usize>> = match one {
            Some(i) => vec![self.views.swap_remove(i)],
            None => {
                let meets = |v: &mut Range<usize>| !overlap(v, at).is_empty();
                self.views.extract_if(.., meets).collect()
            }
        };
        for v in met {
            let inside = overlap(&v, at);
            let left = [v.start..inside.start, inside.end..v.end];
            self.views
                .extend(left.into_iter().filter(|r| !r.is_empty()));
        }
    }
}

/// The descriptor of the inotify instance, or -1 if there is none.
pub fn descriptor() -> i32 {
    INSTANCE.load(Relaxed)
}

/// Watches the file of `fd`. Returns the watch, or -1 if the file cannot be watched.
pub fn watch(engine: &Engine, fd: i32) -> i32 {
    let mut instance = INSTANCE.load(Acquire);
    if instance < 0 {
        let flags = (libc::IN_CLOEXEC | libc::IN_NONBLOCK) as usize;
        // SAFETY: the call takes a number.
        let made = unsafe { raw::call(libc::SYS_inotify_init1, [flags, 0, 0, 0, 0, 0]) };
        let Ok(low) = made else {
            return -1;
        };
        let high = fs::dup_above(low as i32, high_descriptor());
        fs::close(low as i32);
        let Ok(high) = high else {
            return -1;
        };
        if add_watch(high, c"/") != FIRST {
            fs::close(high);
            return -1;
        }
        match INSTANCE.compare_exchange(-1, high, AcqRel, Acquire) {
            Ok(_) => instance = high,
            Err(other) => {
                fs::close(high);
                instance = other;
            }
        }
        state::note_descriptors(engine);
    }
    let path = CString::new(format!("/proc/thread-self/fd/{fd}")).unwrap_or_default();
    add_watch(instance, &path)
}

fn add_watch(instance: i32, path: &CStr) -> i32 {
    let a = [
        instance as usize,
        path.as_ptr() as usize,
        libc::IN_DELETE_SELF as usize,
        0,
        0,
        0,
    ];
    // SAFETY: the path ends with NUL.
    unsafe { raw::call(libc::SYS_inotify_add_watch, a) }.map_or(-1, |wd| wd as i32)
}

/// True if the kernel has removed the watch, so the file is gone. (Uses bare system calls, because
/// our `close` calls this.)
fn is_gone(watch: i32) -> bool {
    if watch < 0 {
        return false;
    }
    let path = format!("/proc/thread-self/fdinfo/{}", INSTANCE.load(Relaxed));
    let path = CString::new(path).unwrap_or_default();
    let Ok(fd) = fs::open(&path, libc::O_RDONLY | libc::O_CLOEXEC, 0) else {
        return false;
    };
    // It has a line for each file of which this process or a relative has a region.
    let mut told = vec![0u8; ROOM];
    // SAFETY: the room is ours.
    let got = unsafe { fs::read_until(fd, told.as_mut_ptr() as usize, ROOM, ROOM, 0) };
    fs::close(fd);
    let told = &told[..got.unwrap_or(0)];
    let has = |line: String| {
        told.split(|&b| b == b'\n')
            .any(|l| l.starts_with(line.as_bytes()))
    };
    // (An instance without the first watch is not ours any more.)
    told.len() < ROOM
        && has(format!("inotify wd:{FIRST:x} "))
        && !has(format!("inotify wd:{watch:x} "))
}

/// Makes a region of `bytes` bytes for a file that has none, and returns its address. The program
/// has no view of it yet.
pub fn make(engine: &Engine, key: FileKey, bytes: u64) -> std::result::Result<usize, SharedError> {
    let len = (bytes as usize).next_multiple_of(PAGE);
    let none = || SharedError::System("no addresses are left", Errno::ENOMEM);
    let at = {
        let mut regions = REGIONS.lock();
        if !regions.prepare() {
            return Err(none());
        }
        regions.take(len, Some(File::new(key))).ok_or_else(none)?
    };
    let made = engine.share_file(&key, at, bytes);
    if made.is_err() {
        forget(at, len);
    } else {
        state::note_descriptors(engine);
    }
    made.map(|()| at)
}

/// Marks the region at `at` as ready for use; `watch` is the watch on its file, or -1.
pub fn ready(at: usize, watch: i32) {
    let mut regions = REGIONS.lock();
    if let Some(f) = regions.of(at).and_then(|r| r.file.as_mut()) {
        f.watch = watch;
        f.ready = true;
        IDLE.fetch_add(1, Relaxed);
    }
}

/// Gives up the region at `at`, which is not ready.
pub fn give_up(engine: &Engine, at: usize) {
    let range = REGIONS.lock().of(at).map(|r| r.at.clone());
    engine.unmap_shared(at);
    if let Some(range) = range {
        forget(at, range.len());
    }
}

fn forget(at: usize, len: usize) {
    reserve(at..at + len);
    REGIONS.lock().forget(at);
}

/// Maps a view of the region of the file `fd`, and returns its address. `part` is the view's offset
/// and its length, which is whole pages, within the file.
pub fn map(
    engine: &Engine,
    key: FileKey,
    bytes: u64,
    fd: i32,
    part: (usize, usize),
    access: c_int,
) -> Result<usize> {
    let len = (bytes as usize).next_multiple_of(PAGE);
    loop {
        if let Some(done) = view(key, part, access) {
            return done;
        }
        let at = {
            let mut regions = REGIONS.lock();
            let is = |f: &File| f.key == key;
            if regions.all.iter().any(|r| r.file.as_ref().is_some_and(is)) {
                drop(regions);
                // Another thread is mapping the region or giving it up.
                process::yield_now();
                continue;
            }
            if !regions.prepare() {
                return Err(Errno::ENOMEM);
            }
            let new = regions.take(len, Some(File::new(key)));
            new.ok_or(Errno::ENOMEM)?
        };
        if let Err(e) = engine.attach_file(&key, at) {
            forget(at, len);
            let text = e.to_string();
            fs::complain(&[
                b"hugeswap: a shared file cannot be mapped: ",
                text.as_bytes(),
                b"\n",
            ]);
            return Err(Errno::ENOMEM);
        }
        state::note_descriptors(engine);
        ready(at, watch(engine, fd));
    }
}

/// Adds a view of a region, and returns its address; `None` if no such region is ready.
fn view(key: FileKey, (offset, len): (usize, usize), access: c_int) -> Option<Result<usize>> {
    let mut regions = REGIONS.lock();
    let is = |f: &File| f.key == key && f.ready;
    let mut all = regions.all.iter_mut();
    let r = all.find(|r| r.file.as_ref().is_some_and(is))?;
    if r.foreign {
        // Some of its bytes may no longer be at these addresses.
        return Some(Err(Errno(libc::EBUSY)));
    }
    let f = r.file.as_mut()?;
    let writable = access & libc::PROT_WRITE != 0;
    let first = f.views.is_empty();
    if first || f.read_only && writable {
        let access = if writable { RW } else { libc::PROT_READ };
        // SAFETY: a region of ours, and no view forbids this access.
        if let Err(e) = unsafe { mm::protect(r.at.start, r.at.len(), access as u32) } {
            return Some(Err(e));
        }
        f.read_only = !writable;
        r.protected_whole(access);
    }
    let f = r.file.as_mut()?;
    if first {
        IDLE.fetch_sub(1, Relaxed);
    }
    let at = r.at.start + offset;
    f.views.push(at..at + len);
    Some(Ok(at))
}

/// Unmaps all views in a range. Returns the parts of the range that are in no file's region.
pub fn unmap(engine: &Engine, at: Range<usize>) -> Vec<Range<usize>> {
    let mut rest = Vec::new();
    let mut from = at.start;
    {
        let mut regions = REGIONS.lock();
        let all = regions.all.iter_mut();
        for r in all.filter(|r| r.file.is_some()) {
            let inside = overlap(&r.at, &at);
            if inside.is_empty() {
                continue;
            }
            rest.push(from..inside.start);
            from = inside.end;
            if let Some(f) = r.file.as_mut().filter(|f| !f.views.is_empty()) {
                f.remove(&inside);
                if f.views.is_empty() && f.ready {
                    IDLE.fetch_add(1, Relaxed);
                }
            }
        }
    }
    rest.push(from..at.end);
    rest.retain(|r| !r.is_empty());
    sweep(engine);
    rest
}

/// Is there a region of which nothing is mapped?
pub fn is_any_idle() -> bool {
    IDLE.load(Relaxed) > 0
}

/// Ends the regions of which nothing is mapped and whose files are gone.
pub fn sweep(engine: &Engine) {
    while IDLE.load(Relaxed) > 0 {
        let mut regions = REGIONS.lock();
        let over = |r: &crate::shared::Region| {
            let idle = |f: &&File| f.ready && f.views.is_empty();
            let file = r.file.as_ref().filter(idle);
            file.is_some_and(|f| r.foreign || is_gone(f.watch))
        };
        let Some(r) = regions.all.iter_mut().find(|r| over(r)) else {
            return;
        };
        if let Some(f) = &mut r.file {
            f.ready = false;
            IDLE.fetch_sub(1, Relaxed);
        }
        let (at, foreign) = (r.at.clone(), r.foreign);
        drop(regions);
        if !foreign {
            engine.unmap_shared(at.start);
        }
        forget(at.start, at.len());
    }
}

/// In a forked child: settles regions that another thread of the parent was mapping or giving up. A
/// region that the engine has is ready, and any other is forgotten.
pub fn settle_child(engine: &Engine, regions: &mut Regions) {
    let coming = |r: &crate::shared::Region| r.file.as_ref().is_some_and(|f| !f.ready);
    let all = regions.all.iter_mut().filter(|r| coming(r));
    let mut none = Vec::new();
    for r in all {
        if let Some(f) = r.file.as_mut().filter(|_| engine.is_shared(r.at.start)) {
            f.ready = true;
            IDLE.fetch_add(1, Relaxed);
        } else {
            none.push(r.at.clone());
        }
    }
    for at in none {
        reserve(at.clone());
        regions.forget(at.start);
    }
}
