//! A swap area as it is asked for: `PATH[,size=SIZE][,pri=N][,tmpfs=allow][,device=allow]`, or
//! `mem` for the path.

use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::knobs::{SizeError, parse_size};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// The largest area, bytes.
pub const MAX_BYTES: u64 = 16 << 40;
/// The priorities that an area can have, as swapon(8) has them.
pub const PRIORITIES: RangeInclusive<i32> = -1..=32767;

/// The path of an area without a device. (A directory of that name is `./mem`.)
const MEMORY: &str = "mem";

/// A swap area as the user asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    /// A directory on the file system to use, a swap file, or a block device; `mem`: none, what
    /// leaves memory is compressed and stays in memory.
    pub path: PathBuf,
    /// Most bytes to use; `None`: all of a swap file or a device, in a directory what is free
    /// there, less a reserve, and of `mem` four times the machine's memory.
    pub size: Option<u64>,
    /// Areas of a higher priority are filled first, those of the same in turn; -1 to 32767.
    pub priority: i32,
    /// The user said that memory-backed (tmpfs) is what they want.
    pub allow_tmpfs: bool,
    /// The user said that a block device may be overwritten.
    pub allow_device: bool,
}

/// Why a text, or a [`SwapSpec`], is no swap area that can be asked for. Each message is one line
/// that says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwapSpecError {
    /// The text has no path.
    #[error("a swap area needs a directory: --swap /var/tmp,size=20G; or none: --swap mem")]
    NoPath,
    /// There is no such option.
    #[error(
        "'{option}' is not a swap option: there are size=SIZE, pri=N, tmpfs=allow and device=allow"
    )]
    Option {
        /// The option, with its value.
        option: String,
    },
    /// The size is no size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The size is below 2 MiB.
    #[error("a swap size of {size} B is too small: at least 2M")]
    TooSmall {
        /// The size, bytes.
        size: u64,
    },
    /// The size is above 16 TiB.
    #[error("a swap size of {} TiB is too large: at most 16T", .size >> 40)]
    TooLarge {
        /// The size, bytes.
        size: u64,
    },
    /// The priority is no number from -1 to 32767.
    #[error("'{given}' is not a swap priority: write pri=N, a number from -1 to 32767")]
    Priority {
        /// The priority, as it was given.
        given: String,
    },
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

    /// An area without a device: what leaves memory is compressed and stays in memory.
    pub fn memory() -> SwapSpec {
        SwapSpec::new(MEMORY)
    }

    /// Is it without a device?
    pub fn is_memory(&self) -> bool {
        self.path.as_os_str() == MEMORY
    }

    /// Parses `PATH[,size=SIZE][,pri=N][,tmpfs=allow][,device=allow]`.
    ///
    /// # Errors
    /// [`SwapSpecError`] says which part of the text is wrong, and what is allowed.
    pub fn parse(text: &str) -> Result<SwapSpec, SwapSpecError> {
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err(SwapSpecError::NoPath);
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
                    let option = option.into();
                    return Err(SwapSpecError::Option { option });
                }
            }
        }
        spec.check().map(|()| spec)
    }

    /// Checks that its numbers are within bounds.
    ///
    /// # Errors
    /// [`SwapSpecError`] says which number is not.
    pub fn check(&self) -> Result<(), SwapSpecError> {
        match self.size {
            Some(n) if n < UNIT_BYTES => {
                return Err(SwapSpecError::TooSmall { size: n });
            }
            Some(n) if n > MAX_BYTES => {
                return Err(SwapSpecError::TooLarge { size: n });
            }
            _ => {}
        }
        if !PRIORITIES.contains(&self.priority) {
            return Err(bad_priority(&self.priority.to_string()));
        }
        Ok(())
    }
}

impl FromStr for SwapSpec {
    type Err = SwapSpecError;

    fn from_str(text: &str) -> Result<SwapSpec, SwapSpecError> {
        SwapSpec::parse(text)
    }
}

fn bad_priority(given: &str) -> SwapSpecError {
    SwapSpecError::Priority {
        given: given.into(),
    }
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
        assert!(!s.is_memory() && !SwapSpec::parse("./mem").unwrap().is_memory());
        let s = SwapSpec::parse("mem,size=8G,pri=3").unwrap();
        assert_eq!(
            (s.is_memory(), s.size, s.priority),
            (true, Some(8 << 30), 3)
        );
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
            let e = bad.parse::<SwapSpec>().unwrap_err().to_string();
            assert!(e.contains(why) && e.lines().count() == 1, "{bad}: {e}");
        }
    }
}
