//! An area that is a block device. Everything on it is overwritten, so it must be allowed by name,
//! in use by nobody, and hold nothing that is known.
//!
//! The claim that keeps others from mounting it (O_EXCL) belongs to the process that made the pool.

use super::{
    Found, Kind, Refusal, SwapSpec, is_kernel_swap, must_be_blank, open_direct, patiently, sized,
    take, unescaped,
};
use crate::pool::PoolError;
use hugeswap_sys::{Errno, block, fs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// `number`: the device that was found there.
pub(super) fn open(spec: &SwapSpec, refusal: &Refusal, number: u64) -> Result<Found, PoolError> {
    if !spec.allow_device {
        return Err(refusal.because(
            "is a block device, and everything on it would be overwritten",
            "add ,device=allow if you mean it, or name a directory",
        ));
    }
    if let Some(user) = user_of(number) {
        let hint = "name one that nothing uses";
        return Err(refusal.because(format!("is in use: {user}"), hint));
    }
    let opened = patiently(Errno::EBUSY, || {
        open_direct(&spec.path, libc::O_RDWR | libc::O_EXCL, 0)
    });
    let (device, direct) = opened.map_err(|e| open_error(e, refusal))?;
    let fail = |e: Errno| refusal.because(e.to_string(), "name another");
    let status = fs::status(device.0).map_err(fail)?;
    if status.device != number || status.identity.mode & libc::S_IFMT != libc::S_IFBLK {
        return Err(refusal.because("is another device by now", "name another"));
    }
    if block::is_read_only(device.0).map_err(fail)? {
        return Err(read_only(refusal));
    }
    if block::sector_bytes(device.0).map_err(fail)? > 4096 {
        return Err(refusal.because("has sectors of more than 4 KiB", "name another"));
    }
    let has = block::size(device.0).map_err(fail)?;
    let bytes = sized(spec, has, refusal)?;
    take(device.0, refusal)?;
    must_be_blank(device.0, has, Kind::Device, refusal)?;
    Ok(Found {
        fd: device.keep(),
        kind: Kind::Device,
        direct,
        bytes,
    })
}

fn read_only(refusal: &Refusal) -> PoolError {
    refusal.because("is read-only", "name a device that may be written")
}

fn open_error(e: Errno, refusal: &Refusal) -> PoolError {
    match e {
        Errno::EBUSY => refusal.because(
            "is in use (mounted, part of another device, or another pool's)",
            "name one that nothing uses",
        ),
        // Root is refused only what the device refuses.
        Errno::EACCES | Errno::EPERM if hugeswap_sys::process::effective_user() != 0 => refusal
            .because(
                "may not be read and written by this user",
                "ask root for permission, or name a directory",
            ),
        Errno::EACCES | Errno::EPERM | Errno::EROFS => read_only(refusal),
        e => refusal.because(e.to_string(), "name another device or a directory"),
    }
}

/// What uses the device, as far as the kernel tells by name.
fn user_of(number: u64) -> Option<String> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    let id = format!("{major}:{minor}");
    // (Names in it may be any bytes.)
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let mounted = mounts.lines().find_map(|l| {
        let mut words = l.split(' ').skip(2);
        let on = words.next()? == id;
        on.then(|| words.nth(1))?
    });
    if let Some(at) = mounted {
        return Some(format!("it is mounted at {}", unescaped(at.as_bytes())));
    }
    if is_kernel_swap(|m| m.file_type().is_block_device() && m.rdev() == number) {
        return Some("it is kernel swap".into());
    }
    let mut holders = std::fs::read_dir(format!("/sys/dev/block/{id}/holders")).ok()?;
    let holder = holders.find_map(|h| h.ok()?.file_name().into_string().ok())?;
    Some(format!("it is part of {holder}"))
}
