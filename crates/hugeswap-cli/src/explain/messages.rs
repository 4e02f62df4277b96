//! What messages mean that need more than a line: `messages.md`, by parts.

use std::fmt;

/// The page; a part begins with a heading, which is its name.
const PAGE: &str = include_str!("messages.md");

/// Messages that need more than a line, by the names that `hugeswap explain` knows.
macro_rules! messages {
    ($($message:ident => $name:literal,)*) => {
        /// A message that needs more than a line. It ends with its name in brackets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $($message,)*
        }

        impl Message {
            /// All of them.
            #[cfg(test)]
            const ALL: &[Message] = &[$(Message::$message,)*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Message::$message => $name,)*
                }
            }
        }
    };
}

messages! {
    Slow => "slow",
    NothingManaged => "nothing-managed",
    NotManaged => "not-managed",
    LeftRunning => "left-running",
    SwapFull => "swap-full",
    OutOfMemory => "out-of-memory",
    LimitTooSmall => "limit-too-small",
    Lost => "lost",
    SwapErrors => "swap-errors",
    CoreDump => "core-dump",
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
        let ours = Message::ALL.iter().map(|m| m.name());
        let names = ours.chain(FAULT_MESSAGES);
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
