//! Reads a stretch of a file or device that may be open for direct I/O, which takes whole, aligned
//! pages.

use hugeswap_sys::{Result, fs, mm};

/// Bytes at the start of a file or device of `size` bytes in which signatures are looked for.
pub fn size_of_head(size: u64) -> usize {
    size.min(320 << 10) as usize
}

/// Reads `len` bytes at `at`, a multiple of 4096; fewer where the file ends.
pub fn read(fd: i32, at: u64, len: usize) -> Result<Vec<u8>> {
    let room = len.next_multiple_of(4096).max(4096);
    let buffer = mm::map_own(room, mm::PROT_RW)?;
    // SAFETY: just mapped, that long.
    let got = unsafe { fs::read_until(fd, buffer, room, len, at) };
    let bytes = got.map(|n| {
        // SAFETY: as above; what was not read is zeros.
        unsafe { std::slice::from_raw_parts(buffer as *const u8, n.min(len)) }.to_vec()
    });
    // SAFETY: mapped above, used by this thread only.
    let _ = unsafe { mm::unmap(buffer, room) };
    bytes
}
