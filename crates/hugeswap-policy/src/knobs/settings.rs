//! Typed settings: a type for each setting, and [`Setting`], which is any one of them with its value.
//!
//! A program that knows the setting at compile time names its type, and the compiler checks the
//! value: `ThpSwapin::Never`, `Checksum(false)`, `ReadaheadMax::new(4)?`. A command line or a
//! configuration file has text: `"thp.swapin=never".parse::<Setting>()?`. Both are the same
//! [`Setting`] in the end, and [`Display`](std::fmt::Display) writes the text that parses to it.
//!
//! ```
//! use hugeswap_policy::knobs::settings::{ReadaheadMax, Setting, ThpSwapin};
//! let typed = Setting::from(ThpSwapin::Never);
//! assert_eq!(typed.to_string(), "thp.swapin=never");
//! assert_eq!("thp.swapin=never".parse(), Ok(typed));
//! assert_eq!(ReadaheadMax::new(4)?.to_string(), "4");
//! assert_eq!(
//!     ReadaheadMax::new(1000).unwrap_err().to_string(),
//!     "readahead.max: '1000' is not allowed: a number from 0 to 64",
//! );
//! # Ok::<(), hugeswap_policy::knobs::settings::SettingError>(())
//! ```

use crate::knobs::{Form, Knob, find, parse_size};
pub use crate::knobs::{
    RouteSmall, SwapCompress, SwapGather, ThpDefrag, ThpEnabled, ThpSwapin, ZswapCompressor,
    ZswapEnabled, types::*,
};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A setting and its value, which is within the setting's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    knob: Knob,
    value: u64,
}

/// Why a setting was refused. Each message says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingError {
    /// The text has no `=`.
    NotASetting {
        /// The text.
        text: String,
    },
    /// No setting has this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// The setting does not take this value.
    Value {
        /// Name of the setting.
        name: &'static str,
        /// The value, as it was given.
        value: String,
        /// What is allowed, in words.
        allowed: String,
    },
    /// The setting can be given only to a pool that is being made.
    Fixed {
        /// The setting and its value.
        setting: Setting,
    },
    /// A region has no setting of this name of its own; only the pool has.
    OnlyOfPool {
        /// Name of the setting.
        name: &'static str,
    },
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::NotASetting { text } => write!(
                f,
                "'{text}' is not a setting: write KEY=VALUE, like route.malloc_min=2M"
            ),
            SettingError::Unknown { name } => {
                write!(f, "no setting is called '{name}': there are ")?;
                for (i, knob) in Knob::ALL.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", knob.name())?;
                }
                Ok(())
            }
            SettingError::Value {
                name,
                value,
                allowed,
            } => write!(f, "{name}: '{value}' is not allowed: {allowed}"),
            SettingError::Fixed { setting } => {
                let name = setting.knob.name();
                write!(
                    f,
                    "{name} can be set only for a new pool: Pool::builder().set(\"{setting}\")"
                )
            }
            SettingError::OnlyOfPool { name } => write!(
                f,
                "{name} is the pool's: a region has thp.enabled, thp.swapin and thp.defrag of its own"
            ),
        }
    }
}

impl std::error::Error for SettingError {}

impl From<Infallible> for SettingError {
    fn from(never: Infallible) -> SettingError {
        match never {}
    }
}

impl Setting {
    /// The setting `knob` with a value, in bytes, a count, 0 or 1 (off or on), or the place of a
    /// word among those of [`Form::Choice`].
    ///
    /// # Errors
    /// [`SettingError::Value`] if the value is out of bounds.
    pub fn new(knob: Knob, value: u64) -> Result<Setting, SettingError> {
        let (min, max) = knob.bounds();
        if (min..=max).contains(&value) {
            return Ok(Setting { knob, value });
        }
        Err(refused(knob, &value.to_string()))
    }

    /// Parses the VALUE of `KEY=VALUE`.
    ///
    /// # Errors
    /// [`SettingError::Value`].
    pub fn parse_value(knob: Knob, text: &str) -> Result<Setting, SettingError> {
        let value = match knob.form() {
            Form::Bytes => parse_size(text).ok(),
            Form::Count => text.parse().ok(),
            Form::Switch => match text {
                "on" | "1" | "true" => Some(1),
                "off" | "0" | "false" => Some(0),
                _ => None,
            },
            Form::Choice(words) => words.iter().position(|w| *w == text).map(|i| i as u64),
        };
        value
            .and_then(|value| Setting::new(knob, value).ok())
            .ok_or_else(|| refused(knob, text))
    }

    /// The setting, without its value.
    pub const fn knob(self) -> Knob {
        self.knob
    }

    /// The value as a number: bytes, a count, 0 or 1, or the place of a word among the choices.
    pub const fn value(self) -> u64 {
        self.value
    }

    pub(crate) fn write_value(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.knob.form() {
            Form::Bytes => write_size(self.value, f),
            Form::Count => write!(f, "{}", self.value),
            Form::Switch => f.write_str(if self.value == 0 { "off" } else { "on" }),
            Form::Choice(words) => f.write_str(words[self.value as usize]),
        }
    }
}

/// Writes a size as the largest suffix that leaves a whole number.
fn write_size(bytes: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let suffixes = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = |&(shift, _): &(u32, _)| bytes != 0 && bytes.trailing_zeros() >= shift;
    match suffixes.into_iter().find(whole) {
        Some((shift, suffix)) => write!(f, "{}{suffix}", bytes >> shift),
        None => write!(f, "{bytes}"),
    }
}

fn refused(knob: Knob, value: &str) -> SettingError {
    struct Size(u64);
    impl fmt::Display for Size {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_size(self.0, f)
        }
    }
    let (min, max) = knob.bounds();
    SettingError::Value {
        name: knob.name(),
        value: value.to_owned(),
        allowed: match knob.form() {
            Form::Bytes => format!("a size from {} to {}", Size(min), Size(max)),
            Form::Count => format!("a number from {min} to {max}"),
            Form::Switch => "on or off".to_owned(),
            Form::Choice(words) => format!("one of {}", words.join(", ")),
        },
    }
}

/// Writes `KEY=VALUE`.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.knob.name())?;
        self.write_value(f)
    }
}

/// Parses `KEY=VALUE`; blanks around either are ignored.
impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Setting, SettingError> {
        let (name, value) = (text.split_once('=')).ok_or_else(|| SettingError::NotASetting {
            text: text.to_owned(),
        })?;
        let knob = find(name.trim()).ok_or_else(|| SettingError::Unknown {
            name: name.trim().to_owned(),
        })?;
        Setting::parse_value(knob, value.trim())
    }
}

impl TryFrom<&str> for Setting {
    type Error = SettingError;

    fn try_from(text: &str) -> Result<Setting, SettingError> {
        text.parse()
    }
}

impl TryFrom<&String> for Setting {
    type Error = SettingError;

    fn try_from(text: &String) -> Result<Setting, SettingError> {
        text.parse()
    }
}

/// A setting that a region can have of its own; it then does not follow the pool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegionSetting {
    /// `thp.enabled`.
    ThpEnabled(ThpEnabled),
    /// `thp.swapin`.
    ThpSwapin(ThpSwapin),
    /// `thp.defrag`.
    ThpDefrag(ThpDefrag),
}

impl From<RegionSetting> for Setting {
    fn from(setting: RegionSetting) -> Setting {
        match setting {
            RegionSetting::ThpEnabled(choice) => choice.into(),
            RegionSetting::ThpSwapin(choice) => choice.into(),
            RegionSetting::ThpDefrag(choice) => choice.into(),
        }
    }
}

impl TryFrom<Setting> for RegionSetting {
    type Error = SettingError;

    fn try_from(Setting { knob, value }: Setting) -> Result<RegionSetting, SettingError> {
        let value = value as usize;
        match knob {
            Knob::ThpEnabled => Ok(RegionSetting::ThpEnabled(ThpEnabled::ALL[value])),
            Knob::ThpSwapin => Ok(RegionSetting::ThpSwapin(ThpSwapin::ALL[value])),
            Knob::ThpDefrag => Ok(RegionSetting::ThpDefrag(ThpDefrag::ALL[value])),
            _ => Err(SettingError::OnlyOfPool { name: knob.name() }),
        }
    }
}

impl TryFrom<&str> for RegionSetting {
    type Error = SettingError;

    fn try_from(text: &str) -> Result<RegionSetting, SettingError> {
        text.parse::<Setting>()?.try_into()
    }
}

impl TryFrom<&String> for RegionSetting {
    type Error = SettingError;

    fn try_from(text: &String) -> Result<RegionSetting, SettingError> {
        RegionSetting::try_from(text.as_str())
    }
}

macro_rules! region_setting {
    ($($choice:ident)*) => {$(
        impl From<$choice> for RegionSetting {
            fn from(choice: $choice) -> RegionSetting {
                RegionSetting::$choice(choice)
            }
        }
    )*};
}
region_setting!(ThpEnabled ThpSwapin ThpDefrag);

/// Makes the type of one setting of the table in [`crate::knobs`].
macro_rules! typed {
    ($variant:ident, $name:literal, Choice($choice:ident), $doc:literal) => {
        impl From<super::$choice> for crate::knobs::settings::Setting {
            fn from(choice: super::$choice) -> Self {
                let setting = crate::knobs::settings::Setting::new(Knob::$variant, choice as u64);
                setting.expect("each choice is within the bounds")
            }
        }
        impl std::str::FromStr for super::$choice {
            type Err = crate::knobs::settings::SettingError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let setting = crate::knobs::settings::Setting::parse_value(Knob::$variant, text)?;
                Ok(Self::ALL[setting.value() as usize])
            }
        }
        impl std::fmt::Display for super::$choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(Self::WORDS[*self as usize])
            }
        }
    };
    ($variant:ident, $name:literal, Switch, $doc:literal) => {
        #[doc = concat!("`", $name, "`: ", $doc, ". True is on.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $variant(pub bool);
        impl From<$variant> for crate::knobs::settings::Setting {
            fn from($variant(on): $variant) -> Self {
                let setting = crate::knobs::settings::Setting::new(Knob::$variant, on.into());
                setting.expect("on and off are within the bounds")
            }
        }
        impl std::str::FromStr for $variant {
            type Err = crate::knobs::settings::SettingError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let setting = crate::knobs::settings::Setting::parse_value(Knob::$variant, text)?;
                Ok($variant(setting.value() != 0))
            }
        }
        impl std::fmt::Display for $variant {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(if self.0 { "on" } else { "off" })
            }
        }
    };
    ($variant:ident, $name:literal, $unit:ident, $doc:literal) => {
        #[doc = concat!("`", $name, "`: ", $doc, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $variant(u64);
        impl $variant {
            #[doc = concat!("A value for `", $name, "`; the error says which are allowed.")]
            pub fn new(value: u64) -> Result<Self, crate::knobs::settings::SettingError> {
                crate::knobs::settings::Setting::new(Knob::$variant, value)?;
                Ok($variant(value))
            }
            /// The value.
            pub const fn get(self) -> u64 {
                self.0
            }
        }
        impl From<$variant> for crate::knobs::settings::Setting {
            fn from($variant(value): $variant) -> Self {
                let setting = crate::knobs::settings::Setting::new(Knob::$variant, value);
                setting.expect("the bounds were checked when the value was made")
            }
        }
        impl std::str::FromStr for $variant {
            type Err = crate::knobs::settings::SettingError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let setting = crate::knobs::settings::Setting::parse_value(Knob::$variant, text)?;
                Ok($variant(setting.value()))
            }
        }
        /// Writes the value, as [`FromStr`](std::str::FromStr) takes it.
        impl std::fmt::Display for $variant {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::knobs::settings::Setting::from(*self).write_value(f)
            }
        }
    };
}
pub(crate) use typed;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_parses_to_the_same() {
        for &knob in Knob::ALL {
            let (min, max) = knob.bounds();
            for value in [min, max, knob.default_value()] {
                let setting = Setting::new(knob, value).expect("within the bounds");
                assert_eq!(setting.to_string().parse(), Ok(setting), "{setting}");
            }
            if let Some(above) = max.checked_add(1) {
                assert!(Setting::new(knob, above).is_err(), "{}", knob.name());
            }
        }
    }

    #[test]
    fn types_and_text_agree() {
        let pairs: [(Setting, &str); 5] = [
            (ThpSwapin::Never.into(), "thp.swapin=never"),
            (ThpDefrag::DeferMadvise.into(), "thp.defrag=defer+madvise"),
            (Checksum(false).into(), "swap.checksum=off"),
            (
                MallocMin::new(2 << 20).unwrap().into(),
                "route.malloc_min=2M",
            ),
            (ReadaheadMax::new(3).unwrap().into(), "readahead.max=3"),
        ];
        for (setting, text) in pairs {
            assert_eq!(setting.to_string(), text);
            assert_eq!(text.parse(), Ok(setting));
        }
        assert_eq!("off".parse(), Ok(Checksum(false)));
        assert_eq!("2M".parse(), Ok(MallocMin::new(2 << 20).unwrap()));
        assert_eq!("madvise".parse(), Ok(ThpEnabled::Madvise));
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let message = |text: &str| text.parse::<Setting>().unwrap_err().to_string();
        for (text, allowed) in [
            ("thp.enabled=perhaps", "one of always, madvise, never"),
            ("swap.checksum=maybe", "on or off"),
            ("readahead.max=x", "a number from 0 to 64"),
            ("route.malloc_min=1", "a size from 128K to 1T"),
            ("no.such=1", "there are route.malloc_min, "),
            ("x", "write KEY=VALUE"),
        ] {
            assert!(message(text).contains(allowed), "{}", message(text));
        }
    }

    #[test]
    fn a_region_has_three_settings_of_its_own() {
        let own = Knob::ALL.iter().filter(|&&knob| {
            let setting = Setting::new(knob, knob.default_value()).expect("the default");
            RegionSetting::try_from(setting).is_ok_and(|own| Setting::from(own) == setting)
        });
        assert_eq!(own.count(), 3);
    }
}
