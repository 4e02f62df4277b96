//! The first instruction of a loaded program: its stack, its registers, its auxiliary vector.
//!
//! The strings of the arguments and of the environment stay where the kernel has put them for the
//! process that loads the program; only the vectors are made anew, below what runs now.

use super::elf::Image;
use hugeswap_sys::program_fs;
use libc::c_char;
use std::arch::asm;

/// The kernel's types of entries that are changed.
const AT_PHDR: usize = 3;
const AT_PHENT: usize = 4;
const AT_PHNUM: usize = 5;
const AT_BASE: usize = 7;
const AT_ENTRY: usize = 9;
const AT_EXECFN: usize = 31;
/// Size of a program header.
const HEADER: usize = 56;

/// An image, and where it is.
pub struct Loaded {
    pub image: Image,
    /// What is added to the addresses in its file.
    pub base: usize,
}

impl Loaded {
    fn entry(&self) -> usize {
        self.base.wrapping_add(self.image.entry as usize)
    }
}

/// The vectors that the kernel has made for this process.
pub struct Vectors {
    pub arguments: Vec<*const c_char>,
    pub environment: Vec<*const c_char>,
    /// Type and value.
    pub auxiliary: Vec<[usize; 2]>,
}

impl Vectors {
    /// Reads them.
    ///
    /// # Safety
    /// The arguments of `main`; the auxiliary vector follows the environment.
    pub unsafe fn read(
        argc: usize,
        argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> Vectors {
        // SAFETY: the caller's promise: `argc` arguments, then an environment that a null ends, then
        // pairs that one of type 0 ends.
        unsafe {
            let arguments = std::slice::from_raw_parts(argv, argc).to_vec();
            let mut n = 0;
            while !(*envp.add(n)).is_null() {
                n += 1;
            }
            let environment = std::slice::from_raw_parts(envp, n).to_vec();
            let mut pair = envp.add(n + 1).cast::<[usize; 2]>();
            let mut auxiliary = Vec::new();
            while (*pair)[0] != 0 {
                auxiliary.push(*pair);
                pair = pair.add(1);
            }
            Vectors {
                arguments,
                environment,
                auxiliary,
            }
        }
    }

    /// The value of an entry of the auxiliary vector.
    pub fn value(&self, kind: u64) -> Option<usize> {
        let entry = self.auxiliary.iter().find(|a| a[0] as u64 == kind)?;
        Some(entry[1])
    }

    /// The words of a program's first stack, from its stack pointer on.
    fn words(
        &self,
        program: &Loaded,
        interpreter: Option<&Loaded>,
        path: *const c_char,
    ) -> Vec<usize> {
        let mut words = vec![self.arguments.len()];
        let mut list = |all: &[*const c_char]| {
            words.extend(all.iter().map(|&s| s as usize));
            words.push(0);
        };
        list(&self.arguments);
        list(&self.environment);
        let headers_at = match program.image.headers_at {
            0 => 0,
            at => program.base.wrapping_add(at as usize),
        };
        for &[kind, value] in &self.auxiliary {
            let value = match kind {
                AT_PHDR => headers_at,
                AT_PHENT => HEADER,
                AT_PHNUM => program.image.headers.into(),
                AT_BASE => interpreter.map_or(0, |i| i.base),
                AT_ENTRY => program.entry(),
                AT_EXECFN => path as usize,
                _ => value,
            };
            words.extend([kind, value]);
        }
        words.extend([0, 0]);
        // The stack pointer is a multiple of 16, and so is the address behind the words.
        if words.len() % 2 != 0 {
            words.push(0);
        }
        words
    }
}

/// Goes on as the program, or as the dynamic loader that it names, which does.
///
/// # Safety
/// The images are mapped where `program` and `interpreter` say, and the handlers of this process serve the program.
pub unsafe fn enter(
    vectors: &Vectors,
    program: &Loaded,
    interpreter: Option<&Loaded>,
    path: *const c_char,
) -> ! {
    let words = vectors.words(program, interpreter, path);
    let entry = interpreter.unwrap_or(program).entry();
    // SAFETY: the words are copied to the stack below what runs now, which is never returned to. FS
    // is the program's before its first instruction: 0, as in a new process; no thread-locals are
    // used in between.
    unsafe {
        program_fs::leave();
        asm!(
            "mov rax, rcx",
            "shl rax, 3",
            "sub rsp, rax",
            "and rsp, -16",
            "mov rdi, rsp",
            "cld",
            "rep movsq",
            "xor eax, eax",
            "xor ebx, ebx",
            "xor ecx, ecx",
            "xor edx, edx",
            "xor esi, esi",
            "xor edi, edi",
            "xor ebp, ebp",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "xor r10d, r10d",
            "xor r12d, r12d",
            "xor r13d, r13d",
            "xor r14d, r14d",
            "xor r15d, r15d",
            "jmp r11",
            in("rcx") words.len(),
            in("rsi") words.as_ptr(),
            in("r11") entry,
            options(noreturn),
        )
    }
}
