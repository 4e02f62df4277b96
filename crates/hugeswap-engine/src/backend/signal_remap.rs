//! Signal mode where userfaultfd is refused: whole units and parts of 64 KiB by mremap, and nothing else of the kernel.

use super::seam::{Capabilities, Placement};

/// See the file's head.
pub(super) struct SignalRemap;

impl Placement for SignalRemap {
    const CAN: Capabilities = Capabilities {
        watches_in_place: true,
        arrives_read_only: true,
        replaces_at_once: true,
        moves_untouched: true,
    };
}
