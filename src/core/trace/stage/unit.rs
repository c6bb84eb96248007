//! The units of the stages' values.

/// The unit of a stage's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Numbers without a unit.
    Plain,
    /// Ids of tokens.
    Id,
    /// Cosines.
    Cosine,
    /// Sines.
    Sine,
    /// 0 for a visible key, −∞ for a hidden one.
    Hiding,
    /// Dot products of two heads' vectors.
    Dot,
    /// Dot products divided by √C.
    ScaledDot,
    /// Attention weights, which sum to 1.
    Share,
    /// Scores before softmax.
    Logit,
    /// Probabilities, which sum to 1.
    Probability,
    /// int8: a value as a multiple of its scale.
    Steps,
    /// Scales: the value that the int8 number 1 stands for.
    Step,
}

impl Unit {
    /// Its name in the viewer.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "no unit",
            Self::Id => "token id",
            Self::Cosine => "cosine",
            Self::Sine => "sine",
            Self::Hiding => "0 or -inf",
            Self::Dot => "dot product",
            Self::ScaledDot => "dot product / √C",
            Self::Share => "share of 1",
            Self::Logit => "logit",
            Self::Probability => "probability",
            Self::Steps => "steps of its scale",
            Self::Step => "size of a step",
        }
    }

    /// A shorter name for narrow columns.
    pub fn short(self) -> &'static str {
        match self {
            Self::ScaledDot => "qk / √C",
            unit => unit.name(),
        }
    }

    /// Returns whether the values are fractions of 1.
    pub fn is_share(self) -> bool {
        matches!(self, Self::Share | Self::Probability)
    }

    /// Returns whether no value is below 0.
    pub fn is_positive(self) -> bool {
        self.is_share() || self == Self::Step
    }
}
