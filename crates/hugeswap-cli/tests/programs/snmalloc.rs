//! The allocator snmalloc. Distributions do not have it, so it is built from the sources in its crate,
//! once, where cargo keeps what tests make. Nothing of it is part of this project.

use crate::util::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fetches the sources and builds both libraries in `built`. (With the option its own lock is taken
/// for the time of a fork, without which no allocator can be used in the child of a program with
/// threads.)
const BUILD: &str = r#"
[ ! -e done ] || exit 0
rm -rf crate built
mkdir -p crate/src
: >crate/src/lib.rs
cat >crate/Cargo.toml <<'END'
[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[dependencies]
snmalloc-sys = "=0.7.6"
[workspace]
END
"$CARGO" vendor --quiet --manifest-path crate/Cargo.toml crate/vendor >crate/said
cmake -S crate/vendor/snmalloc-sys/upstream -B built -DCMAKE_BUILD_TYPE=Release \
    -DSNMALLOC_BUILD_TESTING=OFF -DSNMALLOC_PTHREAD_FORK_PROTECTION=ON
cmake --build built --target snmallocshim snmallocshim-static
: >done
"#;

/// The path of one of its libraries; ends the case as skipped if it cannot be had.
pub fn library(file: &str) -> PathBuf {
    for tool in ["cmake", "c++"] {
        if Command::new(tool).arg("--version").output().is_err() {
            missing(tool);
        }
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("snmalloc");
    std::fs::create_dir_all(&dir).expect("a directory for what tests make");
    // (Several cases may ask for it at the same time.)
    let out = Command::new("flock")
        .args([".", "sh", "-euc", BUILD])
        .env("CARGO", env!("CARGO"))
        .current_dir(&dir)
        .output();
    match out {
        Ok(out) if out.status.success() => dir.join("built").join(file),
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            let why = said.lines().last().unwrap_or_default();
            skip(&format!("snmalloc is not to be had: {why}"))
        }
        Err(why) => skip(&format!("snmalloc cannot be built: flock: {why}")),
    }
}
