//! How much a fault brings in, and what is read before it is asked for.
//!
//! * [`granularity`]: how many pages of a unit a fault brings in, from one page to the whole unit
//! * [`readahead`]: which units are read before the program touches them

pub mod granularity;
pub mod readahead;
