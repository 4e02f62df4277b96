//! The thread-locals and the control block of a thread that the C library does not make.
//!
//! A thread of glibc on x86-64 has, below its thread pointer, the static thread-locals of the
//! objects that the program started with, and above it a control block (the C library's thread
//! descriptor). [`Locals`] is what these are in a thread that has not run yet. After the control
//! block comes the vector of thread-local blocks (DTV), which the dynamic linker reads.
//!
//! [`prepare`] notes the objects while the program starts, without allocating; the first thread
//! that is made has the area put together from the notes. What runs at every start stands in the
//! sections `hugeswap_start` and `hugeswap_hot`, with what else does (see hugeswap-preload).

use super::PAGE;
use crate::{Errno, Result, process};
use std::arch::asm;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Zeroed room from the thread pointer on: more than the C library's thread descriptor (2304 bytes
/// in glibc 2.36).
const DESCRIPTOR: usize = 2 * PAGE;
/// The largest static thread-local area that is copied.
const MOST_LOCALS: usize = 64 << 20;
/// As many objects with thread-locals are noted without allocating.
const NOTES: usize = 8;

/// Offsets from the thread pointer that are part of the x86-64 ABI of glibc: compiled code uses the
/// first five, and glibc up to 2.33 asks the sixth before it leaves out the `lock` prefix of an
/// atomic instruction.
const SELF: usize = 0;
const DTV: usize = 8;
const SELF_AGAIN: usize = 16;
const STACK_GUARD: usize = 0x28;
const POINTER_GUARD: usize = 0x30;
const MULTIPLE_THREADS: usize = 0x18;
/// Where glibc from 2.4 on keeps the thread's id; [`Locals::from`] checks that.
const TID: usize = 0x2d0;

/// An entry of the vector of thread-local blocks, `dtv_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DtvEntry {
    value: usize,
    to_free: usize,
}

/// `TLS_DTV_UNALLOCATED`.
const UNALLOCATED: DtvEntry = DtvEntry {
    value: usize::MAX,
    to_free: 0,
};

/// What a new thread's thread-locals are: the same for every thread that is made.
pub(super) struct Locals {
    /// The static area as it is before a thread has run; it ends at the thread pointer.
    image: Vec<u8>,
    /// By module number: distance of its block below the thread pointer, 0 for a module without
    /// one.
    blocks: Vec<usize>,
    /// Is the C library's copy of the thread id at [`TID`]?
    has_tid: bool,
}

static LOCALS: OnceLock<Locals> = OnceLock::new();

/// Notes which of the program's objects have thread-locals. To be called once, before the program's
/// `main`, so that what is loaded is what the program was started with. The first [`super::spawn`]
/// makes use of the notes. Allocates only for a program that starts with more than [`NOTES`] such
/// objects. ENOSYS: no object has thread-locals, so the C library's layout is not one this module
/// knows.
#[unsafe(link_section = "hugeswap_start")]
pub fn prepare() -> Result<()> {
    const TO_DO: u32 = 0;
    const BEGUN: u32 = 1;
    const DONE: u32 = 2;
    #[unsafe(link_section = "hugeswap_hot")]
    static STEP: AtomicU32 = AtomicU32::new(TO_DO);
    if STEP
        .compare_exchange(TO_DO, BEGUN, Acquire, Acquire)
        .is_ok()
    {
        // SAFETY: this call is the only one that writes, before anything reads.
        let notes = unsafe { &mut *NOTED.0.get() };
        notes.pointer = thread_pointer();
        // SAFETY: the callback gets the notes it is passed with, and does not unwind.
        unsafe { libc::dl_iterate_phdr(Some(note_module), (notes as *mut Notes).cast()) };
        STEP.store(DONE, Release);
    }
    while STEP.load(Acquire) != DONE {
        std::hint::spin_loop();
    }
    // SAFETY: written above, once.
    match unsafe { &*NOTED.0.get() }.count {
        0 => Err(Errno::ENOSYS),
        _ => Ok(()),
    }
}

/// What a new thread's thread-locals are. ENOSYS: as for [`prepare`], or that was not called.
pub(super) fn get() -> Result<&'static Locals> {
    if let Some(locals) = LOCALS.get() {
        return Ok(locals);
    }
    // SAFETY: `prepare` has returned, or there are no notes.
    let locals = Locals::from(unsafe { &*NOTED.0.get() }).ok_or(Errno::ENOSYS)?;
    Ok(LOCALS.get_or_init(|| locals))
}

/// The calling thread's thread pointer.
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 the thread pointer points to a descriptor that begins with its own address.
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly)) };
    pointer
}

impl Locals {
    /// The thread-locals of the objects that were noted, or `None` if the C library's layout is not
    /// one that this module knows. Allocates.
    fn from(notes: &Notes) -> Option<Locals> {
        let mut modules: Vec<Module> = notes.iter().copied().collect();
        modules.sort_unstable_by_key(|m| m.distance);
        let mut len = 0;
        // The static area has no gap larger than an alignment; what is farther away was allocated
        // by itself.
        modules.retain(|m| {
            let near = m.distance >= m.len && m.distance - m.len <= len + PAGE;
            if near {
                len = m.distance;
            }
            near
        });
        if len == 0 || len > MOST_LOCALS {
            return None;
        }
        let mut image = vec![0; len];
        let most = modules.iter().map(|m| m.number).max()?;
        let mut blocks = vec![0; most + 1];
        for m in &modules {
            // SAFETY: the initial image of a loaded object's thread-locals, as its program header
            // says.
            let initial = unsafe { std::slice::from_raw_parts(m.initial as *const u8, m.filled) };
            image[len - m.distance..][..m.filled].copy_from_slice(initial);
            blocks[m.number] = m.distance;
        }
        Some(Locals {
            image,
            blocks,
            // SAFETY: the calling thread's descriptor is longer than TID + 4 bytes.
            has_tid: unsafe { ((thread_pointer() + TID) as *const u32).read() }
                == process::tid() as u32,
        })
    }

    /// Bytes below the thread pointer.
    pub(super) fn bytes_below(&self) -> usize {
        self.image.len()
    }

    /// Bytes from the thread pointer on: the control block and the vector.
    pub(super) fn bytes_above(&self) -> usize {
        let vector = (self.blocks.len() + 1) * size_of::<DtvEntry>();
        DESCRIPTOR + vector.next_multiple_of(PAGE)
    }

    /// Writes the calling thread's id where the C library keeps its copy: recursive locks tell
    /// threads apart by it, and debuggers show it.
    ///
    /// # Safety
    /// The calling thread's control block was made by [`Locals::fill`].
    pub(super) unsafe fn note_tid(&self) {
        if self.has_tid {
            // SAFETY: within this thread's own zeroed descriptor.
            unsafe {
                asm!("mov fs:[{}], {:e}", const TID, in(reg) process::tid(), options(nostack));
            };
        }
    }

    /// Makes the thread-locals and the control block of a thread whose thread pointer is `pointer`.
    ///
    /// # Safety
    /// [`Locals::bytes_below`] bytes below `pointer` and [`Locals::bytes_above`] bytes from it on
    /// are mapped, and the caller's alone.
    pub(super) unsafe fn fill(&self, pointer: usize) {
        let (stack_guard, pointer_guard): (usize, usize);
        // SAFETY: the two guards are where compiled code expects them, in the calling thread's
        // control block.
        unsafe {
            asm!("mov {}, fs:[0x28]", out(reg) stack_guard, options(nostack, readonly));
            asm!("mov {}, fs:[0x30]", out(reg) pointer_guard, options(nostack, readonly));
        }
        let vector = pointer + DESCRIPTOR;
        // SAFETY: the caller's promise: the image's length below `pointer`, the descriptor and the
        // vector above it.
        unsafe {
            let image = (pointer - self.image.len()) as *mut u8;
            image.copy_from_nonoverlapping(self.image.as_ptr(), self.image.len());
            (pointer as *mut u8).write_bytes(0, DESCRIPTOR);
            let word = |offset: usize| (pointer + offset) as *mut usize;
            // The vector's entry before the first says how many there are. The first is its
            // generation: none is newer, so the dynamic linker never replaces the vector, for which
            // it would allocate.
            let entry = vector as *mut DtvEntry;
            entry.write(DtvEntry {
                value: self.blocks.len() - 1,
                to_free: 0,
            });
            entry.add(1).write(DtvEntry {
                value: usize::MAX,
                to_free: 0,
            });
            for (number, &distance) in self.blocks.iter().enumerate().skip(1) {
                entry.add(1 + number).write(match distance {
                    0 => UNALLOCATED,
                    _ => DtvEntry {
                        value: pointer - distance,
                        to_free: 0,
                    },
                });
            }
            word(SELF).write(pointer);
            word(SELF_AGAIN).write(pointer);
            word(DTV).write(entry.add(1) as usize);
            word(STACK_GUARD).write(stack_guard);
            word(POINTER_GUARD).write(pointer_guard);
            word(MULTIPLE_THREADS).cast::<u32>().write(1);
        }
    }
}

/// A loaded object's thread-locals.
#[derive(Clone, Copy)]
struct Module {
    number: usize,
    /// From the thread pointer down to its block.
    distance: usize,
    len: usize,
    /// Address of the initial content, and how much of it there is; the rest is zeros.
    initial: usize,
    filled: usize,
}

/// What [`prepare`] finds.
struct Notes {
    /// The thread pointer of the thread that looks.
    pointer: usize,
    count: usize,
    first: [Module; NOTES],
    more: Vec<Module>,
}

struct SharedNotes(UnsafeCell<Notes>);
// SAFETY: written by `prepare` alone, once, before the program has threads that make some of this
// kind.
unsafe impl Sync for SharedNotes {}

#[unsafe(link_section = "hugeswap_hot")]
static NOTED: SharedNotes = SharedNotes(UnsafeCell::new(Notes {
    pointer: 0,
    count: 0,
    first: [Module {
        number: 0,
        distance: 0,
        len: 0,
        initial: 0,
        filled: 0,
    }; NOTES],
    more: Vec::new(),
}));

impl Notes {
    fn add(&mut self, module: Module) {
        match self.first.get_mut(self.count) {
            Some(place) => *place = module,
            None => self.more.push(module),
        }
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &Module> {
        self.first[..self.count.min(NOTES)].iter().chain(&self.more)
    }
}

#[unsafe(link_section = "hugeswap_start")]
unsafe extern "C" fn note_module(
    info: *mut libc::dl_phdr_info,
    _: usize,
    notes: *mut c_void,
) -> i32 {
    // SAFETY: the dynamic linker's description of an object, and what `prepare` passed.
    let (info, notes) = unsafe { (&*info, &mut *notes.cast::<Notes>()) };
    // SAFETY: that many program headers of a loaded object.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let block = info.dlpi_tls_data as usize;
    if let Some(h) = headers.iter().find(|h| h.p_type == libc::PT_TLS)
        && info.dlpi_tls_modid != 0
        && (1..notes.pointer).contains(&block)
    {
        notes.add(Module {
            number: info.dlpi_tls_modid,
            distance: notes.pointer - block,
            len: h.p_memsz as usize,
            initial: (info.dlpi_addr + h.p_vaddr) as usize,
            filled: h.p_filesz as usize,
        });
    }
    0
}
