//! What a keeper has set up is noted in a file as well, so that what is left by one that was killed is
//! undone by the next benchmark. The files are in /run, which is empty after a start of the machine,
//! as what they tell of is gone then.

use super::undo::{Undo, empty_cgroup, undo};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the files are.
pub const RUN: &str = "/run";
const PREFIX: &str = "hugeswap-bench-";
const SUFFIX: &str = ".undo";

/// The steps that undo what is set up, oldest first.
#[derive(Default)]
pub struct Journal {
    steps: Vec<Undo>,
    /// The file with the steps, locked for as long as its keeper lives. None could be made where /run
    /// is another user's.
    file: Option<(PathBuf, File)>,
}

impl Journal {
    /// With a file in a directory, if one can be made there.
    pub fn in_dir(dir: &Path) -> Journal {
        let pid = std::process::id();
        let new = dir.join(format!(".{PREFIX}{pid}.new"));
        let path = dir.join(format!("{PREFIX}{pid}{SUFFIX}"));
        let made = File::create(&new).ok().filter(|file| {
            // (Locked before it has its name: another keeper takes what is not locked for left.)
            flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && file.write_at(b"[]", 0).is_ok()
                && std::fs::rename(&new, &path).is_ok()
        });
        if made.is_none() {
            let _ = std::fs::remove_file(&new);
        }
        Journal {
            steps: Vec::new(),
            file: made.map(|file| (path, file)),
        }
    }

    /// The steps, oldest first.
    pub fn steps(&self) -> &[Undo] {
        &self.steps
    }

    /// Notes a step.
    pub fn note(&mut self, step: Undo) {
        self.steps.push(step);
        self.write();
    }

    /// Forgets a step, which was taken.
    pub fn forget(&mut self, at: usize) {
        self.steps.remove(at);
        self.write();
    }

    fn write(&self) {
        let Some((_, file)) = &self.file else {
            return;
        };
        // Whole before it is cut: what follows the steps is not read. (Should it fail, they are here
        // still.)
        let text = serde_json::to_vec(&self.steps).unwrap_or_default();
        let _ = file.write_all_at(&text, 0);
        let _ = file.set_len(text.len() as u64);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some((path, _)) = self.file.as_ref().filter(|_| self.steps.is_empty()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Undoes what is left by keepers that were killed, as far as it is as they left it. Returns a line
/// for each step, of what was done and what failed.
pub fn undo_what_is_left(dir: &Path) -> Vec<String> {
    let mut said = Vec::new();
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for path in names.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            let Some((_locked, steps)) = left_in(&path) else {
                continue;
            };
            for step in steps {
                if !step.is_as_left() {
                    continue;
                }
                said.push(match undo(&step) {
                    Ok(()) => format!("left by a benchmark that was killed, undone: {step}"),
                    Err(e) => format!("left by a benchmark that was killed: {step}: {e:#}"),
                });
            }
            // (Last: should this process be killed meanwhile, the next goes on.)
            let _ = std::fs::remove_file(&path);
        }
    }
    said
}

/// The steps in a file without a keeper, newest first, and the file, locked.
fn left_in(path: &Path) -> Option<(File, Vec<Undo>)> {
    let file = File::open(path).ok()?;
    let own = rustix::process::geteuid().as_raw();
    let ours = file.metadata().is_ok_and(|m| m.is_file() && m.uid() == own);
    if !ours || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return None;
    }
    let mut found = serde_json::Deserializer::from_reader(&file).into_iter::<Vec<Undo>>();
    let mut steps = found.next().and_then(Result::ok).unwrap_or_default();
    // No process may use what is about to be removed.
    steps.iter().for_each(|step| drop(empty_cgroup(step)));
    steps.reverse();
    Some((file, steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(file: &Path, before: &str, value: &str) -> Undo {
        std::fs::write(file, value).unwrap();
        Undo::Choice {
            file: file.to_owned(),
            before: before.to_owned(),
            value: value.to_owned(),
        }
    }

    fn read(file: &Path) -> String {
        std::fs::read_to_string(file).unwrap()
    }

    #[test]
    fn what_a_killed_keeper_left_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| dir.path().join(name));
        let mut journal = Journal::in_dir(dir.path());
        journal.note(chosen(&a, "madvise", "always"));
        journal.note(chosen(&a, "always", "never"));
        journal.note(chosen(&b, "1", "2"));
        journal.note(chosen(&c, "1", "2"));
        journal.forget(3);
        assert!(undo_what_is_left(dir.path()).is_empty(), "it lives");
        // As the kernel does with a process that it kills.
        drop(journal.file.take());
        std::fs::write(&b, "3").unwrap();
        assert_eq!(undo_what_is_left(dir.path()).len(), 2);
        assert_eq!(read(&a), "madvise");
        assert_eq!(read(&b), "3", "somebody has changed it since");
        assert_eq!(read(&c), "2", "that was undone, and then chosen by another");
        assert!(undo_what_is_left(dir.path()).is_empty());
    }

    #[test]
    fn a_journal_that_was_cut_short_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hugeswap-bench-1.undo");
        for text in ["", "[{\"File\":", "{}", "[]trailing"] {
            std::fs::write(&path, text).unwrap();
            assert!(undo_what_is_left(dir.path()).is_empty(), "{text}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_keeper_that_has_undone_all_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_dir(dir.path());
        journal.note(Undo::File(dir.path().join("hugeswap-bench-x")));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        journal.forget(0);
        drop(journal);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
