//! The weights that the stages read, by the names that addresses use.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::axis::Axis;
use super::card::ModelCard;
use super::sizes::PassDims;
use super::stage::{Stage, WeightUse};
use super::step::Step;

/// A weight that a stage reads, under Meta's short name: `wq`, `bq` for its bias, `tok_embeddings`.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    used: &'static WeightUse,
    by: Stage,
}

impl Weight {
    /// Every weight, in the order of the pass.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |&by: &Stage| by.info().weights.iter().map(move |used| Self { used, by });
        let weights = Stage::ALL.iter().flat_map(of);
        // Several stages may read the weight, or read it in different shapes.
        let mut names = Vec::new();
        weights.filter(move |weight| {
            let is_new = !names.contains(&weight.used.name);
            names.push(weight.used.name);
            is_new
        })
    }

    /// The weight with this name. The suffix `.weight`, as in Meta's files, is optional, unless a stage has the same
    /// name: `ffn_norm.weight`.
    pub fn from_name(name: &str) -> Option<Self> {
        let short = name.strip_suffix(".weight");
        Self::all().find(|weight| match short {
            Some(short) => weight.used.name == short && !weight.is_bias(),
            None => weight.to_string() == name,
        })
    }

    /// The weights that `stage` reads in the model `card`: its matrix, table or norm first, then its bias. A tied head
    /// reads the embedding table.
    pub fn read_in(stage: Stage, card: &ModelCard) -> impl Iterator<Item = Self> {
        let tied = card.config.tied && stage == Stage::Logits;
        let by = if tied { Stage::Embedding } else { stage };
        by.weights(card).map(move |used| Self { used, by })
    }

    /// The stage that reads it.
    pub fn read_by(self) -> Stage {
        self.by
    }

    /// Meta's short name.
    pub fn name(self) -> &'static str {
        self.used.name
    }

    /// Returns whether each layer has its own weight of this name.
    pub fn in_layer(self) -> bool {
        self.by.in_layer()
    }

    /// The weight of this name in the model `card`, with the shape and the reader that it has there; `None` if the model
    /// has none.
    pub fn in_model(self, card: &ModelCard) -> Option<Self> {
        if !self.present(card) {
            return None;
        }
        let sizes = card.sizes();
        let there = Stage::ALL.iter().filter(|stage| stage.present(&sizes, PassDims::default()));
        there.flat_map(|&stage| Self::read_in(stage, card)).find(|weight| *weight == self)
    }

    /// Returns whether the model `card` has it. A tied head is the embedding table, under the table's name.
    pub fn present(self, card: &ModelCard) -> bool {
        let tied = card.config.tied && self.by == Stage::Logits;
        let there = Stage::ALL.iter().any(|stage| {
            let reads = stage.info().weights.iter().any(|weight| weight.name == self.used.name);
            reads && stage.present(&card.sizes(), PassDims::default())
        });
        !tied && there && self.by.weights(card).any(|weight| weight.name == self.used.name)
    }

    /// The meaning of each axis, outermost first: outputs × inputs.
    pub fn axes(self) -> &'static [Axis] {
        self.used.axes
    }

    /// The letter of each axis: `v` and `d` for a table of tokens, `o` and `i` for the outputs and inputs of a
    /// projection, `o` for its bias, and the axis's own letter for a norm.
    pub fn letters(self) -> Vec<char> {
        match self.used.axes {
            [Axis::Vocab, _] => self.used.axes.iter().map(|axis| axis.index()).collect(),
            [_, _] => vec!['o', 'i'],
            _ if self.is_bias() => vec!['o'],
            axes => axes.iter().map(|axis| axis.index()).collect(),
        }
    }

    /// Returns whether it is a bias: the second weight of its stage.
    fn is_bias(self) -> bool {
        self.by.info().weights.first().is_some_and(|first| first.name != self.used.name)
    }
}

impl PartialEq for Weight {
    fn eq(&self, other: &Self) -> bool {
        self.used.name == other.used.name
    }
}

impl Eq for Weight {}

impl Hash for Weight {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.used.name.hash(state);
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = Step::from_name(self.used.name).is_some();
        write!(f, "{}{}", self.used.name, if taken { ".weight" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ModelConfig, Placement, QkWidth};

    #[test]
    fn every_weight_is_found_by_its_name_and_no_name_stands_twice() {
        let mut names: Vec<String> = Weight::all().map(|weight| weight.to_string()).collect();
        for weight in Weight::all() {
            assert_eq!(Weight::from_name(&weight.to_string()), Some(weight));
            assert_eq!(weight.letters().len(), weight.axes().len(), "{weight}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(Weight::from_name("wq.weight"), Weight::from_name("wq"));
        assert_eq!(Weight::from_name("ffn_norm"), None, "a stage has this name");
        assert!(Weight::from_name("ffn_norm.weight").is_some() && Weight::from_name("bq.weight").is_none());
    }

    #[test]
    fn a_weight_has_the_shape_that_it_has_in_the_model() {
        let of = |name: &str, change: fn(&mut ModelConfig)| {
            let weight = Weight::from_name(name).unwrap().in_model(&ModelCard::small(change))?;
            Some((weight.letters(), weight.read_by().name()))
        };
        assert_eq!(of("q_norm", |_| {}), None, "a Llama has none");
        assert_eq!(of("q_norm", |config| config.qk_norm = true), Some((vec!['c'], "xq_norm")));
        let whole = |config: &mut ModelConfig| {
            (config.qk_norm, config.qk_norm_form.width) = (true, QkWidth::Whole);
        };
        assert_eq!(of("q_norm", whole), Some((vec!['m'], "xq_norm")));
        let weightless = |config: &mut ModelConfig| {
            (config.qk_norm, config.qk_norm_form.weight) = (true, false);
        };
        assert_eq!(of("q_norm", weightless), None);
        assert_eq!(of("attention_norm", |config| config.placement = Placement::After), None);
        assert_eq!(of("attention_norm_bias", |_| {}), None);
        let biased = |config: &mut ModelConfig| config.norm.bias = true;
        assert_eq!(of("attention_norm_bias", biased), Some((vec!['o'], "attn_norm")));
        assert_eq!(of("w1", |config| config.ungated = true), None);
    }

    #[test]
    fn letters_tell_tables_projections_biases_and_norms_apart() {
        let letters = |name: &str| Weight::from_name(name).map(Weight::letters).unwrap();
        assert_eq!(letters("tok_embeddings"), ['v', 'd']);
        assert_eq!(letters("wq"), ['o', 'i']);
        assert_eq!(letters("bq"), ['o']);
        assert_eq!(letters("ffn_norm.weight"), ['d']);
        assert_eq!(letters("q_norm"), ['c']);
    }
}
