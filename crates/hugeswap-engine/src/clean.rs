//! Units whose frames a fault may take at once: watched and clean, or read ahead and not used,
//! oldest first, by the node of their memory. An entry is a hint: a thread that takes a unit out
//! looks at its word.

use crossbeam_queue::ArrayQueue;

/// A queue for each node.
pub(crate) struct Clean(Box<[ArrayQueue<u32>]>);

impl Clean {
    /// With room for so many on each of `nodes`.
    pub fn new(nodes: usize, room: usize) -> Clean {
        Clean((0..nodes).map(|_| ArrayQueue::new(room)).collect())
    }

    /// Adds a unit, whose memory is on `node`; an error is that there is no room.
    pub fn push(&self, node: u8, unit: u32) -> Result<(), u32> {
        self.0[node as usize % self.0.len()].push(unit)
    }

    /// The oldest of the first of `nodes` that has any.
    pub fn pop(&self, nodes: &[u8]) -> Option<u32> {
        nodes.iter().find_map(|&n| self.0.get(n as usize)?.pop())
    }
}
