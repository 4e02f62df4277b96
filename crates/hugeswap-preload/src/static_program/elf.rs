//! The header of an executable that the object loads, or of its dynamic loader: what is to be mapped, and
//! where. Reads bytes that anybody may have written; maps nothing.

use super::real_path;
use hugeswap_sys::fs;
use object::LittleEndian;
use object::elf::{
    DT_NULL, DT_SONAME, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PF_R, PF_W, PF_X, PT_DYNAMIC,
    PT_GNU_STACK, PT_INTERP, PT_LOAD,
};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ffi::CString;

const PAGE: u64 = 4096;
/// Addresses of a program end below this.
const ADDRESSES: u64 = 0x7fff_ffff_f000;
/// The header and the program headers lie in this many bytes from the start of the file.
const HEAD: usize = 64 << 10;
/// Of a dynamic section so much is read.
const DYNAMIC: usize = 4 << 10;

/// A part of the file to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address, before the base is added.
    pub at: u64,
    /// Bytes in memory.
    pub len: u64,
    /// Where its bytes are in the file.
    pub offset: u64,
    /// How many: the rest of `len` is zeros.
    pub filled: u64,
    /// `PROT_*`.
    pub access: i32,
}

/// An executable.
#[derive(Debug)]
pub struct Image {
    /// May it be mapped at any address?
    pub movable: bool,
    /// First instruction, before the base is added.
    pub entry: u64,
    /// The program headers in memory, before the base is added; 0: no segment holds them.
    pub headers_at: u64,
    /// How many.
    pub headers: u16,
    /// In the order of their addresses, which do not overlap. There is one at least.
    pub segments: Vec<Segment>,
    /// The program runs code on its stack.
    pub executable_stack: bool,
    /// The dynamic loader that it names: musl's, which the object loads, too.
    pub interpreter: Option<CString>,
    /// It is musl's dynamic loader, or names it, and would take this object in `LD_PRELOAD` for one of its own.
    pub preloads: bool,
    /// Where its dynamic section is in the file, and how long.
    dynamic: (u64, u64),
}

/// Why a file is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// No ELF file of x86-64.
    NotElf,
    /// It names a dynamic loader, which loads the object (all but musl's do); or it is a library with a name of
    /// its own: that loader itself, which is executed to run a program.
    Dynamic,
    /// Its header contradicts itself or the file.
    Damaged,
}

/// Reads the header of the program in the open file `fd`.
pub fn read(fd: i32) -> Result<Image, Unfit> {
    let image = read_header(fd)?;
    if image.interpreter.is_some() || is_loader_of_musl(fd) {
        return Ok(Image {
            preloads: true,
            ..image
        });
    }
    let (offset, len) = image.dynamic;
    let mut dynamic = vec![0u8; DYNAMIC.min(len as usize)];
    let (at, room) = (dynamic.as_mut_ptr() as usize, dynamic.len());
    // SAFETY: `dynamic` is that long.
    unsafe { fs::read_exact_at(fd, at, room, offset) }.map_err(|_| Unfit::Damaged)?;
    match is_library(&dynamic) {
        true => Err(Unfit::Dynamic),
        false => Ok(image),
    }
}

/// Reads the header of a program's dynamic loader.
pub fn read_interpreter(fd: i32) -> Result<Image, Unfit> {
    match read_header(fd)? {
        image if image.interpreter.is_some() => Err(Unfit::Damaged),
        image => Ok(image),
    }
}

fn read_header(fd: i32) -> Result<Image, Unfit> {
    let (len, _) = fs::size(fd).map_err(|_| Unfit::NotElf)?;
    let mut head = vec![0u8; HEAD.min(len as usize)];
    let (at, room) = (head.as_mut_ptr() as usize, head.len());
    // SAFETY: `head` is that long.
    unsafe { fs::read_exact_at(fd, at, room, 0) }.map_err(|_| Unfit::NotElf)?;
    parse(&head, len)
}

/// Does a dynamic section give the file a name as a library?
fn is_library(dynamic: &[u8]) -> bool {
    // A tag and a value each.
    let (words, _) = dynamic.as_chunks::<8>();
    let tags = words.iter().step_by(2).map(|tag| i64::from_le_bytes(*tag));
    tags.take_while(|&tag| tag != DT_NULL.0)
        .any(|tag| tag == DT_SONAME.0)
}

/// Is this the path by which programs name musl's dynamic loader?
fn is_for_musl(interpreter: &[u8]) -> bool {
    name_in(interpreter).starts_with(b"ld-musl")
}

/// Is the open file musl's dynamic loader? (It is its C library, and where it has a name as a library differs.)
fn is_loader_of_musl(fd: i32) -> bool {
    real_path(fd).is_some_and(|path| {
        let name = name_in(path.as_bytes());
        name == b"libc.so" || name.starts_with(b"libc.musl") || name.starts_with(b"ld-musl")
    })
}

/// The last part of a path.
pub fn name_in(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or_default()
}

/// Reads a header. `head` is the start of a file of `len` bytes.
fn parse(head: &[u8], len: u64) -> Result<Image, Unfit> {
    let endian = LittleEndian;
    let header = FileHeader64::<LittleEndian>::parse(head).map_err(|_| Unfit::NotElf)?;
    let kind = header.e_type(endian);
    if header.e_machine(endian) != EM_X86_64
        || !header.is_little_endian()
        || (kind != ET_EXEC && kind != ET_DYN)
    {
        return Err(Unfit::NotElf);
    }
    let headers = header
        .program_headers(endian, head)
        .map_err(|_| Unfit::Damaged)?;
    let mut image = Image {
        movable: kind == ET_DYN,
        entry: header.e_entry(endian),
        headers_at: 0,
        headers: headers.len().try_into().map_err(|_| Unfit::Damaged)?,
        segments: Vec::new(),
        // The kernel's rule for a file that does not say.
        executable_stack: true,
        interpreter: None,
        preloads: false,
        dynamic: (0, 0),
    };
    let table = header.e_phoff(endian);
    let table_len = size_of_val(headers) as u64;
    let mut end = 0;
    for h in headers {
        match h.p_type(endian) {
            PT_INTERP => {
                let name = h.interpreter(endian, head).ok().flatten();
                let name = name.ok_or(Unfit::Damaged)?;
                if !is_for_musl(name) {
                    return Err(Unfit::Dynamic);
                }
                image.interpreter = CString::new(name).ok();
            }
            PT_DYNAMIC => image.dynamic = (h.p_offset(endian), h.p_filesz(endian)),
            PT_GNU_STACK => image.executable_stack = h.p_flags(endian).0 & PF_X.0 != 0,
            PT_LOAD => {
                let flags = h.p_flags(endian).0;
                let has = |flag: u32, access: i32| if flags & flag != 0 { access } else { 0 };
                let segment = Segment {
                    at: h.p_vaddr(endian),
                    len: h.p_memsz(endian),
                    offset: h.p_offset(endian),
                    filled: h.p_filesz(endian),
                    access: has(PF_R.0, libc::PROT_READ)
                        | has(PF_W.0, libc::PROT_WRITE)
                        | has(PF_X.0, libc::PROT_EXEC),
                };
                if segment.len == 0 {
                    continue;
                }
                end = check(&segment, end, len)?;
                let into = table.checked_sub(segment.offset);
                if let Some(into) = into
                    && into.saturating_add(table_len) <= segment.filled
                {
                    image.headers_at = segment.at + into;
                }
                image.segments.push(segment);
            }
            _ => {}
        }
    }
    let holds_entry = |s: &Segment| (s.at..s.at + s.len).contains(&image.entry);
    if !image.segments.iter().any(holds_entry) {
        return Err(Unfit::Damaged);
    }
    Ok(image)
}

/// An error unless a segment can be mapped behind one that ends at `end`; returns its own end.
fn check(s: &Segment, end: u64, file_len: u64) -> Result<u64, Unfit> {
    let its_end = s.at.checked_add(s.len).filter(|&e| e <= ADDRESSES);
    let in_file = s
        .offset
        .checked_add(s.filled)
        .is_some_and(|e| e <= file_len);
    let fits = s.filled <= s.len && s.at % PAGE == s.offset % PAGE;
    // (Pages are mapped whole: the next segment begins on a page of its own.)
    let apart = s.at - s.at % PAGE >= end;
    match its_end {
        Some(e) if in_file && fits && apart => Ok(e.next_multiple_of(PAGE)),
        _ => Err(Unfit::Damaged),
    }
}
