//! Mistakes of attention: positions, masks, heads, scores.

use std::ops::Range;

use super::super::bench::Exactly;
use super::super::difference::{number, value};
use super::{Mistake, ROPE, SEEING, stages};
use crate::check::{Change, Nothing};
use llama_trace_core::config::Pairing;
use llama_trace_core::explain::{Cell, Exact, Fold, Line, Rule};
use llama_trace_core::trace::{Frame, ModelCard, Op, PassDims, Site, Sizes, Stage};

/// The largest position offset.
const OFF: isize = 8;

/// Softcap values of existing models.
const CAPS: [f64; 5] = [10.0, 20.0, 30.0, 50.0, 100.0];

/// The tokens of a pass are rotated by the angles of shifted positions.
struct Moved {
    pass: usize,
    by: isize,
}

/// Pairs of these stages are not rotated.
struct Unturned(&'static [Stage]);

/// Components are paired by one pairing, and rotated by the angles of the other.
struct Mixed {
    partner: Pairing,
    head_dim: usize,
}

/// Scores are divided by the root of a number.
struct Scaled(usize);

/// The values of a stage are multiplied by a factor.
pub(super) struct Times(pub(super) Stage, pub(super) f64);

/// A token sees this many more keys; `None` for all keys.
pub(super) struct Shifted {
    by: Option<isize>,
    sizes: Sizes,
    passes: Vec<PassDims>,
}

/// The kv head that a query head reads.
type Order = fn(usize, &Sizes) -> usize;

/// Query heads read the kv heads in another order.
struct Shared {
    sizes: Sizes,
    stages: &'static [Stage],
    order: Order,
}

/// c · tanh(x / c) at a stage.
struct Capped(Stage, f64);

pub(super) fn add(
    card: &ModelCard,
    passes: &[PassDims],
    found: &Frame,
    right: &Exactly,
    all: &mut Vec<Mistake>,
) {
    let (sizes, site) = (card.sizes(), found.site);
    let start = passes.iter().find(|dims| dims.pass == site.pass).map_or(0, |dims| dims.start as isize);
    // No position is below 0.
    for by in (-OFF.min(start)..=OFF).chain([-start]).filter(|&by| by != 0) {
        let form = match by {
            _ if by == -start => "as if nothing were cached".into(),
            1.. => format!("{by} too far"),
            _ => format!("{} too near", -by),
        };
        // Keys cached by earlier passes have their own rotation.
        all.push(
            Mistake::of("position_offset", form, stages(ROPE), Moved { pass: site.pass, by })
                .again(Op::RopeTable.stages()),
        );
    }
    let back = Mistake::of("rope_direction", "", stages(ROPE), Times(Stage::RopeSin, -1.0));
    all.push(back.again(Op::RopeTable.stages()));
    for (form, partner) in [
        ("neighbours are rotated by the angles of halves", Pairing::Neighbours),
        ("halves are rotated by the angles of neighbours", Pairing::Halves),
    ] {
        let mixed = Mixed { partner, head_dim: sizes.head_dim };
        all.push(Mistake::of("rope_pairing", form, Op::Rope.stages(), mixed));
    }
    for (form, stages) in [
        ("queries", &[Stage::XqRope][..]),
        ("keys", &[Stage::XkRope]),
        ("queries and keys", Op::Rope.stages()),
    ] {
        all.push(Mistake::of("rope_missing", form, stages, Unturned(stages)));
    }
    if !card.config.rope_layers.is_all() {
        let form = "layers with RoPE are not rotated";
        all.push(Mistake::of("rope_layers", form, Op::Rope.stages(), Unturned(Op::Rope.stages())));
    }
    let mut merged = Mistake::of("heads_merged", "", [Stage::AttnOutput], Nothing);
    (merged.otherwise.merges_heads, merged.looks_ahead) = (true, true);
    all.push(merged);
    let c = sizes.head_dim;
    for under in [1, c, c * c, sizes.dim, sizes.heads * c, 2 * c, c / 2, sizes.kv_heads * c] {
        let own = sizes.score_scale;
        if under != c || own.is_some() {
            let form = match (under, own) {
                (1, None) => "not divided".into(),
                (1, Some(_)) => "not scaled".into(),
                (_, Some(own)) => format!("divided by √{under}, not multiplied by {own}"),
                (_, None) => format!("divided by √{under}, not √{c}"),
            };
            let scaled = Mistake::of("attention_scale", form, [Stage::Scores], Scaled(under));
            all.push(scaled.again(&[Stage::Scores, Stage::MaskedScores]));
        }
    }
    let factor = factor(found, right);
    match site.stage {
        Stage::Scores => {
            let form = format!("scores {factor:.4} times as large");
            all.push(Mistake::of("attention_scale", form, [Stage::Scores], Times(site.stage, factor)));
        }
        // Queries or keys that are divided before the dot product, with or without the division after it.
        Stage::Xq | Stage::XqRope | Stage::Xk | Stage::XkRope | Stage::Qk => {
            let root = (c as f64).powf(-0.5);
            for (times, form) in [(root, "divided by √C before"), (root.sqrt(), "divided by √√C before")]
            {
                all.push(Mistake::of(
                    "attention_scale",
                    form,
                    [Stage::Xq, Stage::XqRope, Stage::Xk, Stage::XkRope, Stage::Qk],
                    Times(site.stage, times),
                ));
            }
        }
        _ => {}
    }
    let mut seen = vec![(Some(1), "a key more"), (Some(-1), "a key less"), (None, "all keys")];
    if start > 1 {
        seen.push((Some(-start), "as if nothing were cached"));
    }
    for (by, form) in seen {
        let shifted = Shifted { by, sizes, passes: passes.to_vec() };
        let mut offset = Mistake::of("mask_offset", form, stages(SEEING), shifted)
            .again(&[Stage::Mask, Stage::MaskedScores]);
        offset.looks_ahead = true;
        all.push(offset);
    }
    let orders: [(_, Order); 3] = [
        ("h mod G", |head, sizes| head % sizes.kv_heads),
        ("in reverse", |head, sizes| sizes.kv_heads - 1 - head / (sizes.heads / sizes.kv_heads)),
        ("all read kv head 0", |_, _| 0),
    ];
    for (form, order) in orders {
        for (of, stages) in [
            ("", Op::RepeatKv.stages()),
            (", keys alone", &[Stage::Keys]),
            (", values alone", &[Stage::Values]),
        ] {
            let shared = Shared { sizes, stages, order };
            all.push(Mistake::of("kv_head_order", format!("{form}{of}"), stages, shared));
        }
    }
    for cap in CAPS.into_iter().chain(cap(found, right)) {
        for stage in [Stage::Scores, Stage::Logits] {
            let touches: &[Stage] = if stage == Stage::Scores { &[Stage::Scores] } else { &[Stage::Logits] };
            let again: &[Stage] =
                if stage == Stage::Scores { &[Stage::Scores, Stage::MaskedScores] } else { &[] };
            let form = format!("c = {}", (cap * 1e3).round() / 1e3);
            all.push(Mistake::of("softcap", form, touches, Capped(stage, cap)).again(again));
        }
    }
}

/// The factor between the found and the right values that leaves the smallest error.
pub(super) fn factor(found: &Frame, right: &Exactly) -> f64 {
    let finite = right.iter().map(|&(at, x)| (number(found, at), x)).filter(|(a, b)| (a * b).is_finite());
    let (above, below) = finite.fold((0.0, 0.0), |(above, below), (y, x)| (above + x * y, below + x * x));
    above / below
}

/// The softcap that would turn the largest right value into the value found in its cell, if there is one.
fn cap(found: &Frame, right: &Exactly) -> Option<f64> {
    if !matches!(found.site.stage, Stage::Scores | Stage::MaskedScores | Stage::Logits) {
        return None;
    }
    let largest =
        right.iter().copied().filter(|(_, x)| x.is_finite()).max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
    let (at, x) = largest?;
    let (x, y) = (x.abs(), number(found, at).abs());
    if !(y > 0.0 && y < x) {
        return None;
    }
    // c · tanh(x / c) increases with c, from 0 to x.
    let (mut low, mut high) = (y, 1e6);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if middle * (x / middle).tanh() < y { low = middle } else { high = middle }
    }
    Some(low)
}

/// The number of keys that the last token of a stage sees, if the stage shows it.
pub(super) fn shown(found: &Frame) -> Option<usize> {
    let stage = found.site.stage;
    let keys = *found.shape().last()?;
    let row = found.values().len().checked_sub(keys)?..found.values().len();
    let seen = |at: usize| match stage {
        Stage::Softmax => number(found, at) > 0.0,
        _ => value(stage, number(found, at)) > f64::NEG_INFINITY,
    };
    let count = match stage {
        Stage::Mask | Stage::MaskedScores | Stage::Softmax => row.filter(|&at| seen(at)).count(),
        _ => return None,
    };
    (count > 0 && count < keys).then_some(count)
}

impl Change for Moved {
    fn rule(&self, site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let (Fold::Angle { position, .. }, true) = (&mut rule.fold, site.pass == self.pass) {
            *position = position.saturating_add_signed(self.by);
        }
        rule
    }
}

impl Change for Mixed {
    fn rule(&self, site: Site, at: usize, mut rule: Rule) -> Rule {
        let (Fold::Rotate { pair, cos, sin, second }, true) =
            (&mut rule.fold, site.stage.info().op == Op::Rope)
        else {
            return rule;
        };
        let (c, half) = (self.head_dim, self.head_dim / 2);
        let (first, component) = (at / c * c, at % c);
        let ([a, b], angle) = match self.partner {
            Pairing::Halves => ([component % half, component % half + half], component / 2),
            Pairing::Neighbours => ([component / 2 * 2, component / 2 * 2 + 1], component % half),
        };
        (pair[0].at, pair[1].at, *second) = (first + a, first + b, component == b);
        for cell in [cos, sin] {
            cell.at = cell.at / half * half + angle;
        }
        rule
    }
}

impl Change for Unturned {
    fn rule(&self, site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let (Fold::Rotate { pair, second, .. }, true) = (&rule.fold, self.0.contains(&site.stage)) {
            rule.fold = Fold::Same { from: pair[usize::from(*second)] };
        }
        rule
    }
}

impl Change for Scaled {
    fn rule(&self, _site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let Fold::Scale { head_dim, scale, .. } = &mut rule.fold {
            (*head_dim, *scale) = (self.0, None);
        }
        rule
    }
}

impl Change for Times {
    fn value(&self, site: Site, _at: usize, exact: Exact) -> Exact {
        if site.stage != self.0 {
            return exact;
        }
        let value = exact.value * self.1;
        Exact { value, other: value, ..exact }
    }
}

impl Change for Capped {
    fn value(&self, site: Site, _at: usize, exact: Exact) -> Exact {
        if site.stage != self.0 {
            return exact;
        }
        let value = self.1 * (exact.value / self.1).tanh();
        Exact { value, other: value, ..exact }
    }
}

impl Change for Shared {
    fn rule(&self, site: Site, at: usize, mut rule: Rule) -> Rule {
        let Sizes { heads, kv_heads, head_dim: c, .. } = self.sizes;
        if let (Fold::Same { from }, true) = (&mut rule.fold, self.stages.contains(&site.stage)) {
            let (key, head) = (at / (heads * c), at / c % heads);
            from.at = (key * kv_heads + (self.order)(head, &self.sizes)) * c + at % c;
        }
        rule
    }
}

impl Shifted {
    /// Every token sees all keys.
    pub(super) fn all(sizes: Sizes, passes: &[PassDims]) -> Self {
        Self { by: None, sizes, passes: passes.to_vec() }
    }

    /// The keys that token `t` of a pass sees.
    fn seen(&self, site: Site, dims: PassDims, t: usize) -> Range<usize> {
        let Some(by) = self.by else { return 0..dims.keys() };
        let seen = self.sizes.sees(site.layer).keys(dims.start + t);
        let end = seen.end.saturating_add_signed(by).clamp(1, dims.keys());
        seen.start.min(end - 1)..end
    }
}

impl Change for Shifted {
    fn rule(&self, site: Site, cell: usize, mut rule: Rule) -> Rule {
        let Some(dims) = self.passes.iter().copied().find(|dims| dims.pass == site.pass) else { return rule };
        let (tokens, keys) = (dims.tokens, dims.keys());
        let Sizes { heads, head_dim: c, .. } = self.sizes;
        let (row, key) = (cell / keys, cell % keys);
        match &mut rule.fold {
            Fold::Hide { seen } => *seen = self.seen(site, dims, row).contains(&key),
            Fold::Mask { seen, .. } => *seen = self.seen(site, dims, row % tokens).contains(&key),
            Fold::Softmax { x, at, .. } if site.stage.info().op == Op::Softmax => {
                let seen = self.seen(site, dims, row % tokens);
                *x = Line { first: row * keys + seen.start, count: seen.len(), ..*x };
                *at = seen.contains(&key).then(|| key - seen.start);
            }
            Fold::Product { a, b, .. } if site.stage.info().op == Op::Mix => {
                let (token, head) = (cell / (heads * c), cell / c % heads);
                let seen = self.seen(site, dims, token);
                let first = (head * tokens + token) * keys + seen.start;
                *a = Line { first, count: seen.len(), ..*a };
                let first = Cell { place: b.place, at: (seen.start * heads + head) * c + cell % c }.at;
                *b = Line { first, count: seen.len(), ..*b };
            }
            _ => {}
        }
        rule
    }
}
