//! One thread's walk: step after step it reads and writes pages, does something to a range, or
//! forks. What a step does follows from the seed, the thread and the step's number alone.

use super::operation::Op;
use super::random::{Random, mix};
use super::ranges::{self, Done, Range};
use super::slot::{Kind, LINE, PAGE, Slot, WrongLine};
use super::world::World;
use crate::board::Word;
use std::io::Error;
use std::time::Duration;

/// Steps between which the pages that are used most stay the same.
const PHASE: u64 = 4000;
/// How deep children fork.
const DEEPEST: u32 = 2;
/// A child whose memory was wrong ends with this status, having said what.
pub const WRONG: i32 = 3;

/// Something that cannot happen to memory.
#[derive(Debug)]
pub enum Failure {
    Line(Box<WrongLine>),
    Call(&'static str, Error),
    /// Which call, what it returned and of how many bytes, and the last error.
    Short(&'static str, isize, usize, Error),
    Bytes(&'static str, usize),
    /// An operation on fixed addresses answered with others: which, asked, got.
    Elsewhere(&'static str, usize, usize),
    Child(i32),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Line(w) => {
                write!(
                    f,
                    "wrong bytes at {:#x} (offset {:#x}, written {} times): ",
                    w.address, w.offset, w.written
                )?;
                match (w.older, w.found == [0; LINE / 8]) {
                    (_, true) => write!(f, "zeros")?,
                    (Some(n), _) => write!(f, "what it was after {n} writes")?,
                    _ => write!(f, "found {:x?}, expected {:x?}", w.found, w.expected)?,
                }
                Ok(())
            }
            Failure::Call(what, e) => write!(f, "{what}: {e}"),
            Failure::Short(what, got, len, e) => {
                write!(f, "{what} returned {got} of {len} (last error: {e})")
            }
            Failure::Bytes(what, at) => write!(f, "{what} saw a wrong byte at {at:#x}"),
            Failure::Elsewhere(what, asked, got) => {
                write!(f, "{what} was asked for {asked:#x} and gave {got:#x}")
            }
            Failure::Child(status) => write!(f, "a child ended with status {status:#x}"),
        }
    }
}

/// See the file's head.
pub struct Walker<'a> {
    pub world: &'a World,
    /// What its steps follow from, beside the seed.
    pub stream: u64,
    /// Lines that are its own: those whose number, modulo the number of threads, is this.
    pub class: usize,
    /// In a child: no other thread is there, so all lines of private slots are its own.
    pub alone: bool,
    /// The class of lines of shared slots; `None`: it leaves them alone.
    pub shared_class: Option<usize>,
    pub depth: u32,
}

impl Walker<'_> {
    /// Walks until step `end`, or until the world stops; ends the process at the first failure.
    pub fn walk(&self, end: u64) {
        for step in 0..end {
            if self.world.is_over() {
                return;
            }
            if self.world.skips(self.depth, self.stream, step) {
                continue;
            }
            self.world.note_step(self.stream, step);
            if let Err(f) = self.step(step) {
                self.fail(step, &f);
            }
            self.world.count(Word::Steps, 1);
        }
    }

    /// Says what is wrong, and ends the process at once, so that all stays as it is.
    pub fn fail(&self, step: u64, failure: &Failure) -> ! {
        self.world.count(Word::Wrong, 1);
        eprintln!(
            "hugeswap-torture: process {} depth {} stream {:x} step {step}: {failure}",
            std::process::id(),
            self.depth,
            self.stream
        );
        // SAFETY: ends the process without anything else being run.
        unsafe { libc::_exit(WRONG) }
    }

    fn step(&self, step: u64) -> Result<(), Failure> {
        let mut r = Random::new(self.world.seed, self.stream, step);
        if r.one_in(16) {
            let op = Op::ALL[r.below(Op::ALL.len())];
            return self.operate(op, &mut r);
        }
        let mut hot = Random::new(self.world.seed, self.stream ^ 1 << 63, step / PHASE);
        let slot = &self.world.slots[r.below(self.world.slots.len())];
        slot.structure.read();
        let done = self.visit(slot, &mut r, &mut hot);
        slot.structure.unlock_read();
        done.map(|words| self.world.count(Word::Accesses, words))
    }

    fn visit(&self, slot: &Slot, r: &mut Random, hot: &mut Random) -> Result<u64, Failure> {
        let pages = slot.len() / PAGE;
        if pages == 0 {
            return Ok(0);
        }
        let page = match r.one_in(2) {
            true => r.below(pages),
            false => (hot.below(pages) + r.below(pages / 8 + 1)) % pages,
        };
        let run = if r.one_in(16) { r.below(600) + 1 } else { 1 };
        let mut words = 0;
        for page in page..(page + run).min(pages) {
            let lock = slot.chunk(page * PAGE);
            lock.read();
            let done = self.visit_page(slot, page, r);
            lock.unlock_read();
            words += done?;
        }
        Ok(words)
    }

    fn visit_page(&self, slot: &Slot, page: usize, r: &mut Random) -> Result<u64, Failure> {
        const LINES: usize = PAGE / LINE;
        let (class, classes) = match (slot.kind, self.shared_class) {
            (Kind::Shared, None) => return Ok(0),
            (Kind::Shared, Some(class)) => (class, self.world.shared_classes()),
            _ if self.alone => (0, 1),
            _ => (self.class, self.world.threads),
        };
        let own = (LINES - class).div_ceil(classes);
        let writes = !r.one_in(3);
        let lines = 8 + r.below(56);
        let mut words = 0;
        for _ in 0..lines {
            let line = page * LINES + class + r.below(own) * classes;
            slot.check(line).map_err(Failure::Line)?;
            words += (LINE / 8) as u64;
            if writes && r.one_in(4) {
                slot.write(line);
                words += (LINE / 8) as u64;
            }
        }
        Ok(words)
    }

    fn operate(&self, op: Op, r: &mut Random) -> Result<(), Failure> {
        if !self.world.ops.contains(&op) {
            return Ok(());
        }
        if op == Op::Fork {
            return if r.one_in(4) { self.fork(r) } else { Ok(()) };
        }
        let slot = &self.world.slots[r.below(self.world.slots.len())];
        if !op.fits(slot.kind) || (slot.kind == Kind::Shared && self.shared_class.is_none()) {
            return Ok(());
        }
        let structural = op.is_structural();
        if structural {
            slot.structure.write();
        } else {
            slot.structure.read();
        }
        let done = if slot.len() == 0 {
            match structural {
                true => ranges::make(slot, r, false),
                false => Ok(Done::Refused),
            }
        } else {
            match Range::draw(slot, r) {
                Some(range) => ranges::operate(op, slot, range, r),
                None => Ok(Done::Refused),
            }
        };
        if structural {
            slot.structure.unlock_write();
        } else {
            slot.structure.unlock_read();
        }
        match done? {
            Done::Yes => self.world.count(Word::RangeOps, 1),
            Done::Refused => self.world.count(Word::Refused, 1),
        }
        Ok(())
    }

    /// A child that checks what it inherited and walks some steps of its own.
    fn fork(&self, r: &mut Random) -> Result<(), Failure> {
        if self.depth >= DEEPEST {
            return Ok(());
        }
        let stream = mix(r.next()) | 1;
        let ticket = self.world.tickets.take();
        self.world.slots.iter().for_each(|s| s.structure.write());
        // SAFETY: in the child this is the only thread, and it enters nothing that another thread
        // could have been in: the slots are at rest, and the C library makes its own locks anew.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            self.be_child(stream, ticket);
        }
        let error = Error::last_os_error();
        let all = self.world.slots.iter().rev();
        all.for_each(|s| s.structure.unlock_write());
        let done = if pid < 0 {
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOMEM) => {
                    self.world.count(Word::Refused, 1);
                    Ok(())
                }
                _ => Err(Failure::Call("fork", error)),
            }
        } else {
            self.world.count(Word::Forks, 1);
            self.wait_for(pid, r.one_in(8).then(|| r.below(20_000) as u64))
        };
        self.world.tickets.give_back(ticket);
        done
    }

    /// Waits for a child, or kills it after so many microseconds.
    fn wait_for(&self, pid: i32, killed_after: Option<u64>) -> Result<(), Failure> {
        if let Some(us) = killed_after {
            std::thread::sleep(Duration::from_micros(us));
            // SAFETY: a child of this thread, not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
            let error = Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(Failure::Call("waitpid", error));
            }
        }
        if status == 0 {
            self.world.count(Word::Children, 1);
        } else if killed_after.is_none() && !self.world.is_over() {
            return Err(Failure::Child(status));
        }
        Ok(())
    }

    fn be_child(&self, stream: u64, ticket: Option<usize>) -> ! {
        // SAFETY: a plain call: with its parent gone nobody waits for this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        self.world.slots.iter().for_each(Slot::reset_locks);
        self.world.tickets.now_of_this_process(ticket);
        let child = Walker {
            world: self.world,
            stream,
            class: 0,
            alone: true,
            shared_class: ticket.map(|t| self.world.threads + t),
            depth: self.depth + 1,
        };
        let mut r = Random::new(self.world.seed, stream, u64::MAX);
        if r.one_in(8)
            && let Err(f) = self.world.check_private()
        {
            child.fail(0, &f);
        }
        child.walk(50 + r.below(400) as u64);
        // SAFETY: ends the child without running what the parent registered for its own end.
        unsafe { libc::_exit(0) }
    }
}
