//! The rules of one run: the rule of each stage's cells, and the places of their operands.

use std::ops::Range;

use super::Frequency;
use super::rule::{Cell, Fold, Line, Place, Rule};
use crate::config::{CacheDtype, ModelConfig, NormKind, Precision, QkWidth};
use crate::edit::{Edit, Part};
use crate::ops::attention::kv_head;
use crate::ops::round;
use crate::trace::block::index_of;
use crate::trace::stage::{Op, Rounded, StageInfo, Unit};
use crate::trace::{Address, ModelCard, PassDims, Sampling, Site, Sizes, Stage, Step, Subject, Weight};

/// The rules of one sequence of a run.
#[derive(Clone, Debug)]
pub struct Rules {
    card: ModelCard,
    sizes: Sizes,
    cache: CacheDtype,
    sampling: Sampling,
    /// The frequencies of each RoPE, in each pass if they vary between passes, else once.
    frequencies: Vec<Vec<Vec<Frequency>>>,
    passes: Vec<PassDims>,
    /// The tokens that the passes read, by position.
    tokens: Vec<u32>,
    /// The random number of each pass's draw.
    randoms: Vec<Option<f64>>,
}

/// The rules of the cells of one site.
#[derive(Clone, Copy, Debug)]
pub struct SiteRules<'a> {
    rules: &'a Rules,
    site: Site,
    dims: PassDims,
    /// Values per token.
    width: usize,
    /// Values per token in the first input.
    input_width: usize,
    /// The stages that the site reads.
    inputs: [Option<Site>; 3],
    weight: Option<Place>,
    bias: Option<Place>,
}

impl Rules {
    /// The rules of a run of the model `card`, with cache type `cache` and the options `sampling`. It has no passes
    /// yet.
    pub fn new(card: ModelCard, cache: CacheDtype, sampling: Sampling) -> Self {
        let (sizes, frequencies) = (card.sizes(), Self::frequencies_of(&card, &[]));
        let (passes, tokens, randoms) = (Vec::new(), Vec::new(), Vec::new());
        Self { card, sizes, cache, sampling, frequencies, passes, tokens, randoms }
    }

    /// Adds the next pass, and the random number of its draw, if it uses one.
    pub fn push(&mut self, dims: PassDims, random: Option<f64>) {
        self.passes.push(dims);
        for (rope, of_passes) in self.frequencies.iter_mut().enumerate() {
            if self.card.config.rope(rope).varies() {
                of_passes.push(Frequency::all(&self.card, rope, dims.keys()));
            }
        }
        self.randoms.push(random);
    }

    /// Adds the tokens that the next pass reads. Only a repetition penalty depends on them.
    pub fn read(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.tokens.extend(ids);
    }

    /// The model.
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// The rules of the same run for another model.
    #[must_use]
    pub fn of_model(&self, card: ModelCard) -> Self {
        let (sizes, frequencies) = (card.sizes(), Self::frequencies_of(&card, &self.passes));
        Self { card, sizes, frequencies, ..self.clone() }
    }

    /// The passes so far.
    pub fn passes(&self) -> &[PassDims] {
        &self.passes
    }

    /// The options of the draws.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// The random number of a pass's draw, if it uses one.
    pub fn random(&self, pass: usize) -> Option<f64> {
        let number = self.passes.iter().position(|dims| dims.pass == pass)?;
        self.randoms[number]
    }

    /// The tokens read so far, by position.
    pub fn text(&self) -> &[u32] {
        &self.tokens
    }

    /// The frequencies of each RoPE of `card` in `passes`.
    fn frequencies_of(card: &ModelCard, passes: &[PassDims]) -> Vec<Vec<Vec<Frequency>>> {
        let of = |rope: usize| match card.config.rope(rope).varies() {
            true => passes.iter().map(|dims| Frequency::all(card, rope, dims.keys())).collect(),
            false => vec![Frequency::all(card, rope, 1)],
        };
        (0..card.config.ropes()).map(of).collect()
    }

    /// The number of the RoPE of `site`: that of its layer, or the model's.
    fn rope(&self, site: Site) -> usize {
        site.layer.and_then(|layer| self.card.config.rope_of(layer)).unwrap_or(0)
    }

    /// The angle of a pair from one position to the next at `site`.
    fn frequency(&self, site: Site, pair: usize) -> Frequency {
        let of_passes = &self.frequencies[self.rope(site)];
        let number = self.passes.iter().position(|dims| dims.pass == site.pass).unwrap_or(0);
        of_passes.get(number).unwrap_or(&of_passes[0])[pair]
    }

    /// The angle of a pair from one position to the next in the cosines and sines of `site`, in radians.
    pub fn angle(&self, site: Site, pair: usize) -> f32 {
        self.frequency(site, pair).value
    }

    /// The sizes of the model.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The pass with this number.
    pub fn pass(&self, number: usize) -> Option<PassDims> {
        self.passes.iter().copied().find(|dims| dims.pass == number)
    }

    /// The rules of `site`; `None` if the pass does not exist or the stage is absent in it.
    pub fn of(&self, site: Site) -> Option<SiteRules<'_>> {
        let dims = self.pass(site.pass).filter(|dims| site.present(&self.sizes, *dims))?;
        let mut inputs = [None; 3];
        for (slot, input) in inputs.iter_mut().zip(site.inputs(&self.sizes, dims)) {
            *slot = site.input(input, &self.sizes);
        }
        let layer = |weight: Weight| Place::Weight(site.layer.filter(|_| weight.in_layer()), weight);
        let mut weights = Weight::read_in(site.stage, &self.card).map(layer);
        let of_token =
            |stage: Stage| self.sizes.shape(stage.axes(), dims).iter().product::<usize>() / dims.tokens;
        let (width, input_width) = (of_token(site.stage), inputs[0].map_or(0, |site| of_token(site.stage)));
        let (weight, bias) = (weights.next(), weights.next());
        Some(SiteRules { rules: self, site, dims, width, input_width, inputs, weight, bias })
    }

    /// The sites that the cells of `site` are computed from, in no particular order.
    pub fn sources(&self, site: Site) -> Vec<Site> {
        let Some(rules) = self.of(site) else { return Vec::new() };
        let inputs = rules.inputs.into_iter().flatten();
        match site.stage.info() {
            // The cache holds rows of every pass so far.
            StageInfo { op: Op::Cache, .. } => {
                let passes = self.passes.iter().filter(|dims| dims.pass <= site.pass);
                let of = |dims: &PassDims| rules.inputs[0].map(|input| Site { pass: dims.pass, ..input });
                passes.filter_map(of).collect()
            }
            StageInfo { op: Op::Quantize, unit: Unit::Steps, .. } => inputs.chain([rules.scales()]).collect(),
            StageInfo { op: Op::TopKTopP, .. } => inputs.chain([rules.logits()]).collect(),
            _ => inputs.collect(),
        }
    }

    /// The edits of the run that wrote value `at` of `site`.
    pub(super) fn edits_of(&self, site: Site, dims: PassDims, at: usize) -> Vec<String> {
        let index = index_of(&self.sizes.shape(site.stage.axes(), dims), at);
        let wrote = |part: &Part| {
            let cells = part.place.cells(&self.sizes, dims);
            part.place.has(site) && cells.iter().zip(&index).all(|(selected, index)| selected.contains(index))
        };
        let edits = Edit::of_card(&self.card).unwrap_or_default().into_iter();
        edits.filter(|edit| edit.parts.iter().any(wrote)).map(|edit| edit.text).collect()
    }

    /// The complete address of a cell.
    pub fn address(&self, cell: Cell) -> Address {
        let nothing = PassDims::default();
        match cell.place {
            Place::Stage(site) => {
                let dims = self.pass(site.pass).unwrap_or(nothing);
                let shape = self.sizes.shape(site.stage.axes(), dims);
                Address::of(site, Step::Stage(site.stage), &index_of(&shape, cell.at))
            }
            Place::Weight(layer, weight) => {
                let shape = self.sizes.shape(weight.axes(), nothing);
                let letters = weight.letters().into_iter();
                Address {
                    layer,
                    subject: Some(Subject::Weight(weight)),
                    index: letters.zip(index_of(&shape, cell.at)).collect(),
                    ..Address::default()
                }
            }
        }
    }
}

impl SiteRules<'_> {
    /// The number of cells.
    pub fn count(&self) -> usize {
        self.rules.sizes.shape(self.site.stage.axes(), self.dims).iter().product()
    }

    /// The matrix of a product or the weight of a norm, and the bias, if there is one.
    pub fn weights(&self) -> (Option<Place>, Option<Place>) {
        (self.weight, self.bias)
    }

    /// The matrix of a product, if the site has one.
    pub fn matrix(&self) -> Option<Place> {
        let is_matrix = |place: &Place| matches!(place, Place::Weight(_, weight) if weight.axes().len() == 2);
        self.weight.filter(|place| is_matrix(place) && self.site.stage.info().op != Op::Lookup)
    }

    /// Outputs and inputs of a product: the number of rows of its matrix and their length.
    pub fn shape(&self) -> (usize, usize) {
        (self.width, self.input_width)
    }

    /// The cells of each token, for stages with a row per token.
    pub fn tokens(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let width = self.width;
        (0..self.dims.tokens).map(move |t| t * width..(t + 1) * width)
    }

    /// The rule of cell `at`, a row-major index.
    pub fn cell(&self, at: usize) -> Rule {
        let rounded = match self.rules.card.precision {
            Precision::Bf16 => self.rules.card.config.rounded(self.site.stage),
            Precision::F32 | Precision::Q8 { .. } => Rounded::Never,
        };
        Rule { fold: self.fold(at), rounded, by: self.factor(at) }
    }

    /// The kind of the norm.
    fn norm_kind(&self) -> NormKind {
        let config = &self.rules.card.config;
        if self.site.stage.is_qk_norm() { config.qk_norm_form.kind } else { config.norm.kind }
    }

    /// The factor of cell `at` after its operation.
    fn factor(&self, at: usize) -> f32 {
        let ModelConfig { multipliers, query_scale, .. } = &self.rules.card.config;
        match self.site.stage {
            Stage::Embedding => round::value(self.rules.card.precision, multipliers.embedding),
            Stage::Logits => multipliers.logits,
            Stage::XqRope => {
                let position = self.dims.start + at / self.width.max(1);
                query_scale.map_or(1.0, |scale| round::value(self.rules.card.precision, scale.at(position)))
            }
            _ => 1.0,
        }
    }

    fn fold(&self, at: usize) -> Fold {
        let sizes = &self.rules.sizes;
        let Sizes { heads, kv_heads, head_dim: c, vocab, .. } = *sizes;
        let (tokens, keys, width) = (self.dims.tokens, self.dims.keys(), self.width);
        let token = at / width.max(1);
        let StageInfo { op, axes, unit, .. } = *self.site.stage.info();
        match op {
            Op::Input => Fold::Given,
            Op::Lookup => {
                Fold::Lookup { id: self.input(0, token), table: self.weight(), width, at: at % width }
            }
            Op::RopeTable => {
                let pair = at % width;
                let (frequency, sine) = (self.rules.frequency(self.site, pair), unit == Unit::Sine);
                let factor = self.rules.card.config.rope(self.rules.rope(self.site)).attention_factor();
                Fold::Angle { position: self.dims.start + token, pair, frequency, sine, factor }
            }
            Op::Mask => Fold::Hide { seen: self.seen(at / keys).contains(&(at % keys)) },
            Op::RmsNorm => {
                let is_whole = self.site.stage.is_qk_norm()
                    && self.rules.card.config.qk_norm_form.width == QkWidth::Whole;
                self.norm(at, if is_whole { width } else { sizes.axis(axes[axes.len() - 1], self.dims) })
            }
            Op::Rope => self.rotate(at, token),
            Op::Cache => self.cached(at),
            Op::RepeatKv => {
                let (key, head) = (at / (heads * c), at / c % heads);
                let from = (key * kv_heads + kv_head(head, heads, kv_heads)) * c + at % c;
                Fold::Same { from: self.input(0, from) }
            }
            Op::QueryKey => {
                let (head, token, key) = (at / (tokens * keys), at / keys % tokens, at % keys);
                let a = self.line(0, (token * heads + head) * c, 1, c);
                Fold::Product { a, b: self.line(1, (key * heads + head) * c, 1, c), bias: None }
            }
            Op::Scale => Fold::Scale { x: self.input(0, at), head_dim: c, scale: sizes.score_scale },
            Op::Cap => {
                let cap = if self.site.layer.is_some() { sizes.score_cap } else { sizes.logit_cap };
                Fold::Cap { x: self.input(0, at), cap: cap.unwrap_or(f32::INFINITY) }
            }
            Op::Activation => {
                let (activation, numbers) = (sizes.activation, self.weight);
                Fold::Activation { x: self.input(0, at), activation, numbers }
            }
            Op::AddMask => {
                let seen = self.seen(at / keys % tokens).contains(&(at % keys));
                Fold::Mask { x: self.input(0, at), seen }
            }
            Op::Softmax => {
                let (row, key) = (at / keys, at % keys);
                let seen = self.seen(row % tokens);
                let x = self.line(0, row * keys + seen.start, 1, seen.len());
                let at = seen.contains(&key).then(|| key - seen.start);
                Fold::Softmax { x, at, temperature: 1.0 }
            }
            Op::Mix => {
                let (head, component) = (at / c % heads, at % c);
                let seen = self.seen(token);
                let a = self.line(0, (head * tokens + token) * keys + seen.start, 1, seen.len());
                let b = self.line(1, (seen.start * heads + head) * c + component, heads * c, seen.len());
                Fold::Product { a, b, bias: None }
            }
            Op::Add => Fold::Add { a: self.input(0, at), b: self.input(1, at), by: sizes.residual },
            Op::Silu => Fold::Silu { gate: self.input(0, at) },
            Op::Mul => Fold::Mul { a: self.input(0, at), b: self.input(1, at) },
            Op::Quantize if unit == Unit::Steps => {
                let group = self.group();
                let scale = token * width.div_ceil(group) + at % width / group;
                let scale = Cell { place: Place::Stage(self.scales()), at: scale };
                Fold::Steps { x: self.input(0, at), scale }
            }
            Op::Quantize => {
                let (group, inputs) = (self.group(), self.input_width);
                let first = at % width * group;
                Fold::Step { x: self.line(0, token * inputs + first, 1, group.min(inputs - first)) }
            }
            Op::Linear => self.product(token, at % width),
            Op::Penalize => {
                let x = self.input(0, (tokens - 1) * vocab + at);
                Fold::Penalize { x, repeats: self.repeats(at), sampling: self.rules.sampling }
            }
            Op::Probs => {
                let x = self.last_logits(self.logits());
                let temperature = self.rules.sampling.temperature;
                let temperature = if temperature == 0.0 { 1.0 } else { temperature };
                Fold::Softmax { x, at: Some(at), temperature }
            }
            Op::TopKTopP if self.rules.sampling.temperature == 0.0 => {
                Fold::Largest { x: self.last_logits(self.logits()), at }
            }
            Op::TopKTopP if self.input_stage() != Some(Stage::Probs) => {
                Fold::Same { from: self.input(0, at) }
            }
            Op::MinP | Op::TypicalP | Op::TopKTopP => {
                Fold::Nucleus { probs: self.line(0, 0, 1, vocab), at, limits: self.limits() }
            }
            Op::Sample => {
                let number = self.rules.passes.iter().position(|dims| dims.pass == self.dims.pass);
                let random = number.and_then(|number| self.rules.randoms[number]);
                Fold::Draw { nucleus: self.line(0, 0, 1, vocab), random }
            }
        }
    }

    /// The stage of the first input.
    fn input_stage(&self) -> Option<Stage> {
        self.inputs[0].map(|site| site.stage)
    }

    /// The site of the logits that the draw uses.
    fn logits(&self) -> Site {
        let penalized = self.site.other(Stage::PenalizedLogits);
        let is_penalized = penalized.stage.present(&self.rules.sizes, self.dims);
        if is_penalized { penalized } else { self.site.other(self.rules.sizes.last_logits()) }
    }

    /// The logits after the last token, in `site`.
    fn last_logits(&self, site: Site) -> Line {
        let vocab = self.rules.sizes.vocab;
        let first = if site.stage != Stage::PenalizedLogits { (self.dims.tokens - 1) * vocab } else { 0 };
        Line { place: Place::Stage(site), first, step: 1, count: vocab }
    }

    /// The last place in the text, up to this pass, that has the token `id`.
    fn repeats(&self, id: usize) -> Option<Cell> {
        let Rules { tokens, passes, .. } = self.rules;
        let text = &tokens[..self.dims.keys().min(tokens.len())];
        let position = text.iter().rposition(|token| *token as usize == id)?;
        let pass = passes.iter().find(|dims| (dims.start..dims.keys()).contains(&position))?;
        let place = Place::Stage(Site { pass: pass.pass, ..self.site.other(Stage::Tokens) });
        Some(Cell { place, at: position - pass.start })
    }

    /// The filters that the site applies to its first input.
    fn limits(&self) -> Sampling {
        let (all, stage) = (self.rules.sampling, self.site.stage);
        let mut limits = Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, typical_p: 1.0, ..all };
        if self.input_stage() == Some(Stage::Probs) {
            (limits.top_k, limits.top_p) = (all.top_k, all.top_p);
        }
        match stage {
            Stage::MinP => limits.min_p = all.min_p,
            Stage::TypicalP => limits.typical_p = all.typical_p,
            _ => {}
        }
        limits
    }

    /// The rule for cell `at` of a norm over rows of `width` values.
    fn norm(&self, at: usize, width: usize) -> Fold {
        let config = &self.rules.card.config;
        // A weight for each head is as long as a token's row.
        let is_shared = !self.site.stage.is_qk_norm() || config.qk_norm_form.width == QkWidth::Head;
        let of_weight = if is_shared { at % width } else { at % self.width };
        let [weight, bias] =
            [self.weight, self.bias].map(|place| place.map(|place| Cell { place, at: of_weight }));
        let x = self.line(0, at / width * width, 1, width);
        let centred = self.norm_kind() == NormKind::Layer;
        Fold::Norm { x, at: at % width, weight, bias, centred, eps: config.norm_eps }
    }

    /// The rule for output `o` of a product, for one token.
    fn product(&self, token: usize, o: usize) -> Fold {
        let inputs = self.input_width;
        let row = |first| Line { place: self.weight(), first, step: 1, count: inputs };
        let (x, w) = (self.line(0, token * inputs, 1, inputs), row(o * inputs));
        let bias = self.bias.map(|place| Cell { place, at: o });
        match self.rules.sizes.group {
            None => Fold::Product { a: x, b: w, bias },
            Some(group) => {
                let groups = inputs.div_ceil(group);
                let scales = self.line(1, token * groups, 1, groups);
                Fold::Int8 { x, scales, group, w, bias }
            }
        }
    }

    /// The rule for one component of a pair, rotated by the angle of its token.
    fn rotate(&self, at: usize, token: usize) -> Fold {
        let (c, half) = (self.rules.sizes.head_dim, self.rules.sizes.pairs);
        let (head, component) = (at / c * c, at % c);
        if component >= 2 * half {
            return Fold::Same { from: self.input(0, at) };
        }
        let pairing = self.rules.card.config.pairing;
        let pair = pairing.pair_of(component, 2 * half);
        let (first, second) = pairing.components(pair, 2 * half);
        Fold::Rotate {
            pair: [self.input(0, head + first), self.input(0, head + second)],
            cos: self.input(1, token * half + pair),
            sin: self.input(2, token * half + pair),
            second: component == second,
        }
    }

    /// The rule for a value of the cache, which comes from the pass that wrote its row.
    fn cached(&self, at: usize) -> Fold {
        let row = self.rules.sizes.kv_heads * self.rules.sizes.head_dim;
        let wrote = |dims: &&PassDims| (dims.start..dims.keys()).contains(&(at / row));
        // If a row was written more than once, the last write counts.
        let so_far = self.rules.passes.iter().filter(|dims| dims.pass <= self.site.pass);
        let dims = so_far.rev().find(wrote).copied().unwrap_or(self.dims);
        let Cell { place, .. } = self.input(0, 0);
        let place = match place {
            Place::Stage(site) => Place::Stage(Site { pass: dims.pass, ..site }),
            weight @ Place::Weight(..) => weight,
        };
        Fold::Cached { from: Cell { place, at: at - dims.start * row }, dtype: self.rules.cache }
    }

    /// The keys visible to token `t` of the pass. For a stage outside the layers, these are the keys visible in the
    /// layers with a window.
    fn seen(&self, t: usize) -> Range<usize> {
        self.rules.sizes.sees(self.site.layer).keys(self.dims.start + t)
    }

    /// The site of the scales of int8 values: the next row of the table of stages.
    fn scales(&self) -> Site {
        self.site.other(Stage::ALL[self.site.stage as usize + 1])
    }

    /// Activations per scale.
    fn group(&self) -> usize {
        self.rules.sizes.group.unwrap_or(1)
    }

    /// Value `at` of input number `i`.
    fn input(&self, i: usize, at: usize) -> Cell {
        self.line(i, at, 1, 1).cell(0)
    }

    fn line(&self, i: usize, first: usize, step: usize, count: usize) -> Line {
        let Some(site) = self.inputs[i] else { unreachable!("{} has no input {i}", self.site) };
        Line { place: Place::Stage(site), first, step, count }
    }

    fn weight(&self) -> Place {
        self.weight.unwrap_or_else(|| unreachable!("{} reads no weight", self.site))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LayerSet, Pairing};

    /// The rules of a small model: three tokens, then one.
    fn rules(precision: Precision, change: impl FnOnce(&mut ModelConfig)) -> Rules {
        let card = ModelCard { precision, ..ModelCard::small(change) };
        let mut rules = Rules::new(card, CacheDtype::F16, Sampling::default());
        rules.push(PassDims { pass: 0, start: 0, tokens: 3, ..PassDims::default() }, None);
        rules.push(PassDims { pass: 1, start: 3, tokens: 1, ..PassDims::default() }, None);
        rules
    }

    /// The rule of the cell at an index.
    fn rule(rules: &Rules, site: Site, index: &[usize]) -> Fold {
        let shape = rules.sizes.shape(site.stage.axes(), rules.pass(site.pass).unwrap());
        let at = shape.iter().zip(index).fold(0, |at, (length, index)| at * length + index);
        rules.of(site).unwrap().cell(at).fold
    }

    fn address(rules: &Rules, cell: Cell) -> String {
        rules.address(cell).to_string()
    }

    #[test]
    fn a_row_of_the_cache_comes_from_the_pass_that_wrote_it() {
        let rules = rules(Precision::F32, |_| {});
        for (key, from) in [(1, "p0/L1/xk_rope[t=1,g=0,c=2]"), (3, "p1/L1/xk_rope[t=0,g=0,c=2]")] {
            let Fold::Cached { from: cell, dtype } =
                rule(&rules, Site::layer(1, 1, Stage::CacheK), &[key, 0, 2])
            else {
                panic!("row {key}")
            };
            assert_eq!((address(&rules, cell), dtype), (from.into(), CacheDtype::F16));
        }
        let sources = rules.sources(Site::layer(1, 1, Stage::CacheV));
        assert_eq!(sources, [0, 1].map(|pass| Site::layer(pass, 1, Stage::Xv)));
    }

    #[test]
    fn a_product_reads_a_row_of_its_matrix_and_a_tied_head_the_embedding_table() {
        let plain = rules(Precision::F32, |config| (config.tied, config.qkv_bias) = (true, true));
        let Fold::Product { a, b, bias } = rule(&plain, Site::layer(0, 1, Stage::Xq), &[2, 1, 3]) else {
            panic!()
        };
        assert_eq!((a.count, b.count), (8, 8));
        let addresses = [a.cell(5), b.cell(5), bias.unwrap()].map(|cell| address(&plain, cell));
        assert_eq!(addresses, ["p0/L1/attn_norm[t=2,d=5]", "L1/wq[o=7,i=5]", "L1/bq[o=7]"]);
        let Fold::Product { a, b, bias: None } = rule(&plain, Site::once(1, Stage::Logits), &[0, 9]) else {
            panic!()
        };
        let addresses = [a.cell(0), b.cell(7)].map(|cell| address(&plain, cell));
        assert_eq!(addresses, ["p1/final_norm[t=0,d=0]", "tok_embeddings[v=9,d=7]"]);
        let Fold::Norm { x, .. } = rule(&plain, Site::once(1, Stage::FinalNorm), &[0, 4]) else { panic!() };
        assert_eq!(address(&plain, x.cell(4)), "p1/L1/ffn_residual[t=0,d=4]", "of the last layer");

        let int8 = rules(Precision::Q8 { group: 3 }, |_| {});
        let Fold::Int8 { x, scales, group: 3, .. } = rule(&int8, Site::layer(0, 0, Stage::Xk), &[1, 0, 0])
        else {
            panic!()
        };
        assert_eq!(address(&int8, x.cell(7)), "p0/L0/attn_norm_q8[t=1,d=7]");
        assert_eq!(
            (scales.count, address(&int8, scales.cell(2))),
            (3, "p0/L0/attn_norm_scale[t=1,j=2]".into())
        );
        let Fold::Steps { scale, .. } = rule(&int8, Site::layer(0, 0, Stage::FfnNormQ8), &[1, 5]) else {
            panic!()
        };
        assert_eq!(address(&int8, scale), "p0/L0/ffn_norm_scale[t=1,j=1]");
        let Fold::Step { x } = rule(&int8, Site::layer(0, 0, Stage::AttnHeadsScale), &[2, 2]) else {
            panic!()
        };
        assert_eq!(address(&int8, x.cell(1)), "p0/L0/attn_heads[t=2,h=1,c=3]", "groups go over heads");
        assert_eq!(x.count, 2, "the last is short");
    }

    #[test]
    fn attention_reads_the_keys_that_a_token_sees_and_the_kv_head_that_its_head_shares() {
        let rules = rules(Precision::F32, |config| {
            (config.window, config.window_layers) = (Some(2), LayerSet::From(1));
        });
        let softmax = |layer, token| rule(&rules, Site::layer(0, layer, Stage::Softmax), &[1, token, 2]);
        let Fold::Softmax { x, at, .. } = softmax(1, 2) else { panic!() };
        assert_eq!(
            (x.count, at, address(&rules, x.cell(0))),
            (2, Some(1), "p0/L1/masked_scores[h=1,t=2,k=1]".into())
        );
        let Fold::Softmax { x, at, .. } = softmax(0, 1) else { panic!() };
        assert_eq!((x.count, at), (2, None), "layer 0 has no window; key 2 comes later");
        let Fold::Product { a, b, .. } = rule(&rules, Site::layer(0, 1, Stage::AttnHeads), &[2, 1, 3]) else {
            panic!()
        };
        let addresses = [a.cell(1), b.cell(1)].map(|cell| address(&rules, cell));
        assert_eq!(addresses, ["p0/L1/softmax[h=1,t=2,k=2]", "p0/L1/values[k=2,h=1,c=3]"]);
        let Fold::Same { from } = rule(&rules, Site::layer(0, 1, Stage::Values), &[2, 1, 3]) else {
            panic!()
        };
        assert_eq!(address(&rules, from), "p0/L1/cache_v[k=2,g=0,c=3]");
        let mask = |stage, layer| rule(&rules, Site { layer, ..Site::once(0, stage) }, &[2, 0]);
        assert_eq!(
            mask(Stage::Mask, None),
            Fold::Hide { seen: false },
            "outside the layers, of those with a window"
        );
    }

    #[test]
    fn a_pair_is_two_halves_or_two_neighbours() {
        for (pairing, expected) in [(Pairing::Halves, [1, 3]), (Pairing::Neighbours, [2, 3])] {
            let rules = rules(Precision::Bf16, |config| config.pairing = pairing);
            let site = Site::layer(0, 0, Stage::XqRope);
            let Fold::Rotate { pair, cos, second: true, .. } = rule(&rules, site, &[2, 1, 3]) else {
                panic!()
            };
            let expected = expected.map(|c| format!("p0/L0/xq[t=2,h=1,c={c}]"));
            assert_eq!(pair.map(|cell| address(&rules, cell)), expected);
            assert_eq!(address(&rules, cos), "p0/rope_cos[t=2,i=1]");
            assert_eq!(rules.of(site).unwrap().cell(0).rounded, Rounded::ProductsAndSum);
        }
    }
}
