//! What the strip of tokens can carry beside their texts.

/// What the strip carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carries {
    /// The tokens alone.
    #[default]
    Nothing,
    /// −log of the probability that each had before it was read.
    Surprise,
    /// The weight that the head in view gives each.
    Attention,
}

impl Carries {
    /// What comes after it.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Nothing => Self::Surprise,
            Self::Surprise => Self::Attention,
            Self::Attention => Self::Nothing,
        }
    }

    /// From which value on each mark stands.
    pub fn steps(self) -> [f64; 4] {
        match self {
            Self::Nothing | Self::Surprise => [1.0, 2.0, 4.0, 8.0],
            Self::Attention => [0.05, 0.1, 0.25, 0.5],
        }
    }

    /// What its values are.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Surprise => "−log p",
            Self::Attention => "attention",
        }
    }
}
