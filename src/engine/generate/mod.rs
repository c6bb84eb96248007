//! From logits to text: sampling of the next token, and the loop over passes.

pub mod batch;
pub mod chat;
pub mod sampler;
pub mod sequence;
pub mod session;

pub use batch::{Batch, Drawn, Prompts, Read};
pub use chat::{Chat, Conversation};
pub use sampler::Sampler;

pub use llama_trace_core::trace::Sampling;
pub use sequence::{Ended, Sequence, Text};
pub use session::{Held, Next, Session};
