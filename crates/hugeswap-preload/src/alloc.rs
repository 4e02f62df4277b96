//! The global allocator of this object. It takes memory straight from the kernel, apart from the
//! program's allocator.
//!
//! hugeswap's records of the program's memory must not live in that memory, and must exist before
//! the program's allocator does. Blocks of up to 32 KiB come from free lists, one for each power of
//! two; a larger block is a mapping of its own. One lock ([`crate::lock`]) guards the lists.

use crate::lock::{Held, Lock};
use hugeswap_sys::mm;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

const PAGE: usize = 4096;
const CHUNK: usize = 256 << 10;
const MIN_SHIFT: u32 = 4;
const MAX_SHIFT: u32 = 15;
const CLASSES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;

/// The global allocator.
pub struct Own;

struct Lists {
    /// Heads of the free lists; a free block's first word is the next one.
    heads: [usize; CLASSES],
    /// What is left of the newest chunk: `at..end`.
    at: usize,
    end: usize,
}

hot! {
    static LISTS: Lock<Lists> = Lock::new(Lists {
        heads: [0; CLASSES],
        at: 0,
        end: 0,
    });
}

/// The free list that serves `layout`; `None` if the block is a mapping of its own.
fn class(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << MIN_SHIFT);
    (size <= 1 << MAX_SHIFT).then(|| (size.next_power_of_two().ilog2() - MIN_SHIFT) as usize)
}

fn map(len: usize) -> usize {
    mm::map_own(len, mm::PROT_RW).unwrap_or(0)
}

fn take(lists: &mut Held<'_, Lists>, class: usize) -> usize {
    let head = lists.heads[class];
    if head != 0 {
        // SAFETY: a block on a free list is ours, at least 16 bytes long and aligned; its first
        // word is the link.
        lists.heads[class] = unsafe { *(head as *const usize) };
        return head;
    }
    let size = 1usize << (class as u32 + MIN_SHIFT);
    let mut at = lists.at.next_multiple_of(size);
    if at + size > lists.end || lists.at == 0 {
        // A block starts at a multiple of its size, which may be more than a page. Chunks are only
        // page-aligned, so a chunk has room to align its blocks.
        let chunk = map(CHUNK);
        if chunk == 0 {
            return 0;
        }
        lists.end = chunk + CHUNK;
        at = chunk.next_multiple_of(size);
    }
    lists.at = at + size;
    at
}

fn map_aligned(len: usize, align: usize) -> usize {
    if align <= PAGE {
        return map(len);
    }
    let Some(wide) = len.checked_add(align) else {
        return 0;
    };
    let at = map(wide);
    if at == 0 {
        return 0;
    }
    let start = at.next_multiple_of(align);
    for (from, to) in [(at, start), (start + len, at + wide)] {
        if from < to {
            // SAFETY: the margins of a mapping made a moment ago.
            let _ = unsafe { mm::unmap(from, to - from) };
        }
    }
    start
}

// SAFETY: blocks are disjoint (one lock guards the lists), as long and as aligned as asked,
// and freed into the class their layout names.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            Some(c) => take(&mut LISTS.lock(), c) as *mut u8,
            None => match layout.size().checked_next_multiple_of(PAGE) {
                Some(len) => map_aligned(len, layout.align()) as *mut u8,
                None => null_mut(),
            },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller.
        let p = unsafe { self.alloc(layout) };
        if !p.is_null() && class(layout).is_some() {
            // SAFETY: just allocated, that long; larger blocks are fresh mappings, hence zeros.
            unsafe { p.write_bytes(0, layout.size()) };
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        match class(layout) {
            Some(c) => {
                let mut lists = LISTS.lock();
                // SAFETY: the block is ours again and holds at least a word.
                unsafe { *p.cast::<usize>() = lists.heads[c] };
                lists.heads[c] = p as usize;
            }
            None => {
                // SAFETY: mapped by `alloc` with this very length.
                let _ = unsafe { mm::unmap(p as usize, layout.size().next_multiple_of(PAGE)) };
            }
        }
    }
}

/// Takes the lock of the lists for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    LISTS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    LISTS.after_fork();
}
