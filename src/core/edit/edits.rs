//! A list of edits with the values that they read, and its application to the values of a stage.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ndarray::ArrayD;

use super::kept::{Kept, PartAt};
use super::operand::{Cells, Resolved, Seen};
use super::{Edit, Operand, Operator, Origin, Part, Source};
use crate::error::{Error, Result};
use crate::ops::round;
use crate::trace::stage::{Input, Section};
use crate::trace::{Address, Axis, Frame, ModelCard, PassDims, Run, Site, Sizes, Stage, Step, Subject};

/// The values that edits read and a run does not compute itself.
#[derive(Debug, Default)]
pub struct Given {
    /// Stages of other runs.
    pub frames: HashMap<(Origin, Site), Arc<Frame>>,
    /// Arrays by their files.
    pub arrays: HashMap<PathBuf, ArrayD<f32>>,
    /// Means over the tokens of the prompts in a file: the values of one token.
    pub means: HashMap<(PathBuf, Option<usize>, Stage), Vec<f32>>,
}

/// Something that must be in [`Given`] before the edits run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Needed {
    /// A stage of another run.
    Frame {
        /// The run.
        origin: Origin,
        /// The stage.
        site: Site,
        /// Whether the edit names the pass. If it does not, and the other run has no such pass, nothing is read.
        named: bool,
    },
    /// An array.
    Array(PathBuf),
    /// A mean over prompts.
    Mean(PathBuf, Option<usize>, Stage),
}

/// The cells of one stage that one edit wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// Cells that were written.
    pub cells: usize,
    /// Cells whose value changed.
    pub changed: usize,
    /// The first cell that changed, or else the first cell, with the value before and after.
    pub first: (Address, f32, f32),
}

/// The changes of one edit, by part, first token and site.
type BySite = BTreeMap<(usize, usize, Site), Changed>;

/// The edit as an error names it. The option with which it was given is not known here.
fn named(edit: &Edit) -> String {
    edit.switched_off().map_or_else(|| format!("edit \"{edit}\""), |part| format!("switching off {part}"))
}

/// A list of edits.
#[derive(Debug, Default)]
pub struct Edits {
    list: Vec<Edit>,
    given: Given,
    /// The changes of each edit. A site that runs again is counted once.
    changed: Mutex<Vec<BySite>>,
}

impl Edits {
    /// Creates a list that reads no other run or file, or from which [`Edits::needs`] is still to be read.
    pub fn new(list: Vec<Edit>) -> Self {
        Self { list, ..Self::default() }
    }

    /// The same list, with the stages of a model of `sizes`.
    #[must_use]
    pub fn in_model(self, sizes: &Sizes) -> Self {
        Self { list: self.list.into_iter().map(|edit| edit.in_model(sizes)).collect(), ..self }
    }

    /// The same list, with everything that it reads.
    #[must_use]
    pub fn with(self, given: Given) -> Self {
        Self { given, ..self }
    }

    /// The edits.
    pub fn list(&self) -> &[Edit] {
        &self.list
    }

    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Checks that a run of the model `card` with `passes` has all cells. `passes` holds the sequence and the sizes of
    /// each pass. If it is empty, only the layers and the sizes of the model are checked.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first cell that does not exist.
    pub fn check(&self, card: &ModelCard, passes: &[(usize, PassDims)]) -> Result<()> {
        for edit in &self.list {
            for part in &edit.parts {
                // In a run without a mask, there is nothing to switch off.
                let skips = part.operand == Operand::Input && part.place.stage == Stage::MaskedScores;
                if skips
                    && !passes.is_empty()
                    && passes.iter().all(|&(_, dims)| !part.place.stage.present(&card.sizes(), dims))
                {
                    continue;
                }
                part.place.check(card, passes).map_err(|error| error.at(named(edit)))?;
            }
        }
        Ok(())
    }

    /// What the edits read from other runs and files, in a run with `passes`. A source without a pass number is read in
    /// the passes below `most` only.
    pub fn needs(&self, sizes: &Sizes, passes: &[(usize, PassDims)], most: usize) -> Vec<Needed> {
        let mut needed = Vec::new();
        for part in self.parts() {
            let layers = match part.place.stage.in_layer() {
                true => part.place.layers.below(sizes.layers).into_iter().map(Some).collect(),
                false => vec![None],
            };
            for &(sequence, dims) in passes {
                for &layer in &layers {
                    let site = Site { sequence, ..site_of(dims.pass, layer, part.place.stage) };
                    let has_cells =
                        || part.place.cells(sizes, dims).iter().all(|indices| !indices.is_empty());
                    if !part.place.has(site) || !part.place.stage.present(sizes, dims) || !has_cells() {
                        continue;
                    }
                    match &part.operand {
                        Operand::Array(file) => needed.push(Needed::Array(file.clone())),
                        Operand::MeanOver(file) => {
                            needed.push(Needed::Mean(file.clone(), layer, part.place.stage));
                        }
                        Operand::Cells { first, second, .. } => {
                            for source in std::iter::once(first).chain(second.as_deref().map(|(_, it)| it)) {
                                let (origin, from) = (source.run.clone(), source.site(site));
                                let named = source.address.pass.is_some();
                                if named || from.pass < most {
                                    needed.push(Needed::Frame { origin, site: from, named });
                                }
                            }
                        }
                        Operand::Number(_) | Operand::Input | Operand::Mean => {}
                    }
                }
            }
        }
        let mut seen = HashSet::new();
        needed.retain(|one| seen.insert(one.clone()));
        needed
    }

    /// Checks that the runs from which the edits read have every cell that is read in `passes`.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first cell that does not exist.
    pub fn check_sources(&self, sizes: &Sizes, passes: &[(usize, PassDims)]) -> Result<()> {
        for edit in &self.list {
            for part in &edit.parts {
                let Operand::Cells { first, second, .. } = &part.operand else { continue };
                let layers: Vec<_> = match part.place.stage.in_layer() {
                    true => part.place.layers.below(sizes.layers).into_iter().map(Some).collect(),
                    false => vec![None],
                };
                for (&(sequence, dims), &layer) in
                    passes.iter().flat_map(|pass| layers.iter().map(move |layer| (pass, layer)))
                {
                    let site = Site { sequence, ..site_of(dims.pass, layer, part.place.stage) };
                    if !part.place.has(site) || !part.place.stage.present(sizes, dims) {
                        continue;
                    }
                    let selected = part.place.cells(sizes, dims);
                    // The axes are independent, so the largest index of each is enough.
                    let last: Option<Vec<usize>> =
                        selected.iter().map(|axis| axis.iter().max().copied()).collect();
                    let Some(last) = last else { continue };
                    for source in std::iter::once(first).chain(second.as_deref().map(|(_, source)| source)) {
                        let Some(frame) = self.given.frames.get(&(source.run.clone(), source.site(site)))
                        else {
                            continue;
                        };
                        let read = Cells::new(source, frame, site.stage).and_then(|cells| cells.of(&last));
                        read.map_err(|error| error.at(format!("--edit \"{edit}\"")))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the edits can be made in the run of another prompt of equal length, with what was read for this run. They
    /// cannot if one of them names a sequence, or reads the run of the prompt itself.
    pub fn fit_other_prompts(&self) -> bool {
        self.parts().all(|part| {
            let reads_itself = match &part.operand {
                Operand::Cells { first, second, .. } => {
                    let sources = std::iter::once(first).chain(second.as_deref().map(|(_, source)| source));
                    sources.into_iter().any(|source| source.run == Origin::Plain)
                }
                _ => false,
            };
            part.place.sequences.is_all() && !reads_itself
        })
    }

    /// Whether `stage` must not be derived from other stages. See [`Part::stops_derivation`].
    pub fn stop_derivation(&self, stage: Stage) -> bool {
        self.parts().any(|part| part.stops_derivation(stage))
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.list.iter().flat_map(|edit| &edit.parts)
    }

    /// Whether an edit may change values of `site`.
    pub fn touches(&self, site: Site) -> bool {
        self.parts().any(|part| part.place.has(site))
    }

    /// Whether the input of an operation that is switched off must be kept: the values of `site`, or, if `input` is
    /// true, of the input of the layer or of the head at `site`.
    pub fn keeps(&self, sizes: &Sizes, dims: PassDims, site: Site, input: bool) -> bool {
        self.parts().any(|part| {
            part.operand == Operand::Input
                && part.place.has(Site { stage: part.place.stage, ..site })
                && part.place.stage.in_layer() == site.layer.is_some()
                && skipped_to(Site { stage: part.place.stage, ..site }, sizes, dims)
                    == if input { None } else { Some(site.stage) }
        })
    }

    /// The parts whose operand is the mean of `site` and needs [`Kept::collect`], because a pass computes the stage block
    /// by block and leaves out rows that nothing reads.
    pub fn block_means(&self, site: Site) -> Vec<PartAt> {
        let parts = self.list.iter().enumerate().flat_map(|(number, edit)| {
            edit.parts.iter().enumerate().map(move |(at, part)| ((number, at), part))
        });
        parts
            .filter(|(_, part)| {
                in_blocks(site.stage) && part.operand == Operand::Mean && part.place.has(site)
            })
            .map(|(at, _)| at)
            .collect()
    }

    /// Applies all edits of `site` to `values`, the rows of the tokens `held` of pass `dims`. For a stage without a
    /// token axis, `values` is the whole stage. The precision is that to which the stage is rounded
    /// ([`ModelConfig::rounded_to`](crate::config::ModelConfig::rounded_to)). Returns whether an edit wrote to a cell.
    ///
    /// # Errors
    /// [`Error::Usage`] if a source does not have a cell that an edit reads.
    pub fn apply(
        &self,
        card: (&Sizes, crate::config::Precision),
        kept: &mut Kept,
        site: Site,
        dims: PassDims,
        held: &Range<usize>,
        values: &mut [f32],
    ) -> Result<bool> {
        let mut wrote = false;
        for (number, edit) in self.list.iter().enumerate() {
            for (at, part) in edit.parts.iter().enumerate().filter(|(_, part)| part.place.has(site)) {
                if kept.collecting == Some((number, at)) {
                    kept.means.entry((site.sequence, (number, at))).or_default().add(values, held.len());
                    return Ok(wrote);
                }
                let stage = Seen { sizes: card.0, site, dims, held };
                let changed = self.change((number, at), part, &stage, card.1, kept, values);
                let changed = changed.map_err(|error| error.at(named(edit)))?;
                if let Some(changed) = changed {
                    wrote = true;
                    if kept.collecting.is_none() {
                        self.note(number, at, site, held, changed);
                    }
                }
            }
        }
        Ok(wrote)
    }

    /// Applies one part. Returns `None` if it has no cells here.
    fn change(
        &self,
        number: PartAt,
        part: &Part,
        stage: &Seen<'_>,
        precision: crate::config::Precision,
        kept: &Kept,
        values: &mut [f32],
    ) -> Result<Option<Changed>> {
        let Seen { sizes, site, dims, held } = *stage;
        let axes = site.stage.axes();
        let mut selected = part.place.cells(sizes, dims);
        let shape: Vec<usize> = axes.iter().map(|&axis| stage.length(axis)).collect();
        let token = axes.iter().position(|&axis| axis == Axis::Token);
        // A stage of which only some rows are here has the token axis first, so the cells of earlier rows come first.
        let (of_pass, mut earlier) = (selected.iter().map(Vec::len).collect::<Vec<_>>(), 0);
        if let Some(token) = token {
            earlier = selected[token].iter().filter(|&&t| t < held.start).count();
            earlier *= of_pass[token + 1..].iter().product::<usize>();
            selected[token].retain(|t| held.contains(t));
        }
        let count: usize = selected.iter().map(Vec::len).product();
        if count == 0 {
            return Ok(None);
        }
        let Some(operand) = self.operand((number, part), stage, kept, &of_pass, values)? else {
            return Ok(None);
        };
        let (mut changed, mut first): (usize, Option<(Vec<usize>, f32, f32)>) = (0, None);
        let mut index = vec![0; axes.len()];
        for cell in 0..count {
            let mut rest = cell;
            for (at, numbers) in selected.iter().enumerate().rev() {
                index[at] = numbers[rest % numbers.len()];
                rest /= numbers.len();
            }
            let at = shape.iter().zip(&index).enumerate().fold(0, |at, (axis, (length, index))| {
                at * length + if Some(axis) == token { index - held.start } else { *index }
            });
            let other = operand.of(earlier + cell, at, &index)?;
            let before = values[at];
            let after = match part.operator {
                Operator::Set => other,
                Operator::Multiply => before * other,
                Operator::Add => before + other,
            };
            let after = round::value(precision, after);
            values[at] = after;
            let differs = before.to_bits() != after.to_bits();
            if differs && changed == 0 || first.is_none() {
                first = Some((index.clone(), before, after));
            }
            changed += usize::from(differs);
        }
        Ok(first.map(|(index, before, after)| Changed {
            cells: count,
            changed,
            first: (Address::of(site, Step::Stage(site.stage), &index), before, after),
        }))
    }

    /// The operand of a part. `None` if the part does not apply in this pass, because the source has no such pass.
    fn operand<'a>(
        &'a self,
        (number, part): (PartAt, &'a Part),
        stage: &'a Seen<'_>,
        kept: &'a Kept,
        cells: &[usize],
        values: &[f32],
    ) -> Result<Option<Resolved<'a>>> {
        let Seen { sizes, site, dims, held } = *stage;
        let missing = |what: String| Error::usage(what).next("name cells that the other run has");
        Ok(Some(match &part.operand {
            Operand::Number(number) => Resolved::Number(*number),
            Operand::Input => {
                let input = skipped_to(site, sizes, dims);
                match kept.inputs.get(&(site.sequence, input)).filter(|kept| kept.len() == values.len()) {
                    Some(kept) => Resolved::Same(kept),
                    None => return Err(missing(format!("the input of {site} is not known"))),
                }
            }
            Operand::Mean if in_blocks(site.stage) && held.len() < dims.tokens => {
                match kept.means.get(&(site.sequence, number)) {
                    Some(mean) => Resolved::OfToken(mean.values().into(), stage),
                    None => return Err(missing(format!("the mean of {site} is not known"))),
                }
            }
            Operand::Mean => Resolved::OfTokens(stage.means(values)),
            Operand::MeanOver(file) => {
                let means = self.given.means.get(&(file.clone(), site.layer, site.stage));
                let Some(means) = means else {
                    return Err(missing(format!("{} was not read", file.display())));
                };
                Resolved::OfToken(means.into(), stage)
            }
            Operand::Array(file) => {
                let Some(array) = self.given.arrays.get(file) else {
                    return Err(missing(format!("{} was not read", file.display())));
                };
                Resolved::array(array, cells).map_err(|error| error.in_file(file))?
            }
            Operand::Cells { factor, first, second } => {
                let find = |source: &'a Source| -> Result<Option<Cells<'a>>> {
                    let from = source.site(site);
                    match self.given.frames.get(&(source.run.clone(), from)) {
                        Some(frame) => Cells::new(source, frame, site.stage).map(Some),
                        None if source.address.pass.is_none() => Ok(None),
                        None => Err(missing(format!("the other run has no {from}"))),
                    }
                };
                let Some(first) = find(first)? else { return Ok(None) };
                let second = match second.as_deref() {
                    Some((sign, source)) => match find(source)? {
                        Some(cells) => Some((*sign, cells)),
                        None => return Ok(None),
                    },
                    None => None,
                };
                Resolved::Cells(*factor, first, second)
            }
        }))
    }

    fn note(&self, edit: usize, part: usize, site: Site, held: &Range<usize>, changed: Changed) {
        let mut all = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        all.resize_with(self.list.len(), BTreeMap::new);
        all[edit].insert((part, held.start, site), changed);
    }

    /// What each edit changed so far, all stages together. `None` for an edit that found no cell.
    pub fn changes(&self) -> Vec<Option<Changed>> {
        let all = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |changes: &BySite| {
            let mut changes = changes.values();
            let mut sum = changes.next()?.clone();
            for one in changes {
                if sum.changed == 0 && one.changed > 0 {
                    sum.first = one.first.clone();
                }
                sum.cells += one.cells;
                sum.changed += one.changed;
            }
            Some(sum)
        };
        (0..self.list.len()).map(|edit| all.get(edit).and_then(sum)).collect()
    }
}

/// The stage that replaces the output of a switched-off operation: its input. `None` for the input of the layer or of
/// the head.
fn skipped_to(site: Site, sizes: &Sizes, dims: PassDims) -> Option<Stage> {
    match site.inputs(sizes, dims).first() {
        Some(Input::Stage(input)) if site.stage != Stage::FfnResidual => Some(*input),
        _ => None,
    }
}

/// Whether a pass computes the rows of `stage` in blocks, and only those that something reads.
fn in_blocks(stage: Stage) -> bool {
    stage.info().section == Section::End
}

fn site_of(pass: usize, layer: Option<usize>, stage: Stage) -> Site {
    Site { layer, ..Site::once(pass, stage) }
}

impl Source {
    /// The site that the edit of `site` reads.
    fn site(&self, site: Site) -> Site {
        let stage = match self.address.subject {
            Some(Subject::Step(step)) => step.stage(),
            _ => site.stage,
        };
        let layer = self.address.layer.or(site.layer).filter(|_| stage.in_layer());
        let sequence = match self.run {
            Origin::Plain => self.address.sequence.unwrap_or(site.sequence),
            Origin::Prompt(_) | Origin::Trace(_) => self.address.sequence.unwrap_or(0),
        };
        let pass = self.address.pass.unwrap_or(site.pass);
        Site { run: Run::ITSELF, sequence, pass, layer, stage }
    }
}
