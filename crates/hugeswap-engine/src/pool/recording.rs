//! What happens in a pool, told to a process that records it.
//!
//! The processes of the pool put what happens into two rings in the segment
//! ([`hugeswap_policy::recording`]), one for each happening and one for faults with the stack of the
//! thread: as it was, bytes, for the recording process to unwind. One process records at a time, and
//! says how many of the faults are to be told. Where nobody does, all of this costs one load a fault
//! and takes no memory. Nobody waits for the recording process: what finds no room is counted.
//!
//! What is read here was written by other processes: it is only shown.

use super::{Member, Pool, PoolError, holder};
use hugeswap_policy::recording::{Code, Happening, Next, Ring, WORDS, is_recorded};
use hugeswap_sys::{mm, now_ns, process};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A slot of a ring.
pub type Slot = [AtomicU64; WORDS];
/// Slots for what happens while a pool is recorded: a power of two.
pub const HAPPENINGS: usize = 1 << 15;
/// Slots for stacks: a power of two.
pub const STACKS: usize = 64;
/// Bytes of a stack, with the registers before it.
pub const STACK_BYTES: usize = 16 << 10;

/// The ends of a ring of [`hugeswap_policy::recording`].
#[repr(C)]
pub struct RingEnds {
    /// As there.
    pub head: AtomicU64,
    /// As there.
    pub tail: AtomicU64,
    /// As there.
    pub lost: AtomicU64,
}

/// Who records the pool, and how much: see the module.
#[repr(C)]
pub struct Recording {
    /// The process that does ([`holder`]); 0: none.
    pub recorder: AtomicU64,
    /// One of so many faults is recorded; 0: nothing is.
    pub every: AtomicU32,
    /// One of so many faults is recorded with its stack; 0: none is.
    pub stacks_every: AtomicU32,
    /// Of what happens.
    pub happenings: RingEnds,
    /// Of stacks.
    pub stacks: RingEnds,
}

/// Bytes of a slot's stack before its stack's: `sp`, `bp`, how many bytes follow.
const HEAD: usize = 24;

impl Pool {
    fn ring<'a>(&'a self, ends: &'a RingEnds, at: usize, slots: usize) -> Ring<'a, AtomicU64> {
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets`
        // leaves room for so many there.
        let slots = unsafe { std::slice::from_raw_parts((self.base + at) as *const Slot, slots) };
        Ring {
            head: &ends.head,
            tail: &ends.tail,
            lost: &ends.lost,
            slots,
        }
    }

    fn happenings(&self) -> Ring<'_, AtomicU64> {
        let ends = &self.header().recording.happenings;
        self.ring(ends, self.offsets.happenings, HAPPENINGS)
    }

    fn stacks(&self) -> Ring<'_, AtomicU64> {
        let ends = &self.header().recording.stacks;
        self.ring(ends, self.offsets.stacks, STACKS)
    }

    /// Address of the bytes of a stack.
    fn stack_at(&self, index: usize) -> usize {
        self.base + self.offsets.stack_bytes + index % STACKS * STACK_BYTES
    }

    /// Records what happens from now on. An error: process so-and-so does already.
    pub fn start_recording(&self) -> Result<Recorder<'_>, PoolError> {
        let recording = &self.header().recording;
        let (word, me) = (recording.recorder.load(Relaxed), holder::myself());
        let busy = || PoolError::Recorded(holder::pid(recording.recorder.load(Relaxed)));
        if word != 0 && !holder::is_gone(word) {
            return Err(busy());
        }
        let claimed = recording
            .recorder
            .compare_exchange(word, me, AcqRel, Relaxed);
        claimed.map_err(|_| busy())?;
        let recorder = Recorder {
            pool: self,
            unfinished: [None; 2],
        };
        // What the one before has left.
        for ring in [self.happenings(), self.stacks()] {
            while !matches!(ring.peek().1, Next::Empty) {
                ring.take();
            }
            ring.lost.store(0, Relaxed);
        }
        Ok(recorder)
    }
}

impl Member {
    /// Something happened, if that is recorded.
    pub(crate) fn note(&self, happening: impl FnOnce() -> Happening) {
        if self.header().recording.every.load(Relaxed) != 0 {
            self.put(happening());
        }
    }

    #[cold]
    #[inline(never)]
    fn put(&self, mut happening: Happening) {
        (happening.pid, happening.tid) = (process::pid() as u32, process::tid() as u32);
        let ring = self.happenings();
        if let Some(claim) = ring.claim() {
            ring.fill(claim, happening.words());
        }
    }

    /// A fault has been resolved, which is recorded if it is its turn.
    pub(crate) fn note_fault(&self, fault: impl FnOnce() -> Happening, code: Code) {
        if self.header().recording.every.load(Relaxed) != 0 {
            self.put_fault(fault(), code);
        }
    }

    #[cold]
    #[inline(never)]
    fn put_fault(&self, fault: Happening, code: Code) {
        /// So that a fault with its stack is not one that is recorded without it.
        const OTHERS: u64 = 1 << 40;
        let recording = &self.header().recording;
        let n = self.record().recorded.fetch_add(1, Relaxed);
        let every = recording.every.load(Relaxed);
        let fault = Happening {
            code: code.ip,
            ..fault
        };
        if is_recorded(n, every) {
            self.put(Happening {
                weight: every.max(1),
                ..fault
            });
        }
        let stacks_every = recording.stacks_every.load(Relaxed);
        if code.sp != 0 && is_recorded(n + OTHERS, stacks_every) {
            self.put_stack(
                Happening {
                    weight: stacks_every,
                    pid: process::pid() as u32,
                    tid: process::tid() as u32,
                    ..fault
                },
                code,
            );
        }
    }

    /// Puts in what stands on the thread's stack, from its stack pointer on. It is read by the
    /// kernel: what is not mapped, or not there, ends it.
    fn put_stack(&self, fault: Happening, code: Code) {
        let ring = self.stacks();
        let Some(claim) = ring.claim() else {
            return;
        };
        let at = self.stack_at(ring.index(claim));
        // SAFETY: the slot is this thread's until it is filled, and that long; nobody has
        // references to these bytes.
        let len = unsafe { mm::read_own(code.sp as usize, at + HEAD, STACK_BYTES - HEAD) };
        let head = [code.sp, code.bp, len as u64];
        for (i, word) in head.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { ((at + i * 8) as *mut u64).write_volatile(word) };
        }
        ring.fill(claim, fault.words());
    }
}

/// The process that records a pool. Dropped, it records no more.
pub struct Recorder<'a> {
    pool: &'a Pool,
    /// Since when the next slot of each ring is being filled.
    unfinished: [Option<u64>; 2],
}

/// A fault, and the stack of the thread that had it.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The fault.
    pub fault: Happening,
    /// The thread's registers.
    pub code: Code,
    /// The bytes from its stack pointer on, as many as could be had (16 KiB at most).
    pub bytes: Vec<u8>,
}

/// A slot that is not filled within this time will not be: who was to do it has died.
const PATIENCE_NS: u64 = 500_000_000;

impl Recorder<'_> {
    /// One of so many faults is told from now on, and one of so many with its stack (0: none).
    pub fn set_rates(&self, every: u32, stacks_every: u32) {
        let recording = &self.pool.header().recording;
        recording.stacks_every.store(stacks_every, Relaxed);
        recording.every.store(every.max(1), Relaxed);
    }

    /// What found no room so far: happenings, and stacks.
    pub fn lost(&self) -> [u64; 2] {
        let recording = &self.pool.header().recording;
        [&recording.happenings, &recording.stacks].map(|ends| ends.lost.load(Relaxed))
    }

    /// The next thing that has happened; `None`: nothing more has, so far.
    pub fn happening(&mut self) -> Option<Happening> {
        let ring = self.pool.happenings();
        loop {
            let (_, words) = next(&ring, &mut self.unfinished[0])?;
            ring.take();
            // (What makes no sense is passed over.)
            if let Some(happening) = Happening::of(words) {
                return Some(happening);
            }
        }
    }

    /// The next fault with a stack.
    pub fn stack(&mut self) -> Option<Stack> {
        let ring = self.pool.stacks();
        loop {
            let (index, words) = next(&ring, &mut self.unfinished[1])?;
            let at = self.pool.stack_at(index);
            // SAFETY: so many bytes are mapped there. Others may write to them: they are copied, as
            // words, and mean nothing to this process.
            let word = |i: usize| unsafe { ((at + i * 8) as *const u64).read_volatile() };
            let [sp, bp, len] = [0, 1, 2].map(word);
            let len = (len as usize).min(STACK_BYTES - HEAD);
            let words_of_it = (HEAD / 8..).take(len / 8);
            let bytes = words_of_it.flat_map(|i| word(i).to_le_bytes()).collect();
            ring.take();
            if let Some(fault) = Happening::of(words) {
                let ip = fault.code;
                let code = Code { ip, sp, bp };
                return Some(Stack { fault, code, bytes });
            }
        }
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        let recording = &self.pool.header().recording;
        recording.every.store(0, Relaxed);
        recording.stacks_every.store(0, Relaxed);
        recording.recorder.store(0, Relaxed);
    }
}

/// The next words of a ring, and their slot, which is not given back; what nobody finishes is
/// skipped.
fn next(
    ring: &Ring<'_, AtomicU64>,
    unfinished: &mut Option<u64>,
) -> Option<(usize, [u64; WORDS - 1])> {
    loop {
        match ring.peek() {
            (_, Next::Empty) => return None,
            (index, Next::Words(words)) => {
                *unfinished = None;
                return Some((index, words));
            }
            (_, Next::Unfinished) => {
                let now = now_ns();
                if now.saturating_sub(*unfinished.get_or_insert(now)) < PATIENCE_NS {
                    return None;
                }
                *unfinished = None;
                ring.skip();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::holder::and_ends;
    use super::super::small_pool;
    use super::*;
    use hugeswap_policy::recording::Kind;

    fn member() -> Member {
        let pool = small_pool();
        let me = pool.join().expect("room");
        Member::new(pool, me)
    }

    #[test]
    fn nothing_is_told_while_nobody_records() {
        let member = member();
        member.note(|| unreachable!());
        member.note_fault(|| unreachable!(), Code::default());
        drop(member.start_recording().expect("nobody does"));
        member.note(|| unreachable!());
    }

    #[test]
    fn a_fault_is_told_with_its_stack() {
        let member = member();
        let mut recorder = member.start_recording().expect("nobody does");
        recorder.set_rates(1, 1);
        let on_stack = [0x1234_5678_9abc_def0_u64; 700];
        let code = Code {
            ip: 7,
            sp: (&raw const on_stack) as u64,
            bp: 9,
        };
        let fault = Happening::new(Kind::Fault, 5, 0x40_0000_1000);
        member.note_fault(|| fault, code);
        let told = recorder.happening().expect("it was told");
        assert_eq!((told.addr, told.code, told.weight), (fault.addr, 7, 1));
        assert_eq!(told.pid, std::process::id());
        let stack = recorder.stack().expect("it was told");
        assert_eq!((stack.fault, stack.code), (told, code));
        let words: Vec<_> = stack.bytes.chunks_exact(8).take(700).collect();
        assert_eq!(words, vec![&on_stack[0].to_le_bytes()[..]; 700]);
        assert!(recorder.happening().is_none() && recorder.stack().is_none());
        // A stack of which nothing can be read.
        let nowhere = Code { sp: 4096, ..code };
        member.note_fault(|| fault, nowhere);
        assert_eq!(recorder.stack().expect("it was told").bytes, []);
    }

    #[test]
    fn a_stack_ends_where_nothing_is_mapped() {
        let at = mm::map_own(3 * 4096, mm::PROT_RW).expect("memory");
        // SAFETY: mapped a moment ago.
        unsafe {
            mm::protect(at + 2 * 4096, 4096, mm::PROT_NONE).expect("it is mapped");
            let mut to = [0u8; 16384];
            let len = mm::read_own(at + 4000, to.as_mut_ptr() as usize, to.len());
            assert_eq!(len, 2 * 4096 - 4000);
            assert_eq!(mm::read_own(at, to.as_mut_ptr() as usize, 100), 100);
            mm::unmap(at, 3 * 4096).expect("it is mapped");
        }
    }

    #[test]
    fn one_records_at_a_time() {
        let member = member();
        let recorder = member.start_recording().expect("nobody does");
        let e = member
            .start_recording()
            .map(drop)
            .expect_err("one does")
            .to_string();
        assert!(e.contains(&std::process::id().to_string()), "{e}");
        drop(recorder);
        // One that died has left something behind.
        and_ends(|| {
            let recorder = member.start_recording();
            recorder.as_ref().is_ok_and(|r| {
                r.set_rates(1, 1);
                true
            }) && {
                member.note(|| Happening::new(Kind::Evicted, 1, 0));
                let _ = member.happenings().claim();
                std::mem::forget(recorder);
                true
            }
        });
        let mut recorder = member.start_recording().expect("it has ended");
        recorder.set_rates(1, 0);
        assert_eq!(recorder.happening(), None);
        member.note(|| Happening::new(Kind::Evicted, 2, 0));
        assert_eq!(recorder.happening().map(|h| h.at_ns), Some(2));
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let member = member();
        let mut recorder = member.start_recording().expect("nobody does");
        recorder.set_rates(1, 0);
        for i in 0..HAPPENINGS as u64 + 5 {
            member.note(|| Happening::new(Kind::Evicted, i, 0));
        }
        assert_eq!(recorder.lost(), [5, 0]);
        for i in 0..HAPPENINGS as u64 {
            assert_eq!(recorder.happening().map(|h| h.at_ns), Some(i));
        }
        assert_eq!(recorder.happening(), None);
    }
}
