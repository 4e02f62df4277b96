//! Memory control groups of this process, of both versions: their limits, what they use, and what of it
//! the kernel can drop.
//!
//! Limits of all ancestors hold. In a container the visible root is the container's own group.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Version of the hierarchy that a group is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes`, `memory.usage_in_bytes`.
    One,
    /// `memory.max`, `memory.high`, `memory.current`.
    Two,
}

/// A group with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its directory.
    pub directory: PathBuf,
    /// Its version.
    pub version: Version,
    /// Its limit, bytes.
    pub limit: u64,
}

/// What a group uses, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All memory that counts for its limit.
    pub total: u64,
    /// The part of it that the kernel drops when the limit is near.
    pub droppable: u64,
}

impl Usage {
    /// Memory that stays.
    pub fn held(self) -> u64 {
        self.total.saturating_sub(self.droppable)
    }
}

/// Dirty file pages up to this fraction of the limit (1/N) count as held: the kernel writes the others out
/// before it would kill a process.
const DIRTY_SHARE: u64 = 8;

/// The groups with a limit that this process is in, the innermost first.
pub fn limited() -> Vec<Group> {
    limited_of("self")
}

/// The groups with a limit that a process is in, the innermost first. `process`: its id.
pub fn limited_of(process: &str) -> Vec<Group> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let Some(groups) = read(&Path::new("/proc").join(process).join("cgroup")) else {
        return Vec::new();
    };
    limited_in(&groups, &read)
}

/// The same for the text of `/proc/PID/cgroup`, with a function that reads files.
pub fn limited_in(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Vec<Group> {
    let mut found: Vec<Group> = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, version) = match controllers {
            "" => ("/sys/fs/cgroup", Version::Two),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", Version::One),
            _ => continue,
        };
        let mut at = path.trim_end_matches('/');
        let mut innermost = true;
        loop {
            let directory = PathBuf::from(format!("{root}{at}"));
            let limit = limit_of(&directory, version, innermost, read);
            innermost &= limit.is_none();
            if let Some(limit) = limit.filter(|&l| is_a_limit(l)) {
                found.push(Group {
                    directory,
                    version,
                    limit,
                });
            }
            match at.rfind('/') {
                Some(cut) => at = &at[..cut],
                None => break,
            }
        }
    }
    found
}

/// The limit of the group in `directory`; `None` if it has none or cannot be read. For the innermost
/// group of version 1 it is that of the whole hierarchy, whose other groups may not be visible.
fn limit_of(
    directory: &Path,
    version: Version,
    innermost: bool,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let value = |file: &str| number(&read(&directory.join(file))?);
    match version {
        Version::One => {
            let own = value("memory.limit_in_bytes")?;
            let above = || field(&read(&directory.join("memory.stat"))?, HIERARCHICAL);
            let above = if innermost { above() } else { None };
            Some(own.min(above.unwrap_or(own)))
        }
        Version::Two => {
            let (max, high) = (value("memory.max"), value("memory.high"));
            max.into_iter().chain(high).min()
        }
    }
}

const HIERARCHICAL: &str = "hierarchical_memory_limit";

/// Version 1 writes "no limit" as the largest number of whole pages.
fn is_a_limit(bytes: u64) -> bool {
    bytes < i64::MAX as u64 - (1 << 20)
}

/// A number on a line of its own; `None` for `max` and anything else.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A field of `memory.stat`.
fn field(stat: &str, name: &str) -> Option<u64> {
    let line = stat
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    number(line?)
}

/// Bytes that the kernel drops when the limit is near, by the text of `memory.stat`: clean file pages that
/// no process has mapped, dirty ones beyond a part of the limit, and half of the slab memory that can
/// be reclaimed.
pub fn droppable(stat: &str, version: Version, limit: u64) -> u64 {
    let get = |one: &str, two: &str| {
        let name = match version {
            Version::One => one,
            Version::Two => two,
        };
        field(stat, name).unwrap_or(0)
    };
    let lists = get("total_inactive_file", "inactive_file")
        .saturating_add(get("total_active_file", "active_file"));
    let dirty = get("total_dirty", "file_dirty")
        .saturating_add(get("total_writeback", "file_writeback"))
        .min(limit / DIRTY_SHARE);
    // Shared memory is mapped too, and is in none of the lists above.
    let mapped =
        get("total_mapped_file", "file_mapped").saturating_sub(get("total_shmem", "shmem"));
    let slab = get("", "slab_reclaimable") / 2;
    lists
        .saturating_sub(dirty.saturating_add(mapped))
        .saturating_add(slab)
}

/// A group's files, open.
pub struct Gauge {
    usage: File,
    stat: File,
    group: Group,
}

impl Gauge {
    /// Opens the files of `group`.
    pub fn open(group: &Group) -> Option<Gauge> {
        let name = match group.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        Some(Gauge {
            usage: File::open(group.directory.join(name)).ok()?,
            stat: File::open(group.directory.join("memory.stat")).ok()?,
            group: group.clone(),
        })
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The file that tells the usage.
    pub fn usage_file(&self) -> &File {
        &self.usage
    }

    /// Bytes in use. Cheap.
    pub fn total(&self) -> Option<u64> {
        let mut text = [0; 32];
        let n = self.usage.read_at(&mut text, 0).ok()?;
        number(std::str::from_utf8(&text[..n]).ok()?)
    }

    /// Bytes that the kernel can drop. Takes longer: it adds up the figures of all processors.
    pub fn droppable(&self) -> Option<u64> {
        let mut text = [0; 8192];
        let n = self.stat.read_at(&mut text, 0).ok().filter(|&n| n > 0)?;
        let text = String::from_utf8_lossy(&text[..n]);
        Some(droppable(&text, self.group.version, self.group.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(groups: &str, files: &[(&str, &str)]) -> Vec<(String, u64)> {
        let read = |path: &Path| {
            let file = files.iter().find(|(p, _)| Path::new(p) == path);
            file.map(|(_, text)| (*text).to_owned())
        };
        limited_in(groups, &read)
            .into_iter()
            .map(|g| (g.directory.display().to_string(), g.limit))
            .collect()
    }

    #[test]
    fn limits_of_version_2_are_max_and_high_of_all_ancestors() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.high", "900\n"),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
            ("/sys/fs/cgroup/a/memory.high", "max\n"),
        ];
        let both = [
            ("/sys/fs/cgroup/a/b".to_owned(), 900),
            ("/sys/fs/cgroup/a".to_owned(), 1000),
        ];
        assert_eq!(found("0::/a/b\n", &files), both);
        assert_eq!(found("0::/a\n", &files), both[1..]);
        assert_eq!(found("0::/\n", &files), []);
        // In a container with a namespace of its own the root has the files.
        let root = [("/sys/fs/cgroup/memory.max", "77\n")];
        assert_eq!(found("0::/\n", &root), [("/sys/fs/cgroup".to_owned(), 77)]);
        // Without one, the path is the host's, and only the root is there.
        assert_eq!(
            found("0::/docker/x\n", &root),
            [("/sys/fs/cgroup".to_owned(), 77)]
        );
    }

    #[test]
    fn limits_of_version_1_include_those_that_are_not_visible() {
        let no_limit = "9223372036854771712\n";
        let files = [
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", no_limit),
            (
                "/sys/fs/cgroup/memory/x/memory.stat",
                "cache 1\nhierarchical_memory_limit 5000\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000\n"),
            (
                "/sys/fs/cgroup/memory/memory.stat",
                "hierarchical_memory_limit 1\n",
            ),
        ];
        let at = |d: &str, l| (format!("/sys/fs/cgroup/memory{d}"), l);
        assert_eq!(
            found("5:cpu,memory:/x\n0::/z\n", &files),
            [at("/x", 5000), at("", 6000)]
        );
        assert_eq!(found("3:cpu:/x\n", &files), []);
        let none = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", no_limit)];
        assert_eq!(found("4:memory:/\n", &none), []);
    }

    #[test]
    fn hostile_files_are_no_limits() {
        for text in [
            "",
            "\n",
            "-1\n",
            "1e3",
            "18446744073709551616",
            "max max",
            "\0\0",
        ] {
            let files = [("/sys/fs/cgroup/memory.max", text)];
            assert_eq!(found("0::/\n", &files), [], "{text:?}");
        }
        for groups in ["", ":", "::", "0:", "0::", "\n\n", "x:memory", "1:memory:"] {
            assert_eq!(found(groups, &[]), [], "{groups:?}");
        }
    }

    #[test]
    fn file_pages_that_are_clean_and_not_mapped_can_be_dropped() {
        let two = "anon 100\nfile 900\nshmem 300\nfile_mapped 350\nfile_dirty 20\nfile_writeback 10\n\
                   inactive_file 400\nactive_file 200\nslab_reclaimable 40\nunevictable 8\n";
        assert_eq!(droppable(two, Version::Two, 8000), 600 - 30 - 50 + 20);
        // Of dirty pages only an eighth of the limit counts as held.
        assert_eq!(droppable(two, Version::Two, 80), 600 - 10 - 50 + 20);
        let one = "cache 1\ninactive_file 9\ntotal_cache 900\ntotal_shmem 400\ntotal_mapped_file 350\n\
                   total_dirty 30\ntotal_writeback 0\ntotal_inactive_file 400\ntotal_active_file 200\n";
        assert_eq!(droppable(one, Version::One, 8000), 570);
    }

    #[test]
    fn absurd_figures_do_not_overflow() {
        let max = u64::MAX;
        let text = format!(
            "inactive_file {max}\nactive_file {max}\nfile_dirty {max}\nfile_writeback {max}\nslab_reclaimable {max}\n"
        );
        assert_eq!(droppable(&text, Version::Two, 80), max);
        assert_eq!(
            droppable("inactive_file -5\nfile_dirty 9\n", Version::Two, 80),
            0
        );
        assert_eq!(droppable("", Version::One, 0), 0);
        let usage = Usage {
            total: 5,
            droppable: 9,
        };
        assert_eq!(usage.held(), 0);
    }
}
