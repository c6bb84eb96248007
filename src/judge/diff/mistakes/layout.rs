//! Mistakes of weights: read in another order, left out, or mixed up.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use half::bf16;

use super::super::bench::Otherwise;
use super::Mistake;
use crate::check::{Change, Nothing, ReadRows};
use llama_trace_core::error::Result;
use llama_trace_core::explain::{Fold, Place, Rule};
use llama_trace_core::trace::{ModelCard, Op, PassDims, Site, Sizes, Stage, Weight};

/// The largest matrix, in values, that is read as a whole to reorder it.
const WHOLE: usize = 1 << 28;

/// The index, in the stored matrix, of the value that the mistake reads for row `o` and column `i`; `None` if the
/// mistake does not affect the matrix.
type Order = fn(Weight, &Sizes, [usize; 2], [usize; 2]) -> Option<usize>;

/// Matrices are read in another order.
struct Reordered {
    sizes: Sizes,
    order: Order,
    /// The only affected matrix; `None` for all matrices to which the order applies.
    only: Option<Weight>,
    /// Whether the embedding table is only read as the head, and may be reordered.
    is_head: bool,
    whole: Mutex<HashMap<Place, Arc<Vec<f32>>>>,
}

/// Each weight of a norm is changed by this function.
pub(super) struct Norms(pub(super) fn(f32) -> f32);

/// The norm is left out: its output is its input.
struct NoNorm;

/// No bias is added.
struct NoBias;

/// The head is the embedding table.
struct Tied;

/// The second weight of each pair is read in place of the first.
pub(super) struct OtherWeights(pub(super) &'static [[&'static str; 2]]);

/// SiLU is applied to up instead of gate.
struct SwappedHalves;

/// Weights are rounded to bfloat16.
struct RoundedWeights;

/// Adds the mistakes that may explain a stage. `chain` has the stages that are computed to get this stage.
pub(super) fn add(card: &ModelCard, chain: &[Site], all: &mut Vec<Mistake>) {
    reordered(card, chain, all);
    all.push(Mistake::of("norm_weight_plus_one", "", Op::RmsNorm.stages(), Norms(|weight| weight + 1.0)));
    all.push(Mistake::of("norm_weight_missing", "", Op::RmsNorm.stages(), Norms(|_| 1.0)));
    all.push(Mistake::of("norm_missing", "", Op::RmsNorm.stages(), NoNorm));
    if card.config.qkv_bias || card.config.output_bias || card.config.mlp_bias {
        all.push(Mistake::of("bias_missing", "", Op::Linear.stages(), NoBias));
    }
    if !card.config.tied {
        all.push(Mistake::of("tied_head", "", [Stage::Logits], Tied));
    }
    exchanged(all);
    if !card.config.ungated {
        let form = "the activation of up";
        let touches = [Stage::FfnSilu, Stage::FfnAct, Stage::FfnHidden];
        let mut halves = Mistake::of("gate_up_swapped", form, touches, SwappedHalves);
        halves.otherwise = Otherwise {
            again: &[Stage::FfnSilu, Stage::FfnAct],
            also: &[
                (Stage::FfnSilu, Stage::FfnUp),
                (Stage::FfnAct, Stage::FfnUp),
                (Stage::FfnHidden, Stage::FfnGate),
            ],
            ..Otherwise::default()
        };
        all.push(halves);
    }
    let mut rounded = Mistake::of("bf16_rounding", "weights", Stage::ALL, RoundedWeights);
    rounded.rounds = true;
    all.push(rounded);
    let mut rounded = Mistake::of("bf16_rounding", "inputs of products", Op::Linear.stages(), Nothing);
    (rounded.otherwise.rounds_inputs, rounded.rounds) = (true, true);
    all.push(rounded);
    for group in [32, 64, 128, 0] {
        let form = if group == 0 { "one scale per row".into() } else { format!("{group} values to a scale") };
        let mut quantized = Mistake::of("quantized_activations", form, Op::Linear.stages(), Nothing);
        (quantized.otherwise.quantize, quantized.rounds) = (Some(group), true);
        all.push(quantized);
    }
}

/// Weights of a layer with equal shapes are exchanged. The forms that replace only one weight come first, because one
/// stage is enough to show them.
fn exchanged(all: &mut Vec<Mistake>) {
    type Forms = [(&'static str, &'static [Stage], OtherWeights); 3];
    let norms: Forms = [
        (
            "weights of ffn_norm in attn_norm",
            &[Stage::AttnNorm],
            OtherWeights(&[["attention_norm", "ffn_norm"]]),
        ),
        (
            "weights of attn_norm in ffn_norm",
            &[Stage::FfnNorm],
            OtherWeights(&[["ffn_norm", "attention_norm"]]),
        ),
        (
            "both",
            &[Stage::AttnNorm, Stage::FfnNorm],
            OtherWeights(&[["attention_norm", "ffn_norm"], ["ffn_norm", "attention_norm"]]),
        ),
    ];
    let cached: Forms = [
        ("wv instead of wk", &[Stage::Xk], OtherWeights(&[["wk", "wv"], ["bk", "bv"]])),
        ("wk instead of wv", &[Stage::Xv], OtherWeights(&[["wv", "wk"], ["bv", "bk"]])),
        (
            "both",
            &[Stage::Xk, Stage::Xv],
            OtherWeights(&[["wk", "wv"], ["bk", "bv"], ["wv", "wk"], ["bv", "bk"]]),
        ),
    ];
    let gates: Forms = [
        ("w3 instead of w1", &[Stage::FfnGate], OtherWeights(&[["w1", "w3"], ["b1", "b3"]])),
        ("w1 instead of w3", &[Stage::FfnUp], OtherWeights(&[["w3", "w1"], ["b3", "b1"]])),
        (
            "the weights",
            &[Stage::FfnGate, Stage::FfnUp],
            OtherWeights(&[["w1", "w3"], ["b1", "b3"], ["w3", "w1"], ["b3", "b1"]]),
        ),
    ];
    for (name, forms) in [("norm_weights_swapped", norms), ("kv_swapped", cached), ("gate_up_swapped", gates)]
    {
        all.extend(forms.into_iter().map(|(form, stages, other)| Mistake::of(name, form, stages, other)));
    }
}

/// Adds the mistakes that read matrices in another order. If several products are computed to get the stage, either one
/// of their matrices is reordered, or all are.
fn reordered(card: &ModelCard, chain: &[Site], all: &mut Vec<Mistake>) {
    let sizes = card.sizes();
    let products: Vec<&Stage> =
        Op::Linear.stages().iter().filter(|stage| chain.iter().any(|site| site.stage == **stage)).collect();
    let mut one_by_one: Vec<_> =
        products.iter().filter_map(|stage| Weight::read_in(**stage, card).next()).map(Some).collect();
    if one_by_one.len() == 1 {
        one_by_one.clear();
    }
    let has = |stage: Stage| chain.iter().any(|site| site.stage == stage);
    let is_head = has(Stage::Logits) && !has(Stage::Embedding);
    let orders: [(_, Order); 5] = [
        ("transposed", transposed),
        ("rows of heads as neighbours, not halves", halves_as_neighbours),
        ("rows of heads as halves, not neighbours", neighbours_as_halves),
        ("components before heads", heads_interleaved),
        ("heads taken for components", heads_apart),
    ];
    for (form, order) in orders {
        for only in std::iter::once(None).chain(one_by_one.iter().copied()) {
            let reordered = Reordered { sizes, order, only, is_head, whole: Mutex::default() };
            // An order that does not apply to the matrix changes nothing, but takes as long to try.
            if only.is_none_or(|weight| reordered.is_of(weight)) {
                let of = only.map_or_else(String::new, |weight| format!("{}: ", weight.name()));
                all.push(Mistake::of("weight_layout", format!("{of}{form}"), Op::Linear.stages(), reordered));
            }
        }
    }
}

/// The stored values, read as inputs × outputs.
fn transposed(_: Weight, _: &Sizes, [outputs, _]: [usize; 2], [o, i]: [usize; 2]) -> Option<usize> {
    Some(i * outputs + o)
}

/// The head width of wq and wk, the weights that RoPE's pairing affects; `None` for other weights.
fn turned(weight: Weight, sizes: &Sizes) -> Option<usize> {
    matches!(weight.name(), "wq" | "wk").then_some(sizes.head_dim)
}

/// The rows of wq and wk, read as if their pairs were neighbours.
fn halves_as_neighbours(
    weight: Weight,
    sizes: &Sizes,
    [_, inputs]: [usize; 2],
    [o, i]: [usize; 2],
) -> Option<usize> {
    let c = turned(weight, sizes)?;
    let (head, row) = (o / c * c, o % c);
    Some((head + row / 2 + row % 2 * (c / 2)) * inputs + i)
}

/// The rows of wq and wk, read as if their pairs were halves.
fn neighbours_as_halves(
    weight: Weight,
    sizes: &Sizes,
    [_, inputs]: [usize; 2],
    [o, i]: [usize; 2],
) -> Option<usize> {
    let c = turned(weight, sizes)?;
    let (head, row) = (o / c * c, o % c);
    Some((head + row % (c / 2) * 2 + row / (c / 2)) * inputs + i)
}

/// The order with components before heads, for weights that have heads first.
fn heads_interleaved(weight: Weight, sizes: &Sizes, lengths: [usize; 2], cell: [usize; 2]) -> Option<usize> {
    of_heads(weight, sizes, lengths, cell, |at, heads, c| at % heads * c + at / heads)
}

/// The order with heads before components, for weights that have components first.
fn heads_apart(weight: Weight, sizes: &Sizes, lengths: [usize; 2], cell: [usize; 2]) -> Option<usize> {
    of_heads(weight, sizes, lengths, cell, |at, heads, c| at % c * heads + at / c)
}

/// Reorders the side of wq, wk, wv and wo that has heads and components. `moved` maps an index, the number of heads and
/// the head width to the new index.
fn of_heads(
    weight: Weight,
    sizes: &Sizes,
    [_, inputs]: [usize; 2],
    [o, i]: [usize; 2],
    moved: fn(usize, usize, usize) -> usize,
) -> Option<usize> {
    let c = sizes.head_dim;
    match weight.name() {
        "wq" => Some(moved(o, sizes.heads, c) * inputs + i),
        "wk" | "wv" => Some(moved(o, sizes.kv_heads, c) * inputs + i),
        "wo" => Some(o * inputs + moved(i, sizes.heads, c)),
        _ => None,
    }
}

impl Reordered {
    /// The shape of a matrix; `None` for a vector.
    fn lengths(&self, weight: Weight) -> Option<[usize; 2]> {
        let nothing = PassDims::default();
        self.sizes.shape(weight.axes(), nothing).try_into().ok()
    }

    /// Returns whether the mistake affects the matrix.
    fn is_of(&self, weight: Weight) -> bool {
        let chosen = self.only.is_none_or(|only| only.name() == weight.name());
        let known = |lengths: [usize; 2]| (self.order)(weight, &self.sizes, lengths, [0, 0]).is_some();
        let small = |[outputs, inputs]: [usize; 2]| outputs.saturating_mul(inputs) <= WHOLE;
        chosen
            && (self.is_head || weight.name() != "tok_embeddings")
            && self.lengths(weight).is_some_and(|lengths| known(lengths) && small(lengths))
    }
}

impl Change for Reordered {
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        let Place::Weight(_, weight) = place else { return read(place, rows) };
        let Some([outputs, inputs]) = self.lengths(weight).filter(|_| self.is_of(weight)) else {
            return read(place, rows);
        };
        let mut held = self.whole.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let whole = match held.get(&place) {
            Some(whole) => Arc::clone(whole),
            None => {
                let whole = Arc::new(read(place, 0..outputs)?);
                held.insert(place, Arc::clone(&whole));
                whole
            }
        };
        let cells = rows.flat_map(|o| (0..inputs).map(move |i| [o, i]));
        let value = |cell| {
            let from = (self.order)(weight, &self.sizes, [outputs, inputs], cell);
            from.map_or(0.0, |from| whole[from])
        };
        Ok(cells.map(value).collect())
    }
}

/// The name of a weight; `None` for a stage.
fn named(place: Place) -> Option<&'static str> {
    match place {
        Place::Weight(_, weight) => Some(weight.name()),
        Place::Stage(_) => None,
    }
}

impl Change for Norms {
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        let mut values = read(place, rows)?;
        if matches!(named(place), Some("attention_norm" | "ffn_norm" | "norm" | "q_norm" | "k_norm"))
            || matches!(named(place), Some("attention_post_norm" | "ffn_post_norm"))
        {
            values.iter_mut().for_each(|value| *value = (self.0)(*value));
        }
        Ok(values)
    }
}

impl Change for NoNorm {
    fn rule(&self, _site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let Fold::Norm { x, at, .. } = rule.fold {
            rule.fold = Fold::Same { from: x.cell(at) };
        }
        rule
    }
}

impl Change for NoBias {
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        let values = read(place, rows)?;
        let is_bias = named(place).is_some_and(|name| name.starts_with('b'));
        Ok(if is_bias { vec![0.0; values.len()] } else { values })
    }
}

impl Change for Tied {
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        let table = Weight::from_name("tok_embeddings").filter(|_| named(place) == Some("output"));
        read(table.map_or(place, |table| Place::Weight(None, table)), rows)
    }
}

impl Change for OtherWeights {
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        let other = |name: &str| {
            let [_, other] = self.0.iter().find(|[own, _]| *own == name)?;
            Weight::all().find(|weight| weight.name() == *other)
        };
        let (Place::Weight(layer, _), Some(other)) = (place, named(place).and_then(other)) else {
            return read(place, rows);
        };
        read(Place::Weight(layer, other), rows)
    }
}

impl Change for SwappedHalves {
    fn rule(&self, site: Site, _at: usize, mut rule: Rule) -> Rule {
        match &mut rule.fold {
            Fold::Silu { gate: x } | Fold::Activation { x, .. } => {
                x.place = Place::Stage(site.other(Stage::FfnUp));
            }
            Fold::Mul { b, .. } if site.stage == Stage::FfnHidden => {
                b.place = Place::Stage(site.other(Stage::FfnGate));
            }
            _ => {}
        }
        rule
    }
}

impl Change for RoundedWeights {
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        let mut values = read(place, rows)?;
        values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
        Ok(values)
    }
}
