//! What goes over all units because of swap: areas that are taken off ([`off`], [`lose`]), the
//! scrubber ([`scrub`]), whole clusters found again ([`compact`]).
//!
//! All of it works on one unit at a time, under its lock. Places and transfers are the store's
//! ([`crate::store`]).

mod compact;
mod lose;
mod off;
pub(crate) mod scrub;

use crate::store::{PAGE, PAGES, Pages};
