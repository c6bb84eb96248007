//! The meaning of the axes of tensors, and their letters.

/// The meaning of one axis of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// T: a token of this pass (a query position).
    Token,
    /// K: a cached position, this pass's own included.
    Key,
    /// H: a query head.
    Head,
    /// G: a key/value head.
    KvHead,
    /// C: a component of one head.
    HeadDim,
    /// D: a component of the residual stream.
    Dim,
    /// F: a unit of the feed-forward network.
    Hidden,
    /// C/2: a pair of components that RoPE rotates together.
    Pair,
    /// V: a token of the vocabulary.
    Vocab,
    /// H·C: all query heads concatenated (views only).
    HeadsMerged,
    /// G·C: all key/value heads concatenated (views only).
    KvHeadsMerged,
    /// ⌈D/g⌉: a group of components that share a scale.
    DimGroup,
    /// ⌈H·C/g⌉: a group of the concatenated heads, as the product reads them; it may cross heads.
    HeadsGroup,
    /// ⌈F/g⌉: a group of units that share a scale.
    HiddenGroup,
    /// A single value.
    One,
    /// One of two learned numbers of an activation.
    Two,
}

impl Axis {
    /// The name written to manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token | Self::One => "token",
            Self::Key => "key",
            Self::Head => "head",
            Self::KvHead => "kv_head",
            Self::HeadDim => "head_dim",
            Self::Dim => "dim",
            Self::Hidden => "hidden",
            Self::Pair => "pair",
            Self::Vocab => "vocab",
            Self::HeadsMerged => "head·head_dim",
            Self::KvHeadsMerged => "kv_head·head_dim",
            Self::DimGroup | Self::HeadsGroup | Self::HiddenGroup => "group",
            Self::Two => "number",
        }
    }

    /// The symbol for the length of the axis in shapes.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Token => "T",
            Self::Key => "K",
            Self::Head => "H",
            Self::KvHead => "G",
            Self::HeadDim => "C",
            Self::Dim => "D",
            Self::Hidden => "F",
            Self::Pair => "C/2",
            Self::Vocab => "V",
            Self::HeadsMerged => "H·C",
            Self::KvHeadsMerged => "G·C",
            Self::DimGroup => "D/g",
            Self::HeadsGroup => "H·C/g",
            Self::HiddenGroup => "F/g",
            Self::One => "1",
            Self::Two => "2",
        }
    }

    /// The letter that indexes the axis in formulas and addresses.
    pub fn index(self) -> char {
        match self {
            Self::Token => 't',
            Self::Key => 'k',
            Self::Head => 'h',
            Self::KvHead => 'g',
            Self::HeadDim => 'c',
            Self::Dim => 'd',
            Self::Hidden => 'f',
            Self::Pair => 'i',
            Self::Vocab => 'v',
            Self::HeadsMerged | Self::KvHeadsMerged => 'm',
            Self::DimGroup | Self::HeadsGroup | Self::HiddenGroup => 'j',
            Self::One | Self::Two => 'n',
        }
    }
}
