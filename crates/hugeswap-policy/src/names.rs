//! Enums whose variants have an index and a name.

/// Declares an enum of named variants: `as usize` is the index of a variant, `ALL` has every
/// variant in index order, `COUNT` is their number, `name()` is the name, and `doc()`
/// says what it is.
macro_rules! named {
    ($(#[$meta:meta])* $enum:ident: $($variant:ident => $name:literal, $doc:literal;)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $enum { $(#[doc = $doc] $variant,)* }
        impl $enum {
            /// Every variant, in index order.
            pub const ALL: &'static [$enum] = &[$($enum::$variant,)*];
            /// Number of variants.
            pub const COUNT: usize = Self::ALL.len();
            /// The name, as operators read and write it.
            pub const fn name(self) -> &'static str { match self { $($enum::$variant => $name,)* } }
            /// What it is, in a line.
            pub const fn doc(self) -> &'static str { match self { $($enum::$variant => $doc,)* } }
        }
    };
}
