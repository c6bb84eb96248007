//! A recorded forward pass: the table of stages, the probe that observes them, the frames that hold their values, and
//! the outputs (`.npy` files, a log, a viewer's [`source::Source`]).
//!
//! Nothing here runs a model.

pub mod address;
pub mod axis;
pub mod block;
pub mod card;
pub mod clock;
pub mod draw;
pub mod edited;
pub mod explanation;
pub mod fork;
pub mod formula;
pub mod frame;
pub mod in_order;
pub mod lens;
pub mod log;
pub mod manifest;
#[cfg(feature = "native")]
pub mod npy;
pub mod patch;
pub mod pattern;
pub mod probe;
pub mod query;
pub mod recorder;
pub mod sampler_options;
pub mod select;
pub mod site;
pub mod sizes;
pub mod source;
pub mod spread;
pub mod stage;
pub mod step;
pub mod stream;
pub mod token_logprobs;
pub mod units;
pub mod weight;
pub mod wide;

pub use crate::config::{CacheDtype, LayerSet};
pub use address::{Address, Subject};
pub use axis::Axis;
pub use block::{Block, Region};
pub use card::ModelCard;
pub use clock::Clock;
pub use draw::Sampling;
pub use edited::Edited;
pub use fork::Fork;
pub use frame::{Frame, FrameData, Stats};
pub use in_order::InOrder;
pub use manifest::Manifest;
pub use pattern::Pattern;
pub use probe::{NoProbe, Probe, Values};
pub use query::{Answer, BlockAt, PatternsAt, Query, Question, TokenPiecesAt, WeightRows};
pub use recorder::Recorder;
pub use select::Select;
pub use site::{Run, Site};
pub use sizes::{Filters, PassDims, Sizes};
pub use source::{Cached, End, Outline, PassOutline, Source, Status, TokenLabel, told};
pub use spread::{Order, Part, Spread};
pub use stage::{Op, Stage};
pub use step::{Step, View};
pub use weight::Weight;
