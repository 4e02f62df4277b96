//! Transfers by io_submit: their buffers are held in memory until they are done.
//!
//! Nobody calls us when one is: the kernel puts an event in a ring that the program may read without a
//! call. We read the ring as well, at the next submission. No event is missed, since the ring has
//! room for all transfers under way, and none begins in between.
//!
//! What is held is bounded: a submission waits until others are done, as it may at the kernel. (To take
//! fewer would be an answer, too, but programs that are not used to it wait for events of what was not
//! taken.) Where the ring cannot be read, buffers become the kernel's for good.

use crate::issue::{Args, Caller, Pins};
use crate::lock::Lock;
use crate::transfer::{IOV_MAX, Part, Transfer, Wanted, answer, segments};
use hugeswap_sys::{process, raw};
use libc::iovec;
use std::collections::BTreeMap;

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
/// So long a submission waits for others at most.
const PATIENCE_NS: u64 = 10_000_000_000;

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
    under_way: BTreeMap<u64, Vec<Transfer>>,
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
    fn done(&mut self, at: usize, ring: Ring) -> Option<Vec<Transfer>> {
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

/// The same of all contexts.
fn look_at_all() {
    let contexts: Vec<usize> = CONTEXTS.lock().keys().copied().collect();
    contexts.into_iter().for_each(|context| {
        look(context);
    });
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

/// The memory that a transfer is from or to.
fn parts(block: &Block) -> Vec<Part> {
    let (buf, n) = (block.buf as usize, block.nbytes as usize);
    let fills = matches!(block.opcode, PREAD | PREADV);
    match block.opcode {
        PREAD | PWRITE => vec![Part::new(buf, n, fills)],
        PREADV | PWRITEV => segments(buf, n.min(IOV_MAX), fills).collect(),
        // Nothing is transferred.
        _ => Vec::new(),
    }
}

impl Caller {
    /// io_submit.
    pub fn submit(&self, a: Args) -> isize {
        let [context, count, list, ..] = a;
        let is_told = look(context);
        let mut during = Pins::new(self.engine);
        during.insist(list, count.min(1 << 16) * size_of::<usize>(), false);
        // Those of `taken..` that are not submitted yet.
        let mut next: Vec<(u64, Transfer)> = Vec::new();
        let mut taken = 0;
        for i in 0..count.min(1 << 16) {
            // SAFETY: the program's array of pointers to control blocks.
            let (at, block) = unsafe {
                let at = (list as *const usize).add(i).read_unaligned();
                (at, (at as *const Block).read_unaligned())
            };
            during.insist(at, size_of::<Block>(), true);
            if matches!(block.opcode, PREADV | PWRITEV) {
                let n = (block.nbytes as usize).min(IOV_MAX);
                during.insist(block.buf as usize, n * size_of::<iovec>(), false);
            }
            let wanted = Wanted::of(self.engine, parts(&block));
            if !is_told {
                wanted.give_away(self.engine);
                continue;
            }
            if wanted.is_too_much(self.engine) {
                // What waits for what this call holds would wait in vain.
                let n = next.len();
                let r = self.submit_held(a, taken, std::mem::take(&mut next));
                if r < n as isize {
                    return answer(taken, r);
                }
                taken += n;
                // (What is under way comes to its end without us.)
                wanted.make_room(self.engine, PATIENCE_NS, look_at_all);
            }
            next.push((at as u64, wanted.hold(self.engine)));
        }
        let r = match next.is_empty() {
            // (None, or it cannot be told when they are done.)
            true if taken == 0 => self.raw(libc::SYS_io_submit, a),
            _ => self.submit_held(a, taken, next),
        };
        drop(during);
        answer(taken, r)
    }

    /// Submits those from number `first` on whose memory is held.
    fn submit_held(&self, a: Args, first: usize, blocks: Vec<(u64, Transfer)>) -> isize {
        let [context, _, list, ..] = a;
        let under_way: Vec<u64> = blocks.iter().map(|(at, _)| *at).collect();
        if under_way.is_empty() {
            return 0;
        }
        if let Some(c) = CONTEXTS.lock().get_mut(&context) {
            for (at, transfer) in blocks {
                c.under_way.entry(at).or_default().push(transfer);
            }
        }
        let at = list + first * size_of::<usize>();
        let call = [context, under_way.len(), at, 0, 0, 0];
        let r = self.raw(libc::SYS_io_submit, call);
        // What was not taken.
        let mut left = Vec::new();
        if let Some(c) = CONTEXTS.lock().get_mut(&context) {
            for at in &under_way[(r.max(0) as usize).min(under_way.len())..] {
                let held = c.under_way.get_mut(at);
                left.extend(held.and_then(Vec::pop));
            }
        }
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
