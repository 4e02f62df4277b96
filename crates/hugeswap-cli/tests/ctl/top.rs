//! `hugeswap top` in a terminal of its own: what is on the screen after each key.

use super::{Running, hugeswap, refused};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a command has written to its terminal.
#[derive(Default)]
struct Written {
    screen: vt100::Parser,
}

impl Written {
    fn set_size(&mut self, rows: u16, columns: u16) {
        let [rows, columns] = [rows, columns].map(|n| n.try_into().unwrap());
        self.screen.screen_mut().set_size(rows, columns);
    }
}

/// A command in a terminal; ended in any case.
struct Terminal {
    child: Child,
    keys: File,
    written: Arc<Mutex<Written>>,
}

impl Terminal {
    fn start(rows: u16, columns: u16, args: &[&str], variables: &[(&str, &str)]) -> Terminal {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let other = File::options()
            .read(true)
            .write(true)
            .open(std::ffi::OsStr::from_bytes(name.as_bytes()))
            .unwrap();
        let side = || Stdio::from(other.try_clone().unwrap());
        let keys = File::from(main);
        let terminal = Terminal {
            written: Arc::default(),
            child: {
                set_size(&keys, rows, columns);
                Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"))
                    .env_remove("HUGESWAP_POOL")
                    .env_remove("NO_COLOR")
                    .env("TERM", "xterm-256color")
                    .envs(variables.iter().copied())
                    .args(args)
                    .stdin(side())
                    .stdout(side())
                    .stderr(side())
                    .spawn()
                    .unwrap()
            },
            keys,
        };
        terminal.written.lock().unwrap().set_size(rows, columns);
        let (mut from, to) = (terminal.keys.try_clone().unwrap(), terminal.written.clone());
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut some) {
                to.lock().unwrap().screen.process(&some[..n]);
            }
        });
        terminal
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn contents(&self) -> String {
        self.written.lock().unwrap().screen.screen().contents()
    }

    /// Waits until all of this is on the screen. (The limit is one for hangs.)
    fn shows(&self, what: &[&str]) -> String {
        self.is(what, |screen| what.iter().all(|w| screen.contains(w)))
    }

    fn is(&self, what: &[&str], is: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.contents();
            if is(&screen) {
                return screen;
            }
            assert!(start.elapsed().as_secs() < 60, "no {what:?}:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.written.lock().unwrap().set_size(rows, columns);
        set_size(&self.keys, rows, columns);
        // (It is no terminal that it is controlled by, so the signal comes from here.)
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::WINCH).unwrap();
    }

    fn ends_well(mut self) -> String {
        let written = self.written.clone();
        let contents = || written.lock().unwrap().screen.screen().contents();
        super::ends_well(&mut self.child, contents);
        contents()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(main: &File, rows: u16, columns: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(main, size).unwrap();
}

#[test]
fn keys_change_what_is_seen_and_the_budget() {
    let running = Running::start("24M", 48);
    let pid = running.pid();
    let mut top = Terminal::start(24, 80, &["top", &pid, "-i", "0.1"], &[]);
    let screen = top.shows(&[
        "memory [|",
        "of 24.0 MiB",
        "swap ",
        "*IN USE",
        "python3",
        "major_",
    ]);
    assert!(
        screen.starts_with(&format!("pool {pid}  1 process")),
        "{screen}"
    );
    assert!(screen.lines().count() <= 24 && screen.lines().all(|l| l.chars().count() <= 80));
    assert!(
        top.shows(&["rates  in ", "wait ", "stall ", "area 0 ", " of 1.00G  in "])
            .contains("in, most ")
    );
    top.press("s");
    top.shows(&["*SWAPPED"]);
    top.press("S");
    top.shows(&["*IN USE"]);
    top.press("m");
    top.shows(&[
        "memory of process ",
        "each sign ",
        "s in swap",
        "sss",
        "z Z closer",
    ]);
    top.press("z");
    top.is(&["rows below"], |s| {
        s.contains("0 rows above") && !s.contains(", 0 below")
    });
    top.press("j");
    top.shows(&["1 rows above"]);
    top.press("m");
    top.shows(&["COMMAND"]);
    top.press("?");
    top.shows(&["Ctrl-C", "larger budget", "? back"]);
    top.press("\x1b-");
    top.shows(&["budget 22.0 MiB (was 24.0 MiB)"]);
    top.press("p");
    top.shows(&["was asked to page out 2.00 MiB"]);
    top.shows(&["of 22.0 MiB"]);
    top.press("+");
    top.shows(&["of 24.0 MiB"]);
    top.press("+");
    top.shows(&["cannot be larger than the 24.0 MiB"]);
    top.press(" ");
    top.shows(&["1 process  paused"]);
    top.press(" ");
    top.is(&["not paused"], |s| !s.contains("paused"));
    top.resize(40, 120);
    top.shows(&["python3 -c import os, random"]);
    top.resize(8, 30);
    top.shows(&["make the terminal larger"]);
    top.press("q");
    assert!(
        !top.ends_well().contains("memory ["),
        "the screen is as it was"
    );
    running.ends_well();
}

#[test]
fn it_ends_with_the_pool_and_shows_no_colours_if_none_are_wanted() {
    let running = Running::start("24M", 32);
    let pid = running.pid();
    let args = ["top", &pid, "-i", "0.2"];
    let colours = Terminal::start(24, 80, &args, &[]);
    let plain = Terminal::start(24, 80, &args, &[("NO_COLOR", "1")]);
    for top in [&colours, &plain] {
        top.shows(&["memory [|", "python3"]);
        let written = top.written.lock().unwrap();
        let green = written.screen.screen().cell(1, 8).unwrap().fgcolor();
        let is_plain = std::ptr::eq(top, &plain);
        assert_eq!(green == vt100::Color::Default, is_plain, "{green:?}");
    }
    running.ends_well();
    for top in [colours, plain] {
        assert!(
            top.ends_well()
                .contains(&format!("the pool of process {pid} has ended"))
        );
    }
}

#[test]
fn without_a_terminal_or_a_pool_it_says_what_to_do() {
    refused(hugeswap().arg("top"), "needs a terminal");
    let me = std::process::id().to_string();
    let mut top = Terminal::start(24, 80, &["top", &me], &[]);
    top.shows(&["belongs to no pool"]);
    assert_eq!(top.child.wait().unwrap().code(), Some(2));
}
