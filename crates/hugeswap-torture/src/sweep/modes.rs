//! The modes the checker is run in: ways to take faults, ways to move memory, settings and amounts
//! that lead to other code.

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// `--fault-mode`.
    pub faults: &'static str,
    /// `--set`.
    pub settings: &'static [&'static str],
    /// Other options of `hugeswap run`.
    pub options: &'static [&'static str],
    /// The budget, in parts of a hundred of the checker's memory.
    pub percent: usize,
    /// Shared slots of twelve.
    pub shared: usize,
    /// Operations that are left out.
    pub without: &'static [&'static str],
    /// Settings change and swap areas come and go meanwhile.
    pub restless: bool,
}

const PLAIN: Mode = Mode {
    name: "signal",
    about: "faults in the faulting thread, base pages by userfaultfd: the default",
    faults: "signal",
    settings: &[],
    options: &[],
    percent: 40,
    shared: 0,
    without: &[],
    restless: false,
};

/// All of them.
pub const MODES: &[Mode] = &[
    PLAIN,
    Mode {
        name: "pieces",
        about: "signal, as where userfaultfd is refused",
        settings: &["debug.userfaultfd=off"],
        ..PLAIN
    },
    Mode {
        name: "message",
        about: "faults by a thread that reads them from a userfaultfd",
        faults: "message",
        ..PLAIN
    },
    Mode {
        name: "storm",
        about: "signal, and random units leave all the time",
        settings: &["debug.storm=300"],
        ..PLAIN
    },
    Mode {
        name: "message-storm",
        about: "the same in message mode",
        faults: "message",
        settings: &["debug.storm=2000"],
        ..PLAIN
    },
    Mode {
        name: "pages",
        about: "signal, nothing huge",
        settings: &["thp.enabled=never"],
        ..PLAIN
    },
    Mode {
        name: "whole",
        about: "signal, whole units only",
        settings: &["thp.swapin=always", "thp.defrag=always"],
        ..PLAIN
    },
    Mode {
        name: "small",
        about: "signal, blocks and mappings from 128 KiB on are managed",
        settings: &["route.malloc_min=128K", "route.mmap_min=128K"],
        ..PLAIN
    },
    Mode {
        name: "tight",
        about: "signal, hardly any memory",
        percent: 14,
        // What they hand to the kernel stays in memory, of which there is hardly any.
        without: &["mlock"],
        ..PLAIN
    },
    Mode {
        name: "shared",
        about: "signal, with memory that forked children share",
        settings: &["shared.anonymous=on"],
        shared: 4,
        ..PLAIN
    },
    Mode {
        name: "compressed",
        about: "signal, what leaves memory is compressed first",
        settings: &["zswap.enabled=always"],
        ..PLAIN
    },
    Mode {
        name: "encrypted",
        about: "signal, swap is encrypted",
        options: &["--encrypt"],
        ..PLAIN
    },
    Mode {
        name: "restless",
        about: "signal, settings change and swap areas come and go",
        restless: true,
        ..PLAIN
    },
    Mode {
        name: "faulty",
        about: "signal, a device that fails now and then, and lies",
        settings: &[
            "debug.fault_seed=11",
            "debug.fault_eio=2000",
            "debug.fault_short=2000",
            "debug.fault_flip=500",
            "debug.fault_misread=500",
            "debug.fault_delay=2000",
        ],
        ..PLAIN
    },
];

/// Those of these names; all without any.
pub fn named(names: &[String]) -> Result<Vec<Mode>, String> {
    if names.is_empty() {
        return Ok(MODES.to_vec());
    }
    let one = |name: &String| {
        let found = MODES.iter().find(|m| m.name == name).copied();
        found.ok_or_else(|| {
            let all: Vec<_> = MODES.iter().map(|m| m.name).collect();
            format!("there is no mode {name}; there are {}", all.join(", "))
        })
    };
    names.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_of_their_own() {
        for m in MODES {
            assert_eq!(MODES.iter().filter(|o| o.name == m.name).count(), 1);
            assert_eq!(named(&[m.name.into()]).map(|found| found.len()), Ok(1));
        }
        assert!(named(&["none".into()]).is_err());
        assert_eq!(named(&[]).map(|all| all.len()), Ok(MODES.len()));
    }
}
