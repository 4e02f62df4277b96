// A hash map of random keys, and a twentieth of them looked up; argument: how many.
use std::collections::HashMap;

fn next(x: u64) -> u64 {
    let x = x ^ x << 13;
    let x = x ^ x >> 7;
    x ^ x << 17
}

fn main() {
    let n: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(8_000_000);
    let mut map = HashMap::new();
    let mut x = 1;
    for i in 0..n {
        x = next(x);
        map.insert(x, i);
    }
    let (mut x, mut sum) = (1, 0u64);
    for _ in 0..n / 20 {
        x = next(x);
        sum = sum.wrapping_add(map[&x]);
    }
    println!("{} {sum}", map.len());
}
