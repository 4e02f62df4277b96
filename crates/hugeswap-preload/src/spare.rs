//! Freed blocks that stay mapped for the next request of about their length. A fresh block costs a
//! fault and two megabytes of zeros, and many programs free and allocate in turn.
//!
//! There are few of them and they are short, because reclaim has to carry their unused memory. This
//! is plain data: the owner locks it.

/// The most blocks that are kept.
const SPARES: usize = 16;
/// Length in bytes of the longest block that is kept.
const LONGEST: usize = 16 << 20;

/// A block: address and mapped length.
pub type Block = (usize, usize);

/// The freed blocks that are kept mapped.
pub struct Spares {
    /// Oldest first.
    list: [Block; SPARES],
    n: usize,
    bytes: usize,
}

/// Blocks that are no longer kept, which the caller has to unmap.
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
    /// An empty set of blocks.
    pub const fn new() -> Spares {
        Spares {
            list: [(0, 0); SPARES],
            n: 0,
            bytes: 0,
        }
    }

    /// Takes a block of at least `len` bytes, and not much more, at a multiple of `align`; the
    /// newest first.
    pub fn take(&mut self, len: usize, align: usize) -> Option<Block> {
        let fits = |&(at, l): &Block| l >= len && l - len <= len / 8 && at.is_multiple_of(align);
        let i = self.list[..self.n].iter().rposition(fits)?;
        Some(self.remove(i))
    }

    /// Keeps `block` so that all blocks together stay within `limit` bytes; false if it is not
    /// kept. Blocks that have to make room for it are added to `gone`, which must be empty.
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

    /// Removes and returns all blocks.
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
