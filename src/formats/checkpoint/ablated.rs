//! Ablation: parts of a model are switched off, so nothing that they compute enters the residual stream. The change of
//! the answer shows the effect of a part (Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?", 2019).
//! The model runs unchanged, with zeros in some of its weights.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::names::{LayerWeight, Weight};
use llama_trace_core::config::ModelConfig;
use llama_trace_core::error::{Error, Result};

/// A part that writes into the residual stream, with the name that `attribute` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ablated {
    /// A query head. Its columns of wo become 0.
    Head {
        /// Number of the layer.
        layer: usize,
        /// Number of the head.
        head: usize,
    },
    /// All heads of a layer. wo and its bias become 0.
    Attention {
        /// Number of the layer.
        layer: usize,
    },
    /// The feed-forward network of a layer. w2 and its bias become 0.
    Ffn {
        /// Number of the layer.
        layer: usize,
    },
}

impl Ablated {
    /// Checks that a model has this part.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if it does not.
    pub(super) fn check(self, config: &ModelConfig) -> Result<()> {
        let (layers, heads) = (config.layers, config.heads);
        let (layer, head) = match self {
            Self::Head { layer, head } => (layer, head),
            Self::Attention { layer } | Self::Ffn { layer } => (layer, 0),
        };
        if layer < layers && head < heads {
            return Ok(());
        }
        Err(Error::usage(format!("the model has no {self} to switch off"))
            .expected(format!("layers L0 to L{}, heads h0 to h{}", layers - 1, heads - 1))
            .next("name one of these: L0/h0, L0/attn or L0/ffn"))
    }

    /// The input columns of `weight` that become 0 if this part is switched off.
    pub(super) fn columns(self, weight: Weight, config: &ModelConfig) -> Option<Range<usize>> {
        let Weight::Layer(of, weight) = weight else { return None };
        match (self, weight) {
            (Self::Head { layer, head }, LayerWeight::Wo) if layer == of => {
                Some(head * config.head_dim..(head + 1) * config.head_dim)
            }
            (Self::Attention { layer }, LayerWeight::Wo) if layer == of => Some(0..config.q_dim()),
            (Self::Attention { layer }, LayerWeight::Bo) | (Self::Ffn { layer }, LayerWeight::B2)
                if layer == of =>
            {
                Some(0..config.dim)
            }
            (Self::Ffn { layer }, LayerWeight::W2) if layer == of => Some(0..config.ffn_dim),
            _ => None,
        }
    }
}

impl fmt::Display for Ablated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head { layer, head } => write!(f, "L{layer}/h{head}"),
            Self::Attention { layer } => write!(f, "L{layer}/attn"),
            Self::Ffn { layer } => write!(f, "L{layer}/ffn"),
        }
    }
}

impl FromStr for Ablated {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str, letter: char| {
            let digits = text.strip_prefix(letter)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
        };
        let part = text.trim().split_once('/').and_then(|(layer, part)| {
            let layer = number(layer, 'L')?;
            match part {
                "attn" => Some(Self::Attention { layer }),
                "ffn" => Some(Self::Ffn { layer }),
                head => number(head, 'h').map(|head| Self::Head { layer, head }),
            }
        });
        part.ok_or_else(|| {
            "a head, the attention or the FFN of a layer is expected: L0/h2, L0/attn or L0/ffn".into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_is_written_and_nothing_else_is_one() {
        for text in ["L0/h2", "L17/attn", "L3/ffn"] {
            assert_eq!(text.parse::<Ablated>().unwrap().to_string(), text);
        }
        assert_eq!(" L1/h0 ".parse(), Ok(Ablated::Head { layer: 1, head: 0 }));
        for text in [
            "",
            "L0",
            "h2",
            "L0/",
            "L/h2",
            "L0/h",
            "L0/h-1",
            "L0/h+1",
            "l0/h2",
            "L0/h2/x",
            "L0/bias",
            "L99999999999999999999/ffn",
        ] {
            assert!(text.parse::<Ablated>().is_err(), "{text}");
        }
    }
}
