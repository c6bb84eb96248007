//! Several sequences of one model. Each is a separate live run, which starts when it is first viewed. A sequence has
//! the same bits here as in a batch.

use std::sync::{Arc, Mutex};

use super::live::{Live, Start};
use super::serve::{Member, OpenRun};
use super::store::Store;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Run, Sampling};
use llama_trace_engine::model::{KvCache, Model};

/// `MOST` is the largest number of further runs. A further run permanently keeps layer inputs of its first pass, but at
/// most 1/`SHARES` of those that a single run may keep.
const MOST: usize = 16;
const SHARES: usize = 8;

/// The sequences of a model. They take turns computing, and their frames share one memory budget.
pub struct Sequences {
    model: Arc<Model>,
    starts: Vec<Start>,
    /// The sampler settings of the first run, if `starts` does not have it.
    first: Option<Sampling>,
    store: Arc<Mutex<Store>>,
    turn: Arc<Mutex<()>>,
    /// Each open further run has a copy, so that the copies count these runs.
    others: Arc<()>,
}

impl Sequences {
    /// A sequence for each of `starts`. The memory limit of the first start applies to all sequences together.
    pub fn new(model: Arc<Model>, starts: Vec<Start>) -> Self {
        let memory = starts.first().map_or(0, |start| start.memory);
        let store = Arc::new(Mutex::new(Store::new(memory)));
        Self { model, starts, first: None, store, turn: Arc::default(), others: Arc::new(()) }
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Starts to run the prompt of sequence number `sequence`. Without a given context, its KV cache gets a share of
    /// the free memory, and at least room for the tokens that will be run.
    ///
    /// # Errors
    /// The errors of [`Live::start`], and [`Error::Usage`] if there is no such sequence.
    pub fn open(&self, sequence: usize) -> Result<Live> {
        let sequences = self.starts.len();
        let start = self.starts.get(sequence).ok_or_else(|| {
            Error::usage(format!("there is no sequence {sequence}"))
                .expected(format!("a number below {sequences}"))
        })?;
        let mut start = start.clone();
        if sequences > 1 {
            let Model { config, backend, .. } = &*self.model;
            let needed = start.ids.len() + start.draws;
            let part =
                || KvCache::part_of_free(config, &**backend, sequences).max(needed).min(config.context);
            start.context = start.context.or_else(|| Some(part()));
        }
        let turn = Arc::clone(&self.turn);
        let member = Member {
            run: Run::ITSELF,
            sequence,
            sequences,
            shares: sequences,
            turn,
            setting: None,
            _open: None,
        };
        Live::start_as(member, Arc::clone(&self.store), Arc::clone(&self.model), start, Vec::new())
    }

    /// Sequences of another model that share the memory budget and take turns with these.
    #[must_use]
    pub fn beside(&self, model: Arc<Model>) -> Self {
        let (store, turn) = (Arc::clone(&self.store), Arc::clone(&self.turn));
        let first = self.starts.first().map(|start| start.sampler.sampling());
        Self { model, starts: Vec::new(), first, store, turn, others: Arc::clone(&self.others) }
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Starts a further run with a sequence for each of `starts`, in the same memory budget. It uses the same model, or
    /// `model`, which must have the same sizes.
    ///
    /// # Errors
    /// The errors of [`Live::start`], and [`Error::Usage`] if there are too many runs.
    pub fn another(&self, run: Run, starts: Vec<Start>, model: Option<Arc<Model>>) -> Result<Vec<Live>> {
        if Arc::strong_count(&self.others) > MOST {
            return Err(Error::usage(format!("{MOST} other runs were started already"))
                .next("restart the tracer with the prompt that you want to see"));
        }
        let model = model.unwrap_or_else(|| Arc::clone(&self.model));
        let Model { config, backend, .. } = &*model;
        let first = self.first.or_else(|| self.starts.first().map(|start| start.sampler.sampling()));
        let (sequences, open) = (starts.len(), Arc::new(OpenRun { _counter: Arc::clone(&self.others) }));
        let start = |(sequence, mut start): (usize, Start)| {
            let needed = start.ids.len() + start.draws;
            let part =
                || KvCache::part_of_free(config, &**backend, 1 + sequences).max(needed).min(config.context);
            // The context that the user gave, if the prompt fits.
            start.context = start.context.filter(|&tokens| tokens >= needed).or_else(|| Some(part()));
            let (turn, open) = (Arc::clone(&self.turn), Some(Arc::clone(&open)));
            let (own, shares) = (start.sampler.sampling(), SHARES * sequences);
            let setting = Some(own).filter(|own| first != Some(*own));
            let member = Member { run, sequence, sequences, shares, turn, setting, _open: open };
            Live::start_as(member, Arc::clone(&self.store), Arc::clone(&model), start, Vec::new())
        };
        starts.into_iter().enumerate().map(start).collect()
    }
}
