//! Traces as files: a recorded run in one safetensors file, which other programs can read too.
//!
//! ```text
//! __metadata__          format, format_version, arithmetic, run (JSON: the model, the sampling, what was kept)
//! passes (P, 4)         course, pass, tokens before it, tokens of it; a sequence counts its own passes from 0
//! branches (B, 4)       sequence, run it branches from, last shared pass, the branch's token after it;
//!                       the first branch is r1
//! p0/L1/xq              a stage of a prompt's pass, under its address
//! decode/L1/xq          the same stage of all later passes, their rows one after the other
//! index (N, 4)          for each row of stats and counts: course, pass, layer (−1: none), and stage (its number in
//!                       the run's `stages`)
//! stats (N, 4)          minimum, maximum, mean and standard deviation of the finite values
//! counts (N, 3)         the numbers of values that are −∞, +∞ and NaN
//! digests (M, 32)       the SHA-256 of each block of 256 KiB of kept values; each row of the index begins a new
//!                       block
//! labels, label_ends    the texts of the vocabulary one after the other, and where each ends
//! prompts, prompt_ends  the texts of the prompts, and where each begins and ends (−1: none)
//! ```
//!
//! A course is a sequence, or the unshared part of a branch. Courses of branches are numbered after the sequences
//! (`course − sequences + 1` is the run). If there are several courses, names begin with the course: `s1/`, `r1/` or
//! `r1/s1/` (nothing for sequence 0 of the original run). If that would give too many names, all courses share `s*/`. A
//! stage whose row length differs between passes is stored in `decode` as one flat list of values.
//!
//! The position of each value follows from `passes` and the names alone ([`layout`]). All sizes are known before the
//! first pass runs. Values are therefore written to their places as they arrive ([`writer`]), and values that exceed
//! the budget are excluded beforehand ([`plan`]).

pub mod about;
mod branch;
mod kept;
pub mod layout;
pub mod plan;
pub mod read;
mod tables;
#[cfg(feature = "native")]
mod target;
#[cfg(feature = "native")]
pub mod writer;

pub use about::{About, Keep};
pub use branch::Branch;
pub use kept::Kept;
pub use plan::Plan;
pub use read::Trace;
#[cfg(feature = "native")]
pub use target::Target;
#[cfg(feature = "native")]
pub use writer::Writer;
