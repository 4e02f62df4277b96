//! What messages mean that need more than a line: `messages.md`, by parts.

use std::fmt;

/// The page; a part begins with a heading, which is its name.
const PAGE: &str = include_str!("messages.md");

/// A message that needs more than a line. It ends with the name in brackets, by which `hugeswap explain` knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    Slow,
    NothingManaged,
    NotManaged,
    LeftRunning,
    SwapFull,
    OutOfMemory,
    LimitTooSmall,
    Lost,
    SwapErrors,
    CoreDump,
}

impl Message {
    pub const fn name(self) -> &'static str {
        match self {
            Message::Slow => "slow",
            Message::NothingManaged => "nothing-managed",
            Message::NotManaged => "not-managed",
            Message::LeftRunning => "left-running",
            Message::SwapFull => "swap-full",
            Message::OutOfMemory => "out-of-memory",
            Message::LimitTooSmall => "limit-too-small",
            Message::Lost => "lost",
            Message::SwapErrors => "swap-errors",
            Message::CoreDump => "core-dump",
        }
    }
}

/// As it stands at the end of a message.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", self.name())
    }
}

/// All parts, in their order: name and text.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.split("\n## ").skip(1).filter_map(|part| {
        let (name, text) = part.split_once('\n')?;
        Some((name, text.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap_engine::FAULT_MESSAGES;
    use std::collections::BTreeSet;

    #[test]
    fn each_message_has_its_part_and_each_part_a_message() {
        use Message::*;
        let ours = [
            Slow,
            NothingManaged,
            NotManaged,
            LeftRunning,
            SwapFull,
            OutOfMemory,
            LimitTooSmall,
            Lost,
            SwapErrors,
            CoreDump,
        ];
        let names = ours.map(Message::name).into_iter().chain(FAULT_MESSAGES);
        let names: BTreeSet<_> = names.collect();
        let parts: BTreeSet<_> = all().map(|(name, _)| name).collect();
        assert_eq!(names, parts);
        assert_eq!(all().count(), parts.len());
        for (name, text) in all() {
            assert!(text.len() > 100 && !text.contains('#'), "{name}: {text}");
            // What it refers to is there.
            for word in text.split('[').skip(1).filter_map(|t| t.split(']').next()) {
                assert!(parts.contains(word), "{name} refers to {word}");
            }
        }
    }
}
