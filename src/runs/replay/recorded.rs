//! A run from a file. Kept values are read; others are derived by the functions that derive frames of a live run.
//! Nothing is run again. A worker thread does the work, as for a live run.

mod derived;
mod edited;
mod follows;
mod lens;

pub use follows::Follows;

use self::edited::Unreached;

use std::fmt::Display;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::lens::Answers;
use super::live::{Label, Live, Over};
use super::operands;
use super::serve::{Member, Reply, Serves, lock};
use super::store::Store;
use super::together::Together;
use crate::record::Kept;
use llama_trace_core::config::CacheDtype;
use llama_trace_core::edit::Edits;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{
    Fold, Line, Operands, Place, Rules, added, attribute, explain, strongest, writings,
};
use llama_trace_core::ops::round;
use llama_trace_core::stop::Stop;
use llama_trace_core::trace::block::{Cutting, index_of};
use llama_trace_core::trace::draw::{Draw, DrawAt};
use llama_trace_core::trace::pattern::Measuring;
use llama_trace_core::trace::source::all_recorded;
use llama_trace_core::trace::spread::Counting;
use llama_trace_core::trace::stage::{Rounded, Section};
use llama_trace_core::trace::token_logprobs::{TokenLogprob, TokenLogprobsAt};
use llama_trace_core::trace::{
    Answer, Block, Cached, Filters, Fork, ModelCard, Order, Outline, Part, PassDims, PassOutline, Pattern,
    Probe, Query, Region, Run, Site, Sizes, Source, Spread, TokenLabel, WeightRows,
};
use llama_trace_engine::generate::{Sampler, Sampling};
use llama_trace_engine::model::{Activations, Model};
use llama_trace_formats::tokenizer::Tokenizer;

/// The advice if weights are needed.
const NEEDS_MODEL: &str = "open the trace with --model and the model that it was recorded from";

/// The advice for run B, which is compared with run A. With a model, the computation would give the expected values,
/// not B's.
const WRITE_IT: &str = "write this stage in B too: values of B are read, not computed";
const OTHER_SIDE: &str =
    "B's values are shown only as they were written; with --model, A's value can be explained";

/// An open trace, with its model if that is available.
pub struct Recorded {
    trace: Arc<dyn Kept>,
    judged: Option<Run>,
    model: Option<Arc<Model>>,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    memory: usize,
    store: Arc<Mutex<Store>>,
    turn: Arc<Mutex<()>>,
}

impl Recorded {
    /// A source of the sequences of `trace`, with a memory limit for all of them in bytes. With the model, values that
    /// the trace lacks are computed again. `tokenizer` gives tokens their texts if the trace has none.
    pub fn new(
        trace: Arc<dyn Kept>,
        model: Option<Arc<Model>>,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        memory: usize,
    ) -> Self {
        let store = Arc::new(Mutex::new(Store::new(memory)));
        Self { trace, judged: None, model, tokenizer, memory, store, turn: Arc::default() }
    }

    /// The same source, shown under the name of run `run` beside the run it is compared with. Messages use this name.
    #[must_use]
    pub fn judged_as(self, run: Run) -> Self {
        Self { judged: Some(run), ..self }
    }

    /// Opens a sequence of the original run or of a branch.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such run or sequence, or no thread can be started.
    pub fn open(&self, run: Run, sequence: usize) -> Result<Box<dyn Source>> {
        let sequences = self.trace.sequences();
        if sequence >= sequences {
            let there = if sequences == 1 { "only s0".into() } else { format!("s0 to s{}", sequences - 1) };
            return Err(Error::usage(format!("there is no sequence {sequence}")).found(there));
        }
        let fork = self.fork(run, sequence)?;
        if let Some(fork) = fork {
            lock(&self.store).part(sequence, run, fork);
        }
        self.begin(run, sequence, fork, None)
    }

    /// A run with edits of a sequence of the original run, as the only sequence of run `run`. `edits` holds what they
    /// read. The edits change only values that are computed without weights, because the model is not used.
    ///
    /// # Errors
    /// [`Error::Usage`] if the trace has edits already, or does not have the cells that `edits` name.
    pub fn edited(&self, run: Run, sequence: usize, edits: Edits) -> Result<Box<dyn Source>> {
        let trace = Arc::new(Unreached::new(Arc::clone(&self.trace), sequence, edits.list())?);
        let recorded = Self::new(trace, None, self.tokenizer.clone(), self.memory);
        recorded.begin(run, 0, None, Some(Arc::new(edits)))
    }

    fn begin(
        &self,
        run: Run,
        sequence: usize,
        fork: Option<Fork>,
        edits: Option<Arc<Edits>>,
    ) -> Result<Box<dyn Source>> {
        let sequences = self.trace.sequences();
        let turn = Arc::clone(&self.turn);
        let member = Member { run, sequence, sequences, shares: sequences, turn, setting: None, _open: None };
        let sampler = match &self.model {
            Some(_) => Some(self.sampler(sequence)?),
            None => sampler(&*self.trace, sequence)?,
        };
        let over = Over {
            outline: self.outline(run, fork, sequence),
            store: Arc::clone(&self.store),
            label: self.label(),
            member: member.clone(),
            stop: Stop::default(),
            why: all_recorded(),
        };
        let reader = Reader {
            trace: Arc::clone(&self.trace),
            judged: self.judged,
            run,
            sequence,
            edits,
            store: Arc::clone(&self.store),
            stop: over.stop.clone(),
            sampler: sampler.clone(),
            weights: OfModel {
                model: self.model.clone(),
                next: if self.judged.is_some() { OTHER_SIDE } else { NEEDS_MODEL },
            },
            work: None,
            answers: Answers::default(),
            tokenizer: self.tokenizer.clone(),
        };
        let trace = Live::over(over, reader)?;
        Ok(match &self.model {
            None => Box::new(trace),
            Some(model) => {
                let kept = Arc::clone(&self.trace);
                let asked = (Arc::clone(model), member, sampler.unwrap_or(greedy()?), self.tokenizer.clone());
                Box::new(Together::new((trace, kept), asked, self.trace.passes(run, sequence), self.memory))
            }
        })
    }

    /// The sampler of another run like this sequence. If the trace does not have its settings, the sampler takes the most
    /// likely token.
    ///
    /// # Errors
    /// [`Error::Model`] if the settings in the trace are not valid.
    pub fn sampler(&self, sequence: usize) -> Result<Sampler> {
        sampler(&*self.trace, sequence)?.map_or_else(greedy, Ok)
    }

    /// The stages that are available without running anything again.
    pub fn follows(&self) -> Follows<'_> {
        Follows::new(&*self.trace, self.trace.sampling().is_some() || self.model.is_some())
    }

    /// The start of `run`, if it is a branch.
    fn fork(&self, run: Run, sequence: usize) -> Result<Option<Fork>> {
        let Some(number) = usize::from(run.0).checked_sub(1) else { return Ok(None) };
        let branch = self.trace.branches().get(number).filter(|branch| branch.sequence == sequence);
        branch.map(|branch| Some(branch.fork())).ok_or_else(|| match self.trace.branches().len() {
            0 => Error::usage(format!("there is no run {run}")).found("only r0"),
            count => {
                const TOLD: usize = 8;
                let branches = (1..).zip(self.trace.branches()).take(TOLD);
                let named: Vec<_> =
                    branches.map(|(number, branch)| format!("r{number} of s{}", branch.sequence)).collect();
                let more = if count > TOLD { format!(", to r{count}") } else { String::new() };
                Error::usage(format!("there is no {run} of s{sequence}"))
                    .found(format!("{}{more}", named.join(", ")))
                    .next("name both in the address, as in r1:s0/p0/L0/xq")
            }
        })
    }

    fn label(&self) -> Label {
        let (trace, tokenizer) = (Arc::clone(&self.trace), self.tokenizer.clone());
        Rc::new(move |id| {
            let other = || tokenizer.as_ref().map(|tokenizer| tokenizer.label(id));
            trace.label(id).or_else(other).unwrap_or_else(|| format!("#{id}"))
        })
    }

    /// The outline of a sequence of a run: its passes and their tokens.
    fn outline(&self, run: Run, fork: Option<Fork>, sequence: usize) -> Outline {
        let text = self.label();
        let label = |id| TokenLabel { id, text: text(id) };
        let passes = self.trace.passes(run, sequence).iter().map(|pass| PassOutline {
            dims: pass.dims,
            tokens: pass.tokens.iter().map(|&id| label(id)).collect(),
            sampled: pass.sampled.map(label),
        });
        Outline {
            run,
            fork,
            setting: fork.and_then(|fork| fork.setting),
            sequence,
            sequences: self.trace.sequences(),
            recorded: true,
            ended: None,
            card: self.trace.card().clone(),
            passes: passes.collect(),
            cache: Cached { dtype: cached_as(&*self.trace), capacity: None },
        }
    }
}

/// The number type of the KV cache. If it is unknown, the one that stores the precision's values without rounding.
fn cached_as(trace: &dyn Kept) -> CacheDtype {
    trace.cache().unwrap_or(trace.card().precision.cache_dtype())
}

/// The sampler that drew the tokens of a sequence.
fn sampler(trace: &dyn Kept, sequence: usize) -> Result<Option<Sampler>> {
    let Some(drawing) = trace.sampling() else { return Ok(None) };
    let Sampling { temperature, top_p, min_p, typical_p, repetition_penalty, .. } = drawing.sampling;
    let sampler = Sampler::new(drawing.sampling);
    // A wrong value comes from the file, not from an option.
    let sampler = sampler.map_err(|_| {
        Error::model("the sampler settings in the trace are not valid")
            .at(trace.place())
            .expected("values that the options of `llama-trace record` accept")
            .found(format!(
                "temperature {temperature}, top-p {top_p}, min-p {min_p}, typical-p {typical_p}, repetition penalty {repetition_penalty}"
            ))
            .next("record it again")
    })?;
    Ok(Some(sampler.with_stream(drawing.stream.wrapping_add(sequence as u64))))
}

/// The sampler of a run whose settings are unknown: the most likely token.
fn greedy() -> Result<Sampler> {
    Sampler::new(Sampling::default())
}

/// The model, if there is one, and the advice if there is none.
struct OfModel {
    model: Option<Arc<Model>>,
    next: &'static str,
}

impl OfModel {
    fn get(&self, what: impl Display) -> Result<&Model> {
        self.model.as_deref().ok_or_else(|| self.no_model(&what))
    }

    /// The error for needing weights without a model.
    fn no_model(&self, what: &dyn Display) -> Error {
        Error::usage(format!("{what} needs the model: a trace has no weights")).next(self.next)
    }

    /// Whether there is no model.
    fn are_missing(&self) -> bool {
        self.model.is_none()
    }

    fn rows(&self, rows: &WeightRows) -> Result<Vec<f32>> {
        self.get(rows)?.rows(rows)
    }

    fn of_line(&self, line: Line) -> Result<Vec<f32>> {
        operands::of_weight(self.get(line.place)?, line)
    }

    fn whole(&self, row: Line, x: &[i8], scales: &[f32], group: usize) -> Result<(Vec<f32>, f32)> {
        operands::whole(self.get(row.place)?, row, x, scales, group)
    }
}

/// The worker that reads a sequence of the file.
struct Reader {
    trace: Arc<dyn Kept>,
    /// The name under which the run is shown, if it is compared with another run.
    judged: Option<Run>,
    run: Run,
    sequence: usize,
    /// Edits of values that the trace keeps or derives.
    edits: Option<Arc<Edits>>,
    store: Arc<Mutex<Store>>,
    stop: Stop,
    /// `None` if the sampler settings are unknown.
    sampler: Option<Sampler>,
    weights: OfModel,
    /// The buffers of the model's head; `None` before the first use.
    work: Option<Activations>,
    /// The predictions after the last layer of the trace.
    answers: Answers,
    tokenizer: Option<Arc<dyn Tokenizer>>,
}

impl Serves for Reader {
    fn answer(&mut self, run: Run, query: &Query) -> Result<Answer> {
        // Shared passes of a branch are stored under the run it branches from.
        let query = match query.site() {
            Some(site) => &query.of_run(lock(&self.store).own(site).run),
            None => query,
        };
        match query {
            Query::Block(site, region) => {
                let block = self.block(*site, region);
                block.map(Answer::Block).map_err(|error| self.with_statistics(*site, error))
            }
            Query::Spread(part) => self.spread(*part).map(Answer::Spread),
            Query::Order(part) => self.order(*part).map(Answer::Order),
            Query::Patterns(site) => self.patterns(*site).map(Answer::Patterns),
            Query::Rows(rows) => self.weights.rows(rows).map(Answer::Rows),
            Query::Explanation(at) => {
                self.dims(at.site)?;
                if self.sampler.is_none() && at.site.stage.info().section == Section::Sampler {
                    return Err(self.not_here(at.site));
                }
                let mut explanation = explain(&self.rules(), at.site, at.at, at.terms, self)?;
                explanation.recorded = self.trace.tells(at.site);
                Ok(Answer::Explanation(Box::new(explanation.seen_from(run))))
            }
            Query::Patch(_) => {
                Err(Error::usage("a trace has no weights, so no value of it can be exchanged and run on")
                    .next(NEEDS_MODEL))
            }
            Query::Attribution(at) => {
                self.dims(at.site)?;
                self.weights.get("the attribution of a logit")?;
                attribute(&self.rules(), at, self).map(Answer::Attribution)
            }
            Query::Draw(at) => self.draw(at).map(|draw| Answer::Draw(Arc::new(draw))),
            Query::Stream(at) => {
                self.dims(at.site)?;
                added(&self.rules(), at, self).map(Answer::Stream)
            }
            Query::Units(at) => {
                self.dims(at.site)?;
                strongest(&self.rules(), at, self).map(Arc::new).map(Answer::Units)
            }
            Query::Writes(at) => {
                self.dims(at.site)?;
                writings(&self.rules(), at, self).map(Answer::Writes)
            }
            Query::TokenLogprobs(at) => self.token_logprobs(at).map(Answer::TokenLogprobs),
            Query::TokenPieces(site) => {
                let ids =
                    self.trace.passes(self.run, self.sequence).get(site.pass).map(|pass| pass.tokens.clone());
                let ids = ids.ok_or_else(|| self.no(*site))?;
                Ok(Answer::TokenPieces(
                    super::token_pieces::token_pieces(self.tokenizer.as_deref(), &ids)?.into(),
                ))
            }
            Query::Lens(at) => self.lens(at).map(Answer::Lens),
        }
    }

    fn advance(&mut self, run: Run) -> Reply {
        Reply::Pass(self.next_pass(run), Err(all_recorded()))
    }

    fn branch(&mut self, _: Run, _: Fork) -> Result<()> {
        Err(all_recorded())
    }

    fn next_pass(&self, _: Run) -> PassDims {
        let passes = self.trace.passes(self.run, self.sequence);
        let start = passes.last().map_or(0, |pass| pass.dims.keys());
        let filters = passes.last().map_or(Filters::NONE, |pass| pass.dims.filters);
        PassDims { pass: passes.len(), start, tokens: 1, filters }
    }
}

impl Reader {
    /// The numbers of a line of `rope_cos` or `rope_sin`, computed from the run's own configuration.
    fn angles(&self, line: Line, site: Site) -> Option<Vec<f32>> {
        let rules = self.rules();
        let ModelCard { precision, arithmetic, .. } = *self.trace.card();
        let of = rules.of(site).filter(|_| self.judged.is_none())?;
        let number = |i: usize| {
            let rule = of.cell(line.cell(i).at);
            let Fold::Angle { position, frequency, sine, factor, .. } = rule.fold else { return None };
            let (sin, cos) = arithmetic.sin_cos(position as f32 * frequency.value);
            let value = if sine { sin } else { cos } * factor;
            Some(if rule.rounded == Rounded::Never { value } else { round::value(precision, value) })
        };
        (0..line.count).map(number).collect()
    }

    /// The rules of the run.
    fn rules(&self) -> Rules {
        let card = self.trace.card();
        let sampling = self.sampler.as_ref().map(Sampler::sampling).unwrap_or_default();
        let mut rules = Rules::new(card.clone(), cached_as(&*self.trace), sampling);
        for (draw, pass) in (0..).zip(self.trace.passes(self.run, self.sequence)) {
            let drawn = self.sampler.as_ref().filter(|_| sampling.temperature > 0.0);
            rules.push(pass.dims, drawn.map(|sampler| sampler.random(draw)));
            rules.read(pass.tokens.iter().copied());
        }
        rules
    }

    fn sizes(&self) -> Sizes {
        self.trace.card().sizes()
    }

    /// The pass of `site`, if the run has it.
    fn dims(&self, site: Site) -> Result<PassDims> {
        let dims = self.trace.dims(site).filter(|_| site.sequence == self.sequence);
        dims.ok_or_else(|| self.no(site))
    }

    fn no(&self, site: Site) -> Error {
        Error::usage(format!("there is no {site} in this trace"))
            .next("`llama-trace log --trace FILE` lists what the trace has")
    }

    fn largest(&self) -> usize {
        lock(&self.store).largest()
    }

    /// A block of `site` that contains `region`; the whole stage if it is small enough.
    fn block(&mut self, site: Site, region: &Region) -> Result<Block> {
        let kept = lock(&self.store).get(site, region);
        if let Some(block) = kept {
            return Ok(block);
        }
        let (dims, sizes) = (self.dims(site)?, self.sizes());
        if self.is_small(site, dims) {
            return self.frame(site).map(Block::whole);
        }
        let shape = sizes.shape(site.stage.axes(), dims);
        let most = self.largest() / site.stage.value_bytes();
        let region = region.within(&shape).grown(&shape, most);
        let bytes = region.count() * site.stage.value_bytes();
        let mut cutting = Cutting::new(site, region.clone(), &sizes, dims);
        lock(&self.store).reserve(bytes);
        let shown = self.show(site, &region, &mut cutting);
        lock(&self.store).release(bytes);
        shown?;
        let block = cutting.into_block().ok_or_else(|| self.no(site))?;
        lock(&self.store).cache(block.clone());
        Ok(block)
    }

    fn spread(&mut self, part: Part) -> Result<Spread> {
        let (dims, sizes) = (self.dims(part.site)?, self.sizes());
        if self.is_small(part.site, dims) {
            return Ok(Spread::of_frame(&*self.frame(part.site)?, part.held));
        }
        let mut counting = Counting::new(part, &sizes, dims);
        let region = part.region(&sizes.shape(part.site.stage.axes(), dims));
        self.show(part.site, &region, &mut counting)?;
        Ok(counting.spread())
    }

    fn patterns(&mut self, site: Site) -> Result<Vec<Pattern>> {
        let (dims, sizes) = (self.dims(site)?, self.sizes());
        let text = self.text(site.pass);
        if self.is_small(site, dims) {
            return Ok(Measuring::of_frame(&*self.frame(site)?, &sizes, dims, &text));
        }
        let mut measuring = Measuring::new(site, &sizes, dims, &text);
        let region = Region::whole(&sizes.shape(site.stage.axes(), dims));
        self.show(site, &region, &mut measuring)?;
        Ok(measuring.patterns())
    }

    fn order(&mut self, part: Part) -> Result<Order> {
        let shape = self.sizes().shape(part.site.stage.axes(), self.dims(part.site)?);
        let block = self.block(part.site, &part.region(&shape))?;
        Ok(Order::of(&block, part.held))
    }

    /// The draw after a pass, from its last logits.
    fn draw(&mut self, at: &DrawAt) -> Result<Draw> {
        let last = self.dims(at.site)?.tokens - 1;
        let logits = self.rows(at.site.other(self.sizes().last_logits()), last..last + 1)?;
        let sampler = match (&self.sampler, at.setting) {
            (Some(sampler), _) => sampler.clone(),
            // A setting that the user tries does not need the run's own settings.
            (None, Some(_)) => greedy()?,
            (None, None) => return Err(self.not_here(at.site)),
        };
        let text = self.text(at.site.pass);
        sampler.look((logits.floats(last..last + 1), &text), at.site.pass as u64, at.setting, at.times)
    }

    /// The tokens of the text up to pass `pass`.
    fn text(&self, pass: usize) -> Vec<u32> {
        let passes = self.trace.passes(self.run, self.sequence);
        passes.iter().take(pass + 1).flat_map(|pass| &pass.tokens).copied().collect()
    }

    /// The probability of each token of `at`, from the logits at the previous position.
    fn token_logprobs(&mut self, at: &TokenLogprobsAt) -> Result<Vec<Option<TokenLogprob>>> {
        let dims = self.dims(at.site)?;
        let ids = self.trace.passes(self.run, self.sequence)[at.site.pass].tokens.clone();
        let mut told = Vec::new();
        for token in at.tokens.start..at.tokens.end.min(dims.tokens) {
            let before = match (token.checked_sub(1), at.site.pass.checked_sub(1)) {
                (Some(row), _) => Some((at.site, row)),
                (None, Some(pass)) => {
                    let site = Site { pass, ..at.site };
                    Some((site, self.dims(site)?.tokens - 1))
                }
                (None, None) => None,
            };
            told.push(match before {
                Some((site, row)) => {
                    let logits = self.rows(site, row..row + 1)?;
                    TokenLogprob::of(logits.floats(row..row + 1), ids[token])
                }
                None => None,
            });
        }
        Ok(told)
    }

    /// Gives the rows of `site` in `region` to `probe`, part by part.
    fn show(&mut self, site: Site, region: &Region, probe: &mut dyn Probe) -> Result<()> {
        /// Values read or derived at once.
        const AT_ONCE: usize = 1 << 18;
        let shape = self.sizes().shape(site.stage.axes(), self.dims(site)?);
        let Some((&width, outer)) = shape.split_last() else { return Ok(()) };
        let (side_by_side, before) = match region.0.len() {
            1 => (0..1, Vec::new()),
            axes => (region.0[axes - 2].clone(), region.0[..axes - 2].to_vec()),
        };
        let length = outer.last().copied().unwrap_or(1);
        let at_once = (AT_ONCE / width.max(1)).max(1);
        for run in 0..before.iter().map(ExactSizeIterator::len).product() {
            let inside: Vec<usize> = before.iter().map(ExactSizeIterator::len).collect();
            let index = index_of(&inside, run);
            let at = before
                .iter()
                .zip(&index)
                .zip(outer)
                .fold(0, |at, ((range, index), &length)| at * length + range.start + index);
            for first in side_by_side.clone().step_by(at_once) {
                self.stop.check()?;
                let rows = at * length + first..at * length + (first + at_once).min(side_by_side.end);
                let read = self.rows(site, rows.clone())?;
                probe.record(site, rows.clone(), read.values(rows));
            }
        }
        Ok(())
    }
}

impl Operands for Reader {
    fn numbers(&mut self, line: Line) -> Result<Vec<f32>> {
        self.stop.check()?;
        match line.place {
            Place::Stage(site) => {
                let shape = self.sizes().shape(site.stage.axes(), self.dims(site)?);
                match operands::of_stage(line, &shape, |region| self.block(site, region)) {
                    // Angles need only a position and the configuration, no value of the run.
                    Err(Error::Usage(what)) => self.angles(line, site).ok_or(Error::Usage(what)),
                    found => found,
                }
            }
            Place::Weight(..) => self.weights.of_line(line),
        }
    }

    fn whole(&mut self, row: Line, x: &[i8], scales: &[f32], group: usize) -> Result<(Vec<f32>, f32)> {
        self.weights.whole(row, x, scales, group)
    }

    fn is_all(&self) -> bool {
        self.weights.are_missing()
    }
}
