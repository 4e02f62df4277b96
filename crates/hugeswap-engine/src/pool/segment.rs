//! The life of the segment in one process: made, or joined through the process that made it, and
//! given back.

use super::areas::Areas;
use super::joining::{open_of, out_of_the_way};
use super::layout::{self, Header, MAGIC, MAX_AREAS, VERSION};
use super::{MIN_MEMORY, Pool, PoolConfig, PoolError, Secret, machine_memory, offsets, swap};
use crate::lock::Lock;
use crate::zeroed::leave_out_of_core_dumps;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::zswap::entry;
use hugeswap_sys::{fs, mm, now_ns, process};
use std::ffi::CStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// After this time no further swap area is measured.
const PROBE_NS: u64 = 20_000_000;

const SEGMENT_NAME: &CStr = c"hugeswap-pool";
/// What the link of a descriptor of a segment (`/proc/PID/fd/N`) begins with.
pub const SEGMENT_LINK: &str = "/memfd:hugeswap-pool";

impl Pool {
    /// Makes a pool. Nothing is left behind on failure; dropping gives everything back.
    pub fn create(config: &PoolConfig) -> Result<Pool, PoolError> {
        if config.memory < MIN_MEMORY {
            return Err(PoolError::TooSmall(config.memory));
        }
        let has = machine_memory();
        if config.memory > has {
            return Err(PoolError::TooLarge {
                asked: config.memory,
                has,
            });
        }
        let specs = if config.swap.is_empty() {
            vec![swap::default_area()?]
        } else {
            config.swap.clone()
        };
        if specs.len() > MAX_AREAS {
            return Err(PoolError::TooManyAreas);
        }
        let mut opened: Vec<swap::OpenArea> = Vec::new();
        for spec in &specs {
            match swap::open_area(spec) {
                Ok(a) => opened.push(a),
                Err(e) => {
                    opened.iter().for_each(|a| fs::close(a.fd));
                    return Err(e);
                }
            }
        }
        let total: u64 = opened.iter().map(|a| a.clusters).sum();
        let close_all = |e: PoolError| {
            opened.iter().for_each(|a| fs::close(a.fd));
            e
        };
        let capacity = total.saturating_add(room_to_add(total));
        let zswap = most_zswap_frames();
        let offsets = offsets::offsets(capacity, zswap)
            .ok_or(PoolError::BadSegment)
            .map_err(close_all)?;
        let fd = mm::memfd(SEGMENT_NAME, false)
            .map_err(|e| close_all(PoolError::System("cannot make the pool segment", e)))?;
        let needed = offsets.end as u64;
        let map = process::with_soft_limit(libc::RLIMIT_FSIZE, needed, || {
            // Beyond the limit the kernel sends SIGXFSZ, which ends the process.
            let limit = process::limit(libc::RLIMIT_FSIZE);
            if needed > limit {
                return Err(PoolError::FileLimit { needed, limit });
            }
            fs::truncate(fd, needed)
                .and_then(|()| mm::map_shared(fd, offsets.end, 0))
                .map_err(|e| PoolError::System("cannot map the pool segment", e))
        });
        let base = match map {
            Ok(b) => b,
            Err(e) => {
                fs::close(fd);
                return Err(close_all(e));
            }
        };
        leave_out_of_core_dumps(base, offsets.end);
        let mut pool = Pool {
            base,
            length: offsets.end,
            offsets,
            capacity,
            zswap_frames: zswap as usize,
            fd,
            areas: Areas::new(),
            changing_areas: Lock::freed_in_children(()),
            secret: None,
        };
        let h = pool.header();
        pool.begin_budget(config.memory / UNIT_BYTES);
        h.clusters.store(capacity, Relaxed);
        h.zswap_frames.store(zswap, Relaxed);
        h.length.store(offsets.end as u64, Relaxed);
        h.creator.store(process::pid(), Relaxed);
        h.fault_mode.store(config.fault_mode as u32, Relaxed);
        for k in Knob::ALL {
            h.knobs[*k as usize].store(k.default_value(), Relaxed);
        }
        for (k, v) in &config.settings {
            h.knobs[*k as usize].store(*v, Relaxed);
        }
        let mut key = [0u8; 32];
        fill_random(&mut key);
        for (word, bytes) in h.key.iter().zip(key.chunks_exact(8)) {
            word.store(
                u64::from_le_bytes(bytes.try_into().expect("chunks of 8")),
                Relaxed,
            );
        }
        let began = now_ns();
        for (i, area) in opened.iter().enumerate() {
            // If there are many slow areas, the first ones are enough.
            let probed = now_ns() - began < PROBE_NS;
            if let Err(e) = pool.add_open_area(area, probed) {
                // Those before are the pool's by now.
                opened[i..].iter().for_each(|a| fs::close(a.fd));
                return Err(e);
            }
        }
        if pool.knob(Knob::Encrypt) != 0 {
            let secret = Secret::create()?;
            pool.header().key_fd.store(secret.fd() + 1, Relaxed);
            pool.secret = Some(secret);
        }
        let h = pool.header();
        h.version.store(VERSION, Relaxed);
        h.magic.store(MAGIC, Release);
        Ok(pool)
    }

    /// Joins the pool whose segment process `creator` holds under number `segment_fd`.
    /// `min_fd`: the descriptors this process gets stand at or above this number.
    pub fn attach(creator: i32, segment_fd: i32, min_fd: i32) -> Result<Pool, PoolError> {
        let mut pool = Self::attach_alone(creator, segment_fd, min_fd)?;
        pool.join_areas(min_fd)?;
        let key = pool.header().key_fd.load(Relaxed);
        if key > 0 {
            let fd =
                open_of(creator, key - 1, 0).map_err(|e| PoolError::Unreachable(creator, e))?;
            pool.secret = Some(Secret::join(fd)?);
        }
        Ok(pool)
    }

    /// As [`Pool::attach`], but without joining swap areas: to look, and to ask.
    pub fn attach_alone(creator: i32, segment_fd: i32, min_fd: i32) -> Result<Pool, PoolError> {
        let fd = open_of(creator, segment_fd, 0).map_err(|e| PoolError::Unreachable(creator, e))?;
        let fd = out_of_the_way(fd, min_fd);
        Self::map_checked(fd).inspect_err(|_| fs::close(fd))
    }

    fn map_checked(fd: i32) -> Result<Pool, PoolError> {
        let head = mm::map_shared(fd, size_of::<Header>().next_multiple_of(4096), 0)
            .map_err(|e| PoolError::System("cannot map the pool segment", e))?;
        // SAFETY: freshly mapped, all-atomic, at least a Header long (touching past the end of
        // a truncated file would be SIGBUS; the file was made by us and is never shrunk).
        let h = unsafe { &*(head as *const Header) };
        let ok = h.magic.load(Acquire) == MAGIC && h.version.load(Relaxed) == VERSION;
        let (clusters, length) = (h.clusters.load(Relaxed), h.length.load(Relaxed));
        let zswap = h.zswap_frames.load(Relaxed);
        // SAFETY: the mapping made above; `h` is not used again.
        let _ = unsafe { mm::unmap(head, size_of::<Header>().next_multiple_of(4096)) };
        let offsets = offsets::offsets(clusters, zswap)
            .filter(|o| ok && o.end as u64 == length)
            .ok_or(PoolError::BadSegment)?;
        let base = mm::map_shared(fd, offsets.end, 0)
            .map_err(|e| PoolError::System("cannot map the pool segment", e))?;
        // (Written to a core dump all of it would become memory, gigabytes where there is much
        // swap.)
        leave_out_of_core_dumps(base, offsets.end);
        Ok(Pool {
            base,
            length: offsets.end,
            offsets,
            capacity: clusters,
            zswap_frames: zswap as usize,
            fd,
            areas: Areas::new(),
            changing_areas: Lock::freed_in_children(()),
            secret: None,
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close_past_areas();
        // A thread's own descriptors go some time after a thread that waits for it is told that it
        // has ended: without this, the next pool would be refused a file or a device that is not in
        // use any more.
        // (A look at a record that was never used would make it memory.)
        let unused = self.used().all(|(_, r)| r.state() == layout::state::FREE);
        for (_, a) in self.areas() {
            if unused && fs::identity(a.fd) == Ok(a.identity) {
                fs::unlock(a.fd);
            }
            fs::close(a.fd);
        }
        fs::close(self.fd);
        // SAFETY: the segment was mapped by us and every borrow ends with `self`.
        let _ = unsafe { mm::unmap(self.base, self.length) };
    }
}

/// How many clusters can be added to a pool with `clusters` in use: addresses are kept for them,
/// and no memory. Where addresses or the sizes of files are limited, none.
fn room_to_add(clusters: u64) -> u64 {
    const LEAST: u64 = (256 << 30) / UNIT_BYTES;
    match addresses_are_limited() {
        true => 0,
        false => clusters.max(LEAST),
    }
}

fn addresses_are_limited() -> bool {
    let limited = |resource| process::limit(resource) != libc::RLIM_INFINITY;
    limited(libc::RLIMIT_AS) || limited(libc::RLIMIT_FSIZE)
}

/// Frames that compressed memory can have: addresses for as much as the machine has memory. Where
/// those are limited, none.
fn most_zswap_frames() -> u64 {
    match addresses_are_limited() {
        true => 0,
        false => (machine_memory() / UNIT_BYTES).min(entry::MAX_FRAMES as u64),
    }
}

fn fill_random(buf: &mut [u8]) {
    let mut done = 0;
    while done < buf.len() {
        // SAFETY: the rest of a valid buffer.
        let n = unsafe { libc::getrandom(buf[done..].as_mut_ptr().cast(), buf.len() - done, 0) };
        if n > 0 {
            done += n as usize;
        }
    }
}
