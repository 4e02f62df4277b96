//! The dynamic loader in the program's memory: as the kernel maps it in a new process, with the stack
//! that it begins on there.

use super::agent::{PAGE, Places, checked, map};
use anyhow::{Context, Result, bail};
use hugeswap_sys::trace::Tracee;
use object::elf;
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, ProgramHeader};
use std::fs::File;
use std::os::unix::fs::FileExt;

type Header = elf::FileHeader64<LittleEndian>;

/// The dynamic loader of this executable: its name and its contents.
pub fn loader() -> Result<(String, Vec<u8>)> {
    let own = std::fs::read("/proc/self/exe").context("cannot read this executable")?;
    let header = Header::parse(&*own).context("cannot read this executable")?;
    let endian = LittleEndian;
    let mut headers = header.program_headers(endian, &*own)?.iter();
    let name = headers.find_map(|p| p.interpreter(endian, &*own).ok().flatten());
    let Some(name) = name else {
        bail!(
            "this hugeswap is statically linked, and cannot be loaded into a program: install a build for glibc"
        );
    };
    let name = String::from_utf8_lossy(name).into_owned();
    let contents = std::fs::read(&name).with_context(|| format!("cannot read {name}"))?;
    Ok((name, contents))
}

/// The loader, in the program's memory.
pub struct Image {
    pub at: u64,
    /// Bytes.
    pub len: u64,
    pub entry: u64,
    headers: u64,
    header_count: u64,
}

/// Maps the loader.
pub fn load(
    thread: &mut Tracee,
    syscall: u64,
    memory: &File,
    file: &[u8],
    places: &mut Places,
) -> Result<Image> {
    let endian = LittleEndian;
    let header = Header::parse(file)?;
    let headers = header.program_headers(endian, file)?;
    let segments: Vec<_> = headers
        .iter()
        .filter(|p| p.p_type(endian) == elf::PT_LOAD)
        .collect();
    let end = segments
        .iter()
        .map(|p| p.p_vaddr(endian) + p.p_memsz(endian))
        .max();
    let end = end
        .context("the dynamic loader has no segments")?
        .next_multiple_of(PAGE);
    let base = map(thread, syscall, places.take(end), end)?;
    for p in segments {
        let at = base + p.p_vaddr(endian);
        let bytes = p
            .data(endian, file)
            .ok()
            .context("the dynamic loader is damaged")?;
        memory
            .write_all_at(bytes, at)
            .context("cannot write to the program's memory")?;
        let flags = p.p_flags(endian);
        let access = [
            (elf::PF_R, libc::PROT_READ),
            (elf::PF_W, libc::PROT_WRITE),
            (elf::PF_X, libc::PROT_EXEC),
        ];
        let access = access.iter().filter(|(f, _)| flags.0 & f.0 != 0);
        let access = access.fold(0, |all, (_, p)| all | p);
        let (from, to) = (
            at & !(PAGE - 1),
            (at + p.p_memsz(endian)).next_multiple_of(PAGE),
        );
        let a = [from, to - from, access as u64, 0, 0, 0];
        checked(thread.call(syscall, libc::SYS_mprotect, a)?, "map code")?;
    }
    Ok(Image {
        at: base,
        len: end,
        entry: base + header.e_entry(endian),
        headers: base + header.e_phoff(endian),
        header_count: u64::from(header.e_phnum(endian)),
    })
}

/// The stack of a new program, which ends at `top`: its bytes and its first stack pointer.
pub fn first_stack(
    top: u64,
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
    auxiliary: &[[u64; 2]],
) -> (Vec<u8>, u64) {
    let mut strings = Vec::new();
    let mut place = |text: &[u8]| {
        let at = strings.len() as u64;
        strings.extend_from_slice(text);
        strings.push(0);
        at
    };
    let random = place(b"0123456789abcdef");
    let arguments: Vec<_> = arguments.iter().map(|a| place(a)).collect();
    let environment: Vec<_> = environment.iter().map(|e| place(e)).collect();
    strings.resize(strings.len().next_multiple_of(16), 0);
    let base = top - strings.len() as u64;
    let mut words = vec![arguments.len() as u64];
    for list in [&arguments, &environment] {
        words.extend(list.iter().map(|&at| base + at));
        words.push(0);
    }
    for &[kind, value] in auxiliary {
        let value = match kind {
            libc::AT_RANDOM => base + random,
            libc::AT_EXECFN => base + arguments[0],
            _ => value,
        };
        words.extend([kind, value]);
    }
    words.extend([0, 0]);
    // The stack pointer is a multiple of 16.
    let sp = (base - words.len() as u64 * 8) & !15;
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    bytes.resize((base - sp) as usize, 0);
    bytes.extend(strings);
    (bytes, sp)
}

/// The auxiliary vector of the program, as the loader needs it.
pub fn auxiliary(pid: i32, image: &Image) -> Result<Vec<[u64; 2]>> {
    const AT_NULL: u64 = 0;
    let bytes = std::fs::read(format!("/proc/{pid}/auxv"))
        .context("cannot read the program's auxiliary vector")?;
    let words = bytes
        .chunks_exact(8)
        .map(|w| u64::from_ne_bytes(w.try_into().unwrap_or_default()));
    let words: Vec<_> = words.collect();
    let own = [
        (libc::AT_PHDR, image.headers),
        (libc::AT_PHNUM, image.header_count),
        (libc::AT_PHENT, 56),
        (libc::AT_BASE, 0),
        (libc::AT_ENTRY, image.entry),
        (libc::AT_SECURE, 0),
    ];
    let pairs = words.chunks_exact(2).map(|p| [p[0], p[1]]);
    let pairs = pairs.take_while(|p| p[0] != AT_NULL).map(|[kind, value]| {
        let own = own.iter().find(|o| o.0 == kind);
        [kind, own.map_or(value, |o| o.1)]
    });
    Ok(pairs.collect())
}
