//! Activation patching, as a viewer asks for it: maps of places, and the effect of each place. The engine computes the
//! effects.

use std::ops::Range;
use std::sync::Arc;

use super::{Address, Site, Sizes, Stage, Step, Subject};

/// Values of one stage: of a token or of all tokens, and of a head, of a neuron or of whole rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The stage.
    pub stage: Stage,
    /// The layer; `None` for the embedding.
    pub layer: Option<usize>,
    /// The token; `None` for all.
    pub token: Option<usize>,
    /// The head of `AttnHeads`, or the neuron of [`Sizes::neurons`]; `None` for whole rows.
    pub unit: Option<usize>,
}

impl Place {
    /// The cells of a row of the stage.
    pub fn cells(&self, sizes: &Sizes) -> Range<usize> {
        match (self.stage, self.unit) {
            (Stage::AttnHeads, Some(head)) => head * sizes.head_dim..(head + 1) * sizes.head_dim,
            (_, Some(unit)) => unit..unit + 1,
            (Stage::AttnHeads, None) => 0..sizes.heads * sizes.head_dim,
            (Stage::FfnHidden | Stage::FfnAct, None) => 0..sizes.hidden,
            (_, None) => 0..sizes.dim,
        }
    }

    /// Its address in the first pass.
    pub fn address(&self) -> Address {
        let unit = if self.stage == Stage::AttnHeads { 'h' } else { 'f' };
        let index = [('t', self.token), (unit, self.unit)];
        Address {
            pass: Some(0),
            layer: self.layer,
            subject: Some(Subject::Step(Step::Stage(self.stage))),
            index: index.into_iter().filter_map(|(letter, index)| Some((letter, index?))).collect(),
            ..Address::default()
        }
    }
}

/// A map of places: a row for each layer, and a column for each token or each head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PatchMap {
    /// The residual stream of one token, before the layers and after each.
    #[default]
    Residual,
    /// The output of attention of one token.
    Attn,
    /// The output of the feed-forward network of one token.
    Ffn,
    /// The output of one head, for all tokens.
    Heads,
}

impl PatchMap {
    /// All maps.
    pub const ALL: [Self; 4] = [Self::Residual, Self::Attn, Self::Ffn, Self::Heads];

    /// Its name, as in the option `--parts`.
    pub fn name(self) -> &'static str {
        ["residual", "attn", "ffn", "heads"][self as usize]
    }

    /// A line that says what is patched.
    pub fn title(self) -> &'static str {
        match self {
            Self::Residual => "residual: the residual stream of one token, before the layers and after each",
            Self::Attn => "attn: the output of attention (attn_output) of one token",
            Self::Ffn => "ffn: the output of the feed-forward network (ffn_down) of one token",
            Self::Heads => "heads: the output of one head (attn_heads), for all tokens",
        }
    }

    /// The stage that is patched in the layers.
    pub fn stage(self) -> Stage {
        match self {
            Self::Residual => Stage::FfnResidual,
            Self::Attn => Stage::AttnOutput,
            Self::Ffn => Stage::FfnDown,
            Self::Heads => Stage::AttnHeads,
        }
    }

    /// Number of rows. The residual stream also has a row for the embedding, before the layers.
    pub fn rows(self, sizes: &Sizes) -> usize {
        sizes.layers + usize::from(self == Self::Residual)
    }

    /// Number of columns, for a prompt of `tokens` tokens.
    pub fn columns(self, sizes: &Sizes, tokens: usize) -> usize {
        if self == Self::Heads { sizes.heads } else { tokens }
    }

    /// The place in a row and a column.
    pub fn place(self, row: usize, column: usize) -> Place {
        let layer = if self == Self::Residual { row.checked_sub(1) } else { Some(row) };
        let stage = if layer.is_some() { self.stage() } else { Stage::Embedding };
        let by_head = self == Self::Heads;
        Place { stage, layer, token: (!by_head).then_some(column), unit: by_head.then_some(column) }
    }

    /// All places, row by row, for a prompt of `tokens` tokens.
    pub fn places(self, sizes: &Sizes, tokens: usize) -> impl Iterator<Item = Place> + use<> {
        let (rows, columns) = (self.rows(sizes), self.columns(sizes, tokens));
        (0..rows).flat_map(move |row| (0..columns).map(move |column| self.place(row, column)))
    }
}

/// A number that a run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// logit(answer) − logit(wrong)
    #[default]
    LogitDiff,
    /// The probability of the answer, at temperature 1.
    Prob,
    /// KL(clean ‖ run) = Σ p log(p / q), in nats, over the next token.
    Kl,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 3] = [Self::LogitDiff, Self::Prob, Self::Kl];

    /// Its name, as in the option `--metric`.
    pub fn name(self) -> &'static str {
        ["logit-diff", "prob", "kl"][self as usize]
    }
}

/// The number of rows that one question computes at once. More rows are not faster.
pub const ROWS: usize = 512;

/// Asks for the effects of some places of a map: the run takes their values from the run of another prompt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PatchAt {
    /// The logits of the first pass of the run whose values are replaced, the corrupted run.
    pub site: Site,
    /// The tokens of the other prompt, the clean one.
    pub clean: Arc<[u32]>,
    /// The map.
    pub map: PatchMap,
    /// Indices of the places in [`PatchMap::places`]. They are in one row of the map.
    pub places: Range<usize>,
}

impl PatchAt {
    /// Asks for places from index `first` of the map on. They are in one row, and few enough that other questions do not
    /// wait long. None after the last place.
    pub fn from(site: Site, clean: &Arc<[u32]>, map: PatchMap, sizes: &Sizes, first: usize) -> Option<Self> {
        let tokens = clean.len();
        let columns = map.columns(sizes, tokens);
        if first >= map.rows(sizes) * columns {
            return None;
        }
        let end = (first + (ROWS / tokens.max(1)).max(1)).min((first / columns + 1) * columns);
        Some(Self { site, clean: Arc::clone(clean), map, places: first..end })
    }
}

/// The effects of some places.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchEffects {
    /// The two runs.
    pub ends: PatchEnds,
    /// For each place, the effect by each metric, in the order of [`Metric::ALL`].
    pub places: Vec<[PatchEffect; 3]>,
}

/// The two runs between which a patched run lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatchEnds {
    /// The most likely next token of the clean run.
    pub answer: u32,
    /// The most likely next token of the corrupted run.
    pub wrong: u32,
    /// The values of the corrupted run and of the clean run, by each metric. `None` if they are equal, so that there is
    /// no effect.
    pub values: [Option<(f64, f64)>; 3],
}

/// The effect of one place. Both numbers are NaN if the metric has the same value in both runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatchEffect {
    /// The value of the metric in the patched run.
    pub value: f64,
    /// How far the value is on the way from the corrupted run (0) to the clean run (1).
    pub effect: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ModelCard;

    #[test]
    fn questions_cover_each_place_of_a_map_once_and_stay_in_a_row() {
        let sizes = ModelCard::small(|_| {}).sizes();
        for (map, tokens) in PatchMap::ALL.into_iter().flat_map(|map| [1, 7, 300, 2000].map(|t| (map, t))) {
            let (clean, site) = (vec![1; tokens].into(), Site::once(0, Stage::Logits));
            let (mut next, columns) = (0, map.columns(&sizes, tokens));
            while let Some(at) = PatchAt::from(site, &clean, map, &sizes, next) {
                assert!(at.places.start == next && at.places.end > next, "{at:?}");
                assert_eq!(at.places.start / columns, (at.places.end - 1) / columns, "{at:?}");
                next = at.places.end;
            }
            assert_eq!(next, map.places(&sizes, tokens).count(), "{map:?} {tokens}");
        }
    }

    #[test]
    fn the_places_of_a_map_have_the_addresses_of_its_stage() {
        let sizes = ModelCard::small(|_| {}).sizes();
        let address = |map: PatchMap, row, column| map.place(row, column).address().to_string();
        assert_eq!(address(PatchMap::Residual, 0, 2), "p0/embedding[t=2]");
        assert_eq!(address(PatchMap::Residual, 1, 2), "p0/L0/ffn_residual[t=2]");
        assert_eq!(address(PatchMap::Attn, 1, 0), "p0/L1/attn_output[t=0]");
        assert_eq!(address(PatchMap::Ffn, 0, 0), "p0/L0/ffn_down[t=0]");
        assert_eq!(address(PatchMap::Heads, 0, 1), "p0/L0/attn_heads[h=1]");
        let last = PatchMap::Residual.places(&sizes, 3).last();
        assert_eq!(last, Some(PatchMap::Residual.place(sizes.layers, 2)));
    }
}
