//! `hugeswap exporter` and `hugeswap run --metrics`: what is served is what there is, in a form that
//! Prometheus reads.

use super::{Running, hugeswap};
use predicates::str::contains;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Values by name and labels.
fn parsed(text: &str) -> HashMap<String, f64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines
        .map(|l| {
            let (name, value) = l.rsplit_once(' ').expect("a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

/// Its rules, and those of the alerts, by Prometheus' own tool, if it is there.
fn promtool(args: &[&str], input: &str) {
    let child = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../contrib/prometheus"
        ))
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: there is no promtool");
        return;
    };
    let mut to = child.stdin.take().unwrap();
    to.write_all(input.as_bytes()).unwrap();
    drop(to);
    let out = child.wait_with_output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(out.status.success(), "{said}");
}

#[test]
fn a_run_logs_a_line_at_an_interval() {
    let r = Running::start_with(&["--log", "0.1"], "32M", 64);
    let lines = |r: &Running| -> Vec<serde_json::Value> {
        let said = r.said();
        // (The last one may not be whole yet.)
        let whole = said.split_inclusive('\n').filter(|l| l.ends_with('\n'));
        whole.map(|l| serde_json::from_str(l).expect(l)).collect()
    };
    let of = |r: &Running, name: &str| -> u64 {
        lines(r).iter().map(|l| l[name].as_u64().unwrap()).sum()
    };
    r.wait_for(|r| lines(r).len() >= 3 && of(r, "out_bytes") >= 16 << 20);
    for line in lines(&r) {
        assert_eq!(line["hugeswap"], "memory");
        assert_eq!(line["memory_bytes"], 32 << 20);
        assert!(line["resident_bytes"].as_u64().unwrap() <= 32 << 20);
        assert!(line["interval_s"].as_f64().unwrap() >= 0.09);
        assert_eq!(line["lost"], 0);
    }
    assert!(of(&r, "faults_minor") > 0);
    r.ends_well();
}

fn get(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("application/openmetrics-text"), "{head}");
    body.to_owned()
}

#[test]
fn figures_of_a_pool_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let at = format!("unix:{}", socket.display());
    let running = Running::start_with(&["--metrics", &at], "24M", 48);
    let all = parsed(&get(&socket));
    let labels = format!("{{pool=\"{}\",program=\"python3\"}}", running.pid());
    let value = |name: &str| all[&format!("hugeswap_{name}{labels}")];
    assert_eq!(value("memory_budget_bytes"), f64::from(24 << 20));
    assert_eq!(value("processes"), 1.0);
    let resident = value("memory_resident_bytes");
    assert!((16e6..=25.2e6).contains(&resident), "{resident}");
    assert!(value("swap_used_bytes") > 16e6 && value("vmstat_pswpout_total") > 1000.0);
    // What was written to the only area is what went to swap, packed or not; all of it by writes that are counted.
    let moved = |way: &str| -> f64 {
        let name = format!("hugeswap_swap_area_{way}_bytes_total{{");
        let of = all.iter().filter(|(n, _)| n.starts_with(&name));
        of.map(|(_, v)| v).sum()
    };
    let (read, written) = (moved("read"), moved("written"));
    assert!(read >= 4096.0 && read % 4096.0 == 0.0, "{read}");
    assert!(written > 4e6 && written % 4096.0 == 0.0, "{written}");
    // The last bucket of a class has all of its faults.
    let of = format!(
        "{{pool=\"{}\",program=\"python3\",class=\"major_4k\"}}",
        running.pid()
    );
    let bucket = of.replace('{', "{le=\"+Inf\",");
    let count = all[&format!("hugeswap_fault_duration_seconds_count{of}")];
    assert!(count > 0.0);
    assert_eq!(
        all[&format!("hugeswap_fault_duration_seconds_bucket{bucket}")],
        count
    );

    // The exporter has the same, of this pool and of others; nothing says what its arguments are.
    let once = hugeswap().args(["exporter", "--once"]).output().unwrap();
    let once = String::from_utf8(once.stdout).unwrap();
    let again = parsed(&once);
    let counter = format!("hugeswap_vmstat_pswpout_total{labels}");
    assert!(again[&counter] >= all[&counter]);
    assert!(
        !once.contains("stop") && !once.contains("import"),
        "arguments"
    );
    // At a path of its own, for as long as it runs.
    let other = dir.path().join("other");
    let at = format!("unix:{}", other.display());
    let mut exporter = Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"))
        .args(["exporter", "--pool", &running.pid(), "--listen", &at])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    running.wait_for(|_| other.exists());
    assert_eq!(
        parsed(&get(&other)).get(&format!("hugeswap_processes{labels}")),
        Some(&1.0)
    );
    running.ends_well();
    // With the pool it ends, and the socket with it; that of the run, too.
    assert!(exporter.wait().unwrap().success());
    assert!(!other.exists() && !socket.exists());
}

#[test]
fn alerts_come_when_they_should() {
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["test", "rules", "alerts_test.yml"], "");
}

/// Alerts and dashboard name only metrics that there are.
#[test]
fn what_is_looked_at_is_served() {
    let running = Running::start("24M", 48);
    let once = hugeswap().args(["exporter", "--once"]).output().unwrap();
    let served = String::from_utf8(once.stdout).unwrap();
    running.ends_well();
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    for file in ["prometheus/alerts.yml", "grafana/hugeswap.json"] {
        let text = std::fs::read_to_string(contrib.join(file)).unwrap();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !is_name(c));
        let names = words.filter(|w| w.starts_with("hugeswap_"));
        let mut n = 0;
        for name in names {
            assert!(
                served.contains(&format!("\n{name}{{")) || name.starts_with("hugeswap_limit"),
                "{file}: {name}"
            );
            n += 1;
        }
        assert!(n > 5, "{file}");
    }
}

#[test]
fn mistakes_are_told_in_one_line() {
    for (args, why) in [
        (&["exporter", "--listen", "0.0.0.0:9"][..], "other machines"),
        (&["exporter", "--listen", "unix:/none/s"], "/none/s"),
        (&["exporter", "--pool", "2000000000"], "there is no process"),
        (
            &["run", "--metrics", "9402", "--", "true"],
            "give 127.0.0.1:PORT",
        ),
        (
            &[
                "run",
                "--memory",
                "64M",
                "--swap",
                "mem",
                "--metrics",
                "unix:/none/s",
                "--",
                "true",
            ],
            "/none/s",
        ),
    ] {
        let out = hugeswap().args(args).assert().code(2).stderr(contains(why));
        let said = String::from_utf8_lossy(&out.get_output().stderr).into_owned();
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
