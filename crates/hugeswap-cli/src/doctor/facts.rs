//! Facts about the machine: settings in /proc and /sys, limits, containers.

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
    limit_of(&read("/proc/self/cgroup")?, &|path| read(path))
}

fn limit_of(groups: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let mut limits: Vec<u64> = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // Limits of ancestors hold too; in a container the root is the container's own group.
        let mut at = path.trim_end_matches('/');
        loop {
            if let Some(limit) = read(&format!("{root}{at}/{file}")).and_then(|t| t.parse().ok()) {
                limits.push(limit);
            }
            match at.rfind('/') {
                Some(cut) => at = &at[..cut],
                None => break,
            }
        }
    }
    // Version 1 writes "no limit" as the largest number of whole pages.
    limits
        .into_iter()
        .filter(|&l| l < i64::MAX as u64 - (1 << 20))
        .min()
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

    #[test]
    fn the_tightest_group_limit_counts() {
        let files = |path: &str| match path {
            "/sys/fs/cgroup/a/b/memory.max" => Some("max".to_owned()),
            "/sys/fs/cgroup/a/memory.max" => Some("1000".to_owned()),
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes" => {
                Some("9223372036854771712".to_owned())
            }
            "/sys/fs/cgroup/memory/memory.limit_in_bytes" => Some("2000".to_owned()),
            _ => None,
        };
        assert_eq!(limit_of("0::/a/b\n", &files), Some(1000));
        assert_eq!(limit_of("5:memory:/x\n0::/z\n", &files), Some(2000));
        assert_eq!(limit_of("3:cpu:/x\n", &files), None);
        assert_eq!(limit_of("0::/\n", &files), None);
    }
}
