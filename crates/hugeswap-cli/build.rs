//! Builds the objects that `hugeswap run` injects, so that they can stand inside the one
//! executable: cargo calls of their own, with a target directory of their own, always optimised.

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
    println!("cargo::rerun-if-env-changed=CARGO_PROFILE_INJECTED_STRIP");
    let var = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let root = PathBuf::from(var("CARGO_MANIFEST_DIR")).join("../..");
    let (out, target) = (PathBuf::from(var("OUT_DIR")), var("TARGET"));
    for part in [
        "hugeswap-preload",
        "hugeswap-small",
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

    // In the target directory and not in that of this build: the build scripts of `cargo build`,
    // `cargo clippy` and `cargo doc` have a directory each, and each would build the objects anew. The
    // allocator is the same in every profile.
    let shared = out.ancestors().nth(4).expect("a target directory");
    for (package, variable) in [
        ("hugeswap-preload", "HUGESWAP_PRELOAD_OBJECT"),
        ("hugeswap-small", "HUGESWAP_SMALL_OBJECT"),
    ] {
        let inner = match package {
            "hugeswap-small" => shared.join("small"),
            _ => shared.join(format!("injected-{}", var("PROFILE"))),
        };
        let object = match package {
            "hugeswap-small" if !has_make() => no_object(&out),
            _ => build(package, &root, &inner, &target),
        };
        println!("cargo::rustc-env={variable}={}", object.display());
    }
}

/// jemalloc is built by make.
fn has_make() -> bool {
    let mut make = Command::new("make");
    make.arg("--version").stdout(std::process::Stdio::null());
    make.status().is_ok_and(|status| status.success())
}

/// An empty file in the place of the allocator of small blocks: `run --small` tells what is missing.
fn no_object(out: &Path) -> PathBuf {
    println!("cargo::warning=there is no make: run --small will not be in this build");
    let path = out.join("no-small-object");
    std::fs::write(&path, []).expect("the output directory can be written to");
    path
}

/// Builds the shared object of a package, and returns its path.
fn build(package: &str, root: &Path, inner: &Path, target: &str) -> PathBuf {
    let var = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let mut cargo = Command::new(var("CARGO"));
    // jemalloc and what calls it are for speed.
    let profile = match package {
        "hugeswap-small" => "release",
        _ => "injected",
    };
    cargo
        .args([
            "build",
            "--profile",
            profile,
            "-p",
            package,
            "--lib",
            "--target",
            target,
        ])
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(inner);
    if package == "hugeswap-small" {
        // As the profile `injected`, whose reasons hold, but for the size.
        cargo
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
            // jemalloc's constructor is left out: it starts when it is needed.
            .env("CFLAGS", "-Dconstructor=unused");
    } else {
        // So that tests of the command find what assertions find.
        let debug = var("PROFILE") == "debug";
        cargo.env("CARGO_PROFILE_INJECTED_DEBUG_ASSERTIONS", debug.to_string());
        // What is the same in a debug and in a release build is built once, where cargo knows how
        // (from 1.91 on).
        cargo.env("CARGO_BUILD_BUILD_DIR", inner.with_file_name("injected"));
    }
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
        "building {package}, which is injected, failed (see above)"
    );
    let file = format!("{target}/{profile}/lib{}.so", package.replace('-', "_"));
    let object = inner.join(file);
    assert!(
        object.is_file(),
        "{} was not built: hugeswap runs on glibc Linux only",
        object.display()
    );
    object
}

fn watch(path: &Path) {
    // A path that is not there would make cargo run this script every time.
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
