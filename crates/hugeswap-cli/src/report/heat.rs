//! A map of addresses over time: how many pages came, or left, where and when.

use crate::record::file::Event;
use hugeswap_policy::UNIT_SHIFT;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::recording::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most lines and columns of the map.
const ROWS: usize = 192;
const COLUMNS: usize = 360;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    FromSwap,
    FirstTouched,
    Left,
}

impl Layer {
    const ALL: [(Layer, &'static str); 3] = [
        (Layer::FromSwap, "came from swap"),
        (Layer::FirstTouched, "touched for the first time"),
        (Layer::Left, "left memory"),
    ];

    /// The layer of something that happened, and how many pages it was.
    fn of(event: &Event) -> Option<(Layer, f64)> {
        let weight = f64::from(event.5);
        let is = |kind: Kind| event.2 == kind as u8;
        let class = |c: FaultClass| event.3 == c as u8;
        if is(Kind::Evicted) {
            return Some((Layer::Left, weight * f64::from(event.8)));
        }
        if !is(Kind::Fault) {
            return None;
        }
        match () {
            () if class(FaultClass::Major) => Some((Layer::FromSwap, 512.0 * weight)),
            () if class(FaultClass::Base) => Some((Layer::FromSwap, weight)),
            () if class(FaultClass::FirstTouch) => Some((Layer::FirstTouched, weight)),
            () => None,
        }
    }
}

/// The map of what happened in so many seconds.
pub fn map(events: &[Event], seconds: f64) -> Value {
    let unit = |e: &Event| e.7 >> UNIT_SHIFT;
    let counted = || events.iter().filter_map(|e| Some((e, Layer::of(e)?)));
    let units: BTreeSet<u64> = counted().map(|(e, _)| unit(e)).collect();
    let units: Vec<u64> = units.into_iter().collect();
    let rows = units.len().clamp(1, ROWS);
    let row = |e: &Event| {
        let index = units.partition_point(|&u| u < unit(e));
        index * rows / units.len().max(1)
    };
    let column = |e: &Event| {
        let at = e.0 as f64 / 1e6 / seconds.max(1e-6);
        ((at * COLUMNS as f64) as usize).min(COLUMNS - 1)
    };
    let layers = Layer::ALL.map(|(layer, name)| {
        let mut cells: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for (event, (_, pages)) in counted().filter(|(_, (l, _))| *l == layer) {
            *cells.entry((row(event), column(event))).or_default() += pages;
        }
        let cells = cells.iter().map(|(&(r, c), &n)| json!([r, c, n.round()]));
        json!({ "name": name, "cells": cells.collect::<Vec<_>>() })
    });
    let address = |row: usize| {
        // The first unit of the line.
        let first = (row * units.len()).div_ceil(rows);
        units
            .get(first)
            .map_or_else(String::new, |u| format!("{:#x}", u << UNIT_SHIFT))
    };
    json!({
        "rows": rows, "columns": COLUMNS, "seconds": seconds, "layers": layers,
        "addresses": (0..rows).map(address).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(us: u64, kind: Kind, detail: u8, weight: u32, unit: u64, pages: u32) -> Event {
        Event(
            us,
            0,
            kind as u8,
            detail,
            0,
            weight,
            1,
            unit << UNIT_SHIFT,
            pages,
        )
    }

    #[test]
    fn what_happened_is_where_it_was() {
        let base = FaultClass::Base as u8;
        let far = 1 << 25;
        let events = [
            event(0, Kind::Fault, base, 10, far, 0),
            event(9_999_999, Kind::Fault, base, 1, far, 0),
            event(
                5_000_000,
                Kind::Fault,
                FaultClass::Major as u8,
                2,
                far + 9,
                0,
            ),
            event(5_000_000, Kind::Evicted, 0, 3, 7, 100),
            event(20_000_000, Kind::Fault, FaultClass::Soft as u8, 3, 1, 100),
        ];
        let map = map(&events, 10.0);
        assert_eq!(map["rows"], 3);
        assert_eq!(map["addresses"][1], "0x400000000000");
        assert_eq!(
            map["layers"][0]["cells"].to_string(),
            "[[1,0,10.0],[1,359,1.0],[2,180,1024.0]]"
        );
        assert_eq!(map["layers"][1]["cells"].to_string(), "[]");
        assert_eq!(map["layers"][2]["cells"].to_string(), "[[0,180,300.0]]");
    }

    #[test]
    fn many_addresses_are_few_lines() {
        let events: Vec<_> = (0..5000)
            .map(|i| event(i, Kind::Evicted, 0, 1, i * 3, 1))
            .collect();
        let map = map(&events, 0.005);
        assert_eq!(map["rows"], 192);
        let cells = map["layers"][2]["cells"].as_array().unwrap();
        let rows: BTreeSet<_> = cells.iter().map(|c| c[0].as_u64().unwrap()).collect();
        assert_eq!(rows.len(), 192);
        let none = super::map(&[], 0.0);
        assert_eq!(
            (&none["rows"], &none["addresses"][0]),
            (&json!(1), &json!(""))
        );
    }
}
