//! From logits to text: drawing the next token, and running pass after pass.

pub mod chat;
pub mod sampler;
pub mod session;

pub use chat::{Chat, Conversation};
pub use sampler::{Sampler, Sampling};
pub use session::{Ended, Next, Session};
