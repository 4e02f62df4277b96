//! Units between memory and swap: where the pages of a unit are there, reads of them, and all that goes over units because of swap: areas taken off
//! ([`off`], [`lose`]), the scrubber ([`scrub`]), whole clusters found again ([`compact`]).
//!
//! Under the unit's lock; slots and transfers are the store's ([`crate::store`]).

mod compact;
mod lose;
mod off;
pub(crate) mod scrub;

use crate::reclaim::Reclaim;
use crate::store::{PAGE, PAGES, Pages};

impl Reclaim {}
