//! The computing side of a live run.
//!
//! A pass keeps the inputs of some of its layers, as many as the budget allows. Other values are recomputed from the
//! nearest kept input, or from the embedding. The functions and their inputs are the same, so the results have the same
//! bits. The KV cache still has the keys and values of all positions; a recomputed layer overwrites its keys and values
//! with equal ones.

mod branches;
mod explanation;
mod lens;
mod token_logprobs;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use ndarray::{ArrayD, IxDyn};

use super::derive::{derive, is_derived, values};
use super::lens::Answers;
use super::operands;
use super::serve::{Member, Progress, Reply, Serves, lock};
use super::store::Store;
use super::token_pieces::token_pieces;
use branches::Branches;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::block::Cutting;
use llama_trace_core::trace::draw::{Draw, DrawAt};
use llama_trace_core::trace::pattern::Measuring;
use llama_trace_core::trace::spread::Counting;
use llama_trace_core::trace::stage::{Input, Section};
use llama_trace_core::trace::{
    Answer, Block, Fork, Frame, FrameData, NoProbe, Order, Part, PassDims, Pattern, Probe, Query, Recorder,
    Region, Run, Select, Site, Sizes, Spread, Stage, Values,
};
use llama_trace_engine::backend::Span;
use llama_trace_engine::generate::{Next, Session};
use llama_trace_engine::model::pass::PassInSteps;
use llama_trace_engine::model::{forward, pass};
use llama_trace_formats::tokenizer::Tokenizer;

/// Runs passes, and recomputes parts of them.
pub(super) struct Worker<'m> {
    session: Session<'m>,
    store: Arc<Mutex<Store>>,
    progress: Arc<Progress>,
    member: Member,
    passes: Vec<Ran>,
    /// The pass and the layer whose input the buffers hold. The RoPE tables are those of that pass.
    at: Option<(usize, usize)>,
    /// The most likely id after the last layer, by pass and token.
    answers: Answers,
    branches: Branches,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The pass that is under way between two steps.
    steps: Option<PassInSteps>,
}

/// A finished pass.
#[derive(Clone)]
struct Ran {
    dims: PassDims,
    ids: Vec<u32>,
    sampled: u32,
}

/// Stores the current layer, and gives the recorded values to `inner` with the run's number.
struct Watch<'a> {
    inner: &'a mut dyn Probe,
    progress: &'a Progress,
    run: Run,
}

impl Probe for Watch<'_> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        self.progress.set(site.layer);
        self.inner.wants(Site { run: self.run, ..site })
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        self.inner.record(Site { run: self.run, ..site }, rows, values);
    }
}

impl Serves for Worker<'_> {
    fn answer(&mut self, run: Run, query: &Query) -> Result<Answer> {
        // Queries about shared passes of a branch are answered by the run that computed these passes.
        let query = match query.site() {
            Some(site) => {
                let owner = lock(&self.store).own(site).run;
                self.turn_to(owner)?;
                &query.of_run(owner)
            }
            None => query,
        };
        match query {
            Query::Block(site, region) => self.block(*site, region).map(Answer::Block),
            Query::Spread(part) => self.spread(*part).map(Answer::Spread),
            Query::Order(part) => self.order(*part).map(Answer::Order),
            Query::Patterns(site) => self.patterns(*site).map(Answer::Patterns),
            Query::Rows(rows) => self.session.model.rows(rows).map(Answer::Rows),
            Query::Explanation(at) => {
                let found = self.explanation(at)?.seen_from(run);
                Ok(Answer::Explanation(Box::new(found)))
            }
            Query::Lens(at) => self.lens(at).map(Answer::Lens),
            Query::Attribution(at) => self.attribution(at).map(Answer::Attribution),
            Query::Draw(at) => self.draw(at).map(|draw| Answer::Draw(Arc::new(draw))),
            Query::Stream(at) => self.stream(at).map(Answer::Stream),
            Query::Units(at) => self.units(at).map(Arc::new).map(Answer::Units),
            Query::Writes(at) => self.writes(at).map(Answer::Writes),
            Query::TokenLogprobs(at) => self.token_logprobs(at).map(Answer::TokenLogprobs),
            Query::TokenPieces(site) => {
                self.dims(*site)?;
                token_pieces(self.tokenizer.as_deref(), &self.passes[site.pass].ids)
                    .map(|pieces| Answer::TokenPieces(pieces.into()))
            }
        }
    }

    fn advance(&mut self, run: Run) -> Reply {
        if let Err(error) = self.turn_to(run) {
            return Reply::Pass(self.next_pass(run), Err(error));
        }
        let ids = self.session.waiting().to_vec();
        let (dims, result) = self.pass(&ids);
        self.reply(dims, ids, result)
    }

    fn step(&mut self, run: Run) -> Option<Reply> {
        if self.steps.is_none()
            && let Err(error) = self.turn_to(run)
        {
            return Some(Reply::Pass(self.next_pass(run), Err(error)));
        }
        self.step_pass().map(|(dims, ids, result)| self.reply(dims, ids, result))
    }

    fn give_up(&mut self) {
        self.steps = None;
    }

    fn branch(&mut self, run: Run, fork: Fork) -> Result<()> {
        self.part(run, fork)
    }

    fn next_pass(&self, _: Run) -> PassDims {
        self.session.next_pass(self.session.waiting().len())
    }
}

impl<'m> Worker<'m> {
    pub(super) fn new(
        mut session: Session<'m>,
        store: Arc<Mutex<Store>>,
        progress: Arc<Progress>,
        member: Member,
        tokenizer: Option<Arc<dyn Tokenizer>>,
    ) -> Self {
        session.sequence.number = member.sequence;
        let run = member.run;
        Self {
            session,
            store,
            progress,
            member,
            passes: Vec::new(),
            at: None,
            answers: Answers::default(),
            branches: Branches::new(run),
            tokenizer,
            steps: None,
        }
    }

    fn reply(&self, dims: PassDims, ids: Vec<u32>, result: Result<u32>) -> Reply {
        let ended = match self.session.next() {
            Next::Pass(_) => None,
            Next::Ended(ended) => Some(ended),
        };
        Reply::Pass(dims, result.map(|sampled| (ids, sampled, ended)))
    }

    /// Runs the next pass over `ids`, keeps the inputs of some of its layers, and draws a token.
    fn pass(&mut self, ids: &[u32]) -> (PassDims, Result<u32>) {
        let dims = self.session.next_pass(ids.len());
        let result = self.recorded(dims, Session::pass);
        self.end_pass(dims, ids, &result);
        (dims, result)
    }

    /// Runs the next step of a pass, or begins one. Returns the result after the last step.
    fn step_pass(&mut self) -> Option<(PassDims, Vec<u32>, Result<u32>)> {
        let ids = self.session.waiting().to_vec();
        let dims = self.session.next_pass(ids.len());
        let result = match self.steps.take() {
            None => self.recorded(dims, Session::begin_steps).map(|steps| (steps, None)),
            Some(mut steps) => self
                .recorded(dims, |session, probe| session.step(&mut steps, probe))
                .map(|drawn| (steps, drawn)),
        };
        let result = match result {
            Ok((steps, None)) => {
                self.steps = Some(steps);
                return None;
            }
            Ok((_, Some(drawn))) => Ok(drawn),
            Err(error) => Err(error),
        };
        self.end_pass(dims, &ids, &result);
        Some((dims, ids, result))
    }

    fn end_pass(&mut self, dims: PassDims, ids: &[u32], result: &Result<u32>) {
        if let Ok(sampled) = result {
            self.passes.push(Ran { dims, ids: ids.to_vec(), sampled: *sampled });
            self.at = Some((dims.pass, self.session.model.config.layers));
        }
    }

    /// Runs a part of pass `dims`, and keeps the inputs of some of its layers.
    fn recorded<T>(
        &mut self,
        dims: PassDims,
        run: impl FnOnce(&mut Session<'m>, &mut dyn Probe) -> Result<T>,
    ) -> Result<T> {
        let sizes = self.session.model.sizes();
        let input = bytes(Stage::FfnResidual, &sizes, dims);
        let most = lock(&self.store).inputs();
        let largest = lock(&self.store).largest();
        let layers: Vec<usize> = if dims.pass == 0 {
            // The outputs of as many layers as fit, evenly spaced. The last one is the input of the final norm.
            let count = (most / self.member.shares / input).min(sizes.layers);
            (0..sizes.layers)
                .filter(|layer| (layer + 1) * count / sizes.layers > layer * count / sizes.layers)
                .collect()
        } else if input <= largest {
            (0..sizes.layers).collect()
        } else {
            Vec::new()
        };
        let select = Select::stages(&[Stage::FfnResidual]).in_layers(layers);
        // One frame is assembled at a time.
        lock(&self.store).reserve(input);
        let store = Arc::clone(&self.store);
        let mut recorder = Recorder::new(sizes, dims, &select, |frame: Frame| {
            let mut store = lock(&store);
            store.release(input);
            if dims.pass == 0 {
                store.keep(frame);
            } else {
                store.cache(Block::whole(Arc::new(frame)));
            }
            store.reserve(input);
        });
        self.at = None;
        let mut watch = Watch { inner: &mut recorder, progress: &self.progress, run: self.branches.here };
        let result = run(&mut self.session, &mut watch);
        lock(&self.store).release(input);
        result
    }

    /// A block of `site` that contains `region`; the whole stage if it is small enough.
    fn block(&mut self, site: Site, region: &Region) -> Result<Block> {
        if let Some(block) = lock(&self.store).get(site, region) {
            return Ok(block);
        }
        let (dims, sizes) = self.dims(site)?;
        let shape = sizes.shape(site.stage.axes(), dims);
        let largest = lock(&self.store).largest();
        if bytes(site.stage, &sizes, dims) <= largest {
            return self.frame(site).map(Block::whole);
        }
        let region = region.within(&shape).grown(&shape, largest / site.stage.value_bytes());
        let bytes = region.count() * site.stage.value_bytes();
        let mut cutting = Cutting::new(site, region, &sizes, dims);
        lock(&self.store).reserve(bytes);
        let result = self.run(site, cutting.rows(), &mut cutting);
        lock(&self.store).release(bytes);
        result?;
        let block = cutting.into_block().ok_or_else(|| missing(site))?;
        lock(&self.store).cache(block.clone());
        Ok(block)
    }

    /// The spread of `part`, from the frame if the stage fits in memory, else from a new run of the stage.
    fn spread(&mut self, part: Part) -> Result<Spread> {
        let (dims, sizes) = self.dims(part.site)?;
        if bytes(part.site.stage, &sizes, dims) <= lock(&self.store).largest() {
            return Ok(Spread::of_frame(&*self.frame(part.site)?, part.held));
        }
        let mut counting = Counting::new(part, &sizes, dims);
        self.run(part.site, 0..dims.tokens, &mut counting)?;
        Ok(counting.spread())
    }

    /// The attention patterns of the heads of a layer.
    fn patterns(&mut self, site: Site) -> Result<Vec<Pattern>> {
        let (dims, sizes) = self.dims(site)?;
        let text = self.text(site.pass);
        if bytes(site.stage, &sizes, dims) <= lock(&self.store).largest() {
            return Ok(Measuring::of_frame(&*self.frame(site)?, &sizes, dims, &text));
        }
        let mut measuring = Measuring::new(site, &sizes, dims, &text);
        self.run(site, 0..dims.tokens, &mut measuring)?;
        Ok(measuring.patterns())
    }

    /// The ids of the tokens up to the end of `pass`.
    fn text(&self, pass: usize) -> Vec<u32> {
        self.passes[..=pass].iter().flat_map(|pass| &pass.ids).copied().collect()
    }

    /// The order of `part`, a row of the vocabulary.
    fn order(&mut self, part: Part) -> Result<Order> {
        let (dims, sizes) = self.dims(part.site)?;
        let region = part.region(&sizes.shape(part.site.stage.axes(), dims));
        let block = self.block(part.site, &region)?;
        Ok(Order::of(&block, part.held))
    }

    /// The draw after a pass, from its last logits.
    fn draw(&mut self, at: &DrawAt) -> Result<Draw> {
        let (dims, sizes) = self.dims(at.site)?;
        let last = dims.tokens - 1;
        let block =
            self.block(at.site.other(sizes.last_logits()), &Region(vec![last..dims.tokens, 0..sizes.vocab]))?;
        let run = block.run(last * sizes.vocab).ok_or_else(|| missing(at.site))?;
        let Values::F32(logits) = block.frame.values().slice(run) else { return Err(missing(at.site)) };
        let text = self.text(at.site.pass);
        self.session.sequence.look((logits, &text), at.site.pass as u64, at)
    }

    /// The pass of `site`, if the run has it.
    fn dims(&self, site: Site) -> Result<(PassDims, Sizes)> {
        let sizes = self.session.model.sizes();
        let in_model = site.layer.is_none_or(|layer| layer < sizes.layers);
        match self.passes.get(site.pass) {
            Some(Ran { dims, .. })
                if in_model
                    && (site.run, site.sequence) == (self.branches.here, self.member.sequence)
                    && site.present(&sizes, *dims)
                    && site.stage.in_layer() == site.layer.is_some() =>
            {
                Ok((*dims, sizes))
            }
            _ => Err(missing(site)),
        }
    }

    /// The frame of `site`, which must fit in memory: from the store, derived, or recomputed.
    fn frame(&mut self, site: Site) -> Result<Arc<Frame>> {
        if let Some(frame) = lock(&self.store).whole(site) {
            return Ok(frame);
        }
        let (dims, sizes) = self.dims(site)?;
        if site.stage == Stage::Sampled {
            let id = i64::from(self.passes[site.pass].sampled);
            let data = FrameData::I64(ArrayD::from_elem(IxDyn(&[1]), id));
            let block = Block::whole(Arc::new(Frame { site, axes: site.stage.axes(), data }));
            lock(&self.store).cache(block.clone());
            return Ok(block.frame);
        }
        let stages = beside(site, &sizes, dims);
        let largest = lock(&self.store).largest();
        let all_fit = stages.iter().all(|&stage| bytes(stage, &sizes, dims) <= largest);
        if all_fit && self.is_cheap(site.stage) {
            let backend = &*self.session.model.backend;
            let (arithmetic, stop) = ((backend.precision(), backend.arithmetic()), backend.stop().clone());
            let own = bytes(site.stage, &sizes, dims);
            lock(&self.store).reserve(own);
            let frame = derive(site, &sizes, arithmetic, dims, &stop, &mut |input| self.frame(input));
            lock(&self.store).release(own);
            let block = Block::whole(Arc::new(frame?));
            lock(&self.store).cache(block.clone());
            return Ok(block.frame);
        }
        // Other stages that cannot be derived later are recorded in the same run.
        let mut room = lock(&self.store).extra();
        let others = stages.iter().copied().filter(|&stage| {
            let bytes = bytes(stage, &sizes, dims);
            let worth =
                stage != site.stage && !(all_fit && self.is_cheap(stage)) && bytes <= largest.min(room);
            room -= if worth { bytes } else { 0 };
            worth
        });
        let chosen: Vec<Stage> = others.chain([site.stage]).collect();
        self.record(site, &chosen, dims)
    }

    /// Whether deriving `stage` from others of its layer costs less than running the layer. Residuals do not qualify:
    /// they depend on the previous layer.
    fn is_cheap(&self, stage: Stage) -> bool {
        let backend = &*self.session.model.backend;
        let edited = self.session.model.edits.stop_derivation(stage);
        is_derived(backend, stage) && !reaches_back(stage) && !edited
    }

    /// Runs the part of the pass that contains `site`, and keeps the frames of `chosen`. Returns the frame of `site`.
    fn record(&mut self, site: Site, chosen: &[Stage], dims: PassDims) -> Result<Arc<Frame>> {
        let sizes = self.session.model.sizes();
        let select = Select::stages(chosen);
        let mut left: usize = chosen.iter().map(|&stage| bytes(stage, &sizes, dims)).sum();
        let (store, mut own) = (Arc::clone(&self.store), None);
        lock(&store).reserve(left);
        let mut recorder = Recorder::new(sizes, dims, &select, |frame: Frame| {
            let mut store = lock(&store);
            left -= frame.bytes();
            store.release(frame.bytes());
            let block = Block::whole(Arc::new(frame));
            if block.frame.site == site {
                own = Some(Arc::clone(&block.frame));
            }
            store.cache(block);
        });
        let result = self.run(site, 0..dims.tokens, &mut recorder);
        drop(recorder);
        lock(&store).release(left);
        result?;
        own.ok_or_else(|| missing(site))
    }

    /// Runs the part of the pass that contains `site` again, with `probe`; for logits, only `rows`.
    fn run(&mut self, site: Site, rows: Range<usize>, probe: &mut dyn Probe) -> Result<()> {
        let layers = self.session.model.config.layers;
        let dims = self.passes[site.pass].dims;
        let progress = Arc::clone(&self.progress);
        // Outside the layers there is no layer to note.
        let mut watch = Watch { inner: probe, progress: &progress, run: self.branches.here };
        match (site.stage.info().section, site.layer) {
            (Section::Start, _) => {
                let Self { session: Session { model, work, .. }, passes, at, .. } = self;
                *at = None;
                let span = Span { sequence: site.sequence, start: dims.start, tokens: dims.tokens };
                pass::begin(model, work, dims.pass, &[span], (&passes[site.pass].ids, &[]), &mut watch)?;
                *at = Some((site.pass, 0));
            }
            (Section::Layer, Some(layer)) => {
                self.enter(site.pass, layer)?;
                self.layer(dims, layer, watch.inner)?;
            }
            (Section::Layer, None) => {}
            (Section::End, _) => {
                self.enter(site.pass, layers)?;
                let Session { model, work, .. } = &mut self.session;
                pass::finish_rows(model, work, rows, &mut watch)?;
            }
            (Section::Sampler, _) => {
                self.enter(site.pass, layers)?;
                let Session { model, work, .. } = &mut self.session;
                pass::finish(model, work, &mut NoProbe)?;
                self.session.show_draw(dims, &mut watch)?;
            }
        }
        self.session.model.backend.sync()
    }

    /// Runs one layer on the input in the buffers.
    fn layer(&mut self, dims: PassDims, layer: usize, probe: &mut dyn Probe) -> Result<()> {
        let Session { model, sequence, work, .. } = &mut self.session;
        self.at = None;
        let mut watch = Watch { inner: probe, progress: &self.progress, run: self.branches.here };
        forward::layer(model, &mut [&mut sequence.cache], work, layer, &mut watch)?;
        self.at = Some((dims.pass, layer + 1));
        Ok(())
    }

    /// The site of the input of `layer` in `pass`. `layer` must not be the first.
    fn input_of(&self, pass: usize, layer: usize) -> Site {
        let (run, sequence) = (self.branches.here, self.member.sequence);
        Site { run, sequence, ..Site::layer(pass, layer - 1, Stage::FfnResidual) }
    }

    /// Fills the buffers with the input of `layer` in `pass`. The layers after the nearest kept input are run again;
    /// their inputs are kept if there is room.
    fn enter(&mut self, pass: usize, layer: usize) -> Result<()> {
        let dims = self.passes[pass].dims;
        let (run, sequence) = (self.branches.here, self.member.sequence);
        let now = self.at.filter(|&(at, before)| at == pass && before <= layer).map(|(_, before)| before);
        let mut from = now.unwrap_or(0);
        let kept = (from + 1..=layer).rev().find_map(|layer| {
            let frame = lock(&self.store).whole(self.input_of(pass, layer))?;
            Some((layer, frame))
        });
        if now.is_none() {
            self.run(Site { run, sequence, ..Site::once(pass, Stage::Embedding) }, 0..0, &mut NoProbe)?;
        }
        if let Some((layer, frame)) = kept {
            let Session { model, work, .. } = &mut self.session;
            work.set_input(model, values(&frame))?;
            from = layer;
        }
        let largest = lock(&self.store).largest();
        let input = bytes(Stage::FfnResidual, &self.session.model.sizes(), dims);
        for layer in from..layer {
            self.at = Some((pass, layer));
            if input <= largest {
                self.record(self.input_of(pass, layer + 1), &[Stage::FfnResidual], dims)?;
            } else {
                self.layer(dims, layer, &mut NoProbe)?;
            }
        }
        self.at = Some((pass, layer));
        Ok(())
    }
}

/// Whether `stage` is derived from a stage of the previous layer.
fn reaches_back(stage: Stage) -> bool {
    stage.info().derived_from.unwrap_or_default().iter().any(|from| match *from {
        Input::Stage(from) => reaches_back(from),
        Input::LayerInput => true,
        Input::Positions => false,
    })
}

/// The stages in the same part of the pass as `site`.
fn beside(site: Site, sizes: &Sizes, dims: PassDims) -> Vec<Stage> {
    let here = |stage: &Stage| {
        stage.info().section == site.stage.info().section
            && stage.present(sizes, dims)
            && *stage != Stage::Sampled
    };
    Stage::ALL.iter().copied().filter(here).collect()
}

/// Bytes of a whole frame of `stage`.
fn bytes(stage: Stage, sizes: &Sizes, dims: PassDims) -> usize {
    sizes.shape(stage.axes(), dims).iter().product::<usize>() * stage.value_bytes()
}

pub(super) fn missing(site: Site) -> Error {
    Error::usage(format!("there is no {site} in this run"))
}
