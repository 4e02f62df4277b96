//! System calls on managed memory, made so that the kernel finds every page it needs.
//!
//! [`Caller::issue`] takes a call as a program made it (from a wrapper or from the trap) and returns the kernel's raw
//! answer. Three ways, by what the call is:
//! * small or long-waiting buffers are *copied* through memory of ours: nothing is held while the call waits;
//! * large transfers are *pinned*, in pieces of what may be held at once ([`crate::vectors`]);
//! * for futexes the page is *touched*, and touched again on EFAULT: the address itself is what counts.
//!
//! Shared memory, which other processes may take out of memory any time, cannot be held: it is copied, or kept for good ([`crate::shared`]).
//!
//! All calls leave through the gate, so the filter lets them pass. Signals: in a trap everything is blocked but
//! around the call itself, where the program's mask holds.

use crate::local::{self, Word};
use crate::mask::OURS;
use crate::static_program::attached;
use crate::table::{self, Buffer, Len, Way};
use crate::touch::touch;
use crate::{addresses, extent, marks, owners, shared};
use hugeswap_engine::{Engine, Prot};
use hugeswap_sys::program_fs;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{self, Mask};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicUsize, fence};

/// Raw error answers.
pub const EFAULT: isize = -(libc::EFAULT as isize);
pub const EINVAL: isize = -(libc::EINVAL as isize);

/// Copied on the stack up to this many bytes in all.
const SMALL: usize = 4096;
pub const UNIT: usize = 2 << 20;
const PAGE: usize = 4096;
/// Longer buffers of table calls are pinned.
const COPY_MAX: usize = 256 << 10;
/// How often a call on a page that keeps leaving is made again.
const TRIES: usize = 1000;

/// Arguments of a system call.
pub type Args = [usize; 6];

/// Who makes calls: a wrapper, or the trap on behalf of interrupted code.
pub struct Caller {
    pub engine: &'static Engine,
    /// The interrupted code's mask, in a trap.
    pub mask: Option<Mask>,
    /// The call is a cancellation point of the C library's (never in a trap: there the library sees to it).
    pub cancellable: bool,
}

unsafe extern "C" {
    fn pthread_setcanceltype(new: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Lets a pending or coming cancellation end the thread, from now on; returns the former type.
fn cancel_type(new: libc::c_int) -> libc::c_int {
    let mut old = 0;
    // SAFETY: `old` is writable. If the thread is cancelled it never comes back, as from the call it makes.
    unsafe { pthread_setcanceltype(new, &mut old) };
    old
}

/// May `[addr, addr+len)` be read by us, and written to if `write`? No, if it is in the window and not mapped,
/// or mapped without that access: then the kernel is to say EFAULT, as it does to those who ask by such a call
/// whether memory is there.
pub fn is_mapped(engine: &Engine, addr: usize, len: usize, write: bool) -> bool {
    if len == 0 || !extent::managed(addr) {
        return true;
    }
    if extent::in_shared(addr) {
        return shared::is_mapped(addr, len);
    }
    let last = addr.saturating_add(len - 1);
    if !engine.allows(addr, len, write) {
        return false;
    }
    (engine.resident(addr) && engine.resident(last)) || engine.is_committed(addr, len)
}

impl Caller {
    /// Makes the call as it is.
    pub fn raw(&self, nr: i64, a: Args) -> isize {
        // A signal that comes now has a handler of the program's run.
        let outside = self.mask.map(|mask| {
            let outside = program_fs::outside();
            signal::set_mask(mask & !OURS);
            outside
        });
        const ASYNCHRONOUS: libc::c_int = 1;
        let former = self.cancellable.then(|| cancel_type(ASYNCHRONOUS));
        // SAFETY: the program's own call; buffers of ours stand in for the program's where it says so.
        let r = unsafe { syscall6(nr as usize, a) };
        if let Some(former) = former {
            cancel_type(former);
        }
        if self.mask.is_some() {
            signal::set_mask(signal::ALL & !OURS);
        }
        drop(outside);
        if r >= 0 {
            attached::note_done();
        }
        r
    }

    /// Is all of it the kernel's?
    pub fn is_foreign(&self, addr: usize, len: usize) -> bool {
        len > 0 && self.engine.is_foreign(addr, len)
    }

    /// [`is_mapped`] of this engine's memory.
    pub fn mapped(&self, addr: usize, len: usize, write: bool) -> bool {
        is_mapped(self.engine, addr, len, write)
    }

    /// Makes the call with every page it needs in reach.
    pub fn issue(&self, nr: i64, a: Args) -> isize {
        // SAFETY: the program's own call.
        if let Some(r) = unsafe { addresses::by_number(nr, a) } {
            return r;
        }
        match nr {
            libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_getrandom => self.stream(nr, a),
            libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_vmsplice
            | libc::SYS_process_vm_readv
            | libc::SYS_process_vm_writev => self.vector(nr, a),
            libc::SYS_recvmsg | libc::SYS_sendmsg => self.message(nr, a),
            libc::SYS_recvmmsg | libc::SYS_sendmmsg => self.messages(nr, a),
            libc::SYS_futex => self.futex(a),
            libc::SYS_io_submit => self.submit(a),
            libc::SYS_io_destroy => self.destroy(a),
            libc::SYS_io_uring_setup => self.ring_setup(a),
            libc::SYS_io_uring_enter => self.ring_enter(a),
            libc::SYS_io_uring_register => self.ring_register(a),
            _ => match table::buffers(nr) {
                Some(b) => self.by_table(nr, a, b),
                None => self.unknown(nr, a),
            },
        }
    }

    /// A call of the table: managed buffers are copied in and out, or pinned if they are long.
    fn by_table(&self, nr: i64, a: Args, buffers: &[Buffer]) -> isize {
        let mut lens = [0usize; 6];
        let mut total = 0;
        for &(i, way, len) in buffers {
            if extent::managed(a[i]) {
                if !self.mapped(a[i], 1, way == Way::Out) {
                    return self.raw(nr, a);
                }
                lens[i] = length(len, &a, a[i]);
                total += lens[i].next_multiple_of(16);
            }
        }
        let of_kernel = |i: usize| self.engine.is_foreign(a[i], lens[i]);
        let writes = |i: usize| buffers.iter().any(|b| b.0 == i && b.1 == Way::Out);
        let closed = |i: usize| !self.engine.allows(a[i], lens[i], writes(i));
        let given = (0..lens.len()).filter(|&i| lens[i] > 0);
        let in_window = |i: usize| extent::in_window(a[i]);
        if total > 0 && given.clone().all(|i| in_window(i) && of_kernel(i)) {
            // It knows best: there may be guards of its own in it, or pages without access.
            let _held = self.held_as_kernels(given.map(|i| (a[i], lens[i])));
            return self.raw(nr, a);
        }
        if given.clone().any(|i| in_window(i) && closed(i)) {
            given.for_each(|i| self.bring_up_to_closed(a[i], lens[i], writes(i)));
            return self.raw(nr, a);
        }
        if total > COPY_MAX {
            return self.pinned(nr, a, buffers, &lens);
        }
        if total <= SMALL {
            return self.copied_small(nr, a, buffers, &lens);
        }
        let mut large = vec![0u128; total / 16];
        self.copied(nr, a, buffers, &lens, large.as_mut_ptr() as usize)
    }

    /// Holds memory of the kernel's for a call, so that it stays the kernel's.
    fn held_as_kernels(&self, ranges: impl Iterator<Item = (usize, usize)>) -> Pins {
        let mut held = Pins::new(self.engine);
        for (addr, len) in ranges {
            // (What cannot be held so stays the kernel's for good.)
            if !held.insist(addr, len, false) {
                marks::note_told(addr, len);
            }
        }
        held
    }

    /// Brings in what the kernel will find of a range before the first page that the program may not touch so.
    pub fn bring_up_to_closed(&self, addr: usize, len: usize, write: bool) {
        if !extent::in_window(addr) {
            return;
        }
        let pages = (addr & !(PAGE - 1)..addr + len).step_by(PAGE);
        let allowed = pages.take_while(|&p| self.engine.allows(p, 1, write));
        for page in allowed.filter(|&p| !self.engine.is_foreign(p, 1)) {
            // SAFETY: a mapped byte with this access.
            unsafe { touch(page.max(addr), write) };
        }
    }

    /// A call whose buffers are copied by way of the stack. (A function of its own: what is held
    /// instead takes more of the stack without it.)
    #[inline(never)]
    fn copied_small(&self, nr: i64, a: Args, buffers: &[Buffer], lens: &[usize; 6]) -> isize {
        let mut small = [0u128; SMALL / 16];
        self.copied(nr, a, buffers, lens, small.as_mut_ptr() as usize)
    }

    /// A call whose buffers are copied to `room`, which has space for all of them, and back.
    fn copied(
        &self,
        nr: i64,
        a: Args,
        buffers: &[Buffer],
        lens: &[usize; 6],
        room: usize,
    ) -> isize {
        let (mut call, mut at) = (a, room);
        for &(i, _, _) in buffers {
            if extent::managed(a[i]) {
                // SAFETY: `room` has space for all of them; the source is the program's to answer for.
                unsafe { std::ptr::copy_nonoverlapping(a[i] as *const u8, at as *mut u8, lens[i]) };
                call[i] = at;
                at += lens[i].next_multiple_of(16);
            }
        }
        let r = self.raw(nr, call);
        for &(i, way, _) in buffers {
            if way == Way::Out && call[i] != a[i] {
                // SAFETY: as above, the other way.
                unsafe { copy_changed(call[i], a[i], lens[i]) };
            }
        }
        r
    }

    fn pinned(&self, nr: i64, a: Args, buffers: &[Buffer], lens: &[usize; 6]) -> isize {
        let mut held = Pins::new(self.engine);
        for &(i, way, _) in buffers {
            if lens[i] > 0 {
                held.insist(a[i], lens[i], way == Way::Out);
            }
        }
        let r = self.raw(nr, a);
        drop(held);
        r
    }

    /// Nobody told us what it does: hold what lies behind each pointer, up to the end of its unit.
    pub fn unknown(&self, nr: i64, a: Args) -> isize {
        let mut held = Pins::new(self.engine);
        for addr in a {
            if extent::managed(addr) {
                let len = UNIT - addr % UNIT;
                if !held.insist(addr, len, true) {
                    held.insist(addr, len, false);
                }
            }
        }
        let r = self.raw(nr, a);
        drop(held);
        r
    }

    fn futex(&self, a: Args) -> isize {
        let mut r = EFAULT;
        // With these operations the fourth argument is a number, not a time.
        let op = a[1] as i32 & libc::FUTEX_CMD_MASK;
        let timed = matches!(
            op,
            libc::FUTEX_WAIT
                | libc::FUTEX_WAIT_BITSET
                | libc::FUTEX_LOCK_PI
                | libc::FUTEX_WAIT_REQUEUE_PI
                | 13
        );
        let mut call = a;
        let timeout: [u64; 2];
        if timed && extent::managed(a[3]) {
            // SAFETY: the program's timespec.
            timeout = unsafe { (a[3] as *const [u64; 2]).read_unaligned() };
            call[3] = timeout.as_ptr() as usize;
        }
        const PI: [i32; 6] = [
            libc::FUTEX_LOCK_PI,
            libc::FUTEX_UNLOCK_PI,
            libc::FUTEX_TRYLOCK_PI,
            libc::FUTEX_WAIT_REQUEUE_PI,
            libc::FUTEX_CMP_REQUEUE_PI,
            13,
        ];
        // These look at a second word, and these change one.
        let words: &[usize] = match op {
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => &[0],
            _ => &[0, 4],
        };
        // (A futex that processes may share is found by its page, which must be writable.)
        let is_private = a[1] as i32 & libc::FUTEX_PRIVATE_FLAG != 0;
        let writes = !is_private || op == libc::FUTEX_WAKE_OP || PI.contains(&op);
        // Of these the kernel changes the word, and not only during the call.
        if PI.contains(&op) {
            for i in [0, 4] {
                let _ = shared::keep(self.engine, a[i], 4);
            }
        }
        for _ in 0..TRIES {
            for &i in words {
                self.bring_in(a[i], writes);
            }
            r = self.raw(libc::SYS_futex, call);
            if r != EFAULT {
                break;
            }
        }
        r
    }

    /// Brings in the page of a futex's word, for writing if the kernel `writes` to it, or must be able
    /// to, and the program may. What the program may not read is left to the kernel, which says so.
    fn bring_in(&self, addr: usize, writes: bool) {
        if !extent::managed(addr) || !self.mapped(addr, 4, false) {
            return;
        }
        let may_write = if extent::in_shared(addr) {
            shared::is_writable(addr)
        } else {
            match self.engine.access(addr, 4) {
                Some(Prot::ReadWrite) => true,
                Some(Prot::Read) => false,
                Some(Prot::None) | None => return,
            }
        };
        // SAFETY: a mapped byte with this access.
        unsafe { touch(addr, writes && may_write) };
    }
}

/// The length of a buffer at `addr`.
fn length(len: Len, a: &Args, addr: usize) -> usize {
    match len {
        Len::Is(n) => n,
        Len::Arg(i) => a[i],
        Len::Each(i, n) => a[i].saturating_mul(n),
        Len::Bits(i) => (a[i].min(1 << 20)).div_ceil(64) * 8,
        // SAFETY: the program's string, the program's fault.
        Len::Text => unsafe { libc::strlen(addr as *const libc::c_char) + 1 },
        // SAFETY: the program's word; calls that take one take none only with a null buffer.
        Len::At(i) if a[i] != 0 => unsafe { (a[i] as *const u32).read_unaligned() as usize },
        Len::At(_) => 0,
    }
    .min(1 << 30)
}

/// Copies back what differs, so that bytes the kernel left alone are left alone.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes.
unsafe fn copy_changed(from: usize, to: usize, len: usize) {
    for i in 0..len {
        // SAFETY: by contract.
        unsafe {
            let new = *((from + i) as *const u8);
            if *((to + i) as *const u8) != new {
                *((to + i) as *mut u8) = new;
            }
        }
    }
}

/// Units held by system calls now. Bounded, so that calls that hold a part of what they need and wait for
/// the rest cannot hold all there is.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// In a forked child: what others held is not held. (The forking thread may be in a handler that came
/// in a call of its own.)
pub fn let_go_of_others(engine: &Engine) {
    if local::get(Word::Pins) == 0 {
        engine.unpin_all();
    }
}

/// In a forked child: the threads that held something are not here.
pub fn forget_held() {
    // (What is not written to need not be copied for the child.)
    if HELD.load(Relaxed) != 0 {
        HELD.store(0, Relaxed);
    }
}

/// Ranges held in memory until dropped.
pub struct Pins {
    engine: &'static Engine,
    /// Counts in [`HELD`].
    is_counted: bool,
    first: [(usize, usize); 8],
    n: usize,
    more: Vec<(usize, usize)>,
}

impl Pins {
    pub fn new(engine: &'static Engine) -> Pins {
        Pins {
            engine,
            is_counted: true,
            first: [(0, 0); 8],
            n: 0,
            more: Vec::new(),
        }
    }

    /// For what is held beyond a call: its bound is another.
    pub fn beyond_call(engine: &'static Engine) -> Pins {
        let mut pins = Pins::new(engine);
        pins.is_counted = false;
        pins
    }

    /// Holds `[addr, addr+len)` if it is managed. False: it is, and could not be held. Base pages
    /// are only held, by making them whole units, if `make`: where they are copied, no others of
    /// their units need come in.
    pub fn add(&mut self, addr: usize, len: usize, write: bool, make: bool) -> bool {
        if len == 0 || !extent::managed(addr) {
            return true;
        }
        if extent::in_shared(addr) {
            // Other processes take it out of memory: nothing holds it but keeping it for good, and copying is better than that.
            return false;
        }
        let units = units_of(addr, len);
        let pin = || match make {
            true => self.engine.pin(addr, len, write),
            false => self.engine.pin_whole(addr, len, write),
        };
        if HELD.fetch_add(units, Relaxed) + units > self.engine.most_pinned() || pin().is_err() {
            HELD.fetch_sub(units, Relaxed);
            return false;
        }
        self.note(addr, len);
        true
    }

    /// As [`Pins::add`], for calls that have no other way: beyond the bound.
    pub fn insist(&mut self, addr: usize, len: usize, write: bool) -> bool {
        if len == 0 || !extent::managed(addr) {
            return true;
        }
        if extent::in_shared(addr) {
            return shared::is_mapped(addr, len) && shared::keep(self.engine, addr, len).is_ok();
        }
        let done = self.engine.pin(addr, len, write).is_ok();
        if done {
            if self.is_counted {
                HELD.fetch_add(units_of(addr, len), Relaxed);
            }
            self.note(addr, len);
        }
        done
    }

    fn note(&mut self, addr: usize, len: usize) {
        if self.is_counted {
            local::set(Word::Pins, local::get(Word::Pins) + 1);
        }
        if self.n < self.first.len() {
            self.first[self.n] = (addr, len);
            self.n += 1;
        } else {
            self.more.push((addr, len));
        }
    }
}

/// How many units `[addr, addr+len)` meets.
fn units_of(addr: usize, len: usize) -> usize {
    (addr % UNIT + len).div_ceil(UNIT)
}

impl Drop for Pins {
    fn drop(&mut self) {
        for &(addr, len) in self.first[..self.n].iter().chain(&self.more) {
            self.engine.unpin(addr, len);
            if self.is_counted {
                local::set(Word::Pins, local::get(Word::Pins) - 1);
                HELD.fetch_sub(units_of(addr, len), Relaxed);
            }
        }
        if self.n > 0 {
            // (What waits is looked at after it is unpinned.)
            fence(SeqCst);
            owners::take_back();
        }
    }
}
