//! When a transfer that failed is tried again.

/// Milliseconds before each further attempt. They are few: a device recovers soon from what it
/// recovers from by itself, and a program may be waiting.
const RESTS_MS: [u64; 3] = [1, 4, 16];
/// Number of attempts at one transfer.
pub const ATTEMPTS: u32 = 1 + RESTS_MS.len() as u32;

/// Nanoseconds to wait after attempt number `attempt` (from 0) failed, or `None` to give up.
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
        // A fault that is called transient is over by then.
        const { assert!(ATTEMPTS > crate::device::faulty::LONGEST) };
    }
}
