//! From logits to text: drawing the next token, and running pass after pass.

pub mod sampler;
pub mod session;

pub use sampler::{Sampler, Sampling};
pub use session::Session;
