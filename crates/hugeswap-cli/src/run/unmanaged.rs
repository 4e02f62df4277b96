//! The part of the report about memory that was not managed, about processes that the object was not in,
//! and about processes that are left in the background.

use super::footprint::{Member, Unmanaged};
use crate::explain::Message;
use crate::text;
use hugeswap_engine::pool::Report;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The smallest value of `route.malloc_min`: smaller requests are never managed.
const LEAST: u64 = 128 << 10;
/// Memory that is not managed causes a warning from this fraction of the budget (1/N) on.
const WORTH_A_WARNING: u64 = 10;

/// Which requests of a program's are managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// Those for so many bytes or more.
    From(u64),
    /// Large ones, and small ones in processes that have much memory in them.
    SmallLater,
    /// Small ones, too.
    All,
    /// What a program that was attached has, and large ones from then on.
    Attached,
}

/// The fields of the JSON, beside `peak_unmanaged_bytes`.
pub fn json(seen: &Unmanaged) -> [(&'static str, Value); 4] {
    let list = |members: &[Member]| Value::Array(members.iter().map(member).collect());
    [
        (
            "unmanaged",
            json!({"shared_bytes": seen.shared_bytes, "processes": list(&seen.holders)}),
        ),
        ("outside", list(&seen.outsiders)),
        ("left_running", list(&seen.left)),
        ("own_bytes", seen.own_bytes.into()),
    ]
}

fn member(m: &Member) -> Value {
    json!({
        "pid": m.pid, "program": m.program.to_string_lossy(), "bytes": m.bytes, "joined": m.joined, "why": m.why,
    })
}

/// Lines for people; `limit` is the limit for all memory, if there is one.
pub fn lines(
    out: &mut String,
    seen: &Unmanaged,
    report: &Report,
    managed: Requests,
    limit: Option<u64>,
) {
    // Within a limit for all memory there is room for it.
    let worth = limit.map_or(report.memory_bytes / WORTH_A_WARNING, |l| l / 2);
    if seen.peak_bytes > worth {
        let _ = writeln!(
            out,
            "  WARNING   {} beside the budget of {} were not managed{}: {} {}",
            text::bytes(seen.peak_bytes),
            text::bytes(report.memory_bytes),
            whose(&seen.holders),
            advice(seen, managed),
            Message::NotManaged,
        );
    }
    for m in &seen.outsiders {
        let why = m.why.as_deref().unwrap_or_default();
        let _ = writeln!(out, "  unmanaged {} ({}) {why}", m.program.display(), m.pid);
    }
    if let Some(first) = seen.left.first() {
        let one = seen.left.len() == 1;
        let _ = writeln!(
            out,
            "  WARNING   {} {} left in the background ({}): memory managed so far stays so, but what {} from now on is not, \
             nor is the budget watched over: --wait-all waits for {} {}",
            text::count(seen.left.len() as u64),
            if one { "process was" } else { "processes were" },
            named(first),
            if one { "it starts" } else { "they start" },
            if one { "it" } else { "them" },
            Message::LeftRunning,
        );
    }
}

fn named(m: &Member) -> String {
    let name = m.program.file_name().unwrap_or(m.program.as_os_str());
    format!("{} {}", name.to_string_lossy(), m.pid)
}

/// The process that has most of the memory.
fn whose(holders: &[Member]) -> String {
    let first = holders.first().filter(|m| m.bytes > 0);
    first.map_or(String::new(), |m| {
        format!(" ({} has {})", named(m), text::bytes(m.bytes))
    })
}

/// What the user can do.
fn advice(seen: &Unmanaged, managed: Requests) -> String {
    if seen.shared_bytes > seen.peak_bytes / 2 {
        return "most of it is shared memory: --set shared.anonymous=on, --set shared.files=on have it managed".into();
    }
    if let Some(Member {
        program,
        why: Some(why),
        ..
    }) = seen.holders.first()
    {
        return format!("{} {why}", program.display());
    }
    match managed {
        Requests::From(bytes) if bytes > LEAST => format!(
            "requests for less than {} are left to the program's own allocator: --small has them managed, or --set route.malloc_min=128K --set route.mmap_min=128K more of them",
            text::bytes(bytes)
        ),
        Requests::From(_) => "it is asked for in small blocks, or by an allocator that is not caught: --small has small blocks managed, or leave room for it beside --memory".into(),
        Requests::SmallLater => "it was asked for before small blocks were managed, or by an allocator that is not caught: --small has them managed from the beginning, or leave room for it beside --memory".into(),
        Requests::Attached => "stacks, pieces of less than 2 MiB and memory of other programs stay in memory: leave room for them beside --memory".into(),
        Requests::All => "it is the C library's, or asked for by an allocator that is not caught: leave room for it beside --memory".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::tests::report;

    fn member(name: &str, bytes: u64, why: Option<&str>) -> Member {
        Member {
            pid: 7,
            program: format!("/bin/{name}").into(),
            bytes,
            joined: false,
            why: why.map(str::to_owned),
        }
    }

    fn text_of(seen: &Unmanaged, managed: Requests) -> String {
        let mut out = String::new();
        lines(&mut out, seen, &report(), managed, None);
        out
    }

    #[test]
    fn a_tenth_of_the_budget_is_not_warned_of() {
        let mut seen = Unmanaged {
            peak_bytes: report().memory_bytes / 10,
            ..Unmanaged::default()
        };
        assert_eq!(text_of(&seen, Requests::From(1 << 20)), "");
        seen.peak_bytes += 1;
        let mut within = String::new();
        lines(
            &mut within,
            &seen,
            &report(),
            Requests::From(1 << 20),
            Some(20 << 20),
        );
        assert_eq!(within, "");
        assert!(
            text_of(&seen, Requests::From(1 << 20))
                .contains("WARNING   6.40 MiB beside the budget of 64.0 MiB")
        );
    }

    #[test]
    fn each_cause_has_its_advice() {
        let mut seen = Unmanaged {
            peak_bytes: 100 << 20,
            holders: vec![member("sqlite3", 90 << 20, None)],
            ..Unmanaged::default()
        };
        let text = text_of(&seen, Requests::From(1 << 20));
        assert!(text.contains("(sqlite3 7 has 90.0 MiB)"), "{text}");
        assert!(text.contains("route.malloc_min=128K"), "{text}");
        assert!(text_of(&seen, Requests::From(128 << 10)).contains("small blocks"));
        assert!(text_of(&seen, Requests::SmallLater).contains("from the beginning"));
        assert!(!text_of(&seen, Requests::All).contains("--small"));
        seen.holders[0].why = Some("is statically linked".into());
        assert!(
            text_of(&seen, Requests::From(1 << 20)).contains("/bin/sqlite3 is statically linked")
        );
        seen.shared_bytes = 60 << 20;
        assert!(text_of(&seen, Requests::From(1 << 20)).contains("shared.anonymous=on"));
        assert_eq!(text_of(&seen, Requests::From(1 << 20)).lines().count(), 1);
    }

    #[test]
    fn outsiders_and_jobs_left_are_named() {
        let seen = Unmanaged {
            outsiders: vec![member("su", 0, Some("is setuid"))],
            left: vec![member("sleep", 0, None)],
            ..Unmanaged::default()
        };
        let text = text_of(&seen, Requests::From(1 << 20));
        assert!(text.contains("/bin/su (7) is setuid\n"), "{text}");
        assert!(
            text.contains("1 process was left in the background (sleep 7)"),
            "{text}"
        );
        let fields = json(&seen);
        assert_eq!(fields[1].1[0]["program"], "/bin/su");
        assert_eq!(fields[2].1[0]["pid"], 7);
    }
}
