//! Where the swap of tests is: in memory, if there is room, since what most of them wait for is single
//! pages from a disk that all of them share (docs/testing.md). Several test programs have this file.

/// A directory in memory.
pub const IN_MEMORY: &str = "/dev/shm";

/// Does memory have much room for swap, and is swap not to be on a disk in any case
/// (HUGESWAP_TEST_DISK=1)?
pub fn memory_has_room() -> bool {
    if std::env::var_os("HUGESWAP_TEST_DISK").is_some() {
        return false;
    }
    let path = std::ffi::CString::new(IN_MEMORY).expect("no zero");
    // SAFETY: plain data, for which zeros are valid.
    let mut fs: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string that ends, and a structure of ours.
    let known = unsafe { libc::statvfs(path.as_ptr(), &mut fs) } == 0;
    known && fs.f_bavail * fs.f_frsize >= 8 << 30
}
