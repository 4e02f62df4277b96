//! What would become of a program under `hugeswap run`, as far as its files tell: how it gets the
//! object, and what of its memory is managed. It is not run.

use super::{Check, Mark};
use crate::run::preflight::{self, Found, Parts, Way};
use crate::text;
use hugeswap_policy::knobs::Knob;
use std::ffi::OsStr;

/// Allocators that map their own arenas, by the beginnings of their libraries' names.
const ALLOCATORS: [(&str, &str); 4] = [
    ("libjemalloc.so", "jemalloc"),
    ("libmimalloc", "mimalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libsnmalloc", "snmalloc"),
];
/// What finds out the rest.
const TRY: &str = "run it once with a --memory that holds everything, and read \"peak not managed\" in the report";

/// The lines of the table for the program of this name.
pub fn checks(name: &OsStr) -> Vec<Check> {
    let found = match preflight::find(name) {
        Ok(found) => found,
        Err(e) => {
            let why = format!("hugeswap run refuses it: {e:#}");
            return vec![Check::new("program", Mark::No, why).required()];
        }
    };
    let parts = preflight::parts(&found.program);
    vec![way(&found, &parts), memory(&found, &parts)]
}

/// How it gets the object.
fn way(found: &Found, parts: &Parts) -> Check {
    let path = found.path.display();
    let script = match found.program == found.path {
        true => String::new(),
        false => format!(", a script for {}", found.program.display()),
    };
    let check = match found.way {
        Way::Preloaded => {
            let finding =
                format!("{path}{script}: dynamically linked, its loader preloads the object");
            Check::new("program", Mark::Ok, finding)
        }
        Way::Loaded => {
            let go = if parts.is_go { " (Go)" } else { "" };
            let finding = format!(
                "{path}: statically linked{go} or for musl, loaded with the object; in signal mode only, as are programs that it starts"
            );
            Check::new("program", Mark::Ok, finding)
        }
    };
    check
        .detail("path", found.path.display().to_string())
        .detail("libraries", parts.libraries.clone())
}

/// What of its memory is managed.
fn memory(found: &Found, parts: &Parts) -> Check {
    const NAME: &str = "its memory";
    let mappings = text::bytes(Knob::MmapMin.default_value());
    let blocks = text::bytes(Knob::MallocMin.default_value());
    let managed = format!("mappings from {mappings} on, and heaps that it reserves, are managed");
    let allocator = ALLOCATORS
        .iter()
        .find(|(library, _)| parts.libraries.iter().any(|l| l.starts_with(library)));
    if found.way == Way::Loaded && !parts.is_go {
        let finding = format!("{managed}; small blocks of its own malloc (brk) are not");
        return Check::new(NAME, Mark::Warn, finding).improve(TRY);
    }
    if found.way == Way::Loaded {
        return Check::new(NAME, Mark::Ok, format!("{managed}, and so is Go's heap"));
    }
    if let Some((_, name)) = allocator {
        let finding = format!("{managed}, and so is what its allocator, {name}, maps");
        return Check::new(NAME, Mark::Ok, finding);
    }
    let finding = format!(
        "{managed}, and blocks of malloc from {blocks} on; smaller ones once the process has much memory in them"
    );
    Check::new(NAME, Mark::Ok, finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn of(way: Way, parts: Parts) -> Check {
        let path = PathBuf::from("/bin/x");
        let program = path.clone();
        let found = Found {
            path,
            way,
            program,
            before: Vec::new(),
        };
        memory(&found, &parts)
    }

    #[test]
    fn what_is_managed_follows_from_the_parts() {
        let plain = of(Way::Preloaded, Parts::default());
        assert!(plain.finding.contains("smaller ones once"), "{plain:?}");
        assert_eq!(plain.status, Mark::Ok);
        let libraries = vec!["libc.so.6".to_owned(), "libjemalloc.so.2".to_owned()];
        let own = of(
            Way::Preloaded,
            Parts {
                libraries,
                is_go: false,
            },
        );
        assert!(
            own.finding.contains("jemalloc") && own.status == Mark::Ok,
            "{own:?}"
        );
        let fixed = of(Way::Loaded, Parts::default());
        assert!(fixed.finding.contains("(brk) are not"), "{fixed:?}");
        let go = Parts {
            is_go: true,
            ..Parts::default()
        };
        assert_eq!(of(Way::Loaded, go).status, Mark::Ok);
    }

    #[test]
    fn what_is_refused_is_required() {
        let lines = checks(OsStr::new("/no/such/program"));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].required && lines[0].status == Mark::No);
        assert!(lines[0].finding.contains("does not exist"), "{lines:?}");
        let lines = checks(OsStr::new("/bin/sh"));
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].status, Mark::Ok);
    }
}
