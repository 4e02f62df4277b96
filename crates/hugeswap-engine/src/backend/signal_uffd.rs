//! Signal mode with userfaultfd: whole units by mremap, and base pages by a userfaultfd of user-mode faults, which turns a touch of an
//! absent page into SIGBUS.

use super::seam::{Capabilities, Placement};
use hugeswap_sys::{Result, uffd};

/// See the file's head.
pub(super) struct SignalUffd {
    /// The userfaultfd, in a thread of the engine's.
    #[expect(dead_code, reason = "base pages do not come by this yet")]
    pub fd: i32,
}

/// A userfaultfd of user-mode faults, which needs no privilege.
pub(super) fn open() -> Result<i32> {
    let features = uffd::feature::SIGBUS | uffd::feature::PAGEFAULT_FLAG_WP;
    uffd::open(uffd::USER_MODE_ONLY, features).map(|(fd, _)| fd)
}

impl Placement for SignalUffd {
    const CAN: Capabilities = Capabilities {
        watches_in_place: true,
        arrives_read_only: true,
        replaces_at_once: true,
        moves_untouched: true,
    };
}
