//! Sets of layers, and the keys that a token sees.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The number of layers that a list may have.
const MOST: usize = 256;

/// A set of layers: those that have a window, or those that have RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub enum LayerSet {
    /// This layer and all later ones.
    From(usize),
    /// The layers whose bit is set, in any order. The first bit of the first number is layer 0.
    Listed([u64; MOST / 64]),
}

/// A set of layers in a file: the first layer, or the numbers of all layers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    From(usize),
    Listed(Vec<usize>),
}

impl LayerSet {
    /// Every layer.
    pub const ALL: Self = Self::From(0);

    /// The layers for which `has` is true. `None` if there are more than 256 and they are not the last ones.
    pub fn of(has: &[bool]) -> Option<Self> {
        let from = has.iter().take_while(|has| !**has).count();
        if has[from..].iter().all(|has| *has) {
            return Some(Self::From(from));
        }
        let listed = has.iter().enumerate().filter(|(_, has)| **has).map(|(layer, _)| layer);
        Self::listed(listed)
    }

    fn listed(layers: impl Iterator<Item = usize>) -> Option<Self> {
        let mut bits = [0; MOST / 64];
        for layer in layers {
            *bits.get_mut(layer / 64)? |= 1 << (layer % 64);
        }
        Some(Self::Listed(bits))
    }

    /// Whether `layer` is in the set.
    pub fn contains(self, layer: usize) -> bool {
        match self {
            Self::From(first) => layer >= first,
            Self::Listed(bits) => bits.get(layer / 64).is_some_and(|bits| bits >> (layer % 64) & 1 == 1),
        }
    }

    /// Whether it has every layer.
    pub fn is_all(&self) -> bool {
        *self == Self::ALL
    }

    /// The listed layers.
    fn numbers(self) -> impl Iterator<Item = usize> {
        (0..MOST).filter(move |&layer| self.contains(layer))
    }
}

impl Default for LayerSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl TryFrom<Stored> for LayerSet {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        match stored {
            Stored::From(first) => Ok(Self::From(first)),
            Stored::Listed(layers) => {
                Self::listed(layers.into_iter()).ok_or_else(|| format!("a layer is not below {MOST}"))
            }
        }
    }
}

impl From<LayerSet> for Stored {
    fn from(set: LayerSet) -> Self {
        match set {
            LayerSet::From(first) => Self::From(first),
            LayerSet::Listed(_) => Self::Listed(set.numbers().collect()),
        }
    }
}

/// The layers as a phrase: "every layer", "layers from 4 on", "layers 0-4, 6-10".
impl fmt::Display for LayerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::From(0) => f.write_str("every layer"),
            Self::From(first) => write!(f, "layers from {first} on"),
            Self::Listed(_) => {
                let mut runs: Vec<Range<usize>> = Vec::new();
                for layer in self.numbers() {
                    match runs.last_mut() {
                        Some(run) if run.end == layer => run.end += 1,
                        _ => runs.push(layer..layer + 1),
                    }
                }
                let of = |run: &Range<usize>| match run.len() {
                    1 => run.start.to_string(),
                    _ => format!("{}-{}", run.start, run.end - 1),
                };
                let runs: Vec<_> = runs.iter().map(of).collect();
                write!(f, "layers {}", if runs.is_empty() { "none".to_owned() } else { runs.join(", ") })
            }
        }
    }
}

/// The keys that a token sees among those up to its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sees {
    /// All of them.
    #[default]
    All,
    /// The last W, its own included: a sliding window (Mistral 7B, Jiang et al., 2023).
    Window(usize),
    /// Those in its own chunk of W positions (Llama 4).
    Chunk(usize),
}

impl Sees {
    /// The keys that the token at `position` sees.
    pub fn keys(self, position: usize) -> Range<usize> {
        let end = position + 1;
        let start = match self {
            Self::All => 0,
            Self::Window(window) => end.saturating_sub(window),
            Self::Chunk(chunk) => position / chunk.max(1) * chunk,
        };
        start..end
    }

    /// Whether the last of `keys` tokens does not see all of them.
    pub fn hides(self, keys: usize) -> bool {
        keys > 0 && self.keys(keys - 1).start > 0
    }

    /// The length of the window or of the chunk.
    pub fn length(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Window(length) | Self::Chunk(length) => Some(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_layers_is_the_last_ones_or_a_list() {
        let gemma = LayerSet::of(&[true, true, false, true, true, false]).unwrap();
        assert_eq!([0, 2, 4, 5, 900].map(|layer| gemma.contains(layer)), [true, false, true, false, false]);
        assert_eq!(gemma.to_string(), "layers 0-1, 3-4");
        assert_eq!(LayerSet::of(&[false, true, true]), Some(LayerSet::From(1)));
        assert_eq!(LayerSet::of(&[]), Some(LayerSet::ALL));
        assert!(LayerSet::From(2).contains(300) && !LayerSet::From(2).contains(1));
        let mut many = vec![false; 300];
        many[256] = true;
        assert_eq!(LayerSet::of(&many), None);
    }

    #[test]
    fn files_store_a_number_or_a_list() {
        for (set, text) in [(LayerSet::From(3), "3"), (LayerSet::of(&[true, false]).unwrap(), "[0]")] {
            assert_eq!(serde_json::to_string(&set).unwrap(), text);
            assert_eq!(serde_json::from_str::<LayerSet>(text).unwrap(), set);
        }
        assert!(serde_json::from_str::<LayerSet>("[256]").is_err());
    }

    #[test]
    fn a_window_of_two_shows_a_token_itself_and_the_one_before_and_a_chunk_begins_anew() {
        let seen = |sees: Sees| [0, 1, 2, 5].map(|position| sees.keys(position));
        assert_eq!(seen(Sees::All), [0..1, 0..2, 0..3, 0..6]);
        assert_eq!(seen(Sees::Window(2)), [0..1, 0..2, 1..3, 4..6]);
        assert_eq!(seen(Sees::Chunk(2)), [0..1, 0..2, 2..3, 4..6]);
        assert_eq!([2, 3, 4].map(|keys| Sees::Window(2).hides(keys)), [false, true, true]);
        assert_eq!([2, 3, 4].map(|keys| Sees::Chunk(2).hides(keys)), [false, true, true]);
    }
}
