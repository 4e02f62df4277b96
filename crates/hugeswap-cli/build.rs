//! Builds the object that `hugeswap run` injects, so that it can stand inside the one
//! executable: its own cargo call, its own target directory, always optimised.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the calling cargo, clippy or a sanitizer set for *its* build and must not reach ours.
const NOT_OURS: &[&str] = &[
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "CLIPPY_CONF_DIR",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

fn main() {
    let var = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let root = PathBuf::from(var("CARGO_MANIFEST_DIR")).join("../..");
    let (out, target) = (PathBuf::from(var("OUT_DIR")), var("TARGET"));
    for part in [
        "hugeswap-preload",
        "hugeswap-engine",
        "hugeswap-policy",
        "hugeswap-sys",
    ] {
        watch(&root.join("crates").join(part).join("src"));
        watch(&root.join("crates").join(part).join("Cargo.toml"));
    }
    for file in [
        "Cargo.toml",
        "Cargo.lock",
        "crates/hugeswap-preload/build.rs",
    ] {
        watch(&root.join(file));
    }
    watch(Path::new("build.rs"));

    let inner = out.join("preload");
    let mut cargo = Command::new(var("CARGO"));
    cargo
        .args([
            "build",
            "--release",
            "-p",
            "hugeswap-preload",
            "--lib",
            "--target",
            &target,
        ])
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&inner)
        // So that tests of the command find what assertions find.
        .env(
            "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS",
            (var("PROFILE") == "debug").to_string(),
        )
        // One piece: calls within the object need no relocations at a program's start, and what is not used goes.
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        // Names stay for backtraces; line tables would double the size of the executable.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    if std::env::var("CARGO_NET_OFFLINE").is_ok_and(|v| v != "false" && v != "0") {
        cargo.arg("--offline");
    }
    for name in NOT_OURS {
        cargo.env_remove(name);
    }
    // Per-package variables of this build script's own run (CARGO_PKG_*, CARGO_CFG_* ...) mean
    // something else to the crates built now; cargo sets them afresh for each.
    let status = cargo.status().expect("cargo could not be started");
    assert!(
        status.success(),
        "building the injected object failed (see above)"
    );
    let object = inner.join(&target).join("release/libhugeswap_preload.so");
    assert!(
        object.is_file(),
        "{} was not built: hugeswap runs on glibc Linux only",
        object.display()
    );
    println!(
        "cargo::rustc-env=HUGESWAP_PRELOAD_OBJECT={}",
        object.display()
    );
}

fn watch(path: &Path) {
    // A path that is not there would make cargo run this script every time.
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
