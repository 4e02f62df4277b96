//! Compressed memory in front of swap, as the kernel's zswap is: a page that leaves memory is
//! compressed and kept, and is written to its slot only when the room is needed.
//!
//! * [`entry`]: the word that says where a page is in compressed memory
//! * [`slot`]: what is done with that word while others read it
//! * [`share`]: how much of the memory in use is compressed memory
//! * [`trial`]: whether that gets the program further
//! * [`codec`]: what compresses, and what samples of pages say of each
//! * [`packing`]: whether whole units are written to the device compressed
//!
//! The engine's `store::zswap` carries this out, and `store::pack` the last of it.

pub mod codec;
pub mod entry;
pub mod packing;
pub mod share;
pub mod slot;
pub mod trial;
