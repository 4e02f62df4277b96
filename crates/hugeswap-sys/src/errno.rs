//! The kernel's error numbers as a type with a readable name.

/// An error number as the kernel returned it (always positive).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($n:ident $text:literal;)*) => {
        #[allow(missing_docs)]
        impl Errno { $(pub const $n: Errno = Errno(libc::$n);)* }
        impl Errno {
            fn describe(self) -> Option<(&'static str, &'static str)> {
                match self.0 { $(libc::$n => Some((stringify!($n), $text)),)* _ => None }
            }
        }
    };
}

names! {
    EPERM "not permitted";
    ENOENT "does not exist";
    ESRCH "no such process";
    EINTR "interrupted";
    EIO "input/output error";
    EBADF "bad file descriptor";
    EAGAIN "try again";
    ENOMEM "out of memory or mappings";
    EACCES "permission denied";
    EFAULT "bad address";
    EBUSY "busy";
    EEXIST "exists already";
    ENODEV "no such device";
    ENOTDIR "not a directory";
    EISDIR "is a directory";
    EINVAL "invalid argument";
    ENXIO "no such place";
    ENFILE "too many open files in the system";
    ENOTTY "not for this kind of file";
    EMFILE "too many open files";
    ETXTBSY "in use as swap or as a running program";
    EFBIG "file too large";
    ENOSPC "no space left on device";
    ESPIPE "not seekable";
    EROFS "read-only file system";
    ENOSYS "not implemented by this kernel, or forbidden here";
    ETIMEDOUT "timed out";
    EOPNOTSUPP "not supported";
    EDQUOT "disk quota exceeded";
}

impl Errno {
    /// The name in the C headers, or an empty string for a number that is not known here. Does not
    /// format: for the fault path.
    pub fn name(self) -> &'static str {
        self.describe().map_or("", |(name, _)| name)
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.describe() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> Self {
        std::io::Error::from_raw_os_error(e.0)
    }
}
