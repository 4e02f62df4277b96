//! Three threads. The pages of one range are dealt out between them, so that they share every unit,
//! and each has ranges of its own besides.

use super::alone::Alone;
use super::{Draw, Subject, plan};
use crate::util::*;
use hugeswap::FaultMode;

const PAGE: usize = 4096;
const THREADS: usize = 3;

pub fn run(mode: FaultMode) {
    let (seeds, steps) = plan(4, 250);
    for seed in seeds {
        let mut draw = Draw::new(seed ^ 0x7000);
        let subject = Subject::new(mode, seed, &mut draw);
        let len = draw.within(8..20) as usize * UNIT;
        let base = subject.engine.map(len, 1, true).expect("room");
        let room = draw.within(2..8) as usize * UNIT;
        std::thread::scope(|s| {
            for number in 0..THREADS {
                let subject = &subject;
                let draw = Draw::new(draw.next());
                s.spawn(move || {
                    let mut stripe = Stripe {
                        subject,
                        number,
                        base,
                        model: vec![0; len],
                        alone: Alone::among_others(subject, draw, room),
                    };
                    stripe.alone.map(room / 2);
                    for _ in 0..steps {
                        stripe.step();
                    }
                    stripe.end();
                });
            }
        });
        subject.engine.unmap(base, len);
        subject.end();
    }
}

/// One thread's pages.
struct Stripe<'a> {
    subject: &'a Subject,
    number: usize,
    base: usize,
    /// The model of the range, of the same length; only the thread's own pages count.
    model: Vec<u8>,
    alone: Alone<'a>,
}

impl Stripe<'_> {
    /// Draws a page of this thread.
    fn page(&mut self) -> usize {
        let pages = self.model.len() / PAGE / THREADS;
        self.alone.draw.below(pages as u64) as usize * THREADS + self.number
    }

    /// Draws a page and the pages of this thread that follow it.
    fn pages(&mut self) -> impl Iterator<Item = usize> + use<> {
        let (first, all) = (self.page(), self.model.len() / PAGE);
        let n = match self.alone.draw.below(8) {
            0 => 400,
            1 | 2 => 20,
            _ => 1,
        };
        (first..all).step_by(THREADS).take(n)
    }

    fn compare(&self, page: usize) {
        let at = page * PAGE;
        self.subject
            .compare(self.base + at, &self.model[at..at + PAGE]);
    }

    fn step(&mut self) {
        self.subject.next_step();
        match self.alone.draw.below(100) {
            0..25 => self.pages().for_each(|p| self.compare(p)),
            25..50 => {
                for p in self.pages() {
                    self.write(p);
                }
            }
            50..55 => self.discard(),
            55..60 => {
                let at = self.alone.draw.part(self.model.len());
                self.subject.engine.pageout(self.base + at.start, at.len());
            }
            60..65 => {
                let at = self.alone.draw.part(self.model.len());
                self.subject.engine.willneed(self.base + at.start, at.len());
            }
            65..72 => self.write_while_held(),
            _ => self.alone.step(),
        }
    }

    /// Changes some bytes of a page.
    fn write(&mut self, page: usize) {
        let from = self.alone.draw.below(PAGE as u64) as usize;
        let len = 1 + self.alone.draw.below((PAGE - from) as u64) as usize;
        let at = page * PAGE + from..page * PAGE + from + len;
        let new = &mut self.model[at.clone()];
        self.alone.draw.fill(new);
        // SAFETY: mapped, and this thread's alone.
        unsafe {
            let to = (self.base + at.start) as *mut u8;
            std::ptr::copy_nonoverlapping(new.as_ptr(), to, len);
        }
        self.compare(page);
    }

    fn write_while_held(&mut self) {
        let page = self.page();
        let at = self.base + page * PAGE;
        self.subject
            .engine
            .pin(at, PAGE, true)
            .expect("a page held");
        self.write(page);
        self.subject.engine.unpin(at, PAGE);
    }

    /// A page, or bytes of one.
    fn discard(&mut self) {
        let page = self.page();
        let (from, len) = match self.alone.draw.below(2) {
            0 => (page * PAGE, PAGE),
            _ => (page * PAGE + 100, 1000),
        };
        let done = self.subject.engine.discard(self.base + from, len);
        done.unwrap();
        self.model[from..from + len].fill(0);
        self.compare(page);
    }

    fn end(&mut self) {
        (self.number..self.model.len() / PAGE)
            .step_by(THREADS)
            .for_each(|p| self.compare(p));
        self.alone.end();
    }
}
