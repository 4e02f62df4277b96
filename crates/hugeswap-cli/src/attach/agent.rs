//! The thread that loads the object in the program, and what it is told and tells.
//!
//! It begins at the first instruction of the dynamic loader, mapped for it in the program's memory,
//! which loads this executable with the object preloaded, as the kernel would have it do in a new
//! process. The object's constructor never returns. Until that runs, this process sees each of the
//! thread's system calls: one that would end the program ends only this thread. Until the object is
//! ready it sees its signals.

use super::loader::{auxiliary, first_stack, load, loader};
use super::ranges::Window;
use super::stopped::Stopped;
use anyhow::{Context, Result, bail};
use hugeswap_sys::attach::{self, Plan, Thread, Words, step};
use hugeswap_sys::trace::{self, Registers, Stop, Tracee};
use hugeswap_sys::{Errno, now_ns, own};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

pub const PAGE: u64 = 4096;
const STACK: u64 = 1 << 20;
/// How long the object may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks at how far it is, nanoseconds.
const LOOK_NS: u64 = 1_000_000;

/// What the agent is told at first.
pub struct Orders<'a> {
    /// Environment variables, as `NAME=VALUE`, for it alone.
    pub environment: Vec<Vec<u8>>,
    pub window: &'a Window,
    /// The budget grows by what is taken over.
    pub follows: bool,
    pub ranges: &'a [Range<u64>],
    pub threads: &'a [Thread],
}

/// The agent, which is loaded.
pub struct Agent {
    memory: File,
    /// Where its plan is.
    plan: u64,
    /// What was mapped for it, and by it while it was loaded.
    mapped: Mapped,
    places: Places,
}

/// Ranges that are mapped, as the calls say that map and unmap them.
#[derive(Default)]
struct Mapped(Vec<Range<u64>>);

impl Mapped {
    fn add(&mut self, at: u64, len: u64) {
        self.remove(at, len);
        self.0.push(at..at + len.next_multiple_of(PAGE));
    }

    fn remove(&mut self, at: u64, len: u64) {
        let end = at + len.next_multiple_of(PAGE);
        let rest = self.0.iter().flat_map(|r| {
            let before = r.start..r.end.min(at);
            let after = r.start.max(end)..r.end;
            [before, after]
        });
        self.0 = rest.filter(|r| !r.is_empty()).collect();
    }

    /// Call `nr` with these first two arguments was answered.
    fn note(&mut self, nr: i64, [at, len]: [u64; 2], answer: u64) {
        let is_error = answer as i64 > -4096 && (answer as i64) < 0;
        match nr {
            _ if is_error => {}
            libc::SYS_mmap => self.add(answer, len),
            libc::SYS_munmap => self.remove(at, len),
            _ => {}
        }
    }
}

/// The memory of the program.
pub fn memory(pid: i32) -> Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"));
    file.context("the program's memory cannot be written")
}

/// The address of an instruction `syscall` in `[range)` of the program.
pub fn find_syscall(memory: &File, range: Range<u64>) -> Result<u64> {
    const INSTRUCTION: [u8; 2] = [0x0f, 0x05];
    let mut at = range.start;
    while at < range.end {
        let mut piece = vec![0; (range.end - at).min(64 << 10) as usize];
        let read = memory.read_at(&mut piece, at).unwrap_or(0);
        let found = piece[..read].windows(2).position(|w| w == INSTRUCTION);
        if let Some(i) = found {
            return Ok(at + i as u64);
        }
        at += piece.len() as u64;
    }
    bail!("no instruction was found by which the program could make a system call")
}

/// The answer to a system call that a thread of the program was made to make.
pub fn checked(answer: i64, what: &str) -> Result<u64> {
    match answer {
        -4095..0 => Err(std::io::Error::from_raw_os_error(-answer as i32))
            .with_context(|| format!("cannot {what} in the program")),
        _ => Ok(answer as u64),
    }
}

/// Addresses of hugeswap's own ([`own`]), one after the other, for what is mapped in the program before the
/// object runs. The kernel would take addresses where the program had something: it may map over them.
pub struct Places(u64);

impl Places {
    /// From a random address in the upper quarter on, which the object's own mappings reach last.
    pub fn new() -> Places {
        const QUARTER: u64 = own::LEN as u64 / 4;
        // (Its keys are random.)
        let random = RandomState::new().build_hasher().finish();
        Places(own::BASE as u64 + 3 * QUARTER + random % (QUARTER / 2) / PAGE * PAGE)
    }

    /// An address for `len` bytes.
    pub fn take(&mut self, len: u64) -> u64 {
        let at = self.0;
        self.0 += len.next_multiple_of(PAGE) + PAGE;
        at
    }
}

/// Has a stopped thread map `len` bytes at `at`, or elsewhere if something is there.
pub fn map(thread: &mut Tracee, syscall: u64, at: u64, len: u64) -> Result<u64> {
    let (rw, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let a = [at, len, rw as u64, flags as u64, u64::MAX, 0];
    checked(thread.call(syscall, libc::SYS_mmap, a)?, "map memory")
}

/// Has a stopped thread unmap what [`map`] mapped.
pub fn unmap(thread: &mut Tracee, syscall: u64, at: u64, len: u64) -> Result<()> {
    let answer = thread.call(syscall, libc::SYS_munmap, [at, len, 0, 0, 0, 0])?;
    checked(answer, "unmap memory").map(drop)
}

/// The bytes of a plan.
fn plan_bytes(orders: &Orders<'_>) -> Result<Vec<u8>> {
    if orders.threads.len() > attach::MOST_THREADS {
        bail!(
            "the program has more than {} threads: start it by `hugeswap run`",
            attach::MOST_THREADS
        );
    }
    let mut bytes = vec![0; size_of::<Plan>()];
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    put(offset_of!(Plan, version), attach::VERSION);
    put(offset_of!(Plan, window), orders.window.main.start);
    put(offset_of!(Plan, window) + 8, orders.window.main.end);
    put(offset_of!(Plan, follows), u64::from(orders.follows));
    put(offset_of!(Plan, far_count), orders.window.far.len() as u64);
    for (i, far) in orders.window.far.iter().enumerate() {
        let at = offset_of!(Plan, far) + i * 16;
        put(at, far.start);
        put(at + 8, far.end);
    }
    put(offset_of!(Plan, thread_count), orders.threads.len() as u64);
    for (i, t) in orders.threads.iter().enumerate() {
        let at = offset_of!(Plan, threads) + i * size_of::<Thread>();
        put(at + offset_of!(Thread, tid), t.tid);
        put(at + offset_of!(Thread, mask), t.mask);
        put(at + offset_of!(Thread, stack), t.stack[0]);
        put(at + offset_of!(Thread, stack) + 8, t.stack[1]);
    }
    // (What finds no place stays the kernel's; the largest come first.)
    let mut ranges = orders.ranges.to_vec();
    ranges.sort_by_key(|r| std::cmp::Reverse(r.end - r.start));
    ranges.truncate(attach::MOST_RANGES);
    put(offset_of!(Plan, range_count), ranges.len() as u64);
    for (i, r) in ranges.iter().enumerate() {
        let at = offset_of!(Plan, ranges) + i * 16;
        put(at, r.start);
        put(at + 8, r.end);
    }
    Ok(bytes)
}

impl Agent {
    /// Loads the object into a program whose threads are stopped; `by` makes the calls for it, of
    /// which `syscall` is an instruction.
    pub fn load(pid: i32, by: &mut Tracee, syscall: u64, orders: &Orders<'_>) -> Result<Agent> {
        let memory = memory(pid)?;
        let (name, contents) = loader()?;
        let mut places = Places::new();
        let image = load(by, syscall, &memory, &contents, &mut places)?;
        let plan = plan_bytes(orders)?;
        let room = STACK + (plan.len() as u64).next_multiple_of(PAGE);
        let base = map(by, syscall, places.take(room), room)?;
        let plan_at = base + STACK;
        memory
            .write_all_at(&plan, plan_at)
            .context("cannot write to the program's memory")?;
        let executable = format!("/proc/{}/exe", std::process::id()).into_bytes();
        let variable = format!("{}={plan_at:x}", attach::VARIABLE.to_string_lossy()).into_bytes();
        let mut environment = orders.environment.clone();
        environment.push(variable);
        let arguments = [name.into_bytes(), executable];
        let auxiliary = auxiliary(pid, &image)?;
        let (stack, sp) = first_stack(plan_at, &arguments, &environment, &auxiliary);
        memory
            .write_all_at(&stack, sp)
            .context("cannot write to the program's memory")?;
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        let (answer, made) = by.call_clone(syscall, [flags as u64, sp, 0, 0, 0, 0])?;
        checked(answer, "start a thread")?;
        let thread = made.context("the thread that was started is not there")?;
        thread.set_mask(u64::MAX)?;
        let first = trace::first_registers(&thread.registers()?, image.entry, sp);
        thread.set_registers(&first)?;
        let mut mapped = Mapped::default();
        mapped.add(image.at, image.len);
        mapped.add(base, room);
        let mut agent = Agent {
            memory,
            plan: plan_at,
            mapped,
            places,
        };
        agent.follow(thread, syscall)?;
        Ok(agent)
    }

    /// Lets the new thread run until it is ready, and go on then.
    fn follow(&mut self, mut thread: Tracee, syscall: u64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        // The system call that it is in.
        let mut call: Option<Registers> = None;
        let mut failed = None;
        let mut runs = false;
        loop {
            let at = self.step()?;
            match at {
                step::PREPARED | step::FAILED => {
                    // (It may have ended.)
                    if !runs || thread.interrupt(PATIENCE.as_nanos() as u64).is_ok() {
                        thread.let_go()?;
                    }
                    if at == step::FAILED {
                        bail!("{}", self.complaint());
                    }
                    return Ok(());
                }
                _ => {}
            }
            if Instant::now() > deadline {
                bail!("the object is not ready after {} s", PATIENCE.as_secs());
            }
            if !runs {
                match at {
                    step::STARTING => thread.to_system_call(0)?,
                    _ => thread.go_on()?,
                }
                runs = true;
            }
            let stop = match thread.wait(now_ns() + LOOK_NS) {
                Err(Errno(libc::ETIMEDOUT)) => continue,
                stop => stop?,
            };
            runs = false;
            match stop {
                Stop::SystemCall => {
                    let r = thread.registers()?;
                    call = match call {
                        Some(call) => {
                            let given = [call.rdi, call.rsi];
                            self.mapped.note(call.orig_rax as i64, given, r.rax);
                            None
                        }
                        None => {
                            failed = self.look_at_call(&thread, r)?.or(failed);
                            Some(r)
                        }
                    };
                }
                Stop::Signal(signal) => {
                    self.end(&thread, syscall)?;
                    thread.let_go()?;
                    bail!("the object could not be loaded: signal {signal}");
                }
                Stop::Gone => match failed {
                    Some(status) => {
                        bail!("the object could not be loaded: see above (status {status})")
                    }
                    None => bail!("the object's thread has ended"),
                },
                Stop::Interrupted | Stop::Group | Stop::Event(_) => {}
            }
        }
    }

    /// A system call begins, and is made as a thread of hugeswap's is to make it. What would end the program ends
    /// this thread: the status.
    fn look_at_call(&mut self, thread: &Tracee, mut r: Registers) -> Result<Option<u64>> {
        match r.orig_rax as i64 {
            libc::SYS_exit_group => {
                r.orig_rax = libc::SYS_exit as u64;
                thread.set_registers(&r)?;
                Ok(Some(r.rdi))
            }
            // An address of ours, where the kernel is to choose.
            libc::SYS_mmap if r.rdi == 0 && r.r10 & libc::MAP_FIXED as u64 == 0 => {
                r.rdi = self.places.take(r.rsi);
                thread.set_registers(&r)?;
                Ok(None)
            }
            // The break is the program's.
            libc::SYS_brk if r.rdi != 0 => {
                r.rdi = 0;
                thread.set_registers(&r)?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Has the thread end, by itself.
    fn end(&self, thread: &Tracee, syscall: u64) -> Result<()> {
        let mut r = thread.registers()?;
        r.rip = syscall;
        r.rax = libc::SYS_exit as u64;
        r.rdi = 2;
        r.orig_rax = u64::MAX;
        Ok(thread.set_registers(&r)?)
    }

    fn read<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let from = self.plan + at as u64;
        self.memory
            .read_exact_at(&mut bytes, from)
            .context("the program has ended")?;
        Ok(bytes)
    }

    fn word(&self, at: usize) -> Result<u64> {
        Ok(u64::from_ne_bytes(self.read(at)?))
    }

    /// How far the agent is.
    pub fn step(&self) -> Result<u32> {
        Ok(u32::from_ne_bytes(self.read(offset_of!(Plan, step))?))
    }

    /// Tells it what to do next.
    pub fn tell(&self, command: u32) -> Result<()> {
        let at = self.plan + offset_of!(Plan, command) as u64;
        let told = self.memory.write_all_at(&command.to_ne_bytes(), at);
        told.context("the program has ended")
    }

    /// What it complains of; empty: nothing.
    pub fn complaint(&self) -> String {
        let bytes = self
            .read::<256>(offset_of!(Plan, complaint))
            .unwrap_or([0; 256]);
        let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
        crate::text::one_line(&String::from_utf8_lossy(text))
    }

    /// Bytes that were taken over.
    pub fn adopted(&self) -> Result<u64> {
        self.word(offset_of!(Plan, adopted))
    }

    /// What was mapped for it, and by it while it was loaded.
    pub fn mapped(&self) -> &[Range<u64>] {
        &self.mapped.0
    }

    /// Where the object has words for each thread.
    pub fn words(&self) -> Result<Words> {
        let word =
            |of: usize| Ok::<_, anyhow::Error>(self.word(offset_of!(Plan, words) + of)? as i64);
        Ok(Words {
            mask: word(offset_of!(Words, mask))?,
            stack: word(offset_of!(Words, stack))?,
            believed_stack: word(offset_of!(Words, believed_stack))?,
            believed_size: word(offset_of!(Words, believed_size))?,
            context: word(offset_of!(Words, context))?,
        })
    }

    /// Where system calls pass: the object.
    pub fn passing(&self) -> Result<Range<u64>> {
        let at = offset_of!(Plan, passing);
        Ok(self.word(at)?..self.word(at + 8)?)
    }

    /// The address of an instruction `syscall` in it.
    pub fn syscall(&self) -> Result<u64> {
        let (at, passing) = (self.word(offset_of!(Plan, syscall))?, self.passing()?);
        if !passing.contains(&at) {
            bail!("what the object says of itself cannot be");
        }
        Ok(at)
    }

    /// What a thread is to have: GS, and its alternate stack.
    pub fn for_thread(&self, i: usize) -> Result<(u64, [u64; 2])> {
        let at = offset_of!(Plan, threads) + i * size_of::<Thread>();
        let stack = at + offset_of!(Thread, new_stack);
        let gs = self.word(at + offset_of!(Thread, gs))?;
        Ok((gs, [self.word(stack)?, self.word(stack + 8)?]))
    }

    /// Room in the program's memory, which nobody uses.
    pub fn scratch(&self) -> u64 {
        self.plan - STACK
    }

    /// Waits until the agent is at one of these steps, for as long as `goes_on` says.
    pub fn wait(&self, steps: &[u32], mut goes_on: impl FnMut() -> bool) -> Result<u32> {
        let mut pause = Duration::from_micros(200);
        let longest = match steps.contains(&step::ENDED) {
            // The program's threads stand still meanwhile.
            true => Duration::from_millis(1),
            false => Duration::from_millis(5),
        };
        loop {
            let now = self.step()?;
            if steps.contains(&now) {
                return Ok(now);
            }
            if !goes_on() {
                bail!("the object does not answer");
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
}

/// A stack (address and length; length 0: none), as sigaltstack(2) has it.
fn stack_words(stack: [u64; 2]) -> [u64; 3] {
    let [at, len] = stack;
    let flags = if len == 0 { libc::SS_DISABLE } else { 0 };
    [at, flags as u64, len]
}

/// sigaltstack(2), by a stopped thread: sets the stack `new` (address and length; length 0: none), if
/// any. The former one, and whether the thread runs on it. `room`: 48 bytes that nobody uses.
pub fn alternate_stack(
    thread: &mut Tracee,
    syscall: u64,
    memory: &File,
    room: u64,
    new: Option<[u64; 2]>,
) -> Result<([u64; 2], bool)> {
    let stack = stack_words(new.unwrap_or_default());
    let bytes: Vec<u8> = stack.iter().flat_map(|w| w.to_ne_bytes()).collect();
    memory
        .write_all_at(&bytes, room)
        .context("cannot write to the program's memory")?;
    let given = if new.is_none() { 0 } else { room };
    let a = [given, room + 24, 0, 0, 0, 0];
    checked(
        thread.call(syscall, libc::SYS_sigaltstack, a)?,
        "look at an alternate stack",
    )?;
    let mut former = [0; 24];
    memory
        .read_exact_at(&mut former, room + 24)
        .context("cannot read the program's memory")?;
    let word = |i: usize| u64::from_ne_bytes(former[i..i + 8].try_into().unwrap_or_default());
    let flags = word(8) as i32;
    let former = match flags & libc::SS_DISABLE {
        0 => [word(0), word(16)],
        _ => [0; 2],
    };
    Ok((former, flags & libc::SS_ONSTACK != 0))
}

/// Has the system calls of all stopped threads watched, but those from `passing`; or not any more.
pub fn watch(stopped: &mut Stopped, syscall: u64, passing: Option<&Range<u64>>) -> Result<()> {
    const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
    for t in &mut stopped.threads {
        let a = match passing {
            Some(p) => [
                PR_SET_SYSCALL_USER_DISPATCH,
                1,
                p.start,
                p.end - p.start,
                0,
                0,
            ],
            None => [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0],
        };
        let answer = t.call(syscall, libc::SYS_prctl, a)?;
        checked(answer, "watch system calls (Linux 5.11 or later can)")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unmapped_or_failed_is_not_mapped() {
        const SIZE: u64 = 16 * PAGE;
        let mut mapped = Mapped::default();
        let mut note = |nr: i64, a: [u64; 2], answer: i64| {
            mapped.note(nr, a, answer as u64);
            mapped.0.clone()
        };
        let all = note(libc::SYS_mmap, [0, SIZE - 5], 0x10000);
        assert_eq!((all.len(), all[0].clone()), (1, 0x10000..0x10000 + SIZE));
        // A part of it is mapped anew; what fails changes nothing.
        note(
            libc::SYS_mmap,
            [0x10000 + PAGE, PAGE],
            0x10000 + PAGE as i64,
        );
        note(libc::SYS_mmap, [0, SIZE], -i64::from(libc::ENOMEM));
        note(libc::SYS_munmap, [0x10000, SIZE], -i64::from(libc::EINVAL));
        let all = note(libc::SYS_openat, [0x10000, SIZE], 7);
        assert_eq!(all.iter().map(|r| r.end - r.start).sum::<u64>(), SIZE);
        let mut all = note(libc::SYS_munmap, [0x10000 + PAGE, 3 * PAGE], 0);
        all.sort_by_key(|r| r.start);
        assert_eq!(
            all,
            [0x10000..0x10000 + PAGE, 0x10000 + 4 * PAGE..0x10000 + SIZE]
        );
        assert!(note(libc::SYS_munmap, [0, 0x10000 + SIZE], 0).is_empty());
    }
}
