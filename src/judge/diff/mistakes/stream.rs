//! Mistakes of the residual stream: its additions, the input and formula of the norms, and the layer whose weights are
//! read.

use std::ops::Range;

use super::super::bench::Otherwise;
use super::Mistake;
use crate::check::{Change, Nothing, ReadRows};
use llama_trace_core::error::Result;
use llama_trace_core::explain::{Exact, Fold, Place, Rule};
use llama_trace_core::trace::{Axis, ModelCard, Op, Site, Sizes, Stage};

/// These sums omit the residual.
struct Unadded(&'static [Stage]);

/// The sublayer's output is added to the output of its norm, not to the residual stream.
struct AddedToNorm;

/// The feed-forward network reads the input of attention.
struct SideBySide;

/// The norm divides by √Σx².
struct BySum(Sizes);

/// The weights of this layer are read in every layer.
struct OfLayer(usize);

/// Adds the mistakes that may explain a stage. `chain` has the stages that are computed to get this stage.
pub(super) fn add(card: &ModelCard, chain: &[Site], all: &mut Vec<Mistake>) {
    for (form, stages) in [
        ("of attention", &[Stage::AttnResidual][..]),
        ("of the feed-forward network", &[Stage::FfnResidual]),
        ("of both", Op::Add.stages()),
    ] {
        all.push(Mistake::of("residual_missing", form, stages, Unadded(stages)));
    }
    let mut normed = Mistake::of(
        "residual_missing",
        "the norm's output instead of the stream",
        Op::Add.stages(),
        AddedToNorm,
    );
    normed.otherwise.also = &[(Stage::AttnResidual, Stage::AttnNorm), (Stage::FfnResidual, Stage::FfnNorm)];
    all.push(normed);
    let mut beside = Mistake::of("norm_input", "", [Stage::FfnNorm], SideBySide);
    beside.otherwise.reads_input = &[Stage::FfnNorm];
    all.push(beside);
    let mut centred = Mistake::of("layer_norm", "", Op::RmsNorm.stages(), Nothing);
    centred.otherwise = Otherwise { centres: Op::RmsNorm.stages(), ..Otherwise::default() };
    all.push(centred);
    let sizes = card.sizes();
    let mut by_sum = Mistake::of("norm_sum", "", Op::RmsNorm.stages(), BySum(sizes));
    let mut other = card.clone();
    other.config.norm_eps /= sizes.dim as f32;
    by_sum.card = Some(other);
    all.push(by_sum);
    let Some(layer) = chain.iter().find_map(|site| site.layer) else { return };
    let mut others = vec![0, layer.wrapping_sub(1), layer + 1, sizes.layers.wrapping_sub(1)];
    others.dedup();
    for other in others.into_iter().filter(|&other| other != layer && other < sizes.layers) {
        all.push(Mistake::of("other_layer", format!("layer {other}'s"), Stage::ALL, OfLayer(other)));
    }
}

impl Change for Unadded {
    fn rule(&self, site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let (Fold::Add { b, .. }, true) = (&rule.fold, self.0.contains(&site.stage)) {
            rule.fold = Fold::Same { from: *b };
        }
        rule
    }
}

impl Change for AddedToNorm {
    fn rule(&self, site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let Fold::Add { a, .. } = &mut rule.fold {
            let norm = if site.stage == Stage::AttnResidual { Stage::AttnNorm } else { Stage::FfnNorm };
            a.place = Place::Stage(site.other(norm));
        }
        rule
    }
}

impl Change for SideBySide {
    fn rule(&self, site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let (Fold::Norm { x, .. }, Stage::FfnNorm) = (&mut rule.fold, site.stage) {
            x.place = Place::Stage(site.layer_input());
        }
        rule
    }
}

impl Change for BySum {
    fn value(&self, site: Site, _at: usize, exact: Exact) -> Exact {
        if site.stage.info().op != Op::RmsNorm {
            return exact;
        }
        let width = if site.stage.axes().ends_with(&[Axis::HeadDim]) { self.0.head_dim } else { self.0.dim };
        let value = exact.value / (width as f64).sqrt();
        Exact { value, other: value, ..exact }
    }
}

impl Change for OfLayer {
    fn rows(&self, place: Place, rows: Range<usize>, read: ReadRows<'_>) -> Result<Vec<f32>> {
        match place {
            Place::Weight(Some(_), weight) => read(Place::Weight(Some(self.0), weight), rows),
            _ => read(place, rows),
        }
    }
}
