//! Shared regions as the program's threads and the rest of the engine ask for them: the functions
//! of [`Sharing`](super::Sharing), with the engine as its host.

use super::SharedError;
use crate::engine::Engine;
use crate::pool::shared::FileKey;
use hugeswap_policy::shared::Nonsense;
use hugeswap_sys::Result;

impl Engine {
    /// Makes a shared region of `len` bytes of zeros; where it is mapped.
    pub fn share(&self, name: &str, len: usize) -> std::result::Result<usize, SharedError> {
        self.sharing.share(self.host().host(), name, len)
    }

    /// Makes one without a name, so that only children of this process will ever have it too, of
    /// `len` bytes (whole pages) at `at` (a unit's address), which are the caller's to replace.
    pub fn share_nameless(&self, at: usize, len: usize) -> std::result::Result<(), SharedError> {
        self.sharing.share_nameless(self.host(), at, len)
    }

    /// Makes one for a file of a program's, which is `len` bytes long; mapped by whole pages at
    /// `at`, as above. Other processes attach to it by the file.
    pub fn share_file(
        &self,
        file: &FileKey,
        at: usize,
        len: u64,
    ) -> std::result::Result<(), SharedError> {
        self.sharing.share_file(self.host(), file, at, len)
    }

    /// Maps the region of a file at `at`, as above; its length in bytes is what
    /// [`Engine::file_len`] says.
    pub fn attach_file(&self, file: &FileKey, at: usize) -> std::result::Result<(), SharedError> {
        self.sharing.attach_file(self.host(), file, at)
    }

    /// How long a file is that there is a region for.
    pub fn file_len(&self, file: &FileKey) -> std::result::Result<u64, SharedError> {
        self.sharing.file_len(file)
    }

    /// Maps the shared region of this name that another process has made: where, and how long it
    /// is.
    pub fn attach_shared(&self, name: &str) -> std::result::Result<(usize, usize), SharedError> {
        self.sharing.attach_shared(self.host(), name)
    }

    /// The same of the region whose memory `fd` is ([`Engine::shared_memory`]), which stays the
    /// caller's.
    pub fn attach_shared_memory(
        &self,
        fd: i32,
    ) -> std::result::Result<(usize, usize), SharedError> {
        self.sharing.attach_shared_memory(self.host(), fd)
    }

    /// Is `addr` in a shared region?
    pub fn is_shared(&self, addr: usize) -> bool {
        self.sharing.is_shared(addr)
    }

    /// The descriptor of the memory of the shared region at `addr`; the engine's own.
    pub fn shared_memory(&self, addr: usize) -> Option<i32> {
        self.sharing.shared_memory(addr)
    }

    /// Is what the segment says of the units of a range of a shared region possible? (Others write
    /// there, too. What is not is told as lost.)
    pub fn check_shared(&self, addr: usize, len: usize) -> std::result::Result<(), Nonsense> {
        self.sharing.check_shared(addr, len)
    }

    /// The bytes of a range of a shared region become zero for every process, and memory and swap
    /// behind whole units are free. False: some could not be had.
    pub fn discard_shared(&self, addr: usize, len: usize) -> bool {
        self.sharing.discard_shared(self.host(), addr, len)
    }

    /// Brings in what a range of a shared region meets, to stay there for good, writable in this
    /// process by the kernel too. (In another process only once that has written there itself.)
    pub fn keep_shared(&self, addr: usize, len: usize) -> Result<()> {
        self.sharing.keep_shared(self.host(), addr, len)
    }

    /// Gives up the shared region mapped at `addr`. The last process to do so ends it.
    pub fn unmap_shared(&self, addr: usize) {
        self.sharing.unmap_shared(self.host(), addr);
    }

    /// As [`Engine::unmap_shared`], but its mappings stay, and are the kernel's from now on; all of
    /// it was kept before ([`Engine::keep_shared`]). Forked children will inherit them.
    pub fn let_go_shared(&self, addr: usize) {
        self.sharing.let_go_shared(self.host(), addr);
    }
}
