//! llama-trace opens up a running Llama. It shows every stage of the forward pass, with true shapes and true values:
//! step by step in a terminal, as `.npy` files, or as a log.
//!
//! ```text
//!  prompt ─ tokenizer ─▶ ids ─ model::forward(…, probe) ─▶ logits ─ sampler ─▶ next id ─┐
//!                         ▲             │ probe.record(site, values)                    │
//!                         └─────────────┼────────────────────────────────────────────────┘
//!                                       ▼
//!                                     trace ─▶ tui · log · export · record · diff
//! ```
//!
//! A recorded run and a fast run use the same function, [`model::pass::forward`]. It asks a [`trace::Probe`] before it
//! copies anything. A stage that the probe does not want costs only this question.
//!
//! | to read about | open |
//! |---|---|
//! | the forward pass | [`model::forward`]: one file, top to bottom |
//! | the maths of one operation | [`ops`]: RoPE is `core/ops/rope.rs`, softmax `core/ops/softmax.rs`, … |
//! | the names, shapes and formulas of the stages | [`trace::stage`] |
//! | how files are opened | [`files`]; [`checkpoint`] and [`tokenizer`] read their contents |
//! | how models come from the Hugging Face hub | [`hub`] |
//! | where operations run | [`backend`], [`cuda`] |
//! | how Ctrl-C stops operations | [`stop`] |
//! | how a run becomes a file, and is read back | [`record`] |
//! | how a viewer gets its frames | [`replay`] |
//! | how a run takes values from another run, place by place | [`patch`] |
//! | by which rule each number is computed from others | [`explain`] |
//! | how the program checks that its numbers are right | [`check`] |
//! | where two runs first differ, and why | [`diff`] |
//! | how a stage that a student wrote is judged | [`kata`] |
//! | how another runtime's files are read as a run | [`capture`]; [`suggest`] matches the files to stages |
//! | what a user sees | [`tui`], [`cli`], [`chapters`]; [`picture`] writes it to a file |
//! | how the process ends, whatever the cause | [`ending`]; [`memory`] is about allocations that may fail |
//! | how an export replaces an earlier one | [`ending::replace`] |
//!
//! `CONTRIBUTING.md` lists the files that a new view, stage, model family, weight format, kernel or chapter touches.
//!
//! # Crates
//!
//! Each folder of `src/` is a crate, except `cli/`, which belongs to the program with this library, and `python/`, a
//! Python package. The first lines of a crate say what it must not know. Its `Cargo.toml` says what it may import:
//!
//! | crate | imports |
//! |---|---|
//! | core | no other crate |
//! | ending, picture | core |
//! | formats | core, ending |
//! | tui | core, ending, picture |
//! | hub | core, ending, formats |
//! | engine | core, formats |
//! | kernels | core |
//! | emulator | core, kernels |
//! | cuda | core, formats, engine, kernels; emulator only for tests |
//! | runs | core, ending, formats, engine |
//! | judge | core, formats, engine, runs |
//! | page | core, formats, engine, runs, tui, picture |
//! | the program | all crates except page; emulator only for tests |
//!
//! Two parts are separate crates if one of them needs nothing from the other. The viewer (tui) does not know the model,
//! and the model (engine) does not know the viewer. The code that reads files (formats) does not compute. The code for
//! GPUs (cuda, kernels) is left out of builds without GPUs. The code that runs the kernels on the CPU (emulator) is
//! only in tests. The code that all crates need is in core. Core also has the operations, because a viewer derives and
//! explains its frames with them. The end of the process is in one crate (ending), because only one part of a program
//! can own the signals and the terminal.
//! Core, formats, engine, runs and tui have a feature `native`, which adds threads, files, signals, a clock and a
//! terminal. They also build without it, for the web page; `core/lib.rs` says what replaces these. The program always
//! has the feature `native`. Without its own features `png`, `hub`, `cuda` or `capture`, it lacks those parts.
//! The names in this text are those of the crates' modules. `tests/architecture.rs` checks which modules of a crate use
//! each other.

pub mod builtin;
pub mod chapters;
pub mod cli;

pub use llama_trace_core::{config, error, explain, lesson, memory, ops, stop, tensor, trace};
#[cfg(feature = "cuda")]
pub use llama_trace_cuda as cuda;
pub use llama_trace_ending as ending;
pub use llama_trace_engine::{backend, generate, model, patch};
pub use llama_trace_formats::{checkpoint, files, tokenizer};
#[cfg(feature = "hub")]
pub use llama_trace_hub as hub;
pub use llama_trace_judge::{capture, check, diff, kata, suggest};
pub use llama_trace_picture as picture;
pub use llama_trace_runs::{record, replay};
pub use llama_trace_tui as tui;
