//! Freed blocks kept mapped for the next request of about their length: a fresh one costs a fault and two
//! megabytes of zeros, and many programs free and ask in turn.
//!
//! Few and short on purpose: what stands here unused is memory that reclaim has to carry. Plain data; the owner locks.

/// How many.
const SPARES: usize = 16;
/// The longest of them, bytes.
const LONGEST: usize = 16 << 20;

/// A block: address and mapped length.
pub type Block = (usize, usize);

/// See the file's head.
pub struct Spares {
    /// Oldest first.
    list: [Block; SPARES],
    n: usize,
    bytes: usize,
}

/// Blocks that have to go.
pub struct Gone {
    list: [Block; SPARES],
    n: usize,
}

impl Gone {
    /// No blocks.
    pub const NONE: Gone = Gone {
        list: [(0, 0); SPARES],
        n: 0,
    };

    /// The blocks.
    pub fn iter(&self) -> impl Iterator<Item = Block> {
        self.list[..self.n].iter().copied()
    }
}

impl Spares {
    /// None yet.
    pub const fn new() -> Spares {
        Spares {
            list: [(0, 0); SPARES],
            n: 0,
            bytes: 0,
        }
    }

    /// A block of at least `len` bytes, and not much more, at a multiple of `align`; the newest first.
    pub fn take(&mut self, len: usize, align: usize) -> Option<Block> {
        let fits = |&(at, l): &Block| l >= len && l - len <= len / 8 && at.is_multiple_of(align);
        let i = self.list[..self.n].iter().rposition(fits)?;
        Some(self.remove(i))
    }

    /// Keeps `block` while all together stay within `limit` bytes. False: it is not kept. What has to
    /// make room for it is added to `gone`, which must be empty.
    pub fn keep(&mut self, block: Block, limit: usize, gone: &mut Gone) -> bool {
        if block.1 > LONGEST.min(limit) {
            return false;
        }
        while self.n == SPARES || self.bytes + block.1 > limit {
            gone.list[gone.n] = self.remove(0);
            gone.n += 1;
        }
        self.list[self.n] = block;
        self.n += 1;
        self.bytes += block.1;
        true
    }

    /// Gives all of them up.
    pub fn drain(&mut self) -> Gone {
        let gone = Gone {
            list: self.list,
            n: self.n,
        };
        (self.n, self.bytes) = (0, 0);
        gone
    }

    fn remove(&mut self, i: usize) -> Block {
        let block = self.list[i];
        self.list.copy_within(i + 1..self.n, i);
        self.n -= 1;
        self.bytes -= block.1;
        block
    }
}
