//! Kinds of values that the token strip shows beside the tokens.

/// The values that the token strip shows after its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripValues {
    /// No values.
    #[default]
    Nothing,
    /// Surprise: −log p of each token. p is the probability that the model gave the token before reading it.
    Surprise,
    /// Attention weight of each token in the head in view.
    Attention,
}

impl StripValues {
    /// Names of the kinds in options, in the order of the key `T`.
    pub const NAMES: [&str; 3] = ["tokens", "surprise", "attention"];

    /// The kind with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let kinds = [Self::Nothing, Self::Surprise, Self::Attention];
        Self::NAMES.iter().zip(kinds).find(|(known, _)| **known == name).map(|(_, kind)| kind)
    }

    /// Its name in options.
    #[cfg(feature = "native")]
    pub(super) fn option(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The next kind.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Nothing => Self::Surprise,
            Self::Surprise => Self::Attention,
            Self::Attention => Self::Nothing,
        }
    }

    /// Thresholds of the four marks.
    pub fn steps(self) -> [f64; 4] {
        match self {
            Self::Nothing | Self::Surprise => [1.0, 2.0, 4.0, 8.0],
            Self::Attention => [0.05, 0.1, 0.25, 0.5],
        }
    }

    /// The name on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Surprise => "−log p",
            Self::Attention => "attention",
        }
    }
}
