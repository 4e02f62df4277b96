//! One thread and its ranges: all operations on them.

use super::{Draw, Subject, plan};
use crate::util::*;
use hugeswap::FaultMode;
use hugeswap_engine::Prot;
use std::fs::File;
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;

pub fn run(mode: FaultMode) {
    let (seeds, steps) = plan(6, 400);
    for seed in seeds {
        let mut draw = Draw::new(seed);
        let subject = Subject::new(mode, seed, &mut draw);
        let room = draw.within(16..48) as usize * UNIT;
        let mut alone = Alone::new(&subject, draw, room);
        alone.map(room * 3 / 4);
        for _ in 0..steps {
            alone.step();
        }
        alone.end();
        subject.end();
    }
}

/// A managed range and the bytes that it should hold.
struct Managed {
    addr: usize,
    model: Vec<u8>,
    /// An epoch, and the bytes of the range when it began.
    tracked: Option<(u32, Vec<u8>)>,
}

/// A part of a range, held for reading or writing.
struct Held {
    at: Range<usize>,
    write: bool,
}

pub struct Alone<'a> {
    subject: &'a Subject,
    pub draw: Draw,
    /// The most bytes to have mapped.
    room: usize,
    ranges: Vec<Managed>,
    held: Vec<Held>,
    children: Vec<i32>,
    /// The number of forks since the seed began.
    depth: u32,
    ejected: bool,
    /// Other threads need memory too, so little is pinned and few processes are forked.
    modest: bool,
    /// A file for system calls.
    file: File,
}

impl<'a> Alone<'a> {
    pub fn new(subject: &'a Subject, draw: Draw, room: usize) -> Alone<'a> {
        // SAFETY: a new descriptor, owned by the file from here on.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"model".as_ptr(), 0)) };
        Alone {
            subject,
            draw,
            room,
            ranges: Vec::new(),
            held: Vec::new(),
            children: Vec::new(),
            depth: 0,
            ejected: false,
            modest: false,
            file,
        }
    }

    /// As [`Alone::new`], for one of several threads.
    pub fn among_others(subject: &'a Subject, draw: Draw, room: usize) -> Alone<'a> {
        Alone {
            ejected: true,
            modest: true,
            ..Alone::new(subject, draw, room)
        }
    }

    /// Makes one operation.
    pub fn step(&mut self) {
        self.subject.next_step();
        if self.ranges.is_empty() {
            return self.map_something();
        }
        match self.draw.below(100) {
            0..22 => self.read(),
            22..46 => self.write(),
            46..54 => self.discard(),
            54..60 => self.page_out(),
            60..63 => self.will_need(),
            63 => self.track(),
            64 => self.check_told(),
            65..70 => self.hold(),
            70..74 => self.let_go(),
            74..78 => self.by_system_call(),
            78..82 => self.subject.set_something(&mut self.draw),
            82 => self.subject.audit(),
            83 => self.compare_all(),
            84..86 => self.fork(),
            86..88 => self.wait_for_child(),
            88..91 => self.map_something(),
            91..93 => self.unmap_something(),
            93..95 => self.resize(),
            95..97 => self.move_somewhere(),
            97 | 98 => self.protect(),
            _ => self.eject(),
        }
    }

    /// Draws one of the ranges, and a part of it.
    fn part(&mut self) -> (usize, Range<usize>) {
        let i = self.draw.below(self.ranges.len() as u64) as usize;
        (i, self.draw.part(self.ranges[i].model.len()))
    }

    fn addr(&self, i: usize, at: &Range<usize>) -> usize {
        self.ranges[i].addr + at.start
    }

    fn says(&self, what: &str, addr: usize, len: usize) {
        let base = self.subject.engine.window().start;
        let (unit, at) = ((addr - base) / UNIT, addr % UNIT);
        self.subject.says(format_args!(
            "{what} unit {unit} at {at:#x}, {len:#x} bytes"
        ));
    }

    fn compare(&self, i: usize, at: Range<usize>) {
        self.subject
            .compare(self.addr(i, &at), &self.ranges[i].model[at]);
    }

    fn compare_all(&mut self) {
        self.subject.says(format_args!("compare all"));
        for (i, r) in self.ranges.iter().enumerate() {
            self.check_told_of(i);
            self.compare(i, 0..r.model.len());
        }
    }

    fn track(&mut self) {
        let (i, _) = self.part();
        let (addr, len) = (self.ranges[i].addr, self.ranges[i].model.len());
        let by_pages = self.draw.one_in(2);
        self.says(if by_pages { "track pages" } else { "track" }, addr, len);
        let begun = self.subject.engine.begin_epoch(addr, len, by_pages, |e| e);
        let held = self.ranges[i].model.clone();
        self.ranges[i].tracked = Some((begun.expect("an epoch"), held));
    }

    fn check_told(&mut self) {
        let (i, _) = self.part();
        self.check_told_of(i);
    }

    /// Checks that every byte that differs from the range at the beginning of its epoch is
    /// reported.
    fn check_told_of(&self, i: usize) {
        let r = &self.ranges[i];
        let Some((epoch, held)) = &r.tracked else {
            return;
        };
        self.says("what was written", r.addr, r.model.len());
        let mut next = 0;
        let same = |at: Range<usize>| {
            assert!(
                held[at.clone()] == r.model[at.clone()],
                "{}: something written in {at:#x?} of {:#x} is not told",
                self.subject.place(),
                r.addr
            );
        };
        let engine = self.subject.engine;
        engine.written_since(r.addr, r.model.len(), *epoch, |told| {
            same(next..(told.start - r.addr).max(next));
            next = (told.end - r.addr).min(r.model.len());
        });
        same(next..r.model.len());
    }

    fn read(&mut self) {
        let (i, at) = self.part();
        self.says("read", self.addr(i, &at), at.len());
        self.compare(i, at);
    }

    fn write(&mut self) {
        let (i, at) = self.part();
        let addr = self.addr(i, &at);
        self.says("write", addr, at.len());
        let new = &mut self.ranges[i].model[at.clone()];
        self.draw.fill(new);
        // SAFETY: mapped, and ours.
        unsafe {
            match new.len() {
                8 => (addr as *mut [u8; 8]).write_unaligned(new.try_into().expect("8 bytes")),
                n => std::ptr::copy_nonoverlapping(new.as_ptr(), addr as *mut u8, n),
            }
        }
        self.compare(i, at);
    }

    fn discard(&mut self) {
        let (i, at) = self.part();
        let addr = self.addr(i, &at);
        if self.holds(addr, at.len()) {
            return;
        }
        self.says("discard", addr, at.len());
        self.subject.engine.discard(addr, at.len()).unwrap();
        self.ranges[i].model[at.clone()].fill(0);
        if !self.draw.one_in(3) {
            self.compare(i, at);
        }
    }

    fn page_out(&mut self) {
        let (i, at) = self.part();
        self.says("pageout", self.addr(i, &at), at.len());
        // What is held stays, and is waited for.
        if self.held.is_empty() {
            self.subject.engine.pageout(self.addr(i, &at), at.len());
        }
    }

    fn will_need(&mut self) {
        let (i, at) = self.part();
        self.says("willneed", self.addr(i, &at), at.len());
        self.subject.engine.willneed(self.addr(i, &at), at.len());
    }

    fn holds(&self, addr: usize, len: usize) -> bool {
        self.held
            .iter()
            .any(|h| h.at.start < addr + len && addr < h.at.end)
    }

    /// Pins a part. Few parts are pinned, and none beside children, because a budget that is all
    /// pinned serves no thread.
    fn hold(&mut self) {
        if self.modest || self.held.len() > 1 || self.depth > 0 || !self.children.is_empty() {
            return;
        }
        let (i, at) = self.part();
        let len = at.len().min(UNIT).min(self.subject.engine.pin_limit());
        let write = self.draw.one_in(2);
        let addr = self.addr(i, &at);
        self.says(if write { "pin for writing" } else { "pin" }, addr, len);
        self.subject
            .engine
            .pin(addr, len, write)
            .expect("a small part can be held");
        let at = addr..addr + len;
        self.held.push(Held { at, write });
    }

    fn let_go(&mut self) {
        if let Some(h) = self.held.pop() {
            self.says("unpin", h.at.start, h.at.len());
            self.subject.engine.unpin(h.at.start, h.at.len());
        }
    }

    /// Makes the kernel read and write pinned memory; in message mode, any memory.
    fn by_system_call(&mut self) {
        let (addr, len, write) = match self.held.last() {
            Some(h) => (h.at.start, h.at.len(), h.write),
            None if self.subject.engine.mode() == FaultMode::Message => {
                let (i, at) = self.part();
                (self.addr(i, &at), at.len(), true)
            }
            None => return,
        };
        self.says(if write { "read(2)" } else { "write(2)" }, addr, len);
        let range = |r: &Managed| (r.addr..r.addr + r.model.len()).contains(&addr);
        let i = self.ranges.iter().position(range).expect("of a range");
        let at = addr - self.ranges[i].addr..addr - self.ranges[i].addr + len;
        let model = &mut self.ranges[i].model[at.clone()];
        // SAFETY: mapped, ours, and held where it needs to be.
        let bytes = unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, len) };
        if write {
            self.draw.fill(model);
            self.file.write_all_at(model, 0).expect("write");
            self.file
                .read_exact_at(bytes, 0)
                .expect("read to memory that is held");
        } else {
            self.file
                .write_all_at(bytes, 0)
                .expect("write from memory that is held");
            let mut copy = vec![0; len];
            self.file.read_exact_at(&mut copy, 0).expect("read");
            assert!(
                copy == *model,
                "{}: the kernel saw other bytes",
                self.subject.place()
            );
        }
        self.compare(i, at);
    }

    fn fork(&mut self) {
        let most = if self.modest { 0 } else { 1 };
        if self.depth > most || self.children.len() > most as usize {
            return;
        }
        self.subject.says(format_args!("fork"));
        // SAFETY: the child uses managed memory and exits.
        match unsafe { libc::fork() } {
            0 => {
                let wrong = panics(|| self.live_as_child());
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(wrong)) };
            }
            -1 => panic!("fork failed"),
            pid => self.children.push(pid),
        }
    }

    /// Forks a child that sees the parent's bytes, changes them, and leaves nothing.
    fn live_as_child(&mut self) {
        self.children.clear();
        self.depth += 1;
        while !self.held.is_empty() {
            self.let_go();
        }
        self.compare_all();
        for _ in 0..self.draw.below(40) {
            self.step();
        }
        self.subject.audit();
        self.end();
        self.subject.audit();
    }

    fn wait_for_child(&mut self) {
        if let Some(pid) = self.children.pop() {
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0, "{}: a child ended so", self.subject.place());
        }
    }

    fn mapped(&self) -> usize {
        self.ranges.iter().map(|r| r.model.len()).sum()
    }

    pub fn map(&mut self, len: usize) {
        let addr = self.subject.engine.map(len, 1, true).expect("room");
        self.says("map", addr, len);
        self.ranges.push(Managed {
            addr,
            model: vec![0; len],
            tracked: None,
        });
    }

    fn map_something(&mut self) {
        let len = match self.draw.below(3) {
            0 => PAGE * self.draw.within(1..500) as usize,
            1 => UNIT * self.draw.within(1..6) as usize,
            _ => PAGE * self.draw.within(1..3000) as usize,
        };
        if self.mapped() + len <= self.room {
            self.map(len);
            let i = self.ranges.len() - 1;
            if self.draw.one_in(2) {
                self.compare(i, 0..len);
            }
        }
    }

    /// Draws a range of which no part is pinned.
    fn free_range(&mut self) -> Option<usize> {
        let i = self.draw.below(self.ranges.len() as u64) as usize;
        let r = &self.ranges[i];
        (!self.holds(r.addr, r.model.len())).then_some(i)
    }

    fn unmap_something(&mut self) {
        if let Some(i) = self.free_range() {
            let r = self.ranges.swap_remove(i);
            self.says("unmap", r.addr, r.model.len());
            self.subject.engine.unmap(r.addr, r.model.len());
        }
    }

    /// Makes a range longer or shorter in place. (A range is made of whole pages.)
    fn resize(&mut self) {
        let Some(i) = self.free_range() else { return };
        let (addr, old) = (self.ranges[i].addr, self.ranges[i].model.len());
        let by = PAGE * self.draw.within(1..1200) as usize;
        if self.draw.one_in(2) {
            if by < old {
                self.says("shrink", addr + old - by, by);
                self.subject.engine.unmap(addr + old - by, by);
                self.ranges[i].model.truncate(old - by);
                if let Some((_, held)) = &mut self.ranges[i].tracked {
                    held.truncate(old - by);
                }
            }
        } else if self.mapped() + by <= self.room {
            self.says("grow", addr + old, by);
            if self.subject.engine.grow(addr, old, old + by) {
                self.ranges[i].model.resize(old + by, 0);
                self.ranges[i].tracked = None;
                self.compare(i, old - PAGE..old + by);
            }
        }
    }

    fn move_somewhere(&mut self) {
        let Some(i) = self.free_range() else { return };
        let (from, len) = (self.ranges[i].addr, self.ranges[i].model.len());
        let to = self.subject.engine.map(len, 1, false).expect("room");
        self.says("move", from, len);
        self.says("  to", to, len);
        self.subject.engine.move_range(from, to, len);
        self.subject.engine.unmap(from, len);
        self.ranges[i].addr = to;
        self.ranges[i].tracked = None;
        if self.draw.one_in(2) {
            self.compare(i, 0..len);
        }
    }

    /// Takes access to whole units away for a while.
    fn protect(&mut self) {
        let (i, at) = self.part();
        let addr = self.addr(i, &at).next_multiple_of(UNIT);
        let end = (self.ranges[i].addr + at.end) / UNIT * UNIT;
        let engine = self.subject.engine;
        if addr >= end || engine.mode() == FaultMode::Message || self.holds(addr, end - addr) {
            return;
        }
        let len = end - addr;
        let at = addr - self.ranges[i].addr..end - self.ranges[i].addr;
        let none = self.draw.one_in(2);
        self.says(if none { "hide" } else { "protect" }, addr, len);
        let prot = if none { Prot::None } else { Prot::Read };
        engine.protect(addr, len, prot).expect("access taken away");
        if !none {
            self.compare(i, at.clone());
        }
        if self.draw.one_in(2) && self.held.is_empty() {
            engine.pageout(addr, len);
        }
        if !none && self.draw.one_in(2) {
            self.compare(i, at.clone());
        }
        engine
            .protect(addr, len, Prot::ReadWrite)
            .expect("access given back");
        self.compare(i, at);
    }

    /// Hands a unit to the kernel. This is done once, because the unit never leaves memory again.
    fn eject(&mut self) {
        if self.ejected || self.depth > 0 || !self.children.is_empty() || !self.held.is_empty() {
            return;
        }
        let (i, at) = self.part();
        self.ejected = true;
        self.says("eject", self.addr(i, &at), 1);
        self.subject
            .engine
            .eject(self.addr(i, &at), 1)
            .expect("handed to the kernel");
        self.compare(i, at.start..at.start + 1);
    }

    /// Compares everything and unmaps it.
    pub fn end(&mut self) {
        while !self.held.is_empty() {
            self.let_go();
        }
        while !self.children.is_empty() {
            self.wait_for_child();
        }
        self.compare_all();
        for r in self.ranges.drain(..) {
            self.subject.engine.unmap(r.addr, r.model.len());
        }
    }
}
