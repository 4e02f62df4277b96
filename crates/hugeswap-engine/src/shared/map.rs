//! Making a shared region, mapping it, giving it up.
//!
//! A mapping is made and registered first. The table of the pool then gets it before any thread can
//! touch it. Then (`settle_shared`) the units are kept in that a process which does not know of the
//! mapping yet is taking out.

use super::error::{Result, SharedError};
use super::{Host, Sharing};
use crate::UNIT;
use crate::pool::layout::{FileIdentity, SHARED_NAME, SHARED_UNITS};
use crate::pool::shared::{FileKey, Found};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::shared::Op;
use hugeswap_sys::fs::{Identity, Seals};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, fs, futex, mm, now_ns, process, uffd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

/// How long a process that attaches waits for another one to have it.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The key by which a region is found.
#[derive(Clone, Copy)]
enum By<'a> {
    Name(&'a str),
    /// The identity of its memory file.
    Memory(&'a fs::Identity),
}

/// A mapping that no other thread knows of yet; undone when dropped.
pub(super) struct New {
    addr: usize,
    len: usize,
    uffd: i32,
    kept: bool,
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.kept {
            fs::close(self.uffd);
            // SAFETY: no thread uses it.
            let _ = unsafe { mm::unmap(self.addr, self.len) };
        }
    }
}

impl Sharing {
    /// Makes a shared region of `len` bytes of zeros; where it is mapped.
    pub(crate) fn share(&self, host: &impl Host, name: &str, len: usize) -> Result<usize> {
        if name.is_empty() || FileKey::is_name(name) {
            return Err(SharedError::BadName);
        }
        self.may_share(host, name)?;
        self.make_shared(host, name, len as u64, None)
    }

    /// Makes one without a name, so that only children of this process will ever have it too, of
    /// `len` bytes (whole pages) at `at` (a unit's address), which are the caller's to replace.
    pub(crate) fn share_nameless(&self, host: &impl Host, at: usize, len: usize) -> Result<()> {
        self.may_share(host, "")?;
        self.meet_relatives()?;
        self.make_shared(host, "", len as u64, Some(at)).map(drop)
    }

    /// Makes one for a file of a program's, which is `len` bytes long; mapped by whole pages at
    /// `at`, as above. Other processes attach to it by the file.
    pub(crate) fn share_file(
        &self,
        host: &impl Host,
        file: &FileKey,
        at: usize,
        len: u64,
    ) -> Result<()> {
        let name = file.name();
        self.may_share(host, &name)?;
        self.meet_relatives()?;
        self.make_shared(host, &name, len, Some(at)).map(drop)
    }

    /// Maps the region of a file at `at`, as above; its length in bytes is what
    /// [`Sharing::file_len`] says.
    pub(crate) fn attach_file(&self, host: &impl Host, file: &FileKey, at: usize) -> Result<()> {
        let name = file.name();
        self.may_share(host, &name)?;
        self.meet_relatives()?;
        self.attach(host, By::Name(&name), Some(at)).map(drop)
    }

    /// How long a file is that there is a region for.
    pub(crate) fn file_len(&self, file: &FileKey) -> Result<u64> {
        Ok(self.pool.shared_table()?.find(&file.name())?.len)
    }

    fn meet_relatives(&self) -> Result<()> {
        // Processes of one program must be able to reach each other both ways, and the one that
        // made the pool stands for the others here.
        self.let_relatives_in();
        let maker = self.pool.maker();
        match process::descriptor_of(maker, 0) {
            Ok(fd) => fs::close(fd),
            // Allowed, only that there is nothing under that number.
            Err(Errno::EBADF) => {}
            Err(e) => return Err(SharedError::Unreachable(maker, e)),
        }
        Ok(())
    }

    /// Where processes may get at their own children only (kernel.yama.ptrace_scope=1), the process
    /// that descends from the pool's maker may get at this one.
    pub(super) fn let_relatives_in(&self) {
        let _ = process::let_trace(self.pool.maker());
    }

    fn make_shared(
        &self,
        host: &impl Host,
        name: &str,
        bytes: u64,
        at: Option<usize>,
    ) -> Result<usize> {
        if bytes == 0 || bytes > (SHARED_UNITS * UNIT) as u64 {
            return Err(SharedError::BadLength);
        }
        let whole = (bytes as usize).next_multiple_of(UNIT);
        let sys = |what| move |e| SharedError::System(what, e);
        let memory = mm::memfd(c"hugeswap-shared", false).map_err(sys("cannot make memory"))?;
        let memory = self.moved_up(memory);
        let close = |e| {
            fs::close(memory);
            e
        };
        let identity = fs::truncate(memory, whole as u64)
            .and_then(|()| fs::seal(memory, Seals::LENGTH))
            .and_then(|()| fs::identity(memory))
            .map_err(sys("cannot make memory"))
            .map_err(close)?;
        let mapped = mapped_of(bytes, at);
        let new = self.new_mapping(memory, mapped, at).map_err(close)?;
        if at.is_some() && memory.min(new.uffd) < self.low_fd {
            // Where the program will want to have its own.
            let e = SharedError::System("no descriptors are left", Errno::EMFILE);
            return Err(close(e));
        }
        let _blocked = Blocked::all();
        let found = {
            let _inside = self.gate.enter();
            let table = self.pool.shared_table().map_err(SharedError::from);
            let table = table.map_err(close)?;
            table
                .create(name, bytes, &identity)
                .map_err(SharedError::from)
                .and_then(|found| {
                    self.publish(&table, &found, memory, &identity, &new)?;
                    Ok(found.index)
                })
        };
        let index = found.map_err(close)?;
        let addr = new.keep();
        self.await_met(host, index);
        Ok(addr)
    }

    /// Maps the shared region of this name that another process has made: where, and how long it
    /// is.
    pub(crate) fn attach_shared(&self, host: &impl Host, name: &str) -> Result<(usize, usize)> {
        if name.is_empty() || FileKey::is_name(name) {
            return Err(SharedError::BadName);
        }
        self.may_share(host, name)?;
        self.attach(host, By::Name(name), None)
    }

    /// The same of the region whose memory `fd` is ([`Sharing::shared_memory`]), which stays the
    /// caller's.
    pub(crate) fn attach_shared_memory(&self, host: &impl Host, fd: i32) -> Result<(usize, usize)> {
        self.may_share(host, "")?;
        let memory = fs::identity(fd).map_err(|_| SharedError::NotMemory)?;
        match self.attach(host, By::Memory(&memory), None) {
            Err(SharedError::Unknown) => Err(SharedError::NotMemory),
            attached => attached,
        }
    }

    /// The descriptor of the memory of the shared region at `addr`; the engine's own.
    pub(crate) fn shared_memory(&self, addr: usize) -> Option<i32> {
        self.map_of(addr).map(|(_, m)| m.fds().memory)
    }

    fn attach(&self, host: &impl Host, by: By, at: Option<usize>) -> Result<(usize, usize)> {
        let since = now_ns();
        loop {
            match self.try_attach(host, by, at) {
                // The only processes that have it are children just being forked, or have just
                // died.
                Err(SharedError::Coming) if now_ns() - since < PATIENCE_NS => {
                    self.pool.reap();
                    futex::wait(&AtomicU32::new(0), 0, Some(1_000_000), false);
                }
                tried => return tried,
            }
        }
    }

    fn try_attach(&self, host: &impl Host, by: By, at: Option<usize>) -> Result<(usize, usize)> {
        let _blocked = Blocked::all();
        let (found, addr) = {
            let _inside = self.gate.enter();
            let table = self.pool.shared_table()?;
            let found = match by {
                By::Name(name) => table.find(name)?,
                By::Memory(memory) => table.find_memory(memory)?,
            };
            if self.maps[found.index].addr.load(Acquire) != 0 {
                return Err(SharedError::Here);
            }
            let s = &self.pool.header().shared[found.index];
            let len = found.units as usize * UNIT;
            let memory = self.moved_up(self.open_memory(found.index, &s.identity, len)?);
            let close = |e| {
                fs::close(memory);
                e
            };
            let identity = fs::identity(memory)
                .map_err(|e| SharedError::System("cannot map memory", e))
                .map_err(close)?;
            let mapped = mapped_of(found.len, at);
            let new = self.new_mapping(memory, mapped, at).map_err(close)?;
            if at.is_some() && memory.min(new.uffd) < self.low_fd {
                let e = SharedError::System("no descriptors are left", Errno::EMFILE);
                return Err(close(e));
            }
            self.publish(&table, &found, memory, &identity, &new)
                .map_err(close)?;
            (found, new.keep())
        };
        let settled = {
            let _inside = self.gate.enter();
            self.settle(host, found.index)
        };
        if let Err(e) = settled {
            self.unmap_shared(host, addr);
            return Err(e);
        }
        self.await_met(host, found.index);
        Ok((addr, found.len as usize))
    }

    fn may_share(&self, host: &impl Host, name: &str) -> Result<()> {
        if name.len() > SHARED_NAME {
            return Err(SharedError::BadName);
        }
        if !host.takes_faults_by_signals() {
            return Err(SharedError::Message);
        }
        if self.pool.knob(Knob::Userfaultfd) == 0 {
            return Err(SharedError::SwitchedOff);
        }
        // With the last process that has it a region ends, also if no process has noticed yet.
        self.pool.reap();
        Ok(())
    }

    fn moved_up(&self, fd: i32) -> i32 {
        match fs::dup_above(fd, self.low_fd) {
            Ok(high) => {
                fs::close(fd);
                high
            }
            Err(_) => fd,
        }
    }

    /// The memory of a region, from a process that has it: exactly that, and as long as it is to
    /// be, for good.
    fn open_memory(&self, index: usize, file: &FileIdentity, len: usize) -> Result<i32> {
        let mut why = SharedError::Coming;
        for (_, c) in self.pool.clients(index) {
            let (pid, number) = (c.pid.load(Relaxed), c.memory.load(Relaxed));
            if c.owner.load(Acquire) == 0 || number < 0 {
                continue;
            }
            match process::descriptor_of(pid, number) {
                Ok(fd) => {
                    let right =
                        fs::size(fd).is_ok_and(|(size, i)| file.is(&i) && size == len as u64);
                    if right && fs::is_sealed(fd, Seals::LENGTH) {
                        return Ok(fd);
                    }
                    fs::close(fd);
                    why = SharedError::BadSegment;
                }
                Err(Errno::ESRCH) => {}
                Err(e) => why = SharedError::Unreachable(pid, e),
            }
        }
        Err(why)
    }

    /// Maps `len` bytes of a memory file, at a certain place or anywhere, and registers them.
    pub(super) fn new_mapping(&self, memory: i32, len: usize, at: Option<usize>) -> Result<New> {
        let sys = |what| move |e| SharedError::System(what, e);
        let addr = match at {
            Some(at) => at,
            None => reserve(len).map_err(sys("cannot find addresses"))?,
        };
        let unmap = |e| {
            // SAFETY: no thread uses it.
            let _ = unsafe { mm::unmap(addr, len) };
            e
        };
        // SAFETY: reserved a moment ago, or what a fork did not let us inherit.
        unsafe { mm::map_shared_at(addr, memory, len) }
            .and_then(|()| {
                // SAFETY: advice that discards nothing. In a child absent pages would read as
                // zeros, and be zeros for every process then.
                unsafe { mm::advise(addr, len, libc::MADV_DONTFORK) }
            })
            .map_err(sys("cannot map memory"))
            .map_err(unmap)?;
        let features =
            uffd::feature::SIGBUS | uffd::feature::PAGEFAULT_FLAG_WP | uffd::feature::WP_SHMEM;
        let flags = uffd::USER_MODE_ONLY | libc::O_NONBLOCK as usize;
        let (fd, _) = uffd::open(flags, features)
            .map_err(SharedError::NoUserfaultfd)
            .map_err(unmap)?;
        let fd = self.moved_up(fd);
        let new = New {
            addr,
            len,
            uffd: fd,
            kept: false,
        };
        uffd::register(fd, addr, len, uffd::mode::MISSING | uffd::mode::WP)
            .map_err(SharedError::NoUserfaultfd)?;
        Ok(new)
    }

    /// Tells the table, and this engine, of a mapping.
    pub(super) fn publish(
        &self,
        table: &crate::pool::shared::Table<'_>,
        found: &Found,
        memory: i32,
        identity: &Identity,
        new: &New,
    ) -> Result<()> {
        let m = &self.maps[found.index];
        m.len.store(new.len, Relaxed);
        m.first.store(found.first, Relaxed);
        m.serial.store(found.serial, Relaxed);
        m.memory.store(memory, Relaxed);
        m.uffd.store(new.uffd, Relaxed);
        m.identity.set(identity);
        m.met.store(0, Relaxed);
        table.add(found.index, self.pool.me(), |c| {
            c.pid.store(process::pid(), Relaxed);
            c.memory.store(memory, Relaxed);
            c.addr.store(new.addr as u64, Relaxed);
            c.uffd.store(new.uffd, SeqCst);
        })?;
        if self.tracking_of(found.index) != 0 {
            // A process that begins an epoch from now on sees this mapping.
            uffd::write_protect(new.uffd, new.addr, new.len, true)
                .map_err(|e| SharedError::System("cannot write-protect memory", e))?;
        }
        m.addr.store(new.addr, Release);
        Ok(())
    }

    /// Keeps in what another process is taking out that may not know that this process has come.
    pub(super) fn settle(&self, host: &impl Host, index: usize) -> Result<()> {
        let m = &self.maps[index];
        let (mut looks, mut since) = (0, None);
        // The mapping's entry in the table was written before, and the words are read after. In `evict`
        // a process locks a word first and reads the entries then, with the same fence between. So a
        // unit that is written out either is seen as locked here, or its write-out sees the mapping.
        fence(SeqCst);
        for unit in m.units() {
            loop {
                let w = self.load(unit);
                match w.op() {
                    Op::Out => {
                        if let Some(held) = self.take(unit, w, Op::Touch) {
                            held.settle();
                        }
                    }
                    Op::Punch if self.is_stuck(&mut since) => return Err(SharedError::Stuck),
                    Op::Punch => {
                        self.wait(unit, w);
                        looks += 1;
                        if looks % 8 == 0 {
                            // (In a forked child there is no kswapd yet.)
                            self.pool.reap();
                            let _state = self.maintenance.lock();
                            self.carry_on_orphan(host, index, m.fds(), m, unit);
                        }
                    }
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Gives up the shared region mapped at `addr`. The last process to do so ends it.
    pub(crate) fn unmap_shared(&self, host: &impl Host, addr: usize) {
        self.give_up(host, addr, false);
    }

    /// The same, but its mappings stay, and are the kernel's from now on; all of it was kept before
    /// ([`Sharing::keep_shared`]). Forked children will inherit them.
    pub(crate) fn let_go_shared(&self, host: &impl Host, addr: usize) {
        self.give_up(host, addr, true);
    }

    fn give_up(&self, host: &impl Host, addr: usize, mapped: bool) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let Some((index, m)) = self.map_of(addr) else {
            return;
        };
        // What kswapd was handed is done first: the words are this process's.
        let state = self.maintenance.lock();
        for _ in 0..self.handed.len() {
            match self.handed.pop() {
                Some(unit) if m.units().contains(&unit) => {
                    self.finish(host, index, m.fds(), m, self.passed(unit))
                }
                Some(other) => drop(self.handed.push(other)),
                None => break,
            }
        }
        let range = m.range();
        m.addr.store(0, Release);
        drop(state);
        m.await_holders();
        match self.pool.shared_table() {
            Ok(table) => table.remove(index, self.pool.me()),
            Err(_) => self.pool.forget_client(index, self.pool.me()),
        }
        self.pool.kick();
        // SAFETY: the caller uses it no more, or advice that discards nothing (and leaves out what
        // is not mapped).
        let _ = unsafe {
            match mapped {
                true => mm::advise(range.start, range.len(), libc::MADV_DOFORK),
                false => mm::unmap(range.start, range.len()),
            }
        };
        fs::close(m.uffd.swap(-1, Relaxed));
        if super::evict::is_memory(m, m.memory.load(Relaxed)) {
            fs::close(m.memory.load(Relaxed));
        }
    }

    /// Everything, as the engine ends.
    pub(crate) fn unmap_all(&self, host: &impl Host) {
        for m in &self.maps {
            let addr = m.addr.load(Acquire);
            if addr != 0 {
                self.unmap_shared(host, addr);
            }
        }
    }
}

impl New {
    pub(super) fn keep(mut self) -> usize {
        self.kept = true;
        self.addr
    }
}

/// How much of a region of so many bytes is mapped: whole units, or, where the caller has the
/// addresses, whole pages.
fn mapped_of(bytes: u64, at: Option<usize>) -> usize {
    let step = if at.is_some() {
        PAGE_BYTES as usize
    } else {
        UNIT
    };
    (bytes as usize).next_multiple_of(step)
}

/// Addresses for `len` bytes, aligned to units.
fn reserve(len: usize) -> hugeswap_sys::Result<usize> {
    let raw = mm::map_own(len + UNIT, mm::PROT_NONE)?;
    let addr = raw.next_multiple_of(UNIT);
    // SAFETY: the slack before and after the aligned part, unused.
    unsafe {
        if addr > raw {
            let _ = mm::unmap(raw, addr - raw);
        }
        let _ = mm::unmap(addr + len, raw + UNIT - addr);
    }
    Ok(addr)
}
