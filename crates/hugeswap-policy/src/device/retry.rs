//! When a transfer that failed is tried again.

/// Milliseconds of rest before each further attempt: what a device gets over by itself it gets over soon, and a program
/// may be waiting.
const RESTS_MS: [u64; 3] = [1, 4, 16];
/// Attempts at one transfer.
pub const ATTEMPTS: u32 = 1 + RESTS_MS.len() as u32;

/// Nanoseconds to wait after attempt number `attempt` (from 0) has failed; `None`: no more.
pub fn rest_ns(attempt: u32) -> Option<u64> {
    let ms = RESTS_MS.get(attempt as usize)?;
    Some(ms * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rest_is_longer_and_they_end() {
        let rests: Vec<_> = (0..).map_while(rest_ns).collect();
        assert_eq!(rests.len() as u32 + 1, ATTEMPTS);
        assert!(rests.windows(2).all(|w| w[0] < w[1]));
        assert!(rests.iter().sum::<u64>() < 50_000_000, "a program waits");
        assert_eq!(rest_ns(u32::MAX), None);
        // What is called transient is got over.
        const { assert!(ATTEMPTS > crate::device::faulty::LONGEST) };
    }
}
