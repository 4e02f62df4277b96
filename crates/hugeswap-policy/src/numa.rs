//! Which NUMA node a frame is taken from.
//!
//! A frame is wanted on a node: that of the processor that touches it, or a given one. If that node
//! has no free frame, the others are asked by distance, in the order of the kernel's zonelists: the
//! nearest first, and of nodes at equal distance the next in number first, so that requests from
//! different nodes do not all fall back to the same. A request with
//! [`Gfp::THISNODE`](crate::defrag::gfp::Gfp::THISNODE) asks no other node.
//!
//! The budget and the watermarks are not divided among nodes: kswapd wakes when the pool is short,
//! not when a node is. (The kernel has watermarks for each zone, since a full node there limits
//! what a process can have elsewhere; here it does not.)

use crate::counters::Counter;

/// Largest number of nodes that are told apart; more are treated as one.
pub const MAX_NODES: usize = 16;
/// Distance of a node to itself.
pub const LOCAL_DISTANCE: u8 = 10;
/// Distance that is assumed between two nodes.
pub const REMOTE_DISTANCE: u8 = 20;

/// The order in which nodes are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zonelists {
    nodes: usize,
    near: [[u8; MAX_NODES]; MAX_NODES],
    far: [[u8; MAX_NODES]; MAX_NODES],
}

impl Zonelists {
    /// The orders of `nodes` nodes. `distance(a, b)` is how far memory of `b` is from processors of
    /// `a`.
    pub fn new(nodes: usize, distance: impl Fn(usize, usize) -> u8) -> Zonelists {
        let nodes = if nodes > MAX_NODES { 1 } else { nodes.max(1) };
        let (mut near, mut far) = ([[0; MAX_NODES]; MAX_NODES], [[0; MAX_NODES]; MAX_NODES]);
        for node in 0..nodes {
            let order = &mut near[node][..nodes];
            order.iter_mut().zip(0..).for_each(|(o, n)| *o = n);
            order.sort_by_key(|&n| {
                let n = usize::from(n);
                let after = (n + nodes - node) % nodes;
                // The node itself is first, whatever the table says.
                (n != node, distance(node, n), after)
            });
            far[node] = near[node];
            far[node][..nodes].reverse();
        }
        Zonelists { nodes, near, far }
    }

    /// The order of one node.
    pub fn one() -> Zonelists {
        Zonelists::new(1, |_, _| LOCAL_DISTANCE)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The nodes that a request of `node` asks for a frame: itself, then the nearest, and so on.
    pub fn near(&self, node: u8) -> &[u8] {
        &self.near[usize::from(node) % self.nodes][..self.nodes]
    }

    /// The nodes in the order in which `node` gives up their frames: the farthest first.
    pub fn far(&self, node: u8) -> &[u8] {
        &self.far[usize::from(node) % self.nodes][..self.nodes]
    }
}

/// The kernel's counters for a frame of node `got` that was wanted on node `wanted` by a processor
/// of node `here`.
pub fn events(wanted: u8, got: u8, here: u8) -> impl Iterator<Item = Counter> {
    let (hit, local) = (wanted == got, here == got);
    [
        (hit, Counter::NumaHit),
        (!hit, Counter::NumaMiss),
        (!hit, Counter::NumaForeign),
        (local, Counter::NumaLocal),
        (!local, Counter::NumaOther),
    ]
    .into_iter()
    .filter_map(|(is, c)| is.then_some(c))
}

/// The node of processor `cpu` of `cpus`, if neighbours are divided evenly among so many nodes.
pub const fn divided(cpu: usize, cpus: usize, nodes: usize) -> u8 {
    match cpus {
        0 => 0,
        _ => (cpu % cpus * nodes / cpus) as u8,
    }
}

/// The numbers in a list in the format of sysfs: `0-2,5`.
pub fn numbers(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1).min(1 << 16),
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[u8]]) -> Zonelists {
        Zonelists::new(rows.len(), |a, b| rows[a][b])
    }

    fn all(z: &Zonelists) -> Vec<Vec<u8>> {
        (0..z.nodes() as u8).map(|n| z.near(n).to_vec()).collect()
    }

    #[test]
    fn two_nodes() {
        let z = table(&[&[10, 21], &[21, 10]]);
        assert_eq!(all(&z), [[0, 1], [1, 0]]);
        assert_eq!((z.far(0), z.far(1)), (&[1, 0][..], &[0, 1][..]));
    }

    #[test]
    fn four_sockets_in_a_ring() {
        let z = table(&[
            &[10, 20, 30, 20],
            &[20, 10, 20, 30],
            &[30, 20, 10, 20],
            &[20, 30, 20, 10],
        ]);
        // Of the two neighbours the next one first; the opposite node last.
        assert_eq!(
            all(&z),
            [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
        );
        assert_eq!(z.far(0), [2, 3, 1, 0]);
    }

    /// Two sockets of two nodes with processors each, and slow memory (CXL) at each socket.
    #[test]
    fn memory_without_processors_comes_last() {
        let z = table(&[
            &[10, 12, 21, 21, 24, 26],
            &[12, 10, 21, 21, 24, 26],
            &[21, 21, 10, 12, 26, 24],
            &[21, 21, 12, 10, 26, 24],
            &[24, 24, 26, 26, 10, 28],
            &[26, 26, 24, 24, 28, 10],
        ]);
        assert_eq!(z.near(0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(z.near(1), [1, 0, 2, 3, 4, 5]);
        assert_eq!(z.near(2), [2, 3, 0, 1, 5, 4]);
        assert_eq!(z.near(3), [3, 2, 0, 1, 5, 4]);
        assert_eq!(z.near(5), [5, 2, 3, 0, 1, 4]);
    }

    /// Firmware may give different distances for the two directions.
    #[test]
    fn asymmetric_distances_are_taken_as_they_are() {
        let z = table(&[&[10, 40, 20], &[20, 10, 40], &[40, 20, 10]]);
        assert_eq!(all(&z), [[0, 2, 1], [1, 0, 2], [2, 1, 0]]);
    }

    #[test]
    fn eight_equal_nodes_do_not_all_fall_back_to_one() {
        let z = Zonelists::new(8, |a, b| if a == b { 10 } else { 20 });
        let mut second = (0..8).map(|n| z.near(n)[1]).collect::<Vec<_>>();
        second.sort_unstable();
        assert_eq!(second, (0..8).collect::<Vec<_>>());
        assert_eq!(z.near(6), [6, 7, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn every_node_is_asked_once_and_itself_first() {
        // Nonsense in the table changes at most the order.
        for nodes in 1..=MAX_NODES {
            let z = Zonelists::new(nodes, |a, b| (a * 7 + b * 13) as u8);
            for n in 0..nodes as u8 {
                assert_eq!(z.near(n)[0], n);
                let mut sorted = z.near(n).to_vec();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..nodes as u8).collect::<Vec<_>>());
                assert!(z.near(n).iter().rev().eq(z.far(n)));
            }
        }
        assert_eq!(Zonelists::new(MAX_NODES + 1, |_, _| 10), Zonelists::one());
        assert_eq!(Zonelists::new(0, |_, _| 10), Zonelists::one());
    }

    #[test]
    fn counted_as_the_kernel_counts() {
        use Counter::*;
        let of = |wanted, got, here| events(wanted, got, here).collect::<Vec<_>>();
        assert_eq!(of(0, 0, 0), [NumaHit, NumaLocal]);
        // The request fell back from here to there.
        assert_eq!(of(0, 1, 0), [NumaMiss, NumaForeign, NumaOther]);
        // The request wanted that node from here.
        assert_eq!(of(1, 1, 0), [NumaHit, NumaOther]);
        assert_eq!(of(1, 0, 0), [NumaMiss, NumaForeign, NumaLocal]);
    }

    #[test]
    fn processors_are_divided() {
        let of = |cpus, nodes| {
            (0..cpus)
                .map(|c| divided(c, cpus, nodes))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(2, 2), [0, 1]);
        assert_eq!(of(8, 2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(of(3, 2), [0, 0, 1]);
        assert_eq!(of(2, 4), [0, 2], "two nodes of memory only");
        assert_eq!(divided(5, 2, 2), 1);
        assert_eq!(divided(5, 0, 2), 0);
    }

    #[test]
    fn lists_of_sysfs() {
        let of = |list| numbers(list).collect::<Vec<_>>();
        assert_eq!(of("0\n"), [0]);
        assert_eq!(of("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(of("\n"), []);
        assert_eq!(of("x,3,7-"), [3]);
    }
}
