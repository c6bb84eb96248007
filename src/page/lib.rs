//! The viewer as a web page: the tracer of the terminal, with the model, in a Web Worker.
//!
//! ```text
//!  page.js                    worker.js               this crate
//!  keys, mouse, files ──────▶ events ───────────────▶ Session: the App and its runs
//!  canvas ◀────────────────── cells ◀──────────────── the cells that changed
//!  downloads, link, storage ◀ outcomes ◀───────────── what the App asks of the page
//! ```
//!
//! There is one [`App`](llama_trace_tui::app::App) and one `update`, those of the terminal. This crate only turns the
//! browser's events into the viewer's, executes effects, and encodes the cells that changed. All of it runs in the
//! worker. The page itself only paints cells, so a long computation never blocks the browser.
//!
//! # Why there is no ratatui backend here
//!
//! Ratzilla, ratatui's web backend, has no clicks, draws wide glyphs wrong, and needs wasm-bindgen and the main thread.
//! The page paints on a canvas of its own instead. Blocks, shades and lines arrive as rectangles
//! ([`llama_trace_picture::cells`]), as in pictures, so they join without gaps at every zoom.
//!
//! # Work in pieces
//!
//! Without threads, a source computes a piece of work whenever it is polled. The worker takes in all waiting events
//! between two pieces.
//!
//! # Not in this crate
//!
//! `.ci/page` builds the module for WebAssembly and puts it beside the files of `web/`. The native build of this crate is
//! only for its tests.

#[path = "../builtin.rs"]
pub mod builtin;
pub mod cells;
#[path = "../chapters.rs"]
pub mod chapters;
pub mod chosen;
pub mod export;
#[cfg(target_arch = "wasm32")]
mod exports;
pub mod input;
pub mod lessons;
pub mod link;
pub mod model;
pub mod outcome;
pub mod progress;
pub mod session;
#[cfg(test)]
mod tests;
