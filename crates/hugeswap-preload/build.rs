//! What every program that loads the object would pay for, and need not.
//!
//! * The C compiler's unwinder is linked in: the standard library asks for `libgcc_s.so.1`, which would take longer to
//!   load than the object itself. (Nothing unwinds here; it serves backtraces of a panic.)
//! * The compiler's start files are left out (`-nostartfiles`): they run code and touch pages at a program's start and
//!   end, to register tables and destructors that the object does not have.
//! * Relocated data is not made read-only (`-z norelro`): that takes a mapping and two calls of
//!   mprotect, and the addresses of functions that are looked up later are in writable memory anyway.
//! * Hooks of Zstandard for tracing are null: they are weak symbols, which another library of the program could define.
//! * Calls within the object do not go by the dynamic linker (`-Bsymbolic`), though their targets are exported.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    // What `-lgcc_s` finds first: a linker script that names the static one. (zig's linker, with which
    // releases are made, does not take `--defsym`.)
    let mut script = "INPUT ( -lgcc_eh -lgcc )\n".to_owned();
    for way in ["compress", "decompress"] {
        script += &format!("ZSTD_trace_{way}_begin = 0;\nZSTD_trace_{way}_end = 0;\n");
    }
    std::fs::write(out.join("libgcc_s.so"), script).expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={}", out.display());
    for arg in ["-nostartfiles", "-Wl,-Bsymbolic", "-Wl,-z,norelro"] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}
