//! Whether the injected object is in a process, and why it is not.

use super::{object, preflight};
use hugeswap_support::proc::{self, Status};
use std::path::PathBuf;

/// Whether the object is mapped, in a process where it can work. `None`: this user may not read the
/// mappings.
pub fn has_object(pid: i32) -> Option<bool> {
    let maps = proc::text(format!("/proc/{pid}/maps")).ok()?;
    // A process that is about to end has no mappings.
    if maps.is_empty() {
        return None;
    }
    Some(object::is_mapped(&maps) && unmanageable(&maps).is_none())
}

/// Why the object cannot work in a process with these mappings.
fn unmanageable(maps: &str) -> Option<&'static str> {
    let known = [
        (
            "/valgrind/",
            "runs under valgrind, which cannot follow managed memory",
        ),
        (
            "/libtsan.so",
            "is built with ThreadSanitizer, which takes the addresses of managed memory: use a build without it",
        ),
    ];
    let found = known.into_iter().find(|(part, _)| maps.contains(part));
    found.map(|(_, why)| why)
}

/// Why the object is not in a running process. The text follows the program's name.
pub fn why_outside(pid: i32, status: &Status) -> String {
    let maps = proc::text(format!("/proc/{pid}/maps"));
    if let Some(why) = unmanageable(&maps.unwrap_or_default()) {
        return why.into();
    }
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    if let Some(why) = preflight::obstacle(&exe) {
        return why;
    }
    let ns = |of: &str, kind: &str| std::fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
    let other = |kind| ns(&pid.to_string(), kind).is_some_and(|n| Some(n) != ns("self", kind));
    if other("pid") {
        return "is in a sandbox with process numbers (a PID namespace) of its own, where the object cannot be found: start hugeswap run inside it".into();
    }
    let environment = std::fs::read(format!("/proc/{pid}/environ"));
    let has = |name: &[u8]| {
        let mut entries = environment
            .as_deref()
            .unwrap_or_default()
            .split(|&b| b == 0);
        entries.any(|e| e.starts_with(name))
    };
    if environment.is_ok() && !(has(b"LD_PRELOAD=/proc/") && has(b"HUGESWAP_POOL=")) {
        return "was started without LD_PRELOAD and HUGESWAP_POOL in its environment: keep these two where it is started (env -i, sudo and the like remove them)".into();
    }
    if status.user != hugeswap_sys::process::effective_user() {
        return format!(
            "runs as another user ({}), and that user may not open the object: start hugeswap run as that user",
            status.user
        );
    }
    if other("mnt") || other("user") {
        return "is in a sandbox (a namespace of its own) where the object cannot be opened: start hugeswap run inside it".into();
    }
    "could not load the object: see the message of the loader (\"cannot be preloaded\")".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap_support::proc::StatusFile;

    #[test]
    fn a_child_without_the_object_is_outside() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let status = StatusFile::open(pid).and_then(|s| s.read()).unwrap();
        assert_eq!(has_object(pid), Some(false));
        assert!(why_outside(pid, &status).contains("LD_PRELOAD"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
