//! Fills and checks four times the memory it is allowed to use.
//!
//! `cargo run --release -p hugeswap --example overcommit`

use hugeswap::Pool;

fn main() -> Result<(), hugeswap::Error> {
    let budget: usize = 128 << 20;
    let pool = Pool::builder().memory(budget as u64).build()?;
    let mut region = pool.region(4 * budget)?;

    let value = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    for (i, word) in region.as_mut_slice().chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&value(i));
    }
    for (i, word) in region.as_slice().chunks_exact(8).enumerate() {
        assert_eq!(word, value(i), "word {i}");
    }

    let s = pool.stats();
    println!(
        "checked {} MiB with a budget of {} MiB: never more than {} MiB resident, {} MiB out, {} MiB in",
        region.len() >> 20,
        budget >> 20,
        s.peak_resident_bytes >> 20,
        (s.pswpout * 4096) >> 20,
        (s.pswpin * 4096) >> 20,
    );
    Ok(())
}
