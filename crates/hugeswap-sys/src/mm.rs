//! Address space: mapping, protection, moving, advice.

use crate::raw::call;
use crate::{Errno, Result, fs, own};

/// No access.
pub const PROT_NONE: u32 = libc::PROT_NONE as u32;
/// Read only.
pub const PROT_READ: u32 = libc::PROT_READ as u32;
/// Read and write.
pub const PROT_RW: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;

const MREMAP_DONTUNMAP: usize = 4;
const PAGEMAP_SCAN: usize = 0xc060_6610;
const PAGE_IS_HUGE: u64 = 1 << 6;
const PAGE_IS_PRESENT: u64 = 1 << 3;

/// Private anonymous memory for which no swap is reserved.
const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps `len` bytes of private anonymous memory for hugeswap itself ([`own`]), without reserving
/// swap.
pub fn map_own(len: usize, prot: u32) -> Result<usize> {
    own::map(len, prot, ANON, -1, 0)
}

/// Maps `len` bytes of private anonymous memory at exactly `at`, without reserving swap. EEXIST if
/// something is mapped there, unless `replace` is set.
///
/// # Safety
/// With `replace`, whatever was mapped at `at` is gone.
pub unsafe fn map_anon(at: usize, len: usize, prot: u32, replace: bool) -> Result<usize> {
    let flags = ANON
        | if replace {
            libc::MAP_FIXED
        } else {
            libc::MAP_FIXED_NOREPLACE
        };
    // SAFETY: the caller answers for a replaced mapping; otherwise nothing existing changes.
    unsafe {
        call(
            libc::SYS_mmap,
            [at, len, prot as usize, flags as usize, usize::MAX, 0],
        )
    }
}

/// Maps `len` bytes of `fd` from `offset` for hugeswap itself ([`own`]): shared, readable and
/// writable.
pub fn map_shared(fd: i32, len: usize, offset: u64) -> Result<usize> {
    own::map(len, PROT_RW, libc::MAP_SHARED, fd, offset as usize)
}

/// Copies what stands at `from` in this process to `to`, and says how much of `len` bytes that was:
/// it ends at the first page (within 64 KiB of them) that is not mapped, or not there. Nothing of it
/// is touched: the kernel reads it.
///
/// # Safety
/// `len` bytes at `to` may be written.
#[inline(never)]
pub unsafe fn read_own(from: usize, to: usize, len: usize) -> usize {
    const PAGE: usize = 4096;
    const MOST: usize = 17;
    let vector = |at: usize, len: usize| libc::iovec {
        iov_base: at as *mut libc::c_void,
        iov_len: len,
    };
    // (Of a vector the kernel reads all or nothing.)
    let mut pages = [vector(0, 0); MOST];
    let (mut at, mut left, mut n) = (from, len, 0);
    for page in &mut pages {
        let part = (PAGE - at % PAGE).min(left);
        if part == 0 {
            break;
        }
        *page = vector(at, part);
        (at, left, n) = (at.wrapping_add(part), left - part, n + 1);
    }
    let to = vector(to, len - left);
    let (to, pages) = (&raw const to as usize, pages.as_ptr() as usize);
    // SAFETY: the caller's; from whatever address the kernel reads.
    let read = unsafe {
        call(
            libc::SYS_process_vm_readv,
            [crate::process::pid() as usize, to, 1, pages, n, 0],
        )
    };
    read.unwrap_or(0)
}

/// A memory file that is mapped shared. Other processes may write to it meanwhile; the protocol for
/// that is theirs and this one's, as of all shared memory.
#[derive(Debug)]
pub struct SharedBytes {
    at: usize,
    len: usize,
}

impl SharedBytes {
    /// Maps `len` bytes of a memory file that never gets shorter.
    pub fn map(fd: i32, len: usize) -> Result<SharedBytes> {
        let at = map_shared(fd, len, 0)?;
        Ok(SharedBytes { at, len })
    }

    /// Like [`advise`], for advice that discards nothing: MADV_HUGEPAGE, MADV_NOHUGEPAGE.
    pub fn advise_huge(&self, yes: bool) -> Result<()> {
        let advice = if yes {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // SAFETY: a range of ours; advice that discards nothing.
        unsafe { advise(self.at, self.len, advice) }
    }
}

impl std::ops::Deref for SharedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped by `map` for the life of `self`, initialised.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, self.len) }
    }
}

impl std::ops::DerefMut for SharedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.len) }
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and every borrow ends with `self`.
        let _ = unsafe { unmap(self.at, self.len) };
    }
}

/// Memory that several processes have mapped, under a name of its own.
///
/// # Safety
/// From [`SharedMemory::start`] on, [`SharedMemory::size`] bytes are mapped, readable, writable and
/// initialised for the life of the value, at one place.
pub unsafe trait SharedMemory {
    /// Address of the first byte.
    fn start(&self) -> *mut u8;
    /// Bytes.
    fn size(&self) -> usize;
}

/// The bytes of such memory. As with [`SharedBytes`], the protocol with the other processes, which
/// may write to it meanwhile, is the caller's.
#[derive(Debug)]
pub struct BytesOf<M>(pub M);

impl<M: SharedMemory> std::ops::Deref for BytesOf<M> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the contract of the trait.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.size()) }
    }
}

impl<M: SharedMemory> std::ops::DerefMut for BytesOf<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the contract of the trait, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.0.size()) }
    }
}

/// Maps the first `len` bytes of `fd` at `at`, shared, readable and writable, in place of what is
/// there.
///
/// # Safety
/// Nobody may use what was mapped there.
pub unsafe fn map_shared_at(at: usize, fd: i32, len: usize) -> Result<()> {
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
    // SAFETY: passed on to the caller.
    unsafe {
        call(
            libc::SYS_mmap,
            [at, len, PROT_RW as usize, flags, fd as usize, 0],
        )
    }
    .map(drop)
}

/// Unmaps a range.
///
/// # Safety
/// Nobody may use the range any more.
pub unsafe fn unmap(at: usize, len: usize) -> Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) }.map(drop)
}

/// Changes the protection of a range.
///
/// # Safety
/// Whoever uses the range must be able to cope with the faults this causes.
pub unsafe fn protect(at: usize, len: usize, prot: u32) -> Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]) }.map(drop)
}

/// Moves the pages of `[from, from+len)` to `to` in one atomic step, in place of what is mapped
/// there. `from` stays mapped with its protection, empty.
///
/// # Safety
/// Both ranges must be private anonymous memory of the caller's to give.
pub unsafe fn move_pages(from: usize, to: usize, len: usize) -> Result<()> {
    let flags = libc::MREMAP_MAYMOVE as usize | libc::MREMAP_FIXED as usize | MREMAP_DONTUNMAP;
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_mremap, [from, len, len, flags, to, 0]) }.map(drop)
}

/// Gives the kernel advice on a range (`libc::MADV_*`).
///
/// # Safety
/// Some advice (DONTNEED, FREE) discards content.
pub unsafe fn advise(at: usize, len: usize, advice: i32) -> Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]) }.map(drop)
}

/// Locks a range in memory for good and populates it at once: the kernel does not swap it. EPERM,
/// ENOMEM or EAGAIN if that is more than the limit on locked memory (RLIMIT_MEMLOCK). Forked
/// children do not inherit the lock.
pub fn lock(at: usize, len: usize) -> Result<()> {
    // SAFETY: changes where pages are, not what they hold.
    unsafe { call(libc::SYS_mlock, [at, len, 0, 0, 0, 0]) }.map(drop)
}

/// A range of memory, as calls that take many of them want it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Address of the first byte.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Span {
    /// No bytes.
    pub const NONE: Span = Span { at: 0, len: 0 };
}

/// Largest number of ranges for one call.
pub const SPANS_MAX: usize = 1024;

/// Discards the pages of many ranges by one call (process_madvise on the caller itself, Linux 6.13
/// and later), which interrupts other processors once. Returns how many bytes were discarded, from
/// the front: fewer than all if something stopped it.
///
/// # Safety
/// Their content is lost.
pub unsafe fn discard_ranges(spans: &[Span]) -> Result<usize> {
    const PIDFD_SELF: usize = -10_000_isize as usize;
    let (at, n) = (spans.as_ptr() as usize, spans.len().min(SPANS_MAX));
    let advice = libc::MADV_DONTNEED as usize;
    // SAFETY: passed on to the caller; a span is laid out as an iovec, and the list is read only.
    unsafe { call(libc::SYS_process_madvise, [PIDFD_SELF, at, n, advice, 0, 0]) }
}

/// Faults a range in, writable. False if that failed, for instance before Linux 5.14.
pub fn populate(at: usize, len: usize) -> bool {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: this advice changes no content.
    unsafe { advise(at, len, MADV_POPULATE_WRITE) }.is_ok()
}

/// Has the kernel map zeros where nothing is in memory of `[at, at+len)`, which can be read.
pub fn populate_read(at: usize, len: usize) -> Result<()> {
    const MADV_POPULATE_READ: i32 = 22;
    // SAFETY: this advice changes no content.
    unsafe { advise(at, len, MADV_POPULATE_READ) }
}

/// The kernel's number of the node that the memory at `at` is on, or `None` if there is no memory
/// or the kernel does not tell (move_pages).
pub fn node_of(at: usize) -> Option<usize> {
    let (pages, mut status) = ([at], [-1i32]);
    let args = [
        0,
        1,
        pages.as_ptr() as usize,
        0,
        status.as_mut_ptr() as usize,
        0,
    ];
    // SAFETY: asked for no nodes to move to, the call reads an address and writes a number, of
    // ours.
    unsafe { crate::raw::call(libc::SYS_move_pages, args) }.ok()?;
    usize::try_from(status[0]).ok()
}

/// Has the kernel collapse each aligned 2 MiB of a range into one huge page, now, whatever the
/// system's policy says (Linux 6.1). ENOMEM, EAGAIN: no huge page is free. EINVAL, EBUSY: not
/// possible for the memory that is there, for this process, or with this kernel.
pub fn collapse(at: usize, len: usize) -> Result<()> {
    const MADV_COLLAPSE: i32 = 25;
    // SAFETY: this advice changes no content.
    unsafe { advise(at, len, MADV_COLLAPSE) }
}

/// Notes which pages of a range the kernel has in memory, one byte for each (bit 0).
pub fn resident(at: usize, len: usize, out: &mut [u8]) -> Result<()> {
    assert!(out.len() >= len.div_ceil(4096));
    // SAFETY: mincore writes one byte a page into `out`, which is long enough.
    unsafe {
        call(
            libc::SYS_mincore,
            [at, len, out.as_mut_ptr() as usize, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Notes which pages from `at` on exist, in memory or in the kernel's swap, by /proc/self/pagemap.
pub fn populated(pagemap: i32, at: usize, out: &mut [bool]) -> Result<()> {
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    let mut entries = [0u64; 64];
    let mut page = at / 4096;
    for part in out.chunks_mut(entries.len()) {
        // SAFETY: `entries` has room for what is asked for.
        unsafe {
            crate::fs::read_exact_at(
                pagemap,
                entries.as_mut_ptr() as usize,
                part.len() * 8,
                page as u64 * 8,
            )
        }?;
        part.iter_mut()
            .zip(&entries)
            .for_each(|(o, e)| *o = e & PRESENT_OR_SWAPPED != 0);
        page += part.len();
    }
    Ok(())
}

/// Creates a memory file: anonymous, sealable, executable if `exec`, closed on exec.
pub fn memfd(name: &std::ffi::CStr, exec: bool) -> Result<i32> {
    const MFD_CLOEXEC: usize = 1;
    const MFD_ALLOW_SEALING: usize = 2;
    const MFD_EXEC: usize = 0x10;
    let base = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    let try_with = |flags: usize| {
        // SAFETY: `name` is a NUL-terminated string.
        unsafe {
            call(
                libc::SYS_memfd_create,
                [name.as_ptr() as usize, flags, 0, 0, 0, 0],
            )
        }
    };
    let fd = match try_with(if exec { base | MFD_EXEC } else { base }) {
        // Kernels before 6.3 do not know MFD_EXEC and make executable files anyway.
        Err(Errno::EINVAL) if exec => try_with(base)?,
        other => other?,
    };
    Ok(fd as i32)
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Bytes of `[start, end)` that are mapped by huge pages; `pagemap` is a descriptor of
/// `/proc/self/pagemap`. ENOTTY or EINVAL if the kernel (before 6.7) has no PAGEMAP_SCAN.
pub fn huge_bytes(pagemap: i32, start: usize, end: usize) -> Result<u64> {
    scan_bytes(pagemap, start, end, PAGE_IS_HUGE | PAGE_IS_PRESENT)
}

/// Bytes of `[start, end)` that are in memory.
pub fn present_bytes(pagemap: i32, start: usize, end: usize) -> Result<u64> {
    scan_bytes(pagemap, start, end, PAGE_IS_PRESENT)
}

/// Reads entries of /proc/PID/pagemap, open as `pagemap`, from address `start` on. Returns how many
/// were read.
pub fn pagemap(pagemap: i32, start: usize, entries: &mut [u64]) -> Result<usize> {
    let (at, len) = (entries.as_mut_ptr() as usize, size_of_val(entries));
    // SAFETY: the caller's slice.
    let bytes = unsafe { fs::read_at(pagemap, at, len, (start / 4096 * 8) as u64) }?;
    Ok(bytes / 8)
}

fn scan_bytes(pagemap: i32, start: usize, end: usize, mask: u64) -> Result<u64> {
    let mut regions = [PageRegion::default(); 64];
    let mut at = start as u64;
    let mut bytes = 0;
    while at < end as u64 {
        let mut arg = PmScanArg {
            size: size_of::<PmScanArg>() as u64,
            start: at,
            end: end as u64,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_mask: mask,
            return_mask: mask,
            ..Default::default()
        };
        // SAFETY: `arg` and `regions` are valid for the call and sized as declared in it.
        let n = unsafe {
            call(
                libc::SYS_ioctl,
                [
                    pagemap as usize,
                    PAGEMAP_SCAN,
                    &mut arg as *mut _ as usize,
                    0,
                    0,
                    0,
                ],
            )
        }?;
        bytes += regions[..n].iter().map(|r| r.end - r.start).sum::<u64>();
        if arg.walk_end <= at {
            break;
        }
        at = arg.walk_end;
    }
    Ok(bytes)
}
