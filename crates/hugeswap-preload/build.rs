//! Links the C compiler's unwinder into the object instead of having every program load it: the standard library asks for
//! `libgcc_s.so.1`, which would take longer to load than the object itself. (Nothing unwinds here; it serves backtraces of a panic.)

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    // What `-lgcc_s` finds first: a linker script that names the static one.
    std::fs::write(out.join("libgcc_s.so"), "INPUT ( -lgcc_eh -lgcc )\n")
        .expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={}", out.display());
}
