//! A swap area as it is asked for: `PATH[,size=SIZE][,pri=N][,tmpfs=allow][,device=allow]`.

use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::knobs::parse_size;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The largest area, bytes.
pub const MAX_BYTES: u64 = 16 << 40;
/// The priorities that an area can have, as swapon(8) has them.
pub const PRIORITIES: RangeInclusive<i32> = -1..=32767;

/// A swap area as the user asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    /// A directory on the file system to use, a swap file, or a block device.
    pub path: PathBuf,
    /// Most bytes to use; `None`: all of a swap file or a device, and in a directory what is free
    /// there, less a reserve.
    pub size: Option<u64>,
    /// Areas of a higher priority are filled first, those of the same in turn; -1 to 32767.
    pub priority: i32,
    /// The user said that memory-backed (tmpfs) is what they want.
    pub allow_tmpfs: bool,
    /// The user said that a block device may be overwritten.
    pub allow_device: bool,
}

impl SwapSpec {
    /// An area there, of the default size and priority (-1).
    pub fn new(path: impl Into<PathBuf>) -> SwapSpec {
        SwapSpec {
            path: path.into(),
            size: None,
            priority: *PRIORITIES.start(),
            allow_tmpfs: false,
            allow_device: false,
        }
    }

    /// Parses `PATH[,size=SIZE][,pri=N][,tmpfs=allow][,device=allow]`; the error is one line.
    pub fn parse(text: &str) -> Result<SwapSpec, String> {
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err("a swap area needs a directory: --swap /var/tmp,size=20G".into());
        }
        let mut spec = SwapSpec::new(path);
        for option in parts {
            match option.split_once('=') {
                Some(("size", v)) => spec.size = Some(parse_size(v)?),
                Some(("pri", v)) => {
                    let n = v.parse();
                    spec.priority = n.map_err(|_| bad_priority(v))?;
                }
                Some(("tmpfs", "allow")) => spec.allow_tmpfs = true,
                Some(("device", "allow")) => spec.allow_device = true,
                _ => {
                    return Err(format!(
                        "'{option}' is not a swap option: there are size=SIZE, pri=N, tmpfs=allow and device=allow"
                    ));
                }
            }
        }
        spec.check().map(|()| spec)
    }

    /// Are its numbers within bounds? The error is one line.
    pub fn check(&self) -> Result<(), String> {
        match self.size {
            Some(n) if n < UNIT_BYTES => {
                return Err(format!("a swap size of {n} B is too small: at least 2M"));
            }
            Some(n) if n > MAX_BYTES => {
                return Err(format!(
                    "a swap size of {} TiB is too large: at most 16T",
                    n >> 40
                ));
            }
            _ => {}
        }
        if !PRIORITIES.contains(&self.priority) {
            return Err(bad_priority(&self.priority.to_string()));
        }
        Ok(())
    }
}

fn bad_priority(given: &str) -> String {
    format!("'{given}' is not a swap priority: write pri=N, a number from -1 to 32767")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_their_bounds() {
        let s = SwapSpec::parse("/a b,size=1.5G,pri=7,device=allow").unwrap();
        assert_eq!(s.path, PathBuf::from("/a b"));
        assert_eq!((s.size, s.priority), (Some(3 << 29), 7));
        assert!(s.allow_device && !s.allow_tmpfs);
        let s = SwapSpec::parse("/a,pri=-1,tmpfs=allow").unwrap();
        assert_eq!((s.size, s.priority, s.allow_tmpfs), (None, -1, true));
        for (bad, why) in [
            ("", "needs a directory"),
            ("/a,size=2047K", "too small"),
            ("/a,size=17T", "too large"),
            ("/a,size=x", "not a size"),
            ("/a,pri=-2", "not a swap priority"),
            ("/a,pri=32768", "not a swap priority"),
            ("/a,pri=99999999999999999999", "not a swap priority"),
            ("/a,pri=", "not a swap priority"),
            ("/a,device=yes", "not a swap option"),
        ] {
            let e = SwapSpec::parse(bad).unwrap_err();
            assert!(e.contains(why) && e.lines().count() == 1, "{bad}: {e}");
        }
    }
}
