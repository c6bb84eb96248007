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
//! The recorded run and the fast run are one function, [`model::pass::forward`]: a [`trace::Probe`] is
//! asked before anything is copied, and what it does not want costs a question.
//!
//! | to read about | open |
//! |---|---|
//! | the forward pass | [`model::forward`]: one file, top to bottom |
//! | the maths of one operation | [`ops`]: RoPE is `core/ops/rope.rs`, softmax `core/ops/softmax.rs`, … |
//! | the names, shapes and formulas of the stages | [`trace::stage`] |
//! | how files are opened | [`files`], and by what is in them [`checkpoint`], [`tokenizer`] |
//! | how models come from the Hugging Face hub | [`hub`] |
//! | where operations run | [`backend`], [`cuda`] |
//! | how Ctrl-C reaches them | [`stop`] |
//! | how a run becomes a file, and is read back | [`record`] |
//! | how a viewer gets its frames | [`replay`] |
//! | by which rule each number follows from others | [`explain`] |
//! | how the program proves that it is right | [`check`] |
//! | where two runs first part, and why | [`diff`] |
//! | how another runtime's files are read as a run | [`capture`], and matched to stages [`suggest`] |
//! | what a user sees | [`tui`], [`cli`], [`chapters`]; as a file [`picture`] |
//! | how the process ends, whatever ends it | [`ending`]; where there is no [`memory`] |
//! | how an export replaces an earlier one | [`ending::replace`] |
//!
//! `CONTRIBUTING.md` lists the files that a new view, stage, model family, weight format, kernel or chapter touches.
//!
//! # Crates
//!
//! Each folder of `src/` is a crate but for `cli/`, which is the program with this library. Each says in its first
//! lines what it must not know, and its `Cargo.toml` what it may import:
//!
//! | crate | imports |
//! |---|---|
//! | core | nothing of the others |
//! | ending, picture | core |
//! | formats | core, ending |
//! | tui | core, ending, picture |
//! | hub | core, ending, formats |
//! | engine | core, formats |
//! | cuda | core, formats, engine |
//! | runs | core, ending, formats, engine |
//! | judge | core, formats, engine, runs |
//! | the program | all |
//!
//! The cut is where one side needs nothing of the other: the screen knows no model (tui), and the model no screen
//! (engine); what reads files does not compute (formats), and what computes for a GPU is left out where there is none
//! (cuda). What all need is the ground floor (core), which has the operations too, because a viewer's frames are derived
//! and explained by them. How a process ends is one place for all (ending): only one can own signals and the terminal.
//! Core, formats, engine, runs and tui have a feature `native`: threads, files, signals, a clock and a terminal. They
//! build without it too, for WebAssembly; `core/lib.rs` says what is there instead. The program always has it; its own
//! features `png`, `hub`, `cuda` and `capture` leave parts out.
//! Names here are those of the crates' modules. `tests/architecture.rs` holds the edges between modules of one crate.

pub mod builtin;
pub mod chapters;
pub mod cli;

pub use llama_trace_core::{config, error, explain, memory, ops, stop, tensor, trace};
#[cfg(feature = "cuda")]
pub use llama_trace_cuda as cuda;
pub use llama_trace_ending as ending;
pub use llama_trace_engine::{backend, generate, model};
pub use llama_trace_formats::{checkpoint, files, tokenizer};
#[cfg(feature = "hub")]
pub use llama_trace_hub as hub;
pub use llama_trace_judge::{capture, check, diff, suggest};
pub use llama_trace_picture as picture;
pub use llama_trace_runs::{record, replay};
pub use llama_trace_tui as tui;
