//! How much of the memory in use is compressed memory.

/// A process that has fewer frames has no compressed memory: it needs them for what it touches.
const LEAST: u64 = 8;

/// Frames of compressed memory that a process may have that is charged `charged` frames, of which
/// `percent` of a hundred may be.
pub fn most(charged: u64, percent: u64) -> u64 {
    match charged {
        0..LEAST => 0,
        _ => charged * percent.min(90) / 100,
    }
}

/// Frames kept empty in advance, of `most`, so that pages can be stored while others are written
/// back.
pub fn stock(most: u64) -> u64 {
    (most / 16).clamp(1, 8).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_process_has_none_and_a_large_one_its_part() {
        assert_eq!((most(7, 50), most(8, 50), most(1000, 30)), (0, 4, 300));
        assert_eq!((stock(0), stock(4), stock(32), stock(1000)), (0, 1, 2, 8));
    }
}
