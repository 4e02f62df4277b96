//! Where in a program faults came from: the bytes of a thread's stack become the functions that were
//! under way, by the unwinding tables of the files that the process has mapped, and by frame pointers
//! where there are none. This happens here, in the process that records, which the program does not
//! wait for.

use super::file::{Frame, Stacks};
use super::open_file;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use hugeswap_engine::pool::recording::Stack;
use object::elf::PF_X;
use object::read::elf::{ElfFile64, ElfSegment64};
use object::{Object, ObjectSection, ObjectSegment, ReadCache, SegmentFlags};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Deepest stack.
const DEEPEST: usize = 128;
/// What a process has mapped is looked at again no sooner.
const LOOK: Duration = Duration::from_millis(500);
/// Different stacks that are told apart.
const MOST: usize = 20_000;
/// Longest unwinding table that is read, bytes.
const LONGEST: u64 = 64 << 20;

type Bytes = Arc<[u8]>;

/// A part of a file that a process can execute, and what its addresses are less those in the file.
struct Mapped {
    at: Range<u64>,
    file: String,
    bias: u64,
}

/// What is mapped in a process.
struct Process {
    unwinder: UnwinderX86_64<Bytes>,
    cache: CacheX86_64,
    mapped: Vec<Mapped>,
    looked: Instant,
}

/// All stacks so far.
#[derive(Default)]
pub struct Folded {
    processes: HashMap<u32, Process>,
    /// By file: where its code is, and its tables. `None`: it cannot be read.
    files: HashMap<String, Option<Arc<Tables>>>,
    frames: HashMap<(String, u64), u32>,
    stacks: HashMap<Vec<u32>, (u64, u64)>,
    /// Faults whose stack could not be had, or was one too many.
    pub without: u64,
}

/// What is known of a file.
struct Tables {
    /// Of its parts that are code: offset in the file, length, address.
    segments: Vec<(u64, u64, u64)>,
    eh_frame: Option<(Range<u64>, Bytes)>,
    eh_frame_hdr: Option<(Range<u64>, Bytes)>,
    text: Option<Range<u64>>,
}

impl Folded {
    /// Adds the stack of a fault.
    pub fn add(&mut self, stack: &Stack) {
        let weight = u64::from(stack.fault.weight);
        let frames = self.unwind(stack);
        if frames.is_empty() || self.stacks.len() >= MOST && !self.stacks.contains_key(&frames) {
            self.without += weight;
            return;
        }
        let of = self.stacks.entry(frames).or_default();
        of.0 += weight;
        of.1 += weight.saturating_mul(stack.fault.ns);
    }

    /// Its frames, the innermost first.
    fn unwind(&mut self, stack: &Stack) -> Vec<u32> {
        let pid = stack.fault.pid;
        self.look_at(pid, stack.code.ip);
        let Some(process) = self.processes.get_mut(&pid) else {
            return Vec::new();
        };
        let mut addresses = Vec::new();
        let first = stack.code.sp;
        let mut read = |at: u64| {
            let from = usize::try_from(at.checked_sub(first).ok_or(())?).map_err(drop)?;
            let word = stack.bytes.get(from..from.checked_add(8).ok_or(())?);
            let word = word.and_then(|w| w.try_into().ok()).ok_or(())?;
            Ok(u64::from_le_bytes(word))
        };
        let registers = UnwindRegsX86_64::new(stack.code.ip, stack.code.sp, stack.code.bp);
        let mut frames =
            process
                .unwinder
                .iter_frames(stack.code.ip, registers, &mut process.cache, &mut read);
        while addresses.len() < DEEPEST
            && let Ok(Some(frame)) = frames.next()
        {
            // (Where it goes on is behind the call.)
            addresses.push(match frame {
                FrameAddress::InstructionPointer(at) => at,
                FrameAddress::ReturnAddress(at) => at.get() - 1,
            });
        }
        let places: Vec<_> = { addresses.into_iter() }
            .map(|at| match process.mapped_at(at) {
                Some(m) => (m.file.clone(), at.wrapping_sub(m.bias)),
                None => (pid.to_string(), at),
            })
            .collect();
        let mut number = |place| {
            let next = self.frames.len() as u32;
            *self.frames.entry(place).or_insert(next)
        };
        places.into_iter().map(&mut number).collect()
    }

    /// Knows what is mapped in a process, and that code is mapped at `ip`, if it is.
    fn look_at(&mut self, pid: u32, ip: u64) {
        let known = self.processes.get(&pid);
        if known.is_some_and(|p| p.mapped_at(ip).is_some() || p.looked.elapsed() < LOOK) {
            return;
        }
        let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else {
            return;
        };
        let mut process = Process {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            mapped: Vec::new(),
            looked: Instant::now(),
        };
        for (at, offset, file) in maps.lines().filter_map(executable) {
            // (In the program's view of the file system.)
            let path = format!("/proc/{pid}/root{file}");
            let tables = self.files.entry(file.clone()).or_insert_with(|| {
                let tables = Tables::of(&path).or_else(|| Tables::of(&file));
                tables.map(Arc::new)
            });
            let Some(bias) = tables.as_deref().and_then(|t| t.bias(at.start, offset)) else {
                continue;
            };
            if let Some(module) = tables.as_deref().map(|t| t.module(&file, at.clone(), bias)) {
                process.unwinder.add_module(module);
            }
            process.mapped.push(Mapped { at, file, bias });
        }
        self.processes.insert(pid, process);
    }

    /// As they stand in the file of a recording, without names.
    pub fn stacks(&self) -> Stacks {
        let mut frames = vec![None; self.frames.len()];
        for ((module, at), &n) in &self.frames {
            frames[n as usize] = Some(Frame {
                module: module.clone(),
                at: *at,
                names: Vec::new(),
            });
        }
        let stacks = self.stacks.iter();
        Stacks {
            frames: frames.into_iter().flatten().collect(),
            stacks: stacks.map(|(f, &(n, ns))| (f.clone(), n, ns)).collect(),
        }
    }
}

impl Process {
    fn mapped_at(&self, at: u64) -> Option<&Mapped> {
        self.mapped.iter().find(|m| m.at.contains(&at))
    }
}

/// A line of /proc/PID/maps about code of a file: where it is, from which offset on, and the file.
fn executable(line: &str) -> Option<(Range<u64>, u64, String)> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let at = number(from)?..number(to)?;
    let access = words.next()?;
    let offset = number(words.next()?)?;
    let file = words.nth(2)?.trim_start();
    let is_code = access.contains('x') && file.starts_with('/');
    is_code.then(|| (at, offset, file.to_owned()))
}

impl Tables {
    fn of(path: &str) -> Option<Tables> {
        let file = ReadCache::new(open_file(path)?);
        let elf = ElfFile64::<object::Endianness, _>::parse(&file).ok()?;
        let section = |name| {
            let section = elf.section_by_name(name)?;
            let at = section.address()..section.address().checked_add(section.size())?;
            Some((at, section))
        };
        let table = |name| {
            let (at, section) = section(name)?;
            let short = section.size() <= LONGEST;
            let data = short.then(|| section.data().ok()).flatten()?;
            Some((at, Bytes::from(data)))
        };
        // (Others may have bytes in the same page of the file.)
        let is_code = |s: &ElfSegment64<'_, '_, _, _>| {
            let flags = s.flags();
            matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0)
        };
        Some(Tables {
            segments: { elf.segments() }
                .filter(is_code)
                .map(|s| {
                    let (offset, len) = s.file_range();
                    (offset, len, s.address())
                })
                .collect(),
            eh_frame: table(".eh_frame"),
            eh_frame_hdr: table(".eh_frame_hdr"),
            text: section(".text").map(|(at, _)| at),
        })
    }

    /// What addresses in a process are more than in the file, where `offset` of the file is at `at`.
    fn bias(&self, at: u64, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        let held = |&&(from, len, _): &&(u64, u64, u64)| {
            // (A mapping begins where the page of the part begins.)
            from & !(PAGE - 1) <= offset && offset < from.saturating_add(len)
        };
        let (from, _, address) = self.segments.iter().find(held)?;
        Some(at.wrapping_sub(address.wrapping_add(offset).wrapping_sub(*from)))
    }

    fn module(&self, name: &str, at: Range<u64>, bias: u64) -> Module<Bytes> {
        let data = |t: &Option<(Range<u64>, Bytes)>| t.clone().unzip();
        let (eh_frame_svma, eh_frame) = data(&self.eh_frame);
        let (eh_frame_hdr_svma, eh_frame_hdr) = data(&self.eh_frame_hdr);
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: self.text.clone(),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..Default::default()
        };
        Module::new(name.to_owned(), at, bias, sections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let line = "7f0000001000-7f0000003000 r-xp 00002000 fe:00 77   /usr/lib/a b.so";
        let (at, offset, file) = executable(line).unwrap();
        assert_eq!((at.start, at.end), (0x7f00_0000_1000, 0x7f00_0000_3000));
        assert_eq!((offset, &file[..]), (0x2000, "/usr/lib/a b.so"));
        for other in [
            "7f0000001000-7f0000003000 rw-p 00002000 fe:00 77   /usr/lib/a.so",
            "7f0000001000-7f0000003000 r-xp 00000000 00:00 0    [vdso]",
            "7f0000001000-7f0000003000 r-xp 00000000 00:00 0 ",
            "nonsense",
            "",
        ] {
            assert!(executable(other).is_none(), "{other}");
        }
    }

    /// Its own executable: a function's address in memory less the bias is its address in the file.
    #[test]
    fn addresses_are_those_in_the_file() {
        #[inline(never)]
        fn here() -> u64 {
            here as *const () as u64
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut mapped = maps.lines().filter_map(executable);
        let (at, offset, file) = mapped.find(|(at, ..)| at.contains(&here())).unwrap();
        let tables = Tables::of(&file).unwrap();
        let in_file = here() - tables.bias(at.start, offset).unwrap();
        assert!(tables.text.unwrap().contains(&in_file));
        let symbols = addr2line::Loader::new(&file).unwrap();
        let name = symbols.find_symbol(in_file).unwrap();
        assert!(name.contains("addresses_are_those"), "{name}");
    }
}
