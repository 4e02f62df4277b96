//! Transfers by io_submit: their buffers are held in memory until they are done.
//!
//! Nobody calls us when one is: the kernel puts an event in a ring that the program may read without a
//! call. We read the ring as well, at the next submission. No event is missed, since the ring has
//! room for all transfers under way, and none begins in between.
//!
//! What is under way is bounded ([`Pins::add`]): beyond that the answer is that fewer were taken, or
//! EAGAIN, as when the kernel has no room. Where the ring cannot be read, buffers become the kernel's
//! for good.

use crate::issue::{Args, Caller, Pins, is_mapped};
use crate::lock::Lock;
use crate::mmap;
use hugeswap_engine::Engine;
use hugeswap_sys::{process, raw};
use libc::iovec;
use std::collections::BTreeMap;

const EAGAIN: isize = -(libc::EAGAIN as isize);
/// Most segments of a transfer.
const IOV_MAX: usize = 1024;

/// The kernel's aio_ring. A context's number is its address; the events follow.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ring {
    id: u32,
    nr: u32,
    head: u32,
    tail: u32,
    magic: u32,
    compat: u32,
    incompat: u32,
    header_length: u32,
}

const MAGIC: u32 = 0xa10a_10a1;

/// The kernel's io_event.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    /// The address of the control block.
    block: u64,
    res: [i64; 2],
}

/// The kernel's iocb.
#[repr(C)]
#[derive(Clone, Copy)]
struct Block {
    data: u64,
    key: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: i32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Ring>() == 32 && size_of::<Event>() == 32);
const _: () = assert!(size_of::<Block>() == 64);

/// A context of the program's.
struct Context {
    /// Up to where its ring has been read.
    seen: u32,
    /// By the address of the control block, which may be under way more than once.
    under_way: BTreeMap<u64, Vec<Pins>>,
}

/// By their numbers.
static CONTEXTS: Lock<BTreeMap<usize, Context>> = Lock::new(BTreeMap::new());

/// Copies memory of the kernel's that may have gone. False: it has, or that is not allowed.
fn copy<T: Copy>(from: usize, to: &mut [T]) -> bool {
    let len = size_of_val(to);
    let segments = [
        iovec {
            iov_base: to.as_mut_ptr().cast(),
            iov_len: len,
        },
        iovec {
            iov_base: from as *mut libc::c_void,
            iov_len: len,
        },
    ];
    let at = |i: usize| &raw const segments[i] as usize;
    let a = [process::pid() as usize, at(0), 1, at(1), 1, 0];
    // SAFETY: `to` is ours and as long; what cannot be read is an error.
    len == 0 || unsafe { raw::call(libc::SYS_process_vm_readv, a) } == Ok(len)
}

/// The ring of a context, if it is one.
fn ring_of(context: usize) -> Option<Ring> {
    let mut ring = [Ring::default()];
    let is_ring = copy(context, &mut ring) && ring[0].magic == MAGIC;
    let [ring] = ring;
    (is_ring && ring.nr > 0 && ring.tail < ring.nr).then_some(ring)
}

impl Context {
    /// Reads on in the ring, and returns what is held for transfers that are done; `None`: it cannot
    /// be read.
    fn done(&mut self, at: usize, ring: Ring) -> Option<Vec<Pins>> {
        let mut done = Vec::new();
        while self.seen != ring.tail {
            let end = if self.seen < ring.tail {
                ring.tail
            } else {
                ring.nr
            };
            let mut events = vec![Event::default(); (end - self.seen) as usize];
            let from = at + ring.header_length as usize + self.seen as usize * size_of::<Event>();
            if !copy(from, &mut events) {
                return None;
            }
            for event in events {
                if let Some(held) = self.under_way.get_mut(&event.block) {
                    done.extend(held.pop());
                    if held.is_empty() {
                        self.under_way.remove(&event.block);
                    }
                }
            }
            self.seen = end % ring.nr;
        }
        Some(done)
    }
}

/// Lets go of what is done of a context. False: that cannot be told.
fn look(context: usize) -> bool {
    let mut contexts = CONTEXTS.lock();
    let Some(ring) = ring_of(context) else {
        return false;
    };
    let new = Context {
        seen: ring.tail,
        under_way: BTreeMap::new(),
    };
    let done = contexts.entry(context).or_insert(new).done(context, ring);
    drop(contexts);
    // (What was held is let go of here.)
    done.is_some()
}

/// Is nothing of a context under way?
fn is_idle(context: usize) -> bool {
    let contexts = CONTEXTS.lock();
    contexts
        .get(&context)
        .is_none_or(|c| c.under_way.is_empty())
}

/// In a forked child, which has none of its parent's contexts.
pub fn forget_all() {
    let contexts = std::mem::take(&mut *CONTEXTS.lock());
    // (What they held is not held in the child.)
    std::mem::forget(contexts);
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    CONTEXTS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    CONTEXTS.after_fork();
}

/// The memory that a transfer is from or to, and whether it is to it.
fn segments(block: &Block) -> (Vec<(usize, usize)>, bool) {
    const PREAD: u16 = 0;
    const PWRITE: u16 = 1;
    const PREADV: u16 = 7;
    const PWRITEV: u16 = 8;
    let (buf, n) = (block.buf as usize, block.nbytes as usize);
    match block.opcode {
        PREAD | PWRITE => (vec![(buf, n)], block.opcode == PREAD),
        PREADV | PWRITEV => {
            let segment = |i: usize| {
                // SAFETY: the program's vector; a fault on it is taken as any other.
                let s = unsafe { (buf as *const iovec).add(i).read_unaligned() };
                (s.iov_base as usize, s.iov_len)
            };
            let all = (0..n.min(IOV_MAX)).map(segment).collect();
            (all, block.opcode == PREADV)
        }
        // Nothing is transferred.
        _ => (Vec::new(), false),
    }
}

/// Holds the memory of a transfer; `None`: not now. What cannot be held becomes the kernel's.
fn hold(engine: &'static Engine, block: &Block, is_first: bool) -> Option<Pins> {
    let mut held = Pins::new(engine);
    let (segments, fills) = segments(block);
    for (at, len) in segments {
        // (Of what the program has no access to the kernel says EFAULT.)
        if held.add(at, len, fills, true) || !is_mapped(engine, at, len, fills) {
            continue;
        }
        if !is_first && held.is_full(at, len) {
            return None;
        }
        if !held.insist(at, len, fills) {
            let _ = mmap::eject(engine, at, len);
        }
    }
    Some(held)
}

impl Caller {
    /// io_submit.
    pub fn submit(&self, a: Args) -> isize {
        let [context, count, list, ..] = a;
        let count = count.min(1 << 16);
        let is_told = look(context);
        let mut during = Pins::new(self.engine);
        during.insist(list, count * size_of::<usize>(), false);
        let mut taken: Vec<(u64, Pins)> = Vec::new();
        let mut is_full = false;
        for i in 0..count {
            // SAFETY: the program's array of pointers to control blocks.
            let (at, block) = unsafe {
                let at = (list as *const usize).add(i).read_unaligned();
                (at, (at as *const Block).read_unaligned())
            };
            during.insist(at, size_of::<Block>(), true);
            let (memory, _) = segments(&block);
            if memory.len() != 1 {
                during.insist(block.buf as usize, memory.len() * size_of::<iovec>(), false);
            }
            if !is_told {
                for (at, len) in memory {
                    let _ = mmap::eject(self.engine, at, len);
                }
                continue;
            }
            let is_first = taken.is_empty() && is_idle(context);
            let Some(held) = hold(self.engine, &block, is_first) else {
                is_full = true;
                break;
            };
            taken.push((at as u64, held));
        }
        let n = if is_told { taken.len() } else { count };
        if n == 0 && is_full {
            return EAGAIN;
        }
        let blocks: Vec<u64> = taken.iter().map(|(at, _)| *at).collect();
        if let Some(c) = CONTEXTS.lock().get_mut(&context) {
            for (at, held) in taken {
                c.under_way.entry(at).or_default().push(held);
            }
        }
        let mut call = a;
        if n < count {
            call[1] = n;
        }
        let r = self.raw(libc::SYS_io_submit, call);
        // What was not taken.
        let mut left = Vec::new();
        if let Some(c) = CONTEXTS.lock().get_mut(&context) {
            for at in &blocks[(r.max(0) as usize).min(blocks.len())..] {
                let held = c.under_way.get_mut(at);
                left.extend(held.and_then(Vec::pop));
            }
        }
        drop((left, during));
        r
    }

    /// io_destroy: it returns when nothing is under way.
    pub fn destroy(&self, a: Args) -> isize {
        let ended = CONTEXTS.lock().remove(&a[0]);
        let r = self.raw(libc::SYS_io_destroy, a);
        drop(ended);
        r
    }
}
