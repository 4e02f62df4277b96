//! Facts about the machine: settings in /proc and /sys, limits, containers.

use hugeswap_support::cgroup;
pub use hugeswap_support::proc::chosen;
use std::path::Path;

/// A file's text without the line break at its end; `None` if it cannot be read.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|t| t.trim_end().to_owned())
}

/// A number in a file.
pub fn number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// A field of /proc/self/status.
pub fn status_field(status: &str, name: &str) -> Option<String> {
    status
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
        .map(|v| v.trim().to_owned())
}

/// Major and minor number of a kernel release.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The tightest memory limit of the control groups this process is in (both versions), bytes.
pub fn cgroup_memory_limit() -> Option<u64> {
    cgroup::limited().iter().map(|g| g.limit).min()
}

/// The kind of container, if this process seems to be in one.
pub fn container() -> Option<&'static str> {
    let env = |name: &str| std::env::var_os(name).is_some();
    if Path::new("/.dockerenv").exists() {
        Some("docker")
    } else if Path::new("/run/.containerenv").exists() {
        Some("podman")
    } else if env("KUBERNETES_SERVICE_HOST") {
        Some("kubernetes")
    } else if env("container") {
        Some("container")
    } else {
        None
    }
}

/// The name of a file system by its magic number.
pub fn file_system_name(magic: u64) -> String {
    let name = match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x794c_7630 => "overlayfs",
        0xf2f5_2010 => "f2fs",
        0x2fc1_2fc1 => "zfs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0x0102_1997 => "9p",
        _ => return format!("file system {magic:#x}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_versions() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
        assert_eq!(version("6.18.44-foo+"), Some((6, 18)));
        assert_eq!(version("5.7"), Some((5, 7)));
        assert_eq!(version("x"), None);
        assert_eq!(
            status_field("A:\t1\nSeccomp:\t2\nSeccomp_filters:\t1", "Seccomp"),
            Some("2".into())
        );
    }
}
