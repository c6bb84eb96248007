//! llama-trace opens up a running Llama: every stage of the forward pass, with true shapes and true
//! values, step by step in a terminal, as `.npy` files, or as a log.
//!
//! ```text
//!  prompt ─ tokenizer ─▶ ids ─ model::forward(…, probe) ─▶ logits ─ sampler ─▶ next id ─┐
//!                         ▲             │ probe.record(site, values)                    │
//!                         └─────────────┼────────────────────────────────────────────────┘
//!                                       ▼
//!                                     trace ─▶ tui · log · export · record · diff
//! ```
//!
//! The recorded run and the fast run are one function, [`model::forward::forward`]: a [`trace::Probe`] is
//! asked before anything is copied, and [`trace::NoProbe`] compiles to nothing.
//!
//! | to read about | open |
//! |---|---|
//! | the forward pass | [`model::forward`]: one file, top to bottom |
//! | the maths of one operation | [`ops`]: RoPE is `ops/rope.rs`, softmax `ops/softmax.rs`, … |
//! | the names, shapes and formulas of the stages | [`trace::stage`] |
//! | how files are opened | [`files`], and by what is in them [`checkpoint`], [`tokenizer`] |
//! | how models come from the Hugging Face hub | [`hub`] |
//! | where operations run | [`backend`] |
//! | how Ctrl-C reaches them | [`stop`] |
//! | how a run becomes a file, and is read back | [`record`] |
//! | how a viewer gets its frames | [`replay`] |
//! | by which rule each number follows from others | [`explain`] |
//! | how the program proves that it is right | [`check`] |
//! | where two runs first part, and why | [`diff`] |
//! | what a user sees | [`tui`], [`cli`], [`chapters`]; as a file [`picture`] |
//! | how the process ends, whatever ends it | [`ending`]; where there is no [`memory`] |
//!
//! Paths are below `src/`, but for `tests/`.
//!
//! | to add | touch |
//! |---|---|
//! | a view | `tui/view/<view>.rs`: a [`View`](tui::view::kind::View); `tui/view/views.rs`: its row. Keys, moving, the mouse, paging and help follow |
//! | a kind of picture | `picture/<format>.rs`: a function of a screen; `picture/mod.rs`: its [`picture::Format`] |
//! | a checkpoint format | `checkpoint/<format>.rs`: from a path to a [`checkpoint::Checkpoint`]; `checkpoint/mod.rs`: its [`checkpoint::Format`], how it is told from others, where its vocabulary is |
//! | a stage | `trace/stage/table.rs`: its row, with all that is true of it; `model/forward.rs`: where it is offered to the probe; `explain/site.rs`: what a number of it is made of. Where a new rule derives it from others, `replay/derive.rs` too |
//! | an operation's kernel for a second device | `backend/<device>/`: the function of [`backend::Backend`] with the operation's name. A fused one replaces a default body; where the sums have another order than in [`ops`], `keeps_order` says so. Nothing else names the operation |
//!
//! Modules import only what stands above them: error, stop, config ← ops ← backend ← model ← generate ← cli;
//! stop imports error only, trace error and config, record trace and files, explain trace and ops. tui imports trace and
//! picture, which knows a screen's cells and nothing else, and nothing that computes. check imports all that runs a
//! model, and knows no file; diff imports check. checkpoint and tokenizer read with the same care, by files, and know
//! nothing of each other. hub imports checkpoint, which knows nothing of it: the cli turns a name into a path.
//! `tests/architecture.rs` holds these edges.

#[cfg(target_endian = "big")]
compile_error!("weights and dumps are little-endian and are read in place");

// For what the library's own tests share with those in `tests/`.
#[cfg(test)]
extern crate self as llama_trace;

pub mod backend;
pub mod chapters;
pub mod check;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod diff;
pub mod ending;
pub mod error;
pub mod explain;
pub mod files;
pub mod generate;
pub mod hub;
pub mod memory;
pub mod model;
pub mod ops;
pub mod picture;
pub mod record;
pub mod replay;
pub mod stop;
pub mod tokenizer;
pub mod trace;
pub mod tui;
