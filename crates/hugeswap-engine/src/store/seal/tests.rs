use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn cipher(key: u8) -> Cipher {
    let made = Cipher::new(|k| {
        k.fill(key);
        true
    });
    made.unwrap().unwrap()
}

fn seal() -> Seal {
    Seal {
        nonce: AtomicU64::new(0),
        tag: [const { AtomicU64::new(0) }; 2],
    }
}

/// A page that reads back as what was written to its place, and as nothing else.
#[test]
fn a_page_is_bound_to_key_place_time_and_bytes() {
    let (c, kept, place) = (cipher(1), seal(), (2, 7 * 4096));
    let plain: Vec<u8> = (0..PAGE).map(|i| (i * 7) as u8).collect();
    let mut page = plain.clone();
    assert!(
        !c.open(place, &mut page.clone(), &kept),
        "nothing was written"
    );
    assert!(c.seal(5, place, &mut page, &kept));
    assert_ne!(page, plain);
    assert!(!c.open(place, &mut page.clone(), &kept), "not done yet");
    Cipher::done(5, &kept);
    let stored = page.clone();
    let opens = |c: &Cipher, place, bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        c.open(place, &mut bytes, &kept).then_some(bytes)
    };
    assert_eq!(opens(&c, place, &stored), Some(plain.clone()));
    assert_eq!(opens(&c, (1, 7 * 4096), &stored), None, "another area");
    assert_eq!(opens(&c, (2, 8 * 4096), &stored), None, "another place");
    assert_eq!(opens(&cipher(2), place, &stored), None, "another key");
    for at in [0, 1, 2047, PAGE - 1] {
        let mut bent = stored.clone();
        bent[at] ^= 0x40;
        assert_eq!(opens(&c, place, &bent), None, "{at}");
    }
    // Written again with the same bytes: another number, other bytes in swap, and the old ones are
    // of no use.
    let mut page = plain.clone();
    assert!(c.seal(6, place, &mut page, &kept));
    Cipher::done(6, &kept);
    assert_ne!(page, stored);
    assert_eq!(opens(&c, place, &stored), None, "a replay");
    let mut torn = page.clone();
    torn[2048..].copy_from_slice(&stored[2048..]);
    assert_eq!(opens(&c, place, &torn), None, "half of it");
    assert_eq!(opens(&c, place, &page), Some(plain));
    kept.forget();
    assert_eq!(opens(&c, place, &page), None);
}

#[test]
fn no_key_no_cipher() {
    assert!(Cipher::new(|_| false).unwrap().is_none());
}

/// The page of a cipher, before and after it is wiped.
#[test]
fn what_held_the_key_is_wiped() {
    let c = cipher(0x5e);
    // SAFETY: the cipher's own page.
    let page = unsafe { std::slice::from_raw_parts(c.at as *const u8, PAGE) };
    let raw = [0x5e; KEY_BYTES];
    assert!(page[..CIPHER_AT].iter().all(|&b| b == 0), "the key's copy");
    // The first of the round keys are the key.
    assert!(page.windows(KEY_BYTES).any(|w| w == raw));
    // SAFETY: as in Drop; nobody uses the cipher any more.
    unsafe { wipe(c.at, PAGE) };
    assert!(page.iter().all(|&b| b == 0));
}

#[test]
fn writers_that_are_used_up_are_refused() {
    let writers = AtomicU32::new(u32::MAX - 1);
    let (a, b) = (Nonces::new().unwrap(), Nonces::new().unwrap());
    assert_eq!(a.take(1, &writers), Some(0xffff_ffff << 32));
    assert_eq!(b.take(1, &writers), None);
    assert_eq!(writers.load(Relaxed), u32::MAX);
    assert_eq!(a.take(512, &writers), Some((0xffff_ffff << 32) + 1));
    // And the last writer's own numbers.
    a.next().store(u64::MAX - 100, Relaxed);
    assert_eq!(a.take(100, &writers), Some(u64::MAX - 100));
    assert_eq!(a.take(1, &writers), None);
}

#[test]
fn a_forked_child_counts_for_itself() {
    let writers = AtomicU32::new(0);
    let n = Nonces::new().unwrap();
    assert_eq!(n.take(3, &writers), Some(1 << 32));
    // By the bare system call, as a program may.
    // SAFETY: the child only looks, and ends.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    if pid == 0 {
        // (Of its own copy of the count, in this test.)
        let good = n.take(3, &writers) == Some(2 << 32);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(n.take(1, &writers), Some((1 << 32) + 3));
}

proptest! {
    /// Several processes, with several threads each, that begin anywhere, and one that is forked
    /// now and then.
    #[test]
    fn no_number_is_had_twice(
        starts in prop::collection::vec(0u64..1024, 3),
        takes in prop::collection::vec(prop::collection::vec(1u64..=512, 0..40), 6),
    ) {
        let writers = AtomicU32::new(0);
        let processes: Vec<_> = starts.iter().map(|&left| {
            let n = Nonces::new().unwrap();
            n.take(1, &writers).unwrap();
            // Near its end.
            n.next().store((n.next().load(Relaxed) | LOW) - left, Relaxed);
            n
        }).collect();
        let got: Vec<Vec<(u64, u64)>> = std::thread::scope(|s| {
            let threads: Vec<_> = takes.iter().enumerate().map(|(i, takes)| {
                let (n, writers) = (&processes[i % 3], &writers);
                s.spawn(move || takes.iter().map(|&k| {
                    if k == 7 {
                        // As the kernel does at a fork.
                        n.next().store(0, Relaxed);
                    }
                    (n.take(k, writers).unwrap(), k)
                }).collect())
            }).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let mut seen = HashSet::new();
        for (first, k) in got.into_iter().flatten() {
            prop_assert_eq!(first >> 32, (first + k - 1) >> 32, "never across writers");
            for number in first..first + k {
                prop_assert!(number != 0 && seen.insert(number), "{:x} twice", number);
            }
        }
    }
}
