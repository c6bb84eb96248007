//! Chat with a model in several turns: the messages, the text that a template makes of them, and answers. The passes of
//! an answer continue after the cached part of the conversation.

mod bounded;
mod now;
mod operators;
mod order;
mod prompt;
mod python;
mod source;
mod strings;
mod template;

use serde::{Deserialize, Serialize};

use super::{Ended, Next, Sampler, Session};
use llama_trace_core::error::Error;
use llama_trace_core::stop;
use llama_trace_core::trace::NoProbe;

pub use prompt::prompt;
pub use template::{LLAMA2, LLAMA3, Template};

/// The number of prompt tokens in one pass. A long prompt can thus be stopped between passes. The split changes neither
/// the sums nor the answer.
const PART: usize = 64;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The instructions before the first turn.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The role's name in templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message, as templates see it: `message['role']`, `message['content']`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
}

/// The messages so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    messages: Vec<Message>,
}

impl Conversation {
    /// Creates a conversation with only a system message, if there is one.
    pub fn new(system: Option<String>) -> Self {
        let mut conversation = Self::default();
        conversation.set_system(system);
        conversation
    }

    /// The messages, the system message first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|message| message.role == Role::System).map(|m| m.content.as_str())
    }

    /// Replaces the system message; `None` removes it.
    pub fn set_system(&mut self, system: Option<String>) {
        self.messages.retain(|message| message.role != Role::System);
        if let Some(content) = system {
            self.messages.insert(0, Message { role: Role::System, content });
        }
    }

    /// Removes all turns and keeps the system message.
    pub fn reset(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
    }

    /// Adds a message.
    pub fn push(&mut self, role: Role, content: impl Into<String>) {
        self.messages.push(Message { role, content: content.into() });
    }

    /// Removes and returns the last message if it is of `role`.
    pub fn pop(&mut self, role: Role) -> Option<Message> {
        self.messages.pop_if(|message| message.role == role)
    }
}

/// A session that answers prompt after prompt. Each prompt usually begins like the previous one.
pub struct Chat<'m> {
    session: Session<'m>,
}

impl<'m> Chat<'m> {
    /// Creates a chat over a session that has run nothing.
    pub fn new(session: Session<'m>) -> Self {
        Self { session }
    }

    /// The tokens whose keys and values the cache holds: the last prompt and its answer.
    pub fn ran(&self) -> &[u32] {
        self.session.ran()
    }

    /// The sampler before the last draw. See [`Sampler::before_the_last`].
    pub fn last_draw(&self) -> Sampler {
        self.session.sequence.last_draw()
    }

    /// The maximum number of tokens. See [`Session::capacity`].
    pub fn capacity(&self) -> usize {
        self.session.capacity()
    }

    /// Whether the logits of any pass contained NaN.
    pub fn not_a_number(&self) -> bool {
        self.session.not_a_number()
    }

    /// Runs the part of `prompt` that the cache does not hold yet. Then draws up to `limit` tokens until one of `ends`,
    /// and passes each to `sink`. If the model's backend is asked to stop, the answer ends and the result is `None`;
    /// everything completed until then is kept.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if the prompt cannot be run, for example because it is longer than the context.
    /// Returns [`Error::Interrupted`] if the whole process was asked to stop. Also returns the errors of `sink`.
    pub fn answer<E: From<Error>>(
        &mut self,
        prompt: &[u32],
        ends: &[u32],
        limit: usize,
        mut sink: impl FnMut(u32) -> Result<(), E>,
    ) -> Result<Option<Ended>, E> {
        let rest = self.rewind(prompt).to_vec();
        self.session.begin(rest, ends, limit)?;
        while self.session.waiting().len() > PART {
            if let Err(error) = self.session.read_some(PART, &mut NoProbe) {
                return stopped(error);
            }
        }
        loop {
            if let Next::Ended(ended) = self.session.next() {
                return Ok(Some(ended));
            }
            let id = match self.session.pass(&mut NoProbe) {
                Err(error) => return stopped(error),
                Ok(id) => id,
            };
            if self.session.next() != Next::Ended(Ended::Text) {
                sink(id)?;
            }
        }
    }

    /// Rewinds to the last position at which `prompt` agrees with the tokens that were run. Returns the rest of the
    /// prompt. The rest has at least the last token, because the first draw needs the logits of its pass.
    fn rewind<'p>(&mut self, prompt: &'p [u32]) -> &'p [u32] {
        let same = self.session.ran().iter().zip(prompt).take_while(|(ran, new)| ran == new).count();
        let same = same.min(prompt.len().saturating_sub(1));
        self.session.rewind(same);
        &prompt[same..]
    }
}

/// The end of an answer whose pass failed: `None` if only this answer was to be stopped.
fn stopped<E: From<Error>>(error: Error) -> Result<Option<Ended>, E> {
    match error {
        Error::Interrupted(_) if !stop::process().asked() => Ok(None),
        error => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_message_is_first_and_stays() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.push(Role::User, "hi");
        conversation.push(Role::Assistant, "hello");
        assert_eq!(conversation.pop(Role::User), None);
        assert_eq!(conversation.pop(Role::Assistant).map(|message| message.content), Some("hello".into()));
        conversation.set_system(Some("be long".into()));
        assert_eq!(conversation.messages().len(), 2);
        conversation.reset();
        assert_eq!((conversation.messages().len(), conversation.system()), (1, Some("be long")));
        conversation.set_system(None);
        assert!(conversation.messages().is_empty());
    }
}
