//! Arguments, sizes, settings and reports that make no sense.

use crate::{Place, run_with};

#[test]
fn a_size_that_does_not_parse() {
    let p = Place::new();
    for size in ["", "lots", "12Q", "-5M", "1.2.3G", "99999999999T"] {
        p.refuses(
            &["run", &format!("--memory={size}"), "--", "/bin/true"],
            "--memory",
        );
    }
}

#[test]
fn a_size_of_nothing() {
    Place::new().refuses(
        &["run", "--memory", "0", "--", "/bin/true"],
        "at least 16 MiB",
    );
}

#[test]
fn a_budget_below_the_minimum() {
    let p = Place::new();
    // As it was given: what is missing may be the letter.
    for (given, said) in [
        ("4M", "4 MiB"),
        ("5", "5 bytes"),
        ("100K", "100 KiB"),
        ("16777215", "16777215 bytes"),
    ] {
        let why = format!("memory budget of {said} is too small: at least 16 MiB (write 16M)");
        p.refuses(&["run", "--memory", given, "--", "/bin/true"], &why);
    }
}

#[test]
fn a_budget_above_the_machines_memory() {
    Place::new().refuses(
        &["run", "--memory", "9000T", "--", "/bin/true"],
        "more than this machine has",
    );
}

#[test]
fn a_program_to_attach_that_makes_no_sense() {
    let p = Place::new();
    let own = std::process::id().to_string();
    for (pid, options, why) in [
        ("abc", &["--memory", "64M"][..], "abc"),
        ("0", &["--memory", "64M"], "there is no process 0"),
        ("1073741824", &["--memory", "64M"], "there is no process"),
        (&own, &["--memory", "lots"], "--memory"),
        (&own, &["--memory", "5M"], "too small: at least 16 MiB"),
        (&own, &["--memory", "64M", "--set", "x=1"], "--set"),
        (&own, &["--total", "5M"], "too small: at least 32 MiB"),
        (
            &own,
            &["--total", "1G", "--memory", "1G"],
            "exclude each other",
        ),
        ("1073741824", &[], "there is no process"),
        (
            &own,
            &["--ready-fd", "99"],
            "--ready-fd 99 cannot be written to",
        ),
        (&own, &["--ready-fd", "-1"], "-1"),
    ] {
        p.refuses(&[&["attach", pid], options].concat(), why);
    }
    p.refuses(&["detach", "1073741824"], "there is no process");
    p.refuses(&["detach", &own], "belongs to no pool");
}

#[test]
fn a_limit_for_everything_that_makes_no_sense() {
    let p = Place::new();
    let run = |options: &[&str], why: &str| {
        p.refuses(&[&["run"], options, &["--", "/bin/true"]].concat(), why);
    };
    run(&["--total", "lots"], "--total");
    run(&["--total", "auto"], "--total");
    run(&["--total", "31M"], "at least 32 MiB (write 32M)");
    run(&["--total", "9000T"], "more than this machine has");
    run(
        &["--total", "1G", "--memory", "64M"],
        "use --total for all memory",
    );
    run(&["--total", "1G", "--memory", "auto"], "exclude each other");
}

#[test]
fn arguments_that_are_missing_or_unknown() {
    let p = Place::new();
    p.refuses(&[], "a command is missing");
    p.refuses(&["run"], "PROG");
    p.refuses(&["run", "--memory", "64M"], "PROG");
    p.refuses(&["run", "--memory", "64M", "/bin/true"], "/bin/true");
    p.refuses(&["walk"], "walk");
    p.refuses(&run_with(&["--fault-mode", "psychic"]), "psychic");
    p.refuses(&run_with(&["--report", "poem"]), "poem");
    p.refuses(&run_with(&["--no-such-option"]), "--no-such-option");
}

#[test]
fn settings_that_do_not_exist_or_are_out_of_bounds() {
    let p = Place::new();
    p.refuses(
        &run_with(&["--set", "no.such=1"]),
        "no setting is called 'no.such'",
    );
    p.refuses(&run_with(&["--set", "route.malloc_min"]), "KEY=VALUE");
    p.refuses(
        &run_with(&["--set", "route.malloc_min=1"]),
        "a size from 128K to 1T",
    );
    p.refuses(
        &run_with(&["--set", "shared.files_min=64K"]),
        "a size from 128K to 1T",
    );
    p.refuses(&run_with(&["--set", "shared.files=some"]), "on or off");
    p.refuses(&run_with(&["--set", "swap.checksum=perhaps"]), "on or off");
}

#[test]
fn a_report_file_that_cannot_be_written() {
    let p = Place::new();
    p.refuses(
        &run_with(&["--report-file", "/no/such/dir/report"]),
        "/no/such/dir/report",
    );
    p.refuses(&run_with(&["--report-file", "/etc"]), "--report-file");
}

#[test]
fn reports_that_cannot_be_drawn() {
    let p = Place::new();
    p.refuses(&["report", "/no/such/report"], "cannot be read");
    for (text, why) in [
        ("", "is not a report"),
        ("{\"memory_bytes\": 1,", "is not a report"),
        ("{\"bench\": \"fit\"}", "no report of"),
        ("{\"memory_bytes\": 1, \"pswpin\": 1}", "older hugeswap"),
    ] {
        let file = p.file("report.json", text.as_bytes(), 0o600);
        p.refuses(&["report", &file], why);
    }
    let whole = "{\"memory_bytes\": 2097152, \"pswpin\": 1, \"advisor\": {\"budgets\": \
                 [{\"memory_bytes\": 2097152, \"pages_in\": 1, \"estimated\": false}]}}";
    let file = p.file("report.json", whole.as_bytes(), 0o600);
    let svg = ["report", &file, "--svg", "/no/such/directory/a.svg"];
    p.refuses(&svg, "--svg /no/such/directory/a.svg cannot be written");
}

#[test]
fn a_run_inside_a_run() {
    let p = Place::new();
    let mut inner = p.hugeswap();
    inner.env("HUGESWAP_POOL", "1:3");
    p.refused(&mut inner, &run_with(&[]), "already runs inside");
}
