//! Values of a field that change nothing, and the meaning of null.

/// A value of a field that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Neutral {
    /// This number.
    Number(f64),
    /// This text.
    Text(&'static str),
    /// `true`.
    True,
}

/// The meaning of null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Null {
    /// The same as an absent field.
    Absent,
    /// No valid meaning: the reference fails, or does not use the default.
    Fails,
}

/// The factor that changes nothing.
pub(super) const ONE: &[Neutral] = &[Neutral::Number(1.0)];
