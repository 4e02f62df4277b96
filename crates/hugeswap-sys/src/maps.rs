//! The mappings of this process, as /proc/self/maps and /proc/self/smaps tell them.

use crate::raw::call;
use crate::{Result, fs};
use std::ffi::CStr;

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: usize,
    /// The address behind it.
    pub end: usize,
    /// The access to it (`PROT_*`).
    pub prot: i32,
    /// Private, and of no file.
    pub is_anonymous: bool,
}

/// What the kernel was told to do with a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// It stays in memory (mlock).
    pub is_locked: bool,
    /// A forked child does not have it (MADV_DONTFORK).
    pub is_not_inherited: bool,
    /// A forked child finds zeros there (MADV_WIPEONFORK).
    pub is_wiped_on_fork: bool,
}

/// The text of /proc/self/maps, or of /proc/self/smaps.
#[derive(Debug)]
pub struct Text(Vec<u8>);

impl Text {
    /// Reads /proc/self/maps. Allocates.
    pub fn read() -> Result<Text> {
        Text::of(c"/proc/self/maps")
    }

    /// Reads /proc/self/smaps, for which the kernel looks at all page tables. Allocates.
    pub fn read_with_flags() -> Result<Text> {
        Text::of(c"/proc/self/smaps")
    }

    fn of(path: &CStr) -> Result<Text> {
        const PIECE: usize = 64 << 10;
        let fd = fs::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
        let mut text = Vec::new();
        loop {
            let at = text.len();
            text.resize(at + PIECE, 0);
            let room = text.as_mut_ptr() as usize + at;
            // SAFETY: the buffer has that much room from there on.
            let n = unsafe { call(libc::SYS_read, [fd as usize, room, PIECE, 0, 0, 0]) };
            text.truncate(at + n.unwrap_or(0));
            match n {
                Ok(n) if n > 0 => {}
                end => {
                    fs::close(fd);
                    return end.map(|_| Text(text));
                }
            }
        }
    }

    /// The mappings that `[at, at+len)` meets, in order.
    pub fn mappings(&self, at: usize, len: usize) -> impl Iterator<Item = Mapping> + '_ {
        let lines = self.0.split(|&b| b == b'\n').filter_map(mapping);
        lines.filter(move |m| m.start < at + len && m.end > at)
    }

    /// All mappings, in order, each with its line from the access to it on.
    pub fn all(&self) -> impl Iterator<Item = (Mapping, &[u8])> {
        self.0.split(|&b| b == b'\n').filter_map(|line| {
            let rest = line.iter().position(|&b| b == b' ')? + 1;
            Some((mapping(line)?, &line[rest..]))
        })
    }

    /// The flags of the mappings that `[at, at+len)` meets, in order, of a text with flags.
    pub fn flags(&self, at: usize, len: usize) -> impl Iterator<Item = Flags> + '_ {
        let mut is_met = false;
        self.0.split(|&b| b == b'\n').filter_map(move |line| {
            if let Some(m) = mapping(line) {
                is_met = m.start < at + len && m.end > at;
            }
            flags(line).filter(|_| is_met)
        })
    }
}

/// The flags that a line tells; `None` if it is not such a line.
fn flags(line: &[u8]) -> Option<Flags> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("VmFlags:")?;
    let has = |name| line.split_ascii_whitespace().any(|flag| flag == name);
    Some(Flags {
        is_locked: has("lo"),
        is_not_inherited: has("dc"),
        is_wiped_on_fork: has("wf"),
    })
}

/// The mapping that a line tells; `None` if it is not such a line.
fn mapping(line: &[u8]) -> Option<Mapping> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |s| usize::from_str_radix(s, 16).ok();
    let access = words.next()?;
    let mut prot = 0;
    for (has, flag) in access.bytes().zip([
        (b'r', libc::PROT_READ),
        (b'w', libc::PROT_WRITE),
        (b'x', libc::PROT_EXEC),
    ]) {
        if has == flag.0 {
            prot |= flag.1;
        }
    }
    // (Offset and device come before the inode.)
    let inode = words.nth(2)?;
    Some(Mapping {
        start: number(start)?,
        end: number(end)?,
        prot,
        is_anonymous: access.ends_with('p') && inode == "0",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm;

    #[test]
    fn a_mapping_is_found_and_told_as_it_is() {
        let len = 3 << 20;
        let at = mm::map_own(len, mm::PROT_NONE).expect("addresses");
        // SAFETY: mapped above, by this test alone.
        unsafe { mm::protect(at + (1 << 20), 1 << 20, mm::PROT_READ) }.expect("protected");
        let text = Text::read().expect("mappings");
        let found: Vec<_> = text.mappings(at, len).collect();
        assert!(
            found[0].start <= at && found.iter().all(|m| m.is_anonymous),
            "{found:x?}"
        );
        let middle = found
            .iter()
            .find(|m| m.start == at + (1 << 20))
            .expect("it is there");
        assert_eq!((middle.end, middle.prot), (at + (2 << 20), libc::PROT_READ));
        // SAFETY: as above.
        unsafe { mm::advise(at + (2 << 20), 1 << 20, libc::MADV_DONTFORK) }.expect("advised");
        let text = Text::read_with_flags().expect("mappings with flags");
        let told: Vec<_> = text.flags(at, len).collect();
        let plain = Flags::default();
        let kept = Flags {
            is_not_inherited: true,
            ..plain
        };
        assert_eq!(told, [plain, plain, kept]);
        // (The code of this test is in a file.)
        let here = a_mapping_is_found_and_told_as_it_is as *const () as usize;
        let code = text.mappings(here, 1).next().expect("code");
        assert!(!code.is_anonymous && code.prot & libc::PROT_EXEC != 0);
    }
}
