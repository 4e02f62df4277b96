//! `bench compressed`.

use super::{bench, json};
use serde_json::Value;

fn rows(found: &Value) -> &Vec<Value> {
    found["codecs"].as_array().expect("a list of rows")
}

#[test]
fn each_codec_says_what_it_makes_of_each_kind_of_data() {
    let found = json(&["compressed", "--sample", "2M", "--pairs", "1"]);
    let rows = rows(&found);
    assert_eq!(rows.len(), 15);
    let share = |data: &str, by: &str| {
        let row = rows.iter().find(|r| r["data"] == data && r["by"] == by);
        row.and_then(|r| r["short_share"].as_f64())
            .expect("a share")
    };
    for by in ["lz4", "zstd-fast", "zstd"] {
        assert_eq!(share("random bytes", by), 0.0);
        assert_eq!(share("lines of a log", by), 1.0);
    }
    assert_eq!(share("random hexadecimal digits", "lz4"), 0.0);
    assert_eq!(share("random hexadecimal digits", "zstd"), 1.0);
}

#[test]
fn it_reads_the_memory_of_a_program() {
    let script = "s=$(head -c 20000000 /dev/zero | tr '\\0' x); sleep 0.4; echo ${#s}";
    let found = bench(&["compressed", "--json", "--sample", "4M", "--", "bash", "-c"])
        .arg(script)
        .assert()
        .success();
    let found: Value = serde_json::from_slice(&found.get_output().stdout).expect("JSON");
    for row in rows(&found) {
        assert_eq!(row["data"], "bash");
        let share = row["short_share"].as_f64().expect("a share");
        assert!(share > 0.5, "{row}");
    }
}

#[test]
fn a_program_that_ends_at_once_is_told() {
    let refused = bench(&["compressed", "--", "true"]).assert().code(1);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("give it more to do"), "{said}");
    let refused = bench(&["compressed", "--", "/no/such/program"])
        .assert()
        .code(1);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("/no/such/program"), "{said}");
}
