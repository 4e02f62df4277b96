//! What `hugeswap run` refuses: each row ends with status 2, one line on stderr that says what to do,
//! nothing on stdout, and nothing left behind.

mod arguments;
mod machine;
mod programs;
mod swap;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// A directory on a disk, empty but for what a test puts there.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Place(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> String {
        let path = self.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.display().to_string()
    }

    fn entries(&self) -> Vec<PathBuf> {
        let mut list: Vec<_> = std::fs::read_dir(self.path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        list.sort();
        list
    }

    fn hugeswap(&self) -> Command {
        let mut c = Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"));
        c.current_dir(self.path())
            .env("TMPDIR", self.path())
            .env_remove("HUGESWAP_POOL");
        c.timeout(std::time::Duration::from_secs(60));
        c
    }

    /// `hugeswap ARGS` is refused, with `why` in the one line it says.
    fn refuses(&self, args: &[&str], why: &str) {
        self.refused(&mut self.hugeswap(), args, why);
    }

    fn refused(&self, command: &mut Command, args: &[&str], why: &str) {
        let before = self.entries();
        let one_line =
            predicate::function(|text: &str| text.ends_with('\n') && text.lines().count() == 1);
        command.args(args).assert().code(2).stdout("").stderr(
            predicate::str::starts_with("hugeswap: ")
                .and(one_line)
                .and(contains(why)),
        );
        assert_eq!(self.entries(), before, "something was left behind");
    }
}

fn run_with<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--memory", "64M"], options, &["--", "/bin/true"]].concat()
}

fn run_program(program: &str) -> Vec<&str> {
    vec!["run", "--memory", "64M", "--", program]
}

/// Somebody without any privilege.
const NOBODY: u32 = 65_534;

/// `hugeswap ARGS` as that user; `None`, with the reason printed, if that cannot be.
fn as_nobody(p: &Place) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return None;
    }
    // The build directory may be closed to others.
    let copy = p.path().join("hugeswap");
    // By a process of its own: a file this one has open for writing may be inherited by what another
    // test starts at that moment, and then cannot be executed.
    let made = std::process::Command::new("install")
        .args(["-m", "755", "--"])
        .args([assert_cmd::cargo::cargo_bin!("hugeswap"), &copy])
        .status();
    assert!(made.unwrap().success());
    let mut c = std::process::Command::new(&copy);
    c.uid(NOBODY)
        .gid(NOBODY)
        .current_dir(p.path())
        .env_remove("HUGESWAP_POOL");
    Some(Command::from_std(c))
}
