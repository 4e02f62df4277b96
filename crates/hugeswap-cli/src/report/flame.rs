//! Stacks as a tree: what calls what, and how many faults were under it.

use crate::record::file::{Frame, Stacks};
use serde_json::{Value, json};
use std::path::Path;

/// Deepest line of the picture.
const DEEPEST: usize = 96;
/// What has less of the faults, and of their time, than one part in so many is left out.
const LEAST: u64 = 2000;

#[derive(Default)]
struct Node {
    faults: u64,
    ns: u64,
    children: Vec<(String, Node)>,
}

impl Node {
    fn child(&mut self, name: &str) -> &mut Node {
        let at = self.children.iter().position(|(n, _)| n == name);
        let at = at.unwrap_or_else(|| {
            self.children.push((name.to_owned(), Node::default()));
            self.children.len() - 1
        });
        &mut self.children[at].1
    }

    fn add(&mut self, faults: u64, ns: u64) {
        self.faults = self.faults.saturating_add(faults);
        self.ns = self.ns.saturating_add(ns);
    }

    fn json(&self, name: &str, least: (u64, u64)) -> Value {
        let mut children: Vec<_> = { self.children.iter() }
            .filter(|(_, n)| n.faults > least.0 || n.ns > least.1)
            .collect();
        children.sort_by(|a, b| a.0.cmp(&b.0));
        let children = children.iter().map(|(name, n)| n.json(name, least));
        json!({
            "name": name, "faults": self.faults, "time": self.ns as f64 / 1e9,
            "children": children.collect::<Vec<_>>(),
        })
    }
}

/// The tree, the outermost function first.
pub fn tree(stacks: &Stacks) -> Value {
    let named: Vec<Vec<String>> = stacks.frames.iter().map(names).collect();
    let mut root = Node::default();
    for (frames, faults, ns) in &stacks.stacks {
        root.add(*faults, *ns);
        let mut node = &mut root;
        let outermost_first = frames.iter().rev().flat_map(|&f| named[f as usize].iter());
        for name in outermost_first.take(DEEPEST) {
            node = node.child(name);
            node.add(*faults, *ns);
        }
    }
    root.json("all faults", (root.faults / LEAST, root.ns / LEAST))
}

/// The functions of a frame, the outermost first.
fn names(frame: &Frame) -> Vec<String> {
    if frame.names.is_empty() {
        let file = Path::new(&frame.module).file_name();
        let file = file.map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        return vec![match frame.module.starts_with('/') {
            true => format!("{file}+{:#x}", frame.at),
            // (Functions that a runtime has compiled are many, and have no names.)
            false => "code without a file".to_owned(),
        }];
    }
    frame.names.iter().rev().map(|n| short(n)).collect()
}

/// A name without what is between angle brackets, where it is long.
fn short(name: &str) -> String {
    const LONG: usize = 60;
    if name.len() <= LONG {
        return name.to_owned();
    }
    let (mut out, mut depth) = (String::new(), 0u32);
    for (i, c) in name.char_indices() {
        match c {
            // (`<T as Trait>::f` begins with one: what it is stays.)
            '<' if i > 0 => {
                if depth == 0 {
                    out.push_str("<\u{2026}>");
                }
                depth += 1;
            }
            '>' if depth > 0 => depth -= 1,
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    match out.char_indices().nth(200) {
        Some((end, _)) => format!("{}\u{2026}", &out[..end]),
        None => out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(module: &str, at: u64, names: &[&str]) -> Frame {
        Frame {
            module: module.into(),
            at,
            names: names.iter().map(|&n| n.into()).collect(),
        }
    }

    #[test]
    fn what_is_called_stands_under_what_calls_it() {
        let stacks = Stacks {
            frames: vec![
                frame("/x", 1, &["inlined", "f"]),
                frame("/x", 2, &["main"]),
                frame("/lib/y.so", 48, &[]),
                frame("77", 5, &[]),
                // The same function at another place.
                frame("/x", 9, &["main"]),
            ],
            stacks: vec![
                (vec![0, 1], 10, 1_000_000_000),
                (vec![2, 4], 5, 3_000_000_000),
                (vec![3], 1, 0),
            ],
        };
        let tree = tree(&stacks);
        assert_eq!(
            (tree["faults"].as_u64(), tree["time"].as_f64()),
            (Some(16), Some(4.0))
        );
        let names = |node: &Value| -> Vec<(String, u64)> {
            let of = node["children"].as_array().unwrap().iter();
            of.map(|c| {
                (
                    c["name"].as_str().unwrap().into(),
                    c["faults"].as_u64().unwrap(),
                )
            })
            .collect()
        };
        assert_eq!(
            names(&tree),
            [
                ("code without a file".to_owned(), 1),
                ("main".to_owned(), 15)
            ]
        );
        let main = &tree["children"][1];
        assert_eq!(
            names(main),
            [("f".to_owned(), 10), ("y.so+0x30".to_owned(), 5)]
        );
        assert_eq!(names(&main["children"][0]), [("inlined".to_owned(), 10)]);
    }

    #[test]
    fn long_names_are_shortened() {
        let long = "<alloc::vec::Vec<T> as core::iter::FromIterator<(u64, Vec<String>)>>::from_iter::<X<Y>>";
        assert_eq!(
            short(long),
            "<alloc::vec::Vec<\u{2026}> as core::iter::FromIterator<\u{2026}>>::from_iter::<\u{2026}>"
        );
        assert_eq!(short("f<T>"), "f<T>");
        assert!(short(&"ä".repeat(1000)).len() < 500);
    }
}
