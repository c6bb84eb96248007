//! The numbers that an edit can reach: those that are computed from cells that it changes.

mod cells;

use std::collections::HashMap;

use self::cells::{Cells, Region, Set};
use super::{Edit, Operand, Operator, Part, Place};
use crate::config::Pairing;
use crate::trace::stage::{Input, Op, Section};
use crate::trace::{Axis, ModelCard, PassDims, Site, Sizes, Stage};

impl Place {
    /// Whether the place has the cell with this index of its stage, in pass `dims`.
    pub fn contains(&self, dims: PassDims, index: &[usize]) -> bool {
        let selected = |(at, selected): &(usize, super::Selection)| {
            index.get(*at).is_some_and(|&index| selected.contains(index))
        };
        let here = |positions: &super::Selection| {
            let token = self.stage.axes().iter().position(|&axis| axis == Axis::Token);
            token.and_then(|at| index.get(at)).is_some_and(|t| positions.contains(dims.start + t))
        };
        self.index.iter().all(selected) && self.positions.as_ref().is_none_or(here)
    }
}

/// The numbers of a run that are computed from the cells of one edit. The answer follows from the operations: which
/// inputs each result reads, the mask, the cache and the other edits. It does not use values, so a change may still
/// cancel out or be rounded away.
#[derive(Debug)]
pub struct Reach {
    sizes: Sizes,
    passes: Vec<PassDims>,
    reached: HashMap<(usize, Option<usize>, Stage), Region>,
    /// Cells of attention that edits may open although the mask hides them, by pass, layer and stage.
    opened: HashMap<(usize, usize, Stage), Region>,
}

impl Reach {
    /// The reach of edit number `number` of `edits` in a sequence with these passes. `edits` are all edits of the run.
    pub fn new(
        (edits, number): (&[Edit], usize),
        card: &ModelCard,
        sequence: usize,
        passes: &[PassDims],
    ) -> Self {
        let mut reach = Self {
            sizes: card.sizes(),
            passes: passes.to_vec(),
            reached: HashMap::new(),
            opened: HashMap::new(),
        };
        let pairing = card.config.pairing;
        let mut walk = Walk { edits, number, sequence, pairing, cache: HashMap::new(), drawn: false };
        passes.iter().for_each(|&dims| walk.pass(&mut reach, dims));
        reach
    }

    /// Whether the number at `index` of `site` is computed from a cell of the edit, or is one.
    pub fn contains(&self, site: Site, index: &[usize]) -> bool {
        let Some(&dims) = self.passes.get(site.pass) else { return false };
        let reached = self.reached.get(&(site.pass, site.layer, site.stage));
        reached.is_some_and(|region| region.contains(index))
            && (!matches!(site.stage, Stage::MaskedScores | Stage::Softmax)
                || self.is_open(site, dims, index))
    }

    /// Whether a number of `site` is computed from a cell of the edit, or is one.
    pub fn has(&self, site: Site) -> bool {
        self.reached.contains_key(&(site.pass, site.layer, site.stage))
    }

    /// Whether attention reads this key: the token sees it, or an edit may open it.
    fn is_open(&self, site: Site, dims: PassDims, index: &[usize]) -> bool {
        let (Some(layer), &[_, t, k]) = (site.layer, index) else { return true };
        self.visible(dims, layer, t).contains(&k)
            || [Stage::MaskedScores, site.stage].iter().any(|&stage| {
                self.opened.get(&(site.pass, layer, stage)).is_some_and(|region| region.contains(index))
            })
    }

    fn visible(&self, dims: PassDims, layer: usize, t: usize) -> std::ops::Range<usize> {
        self.sizes.sees(Some(layer)).keys(dims.start + t)
    }

    /// The rows in `rows` that see a key in `keys`.
    fn rows_that_see(&self, dims: PassDims, layer: usize, rows: &Set, keys: &Set) -> Set {
        let sees = |t: &usize| rows.contains(*t) && keys.meets(&self.visible(dims, layer, *t));
        Set::Some((0..dims.tokens).filter(sees).collect())
    }

    /// The keys that edits of these stages may open, as (H, T, K).
    fn opened<'a>(
        &'a self,
        dims: PassDims,
        layer: usize,
        stages: &'a [Stage],
    ) -> impl Iterator<Item = [&'a Set; 3]> {
        let regions = stages.iter().filter_map(move |&stage| self.opened.get(&(dims.pass, layer, stage)));
        regions.flat_map(Region::iter).filter_map(|cells| match &cells.0[..] {
            [h, t, k] => Some([h, t, k]),
            _ => None,
        })
    }
}

/// The walk through the passes of a run.
struct Walk<'a> {
    edits: &'a [Edit],
    number: usize,
    sequence: usize,
    pairing: Pairing,
    /// The rows of the cache that are reached, by layer.
    cache: HashMap<(usize, Stage), Region>,
    /// Whether a sampled token is reached: then every later pass reads other tokens.
    drawn: bool,
}

/// The regions of the stages before the current one.
#[derive(Default)]
struct Before {
    once: HashMap<Stage, Region>,
    layer: HashMap<Stage, Region>,
    /// The input of the layer or of the head.
    stream: Region,
}

impl Before {
    fn get(&self, input: Input) -> Option<&Region> {
        match input {
            Input::Stage(stage) => self.layer.get(&stage).or_else(|| self.once.get(&stage)),
            Input::LayerInput => Some(&self.stream),
            Input::Positions => None,
        }
    }
}

impl Walk<'_> {
    fn pass(&mut self, reach: &mut Reach, dims: PassDims) {
        let begun = self.edits[self.number].parts.iter().any(|part| part.place.passes.contains(dims.pass));
        if !begun && !self.drawn && self.cache.is_empty() {
            return;
        }
        let mut before = Before::default();
        let of = |section: Section| {
            Stage::ALL.iter().copied().filter(move |stage| stage.info().section == section)
        };
        for stage in of(Section::Start) {
            let region = self.stage(reach, dims, None, stage, &before);
            before.once.insert(stage, region);
        }
        before.stream = before.once.get(&Stage::Embedding).cloned().unwrap_or_default();
        for layer in 0..reach.sizes.layers {
            before.layer.clear();
            for stage in of(Section::Layer) {
                let region = self.stage(reach, dims, Some(layer), stage, &before);
                before.layer.insert(stage, region);
            }
            before.stream = before.layer.remove(&Stage::FfnResidual).unwrap_or_default();
        }
        before.layer.clear();
        for stage in of(Section::End).chain(of(Section::Sampler)) {
            let region = self.stage(reach, dims, None, stage, &before);
            before.once.insert(stage, region);
        }
        self.drawn |= before.once.get(&Stage::Sampled).is_some_and(|region| !region.is_empty());
    }

    /// The cells of `stage` that are reached.
    fn stage(
        &mut self,
        reach: &mut Reach,
        dims: PassDims,
        layer: Option<usize>,
        stage: Stage,
        before: &Before,
    ) -> Region {
        if !stage.present_in(&reach.sizes, dims, layer) {
            return Region::default();
        }
        let mut region = Region::default();
        if stage == Stage::Tokens && self.drawn {
            region.add(Cells(vec![Set::All]));
        }
        let cached = layer.map(|layer| (layer, stage)).filter(|_| stage.info().op == Op::Cache);
        if let Some(rows) = cached.and_then(|at| self.cache.remove(&at)) {
            region = rows;
        }
        for input in stage.inputs_in(&reach.sizes, dims, layer) {
            for cells in before.get(input).into_iter().flat_map(Region::iter) {
                self.results(reach, (dims, layer, stage), input, cells, &mut region);
            }
        }
        let region = self.edited(reach, (dims, layer, stage), before, region);
        if let Some(at) = cached.filter(|_| !region.is_empty()) {
            self.cache.insert(at, region.clone());
        }
        if !region.is_empty() {
            reach.reached.insert((dims.pass, layer, stage), region.clone());
        }
        region
    }

    /// Adds the results of the operation of `stage` that read `cells` of `input`.
    fn results(
        &self,
        reach: &Reach,
        (dims, layer, stage): (PassDims, Option<usize>, Stage),
        input: Input,
        cells: &Cells,
        out: &mut Region,
    ) {
        let from = match input {
            Input::Stage(from) => from,
            _ => Stage::Embedding,
        };
        let on = |axis: Axis| {
            from.axes().iter().position(|&other| other == axis).map_or(Set::All, |at| cells.0[at].clone())
        };
        // The same index on the axes that both have, and every index on the others.
        let same = |spread: &[Axis]| {
            let axes = stage.axes().iter();
            Cells(axes.map(|axis| if spread.contains(axis) { Set::All } else { on(*axis) }).collect())
        };
        let [t, h, k, c] = [Axis::Token, Axis::Head, Axis::Key, Axis::HeadDim].map(on);
        let Sizes { heads, kv_heads, .. } = reach.sizes;
        match stage.info().op {
            // The query and key norms go over a head, or over all heads.
            Op::RmsNorm if reach.sizes.qk_whole => out.add(same(&stage.axes()[1..])),
            Op::RmsNorm => out.add(same(&stage.axes()[stage.axes().len() - 1..])),
            // A group of int8 values may cross heads.
            Op::Linear | Op::Quantize => {
                let of_token = |axis: &Axis| if *axis == Axis::Token { t.clone() } else { Set::All };
                out.add(Cells(stage.axes().iter().map(of_token).collect()));
            }
            Op::Rope => {
                let turned = 2 * reach.sizes.pairs;
                let pair = |i: usize| {
                    let (first, second) = self.pairing.components(i, turned);
                    vec![first, second]
                };
                let of_component = |c: usize| match c < turned {
                    true => pair(self.pairing.pair_of(c, turned)),
                    false => vec![c],
                };
                let components = match from.axes().contains(&Axis::Pair) {
                    true => on(Axis::Pair).map(pair),
                    false => c.map(of_component),
                };
                let heads = if from.axes().len() == 3 { cells.0[1].clone() } else { Set::All };
                out.add(Cells(vec![t, heads, components]));
            }
            Op::Cache => {
                let Set::Some(rows) = t.and(&Set::Some((0..dims.tokens).collect())) else { return };
                let keys = rows.iter().map(|t| dims.start + t).collect();
                out.add(Cells(vec![Set::Some(keys), cells.0[1].clone(), c]));
            }
            Op::RepeatKv => {
                let group = (heads / kv_heads.max(1)).max(1);
                let heads = on(Axis::KvHead).map(|g| (g * group..(g + 1) * group).collect());
                out.add(Cells(vec![k, heads, c]));
            }
            Op::QueryKey => out.add(Cells(vec![h, t, k])),
            Op::Softmax => {
                let Some(layer) = layer else { return };
                out.add(Cells(vec![h.clone(), reach.rows_that_see(dims, layer, &t, &k), Set::All]));
                for [heads, rows, keys] in reach.opened(dims, layer, &[Stage::MaskedScores]) {
                    if k.and(keys) != Set::Some(Vec::new()) {
                        out.add(Cells(vec![h.and(heads), t.and(rows), Set::All]));
                    }
                }
            }
            Op::Mix if from == Stage::Softmax => out.add(Cells(vec![t, h, Set::All])),
            Op::Mix => {
                let Some(layer) = layer else { return };
                out.add(Cells(vec![reach.rows_that_see(dims, layer, &Set::All, &k), h.clone(), c.clone()]));
                for [heads, rows, keys] in reach.opened(dims, layer, &[Stage::MaskedScores, Stage::Softmax]) {
                    if k.and(keys) != Set::Some(Vec::new()) {
                        out.add(Cells(vec![rows.clone(), h.and(heads), c.clone()]));
                    }
                }
            }
            Op::Scale | Op::Cap | Op::AddMask | Op::Add | Op::Silu | Op::Activation | Op::Mul => {
                out.add(same(&[]));
            }
            // The token is drawn from the last row.
            _ if stage.info().section == Section::Sampler => {
                if t.contains(dims.tokens.saturating_sub(1)) {
                    let penalized = stage.info().op == Op::Penalize;
                    out.add(if penalized { same(&[]) } else { same(&[Axis::Vocab]) });
                }
            }
            _ => out.add(same(&[Axis::Dim])),
        }
    }

    /// `region` after the edits of the stage: an edit may replace it, mix its tokens, or add the cells of this edit.
    fn edited(
        &self,
        reach: &mut Reach,
        (dims, layer, stage): (PassDims, Option<usize>, Stage),
        before: &Before,
        mut region: Region,
    ) -> Region {
        let has = |part: &Part| {
            part.place.stage == stage
                && part.place.sequences.contains(self.sequence)
                && part.place.passes.contains(dims.pass)
                && layer.is_none_or(|layer| part.place.layers.contains(layer))
        };
        for (number, edit) in self.edits.iter().enumerate() {
            for part in edit.parts.iter().filter(|part| has(part)) {
                let own = cells_of(&part.place, &reach.sizes, dims);
                let whole = own.0.iter().all(|set| *set == Set::All);
                // A product with −∞ or with the weight 0 opens no key.
                if let (Some(layer), Stage::MaskedScores | Stage::Softmax) = (layer, stage)
                    && part.operator != Operator::Multiply
                {
                    reach.opened.entry((dims.pass, layer, stage)).or_default().add(own.clone());
                }
                match (&part.operand, part.operator) {
                    (Operand::Input, _) if whole => {
                        let input = match stage {
                            Stage::FfnResidual => Input::LayerInput,
                            _ => stage
                                .inputs_in(&reach.sizes, dims, layer)
                                .first()
                                .copied()
                                .unwrap_or(Input::LayerInput),
                        };
                        region = before.get(input).cloned().unwrap_or_default();
                    }
                    (Operand::Mean, _) => {
                        let spread = |cells: &Cells| {
                            let both = cells.0.iter().zip(&own.0).zip(stage.axes());
                            let mixed = both.map(|((cells, own), axis)| match axis {
                                Axis::Token => own.clone(),
                                _ => cells.and(own),
                            });
                            Cells(mixed.collect())
                        };
                        let mixed: Vec<Cells> = region.iter().map(spread).collect();
                        mixed.into_iter().for_each(|cells| region.add(cells));
                    }
                    (_, Operator::Set) if whole => region = Region::default(),
                    _ => {}
                }
                if number == self.number {
                    region.add(own);
                }
            }
        }
        region
    }
}

/// The cells of a place in pass `dims`.
fn cells_of(place: &Place, sizes: &Sizes, dims: PassDims) -> Cells {
    let selected = place.cells(sizes, dims).into_iter().zip(place.stage.axes());
    let set = |(indices, &axis): (Vec<usize>, &Axis)| match indices.len() == sizes.axis(axis, dims) {
        true => Set::All,
        false => Set::Some(indices),
    };
    Cells(selected.map(set).collect())
}
