//! Finding definitions by name in the objects that the program was started with, without the
//! dynamic linker's help.
//!
//! `dlsym` may allocate and takes the dynamic linker's lock, so each function that may be called
//! later would have to be looked up at every start. A search here takes no lock, allocates nothing
//! and only reads. It may be made at a function's first call, wherever that is (inside the
//! program's allocator, in a signal handler, between vfork and exec).
//!
//! It finds what `dlsym` finds: the default version of the name in the first object that defines
//! it, in the order in which the objects were loaded. Objects that a program is started with stay
//! loaded for as long as it runs. [`seal`] notes the last of them, so that a search never reaches
//! an object that may be unloaded.

use libc::{c_char, c_int};
use std::arch::asm;
use std::ffi::CStr;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A name, and its hash as `DT_GNU_HASH` has it.
pub struct Name<'a> {
    text: &'a CStr,
    hash: u32,
}

impl<'a> Name<'a> {
    pub fn new(text: &'a CStr) -> Name<'a> {
        let step = |hash: u32, &b: &u8| hash.wrapping_mul(33).wrapping_add(b.into());
        let hash = text.to_bytes().iter().fold(5381, step);
        Name { text, hash }
    }

    /// The name without its NUL.
    pub fn bytes(&self) -> &'a [u8] {
        self.text.to_bytes()
    }

    /// The name as C has it.
    #[cfg(debug_assertions)]
    pub fn as_ptr(&self) -> *const c_char {
        self.text.as_ptr()
    }

    /// The hash as `DT_HASH` has it.
    fn old_hash(&self) -> u32 {
        self.bytes().iter().fold(0, |hash, &b| {
            let hash = (hash << 4).wrapping_add(b.into());
            let high = hash & 0xf000_0000;
            (hash ^ high >> 24) & !high
        })
    }
}

/// A loaded object, as glibc publishes it (`struct link_map`).
#[repr(C)]
struct Object {
    /// Added to each address in the object's file to give the address in memory.
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *mut Object,
    previous: *mut Object,
}

/// `struct r_debug`, as far as it is used.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *mut Object,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

const STT_TLS: u8 = 6;
const STT_GNU_IFUNC: u8 = 10;
const SHN_UNDEF: u16 = 0;

/// Flag in a symbol's version: it is not the default version.
const HIDDEN: u16 = 0x8000;

unsafe extern "C" {
    static _r_debug: Debug;
}

hot! {
    /// The last object that the program was started with; null until [`seal`].
    static LAST: AtomicPtr<Object> = AtomicPtr::new(null_mut());
}

/// Notes that the program was started with the objects that are loaded now. Call it before `main`.
pub fn seal() {
    let all = Objects::up_to(null_mut());
    if let Some(last) = all.last() {
        LAST.store(last as *const Object as *mut Object, Release);
    }
}

/// A definition that was found.
#[derive(Clone, Copy)]
pub struct Found {
    /// Address of the definition.
    pub address: usize,
    object: &'static Object,
}

impl Found {
    /// The addresses of the object's segments, from the lowest to the highest.
    pub fn extent(&self) -> Range<usize> {
        let base = self.object.base;
        // SAFETY: the first segment of a shared object holds the file's header and the program
        // headers after it, at the object's base; they are as the ELF specification says.
        let end = unsafe {
            let header = &*(base as *const libc::Elf64_Ehdr);
            let first = (base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
            let all = std::slice::from_raw_parts(first, header.e_phnum.into());
            let segments = all.iter().filter(|p| p.p_type == libc::PT_LOAD);
            segments.map(|p| p.p_vaddr + p.p_memsz).max()
        };
        base..base + end.unwrap_or(0) as usize
    }

    /// Are both in the same object?
    pub fn same_object(&self, other: &Found) -> bool {
        std::ptr::eq(self.object, other.object)
    }
}

/// The first definition of `name` in the order of loading: the one that an ordinary call reaches.
pub fn first(name: &Name) -> Option<Found> {
    search(Objects::all(), name)
}

/// The first definition of `name` in the objects after this one.
pub fn next(name: &Name) -> Option<Found> {
    let mut objects = Objects::all();
    objects.by_ref().find(|o| o.is_this())?;
    search(objects, name)
}

/// The addresses of this object's segments, from the lowest to the highest.
pub fn own_extent() -> Option<Range<usize>> {
    let object = Objects::all().find(|o| o.is_this())?;
    let own = Found {
        address: object.base,
        object,
    };
    Some(own.extent())
}

#[unsafe(link_section = "hugeswap_start")]
fn search(mut objects: Objects, name: &Name) -> Option<Found> {
    objects.find_map(|object| {
        let address = object.tables()?.find(name, object.base)?;
        Some(Found { address, object })
    })
}

/// The objects that the program was started with, in the order in which names are looked up.
struct Objects {
    at: *mut Object,
    last: *mut Object,
}

impl Objects {
    fn all() -> Objects {
        Objects::up_to(LAST.load(Acquire))
    }

    fn up_to(last: *mut Object) -> Objects {
        Objects {
            // SAFETY: the dynamic linker's variable, set before any object's code runs, and the
            // first entry stays.
            at: unsafe { _r_debug.first },
            last,
        }
    }
}

impl Iterator for Objects {
    type Item = &'static Object;

    fn next(&mut self) -> Option<&'static Object> {
        // SAFETY: entries of objects that the program was started with stay; the list ends with
        // null, or here at the last of them.
        let object = unsafe { self.at.as_ref() }?;
        self.at = if std::ptr::eq(object, self.last) {
            null_mut()
        } else {
            object.next
        };
        Some(object)
    }
}

/// The tables of an object that a search reads.
struct Tables {
    symbols: *const Symbol,
    strings: *const c_char,
    versions: *const u16,
    gnu_hash: *const u32,
    old_hash: *const u32,
}

impl Object {
    /// Is it the one that this code is in?
    fn is_this(&self) -> bool {
        let own: *const Dynamic;
        // SAFETY: the linker defines the symbol in every object, hidden, as the address of its
        // dynamic section.
        unsafe {
            asm!("lea {}, [rip + _DYNAMIC]", out(reg) own, options(pure, nomem, nostack, preserves_flags))
        };
        std::ptr::eq(self.dynamic, own)
    }

    fn tables(&self) -> Option<Tables> {
        let (mut symbols, mut strings, mut versions, mut gnu_hash, mut old_hash) = (0, 0, 0, 0, 0);
        let mut entry = self.dynamic;
        // SAFETY: an object's dynamic section ends with DT_NULL.
        while let Some(d) = unsafe { entry.as_ref() }.filter(|d| d.tag != DT_NULL) {
            let place = match d.tag {
                DT_SYMTAB => Some(&mut symbols),
                DT_STRTAB => Some(&mut strings),
                DT_VERSYM => Some(&mut versions),
                DT_GNU_HASH => Some(&mut gnu_hash),
                DT_HASH => Some(&mut old_hash),
                _ => None,
            };
            if let Some(place) = place {
                // The dynamic linker adds the base itself, except where the section is read-only
                // (the vDSO's is).
                *place = if d.value < self.base {
                    self.base + d.value
                } else {
                    d.value
                };
            }
            // SAFETY: not the last entry.
            entry = unsafe { entry.add(1) };
        }
        (symbols != 0 && strings != 0).then_some(Tables {
            symbols: symbols as *const Symbol,
            strings: strings as *const c_char,
            versions: versions as *const u16,
            gnu_hash: gnu_hash as *const u32,
            old_hash: old_hash as *const u32,
        })
    }
}

impl Tables {
    fn find(&self, name: &Name, base: usize) -> Option<usize> {
        // SAFETY: the tables are those of a loaded object, which are as the ELF specification says
        // and stay.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.find_by_gnu_hash(name, base)
            } else if !self.old_hash.is_null() {
                self.find_by_old_hash(name, base)
            } else {
                None
            }
        }
    }

    /// # Safety
    /// The tables are an object's, and it has a `DT_GNU_HASH`.
    unsafe fn find_by_gnu_hash(&self, name: &Name, base: usize) -> Option<usize> {
        // SAFETY: by contract: a header, a filter of 64-bit words, first symbols by bucket, and
        // hashes from `first_symbol` on, the last of each bucket with its lowest bit set.
        unsafe {
            let [buckets, first_symbol, words, shift] = self.gnu_hash.cast::<[u32; 4]>().read();
            let filter = self.gnu_hash.add(4).cast::<u64>();
            let word = filter.add((name.hash / 64 % words) as usize).read();
            let bit = |hash: u32| word >> (hash % 64) & 1;
            if bit(name.hash) & bit(name.hash >> shift) == 0 {
                return None;
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let hashes = bucket.add(buckets as usize);
            let mut i = bucket.add((name.hash % buckets) as usize).read();
            if i < first_symbol {
                return None;
            }
            loop {
                let hash = hashes.add((i - first_symbol) as usize).read();
                if (hash ^ name.hash) >> 1 == 0
                    && let Some(address) = self.definition(i as usize, name, base)
                {
                    return Some(address);
                }
                if hash & 1 != 0 {
                    return None;
                }
                i += 1;
            }
        }
    }

    /// # Safety
    /// The tables are an object's, and it has a `DT_HASH`.
    unsafe fn find_by_old_hash(&self, name: &Name, base: usize) -> Option<usize> {
        // SAFETY: by contract: a header, first symbols by bucket, and for each symbol the next one;
        // 0 ends.
        unsafe {
            let [buckets, _symbols] = self.old_hash.cast::<[u32; 2]>().read();
            let bucket = self.old_hash.add(2);
            let chain = bucket.add(buckets as usize);
            let mut i = bucket.add((name.old_hash() % buckets) as usize).read();
            while i != 0 {
                if let Some(address) = self.definition(i as usize, name, base) {
                    return Some(address);
                }
                i = chain.add(i as usize).read();
            }
            None
        }
    }

    /// The address of symbol `i`, if it defines `name` in its default version.
    ///
    /// # Safety
    /// The tables are an object's, and it has such a symbol.
    unsafe fn definition(&self, i: usize, name: &Name, base: usize) -> Option<usize> {
        // SAFETY: by contract.
        unsafe {
            let symbol = &*self.symbols.add(i);
            let text = CStr::from_ptr(self.strings.add(symbol.name as usize));
            let kind = symbol.info & 0xf;
            let hidden = !self.versions.is_null() && *self.versions.add(i) & HIDDEN != 0;
            let defined = symbol.section != SHN_UNDEF && symbol.value != 0 && kind != STT_TLS;
            if !defined || hidden || text != name.text {
                return None;
            }
            let address = base + symbol.value;
            if kind == STT_GNU_IFUNC {
                // The dynamic linker has relocated the object, so the function that chooses can
                // run.
                let choose: extern "C" fn() -> usize = std::mem::transmute(address);
                return Some(choose());
            }
            Some(address)
        }
    }
}
