//! Nodes (NUMA): which there are, where a thread is, and on which node the memory of a unit or a
//! place is.
//!
//! Memory comes from the node of the processor that first touches it: the kernel sees to that. The
//! engine hands out recycled frames to threads that are near ([`hugeswap_policy::numa`]): so each
//! unit and each place has a byte that says on which node its frame is. The byte is what the kernel
//! reports (move_pages) when a frame becomes free or a unit is watched; before that, and where the
//! kernel does not report it, the node of the processor that touched the frame first. The byte of a
//! unit in swap says where the unit was, or is wanted.
//!
//! On a machine of one node there are no such bytes, and the kernel is asked nothing.
//! `debug.numa_fake` pretends nodes: processors are divided among them, and memory is on the node
//! of the processor that touched it first.
//!
//! Concurrency: the owner of the lock of a unit, or of a place, changes its byte. A thread that
//! reads a byte without that may find what was true before.

use crate::zeroed::Zeroed;
use hugeswap_policy::defrag::frames::Here;
use hugeswap_policy::numa::{self, LOCAL_DISTANCE, MAX_NODES, REMOTE_DISTANCE, Zonelists};
use hugeswap_sys::{Result, mm, process};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// Lines of free frames in all at most: to know how many are free takes a look at each.
const MOST_LINES: usize = 32;
/// Lines for each node at most.
const MOST_SHARDS: usize = 8;

/// The nodes of the machine, and on which of them the memory of units and places is.
pub(crate) struct Numa {
    zonelists: Zonelists,
    shards: usize,
    cpus: usize,
    fake: bool,
    /// Can it be known without a system call where a thread is?
    fast: bool,
    /// The kernel's numbers of the nodes, ascending.
    ids: Box<[usize]>,
    /// The nodes of units and places, where there are several.
    units: Zeroed<AtomicU8>,
    places: Zeroed<AtomicU8>,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Numa {
    /// The machine's nodes, or `fake` ones.
    pub fn new(fake: usize, units: u32, places: u32) -> Result<Numa> {
        let online = read("/sys/devices/system/cpu/online");
        let cpus = numa::numbers(&online).max().map_or(1, |last| last + 1);
        let (zonelists, ids) = match fake {
            0 => machine(),
            n => {
                let distance = |a, b| {
                    if a == b {
                        LOCAL_DISTANCE
                    } else {
                        REMOTE_DISTANCE
                    }
                };
                (Zonelists::new(n, distance), Box::from([]))
            }
        };
        let nodes = zonelists.nodes();
        let several = |n: u32| if nodes > 1 { n as usize } else { 0 };
        Ok(Numa {
            shards: (cpus / nodes).clamp(1, MOST_SHARDS.min(MOST_LINES / nodes)),
            zonelists,
            cpus,
            fake: fake != 0,
            fast: (0..3).any(|_| process::cpu_and_node_fast() == Some(process::cpu_and_node())),
            ids,
            units: Zeroed::new(several(units))?,
            places: Zeroed::new(several(places))?,
        })
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.zonelists.nodes()
    }

    fn several(&self) -> bool {
        self.nodes() > 1
    }

    /// Lines of free frames for each.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The node on which the calling thread runs.
    pub fn here(&self) -> Here {
        if !self.several() && self.shards == 1 {
            return Here::default();
        }
        let fast = if self.fast {
            process::cpu_and_node_fast()
        } else {
            None
        };
        let (cpu, node) = fast.unwrap_or_else(process::cpu_and_node);
        let node = match self.nodes() {
            1 => 0,
            nodes if self.fake => numa::divided(cpu as usize, self.cpus, nodes),
            _ => self.index(node as usize).unwrap_or(0),
        };
        Here {
            node,
            shard: (cpu as usize % self.shards) as u8,
        }
    }

    fn index(&self, id: usize) -> Option<u8> {
        self.ids.iter().position(|&i| i == id).map(|i| i as u8)
    }

    /// The machine's number of a node.
    pub fn number(&self, node: u8) -> usize {
        let node = usize::from(node);
        self.ids.get(node).copied().unwrap_or(node)
    }

    /// The nodes that one of `node` asks for a frame, in this order.
    pub fn near(&self, node: u8) -> &[u8] {
        self.zonelists.near(node)
    }

    /// The nodes in the order in which one of `node` does without their frames.
    pub fn far(&self, node: u8) -> &[u8] {
        self.zonelists.far(node)
    }

    /// The node of the frame at a place.
    pub fn of_place(&self, place: u32) -> u8 {
        self.places
            .get(place as usize)
            .map_or(0, |b| b.load(Relaxed))
    }

    /// The node of a unit's frame, or where it was or is wanted.
    pub fn of_unit(&self, unit: u32) -> u8 {
        self.units.get(unit as usize).map_or(0, |b| b.load(Relaxed))
    }

    /// The frame at `place` is, or will be, on `node`.
    pub fn set_place(&self, place: u32, node: u8) {
        if let Some(b) = self.places.get(place as usize) {
            b.store(node, Relaxed);
        }
    }

    /// The same of a unit.
    pub fn set_unit(&self, unit: u32, node: u8) {
        if let Some(b) = self.units.get(unit as usize) {
            b.store(node, Relaxed);
        }
    }

    /// Has the kernel say where the frame at a place is, at `at`.
    pub fn ask_place(&self, place: u32, at: usize) {
        if let Some(node) = self.ask(at) {
            self.set_place(place, node);
        }
    }

    /// The same of a unit.
    pub fn ask_unit(&self, unit: u32, at: usize) {
        if let Some(node) = self.ask(at) {
            self.set_unit(unit, node);
        }
    }

    fn ask(&self, at: usize) -> Option<u8> {
        if !self.several() || self.fake {
            return None;
        }
        self.index(mm::node_of(at)?)
    }
}

/// The machine's nodes.
fn machine() -> (Zonelists, Box<[usize]>) {
    const NODES: &str = "/sys/devices/system/node";
    let online = read(&format!("{NODES}/online"));
    let ids: Vec<usize> = numa::numbers(&online).take(MAX_NODES + 1).collect();
    if ids.len() > MAX_NODES {
        return (Zonelists::one(), Box::from([]));
    }
    let rows: Vec<Vec<u8>> = ids
        .iter()
        .map(|id| {
            let row = read(&format!("{NODES}/node{id}/distance"));
            row.split_ascii_whitespace()
                .map(|d| d.parse().unwrap_or(u8::MAX))
                .collect()
        })
        .collect();
    let distance = |a: usize, b: usize| match rows.get(a).and_then(|r| r.get(b)) {
        Some(&d) => d,
        None if a == b => LOCAL_DISTANCE,
        None => REMOTE_DISTANCE,
    };
    (Zonelists::new(ids.len(), distance), ids.into())
}
