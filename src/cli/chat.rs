//! `llama-trace chat`: several turns with a model. The KV cache is kept between them.

mod apart;
mod command;
#[cfg(unix)]
mod editor;
mod format;
mod lines;

use crate::chapters::CHAPTERS;
use std::sync::Arc;

pub(super) use self::apart::{ARGUMENT, serve};

use self::command::Command;
use self::format::Format;
use self::lines::{Line, Lines};
use super::ChatArgs;
use super::device::Room;
use super::edited;
use super::input;
use super::output::{self, Failure};
use super::vocabulary;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::stop::{self, Stop};
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_ending as ending;
use llama_trace_engine::generate::chat::{self, Role};
use llama_trace_engine::generate::{Chat, Conversation, Ended, Sampler, Session};
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::{Piece, Tokenizer};
use llama_trace_runs::replay::{Live, Start};
use llama_trace_tui as tui;

/// Runs the command.
pub(super) fn run(args: &ChatArgs) -> Result<()> {
    let sampler = args.sampling.sampler(None)?;
    let input::Opened { checkpoint, tokenizer, unread, model, .. } =
        edited::open(&args.model, &args.cpu, Room { context: args.context, beside: 0 })?;
    let context = input::context(args.context, &checkpoint.config)?;
    let tokenizer = tokenizer.ok_or_else(|| {
        unread.unwrap_or_else(|| {
            Error::model("this model has no tokenizer, so it cannot read a message")
                .expected("a tokenizer beside the model, or --tokenizer FILE")
                .found("none")
        })
    })?;
    let format = format::find(&checkpoint, &*tokenizer)?;
    let conversation = Conversation::new(args.system.clone().filter(|text| !text.is_empty()));
    check(&format, conversation.clone())?;
    let model = Arc::new(model?.0);
    input::recognise(&checkpoint, &args.model, &model);
    for line in vocabulary::remarks(&checkpoint, &*tokenizer) {
        super::tell(format_args!("note: {line}"));
    }
    let stop = model.backend.stop().clone();
    let mut lines = Lines::open(&stop);
    if lines.is_editor() {
        // With piped input, Ctrl-C ends the program, as usual.
        ending::interrupts(Some(stop.clone()));
        let place = format.template.place();
        super::tell(format_args!(
            "Chatting with {}; its template is {}. /help shows the commands, Ctrl-D leaves.",
            printable(&checkpoint.name),
            printable(place)
        ));
        if args.sampling.temperature == 0.0 {
            super::tell("At temperature 0 a text may repeat itself; --temperature 0.8 samples the words.");
        }
    }
    let session = match context {
        Some(tokens) => Session::with_capacity(&model, sampler.clone(), tokens)?,
        None => Session::new(&model, sampler.clone())?,
    };
    input::say_cut(session.capacity(), context, &checkpoint.config);
    let mut talk = Talk {
        chat: Chat::new(session),
        context,
        conversation,
        model: &model,
        format,
        tokenizer,
        drawing: args.sampling.drawing(0),
        limit: args.tokens.unwrap_or(usize::MAX),
        memory: args.memory.bytes(),
        stop,
        answered: Vec::new(),
        last_draw: sampler,
    };
    output::end(converse(&mut talk, &mut lines))
}

/// Renders the shortest conversation, so that a broken template is reported before the first prompt. Some templates
/// refuse this conversation and accept others.
fn check(format: &Format, mut conversation: Conversation) -> Result<()> {
    conversation.push(Role::User, "Hello");
    match format.template.render(conversation.messages(), stop::process()) {
        Err(error @ (Error::Model(_) | Error::Interrupted(_))) => Err(error),
        _ => Ok(()),
    }
}

/// Handles lines until the input ends.
fn converse(talk: &mut Talk<'_>, lines: &mut Lines) -> std::result::Result<(), Failure> {
    let mut refused = 0;
    loop {
        ending::check()?;
        let line = match lines.next()? {
            Line::End => break,
            Line::Interrupted => {
                super::tell("(Ctrl-D or /quit leaves)");
                continue;
            }
            Line::Text(line) => command::parse(&line),
            Line::Wrong(error) => Err(error),
        };
        let done = match line {
            Ok(Some(Command::Quit)) => break,
            Ok(Some(command)) => talk.take(command),
            Ok(None) => continue,
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(()) => {}
            // The turn failed and left the conversation unchanged, so the chat goes on. It ends only if a tokenizer
            // took too long: the tokenizer's thread runs until the process ends.
            Err(Failure::Run(
                error @ (Error::Model(_) | Error::Prompt(_) | Error::Usage(_) | Error::Terminal(_)),
            )) if !talk.tokenizer.late() => {
                super::tell(format_args!("error: {error}"));
                refused += 1;
            }
            Err(failure) => return Err(failure),
        }
    }
    if talk.chat.not_a_number() {
        super::tell(super::NOT_A_NUMBER);
    }
    if refused > 0 && !lines.is_editor() {
        let what = format!("{refused} of the lines could not be answered; the errors are above");
        return Err(Error::prompt(what).into());
    }
    Ok(())
}

/// The start of an answer. Its leading spaces are not printed.
#[derive(Default)]
struct Beginning {
    /// The output so far, while it consists only of spaces. An incomplete character is not a space.
    bytes: Vec<u8>,
    over: bool,
}

impl Beginning {
    fn trim(&mut self, piece: &mut Piece) {
        if self.over {
            return;
        }
        self.bytes.extend_from_slice(&piece.bytes);
        self.over = !String::from_utf8_lossy(&self.bytes).trim_start().is_empty();
        piece.text = piece.text.trim_start().into();
        piece.bytes = piece.bytes.trim_ascii_start().into();
    }
}

/// A running chat.
struct Talk<'m> {
    chat: Chat<'m>,
    /// Capacity of the KV cache in tokens, if given.
    context: Option<usize>,
    conversation: Conversation,
    model: &'m Arc<Model>,
    format: Format,
    tokenizer: Arc<dyn Tokenizer>,
    /// The sampling setting, for the tracer's title.
    drawing: Drawing,
    /// Maximum number of tokens in an answer.
    limit: usize,
    /// Memory for the tracer's frames, in bytes.
    memory: usize,
    /// The backend's stop request, set by Ctrl-C.
    stop: Stop,
    /// The conversation's tokens up to the end of the last answer, and the sampler in its state before the last token.
    answered: Vec<u32>,
    last_draw: Sampler,
}

impl Talk<'_> {
    fn take(&mut self, command: Command) -> std::result::Result<(), Failure> {
        match command {
            Command::Say(text) => self.turn(|conversation| conversation.push(Role::User, text))?,
            Command::Regenerate => {
                let question = |message: &chat::Message| message.role == Role::User;
                if !self.conversation.messages().iter().any(question) {
                    return Err(Error::usage("there is no answer to regenerate")
                        .next("say something first")
                        .into());
                }
                self.turn(|conversation| drop(conversation.pop(Role::Assistant)))?;
            }
            Command::Reset => {
                self.conversation.reset();
                self.answered.clear();
            }
            Command::ShowSystem => match self.conversation.system() {
                Some(text) => super::tell(text),
                None => super::tell("(no system message)"),
            },
            Command::SetSystem(text) => self.conversation.set_system(text),
            Command::Step => self.step()?,
            Command::Help => super::tell(command::HELP),
            Command::Quit => {}
        }
        Ok(())
    }

    /// Applies `change`, after which the last message is the user's, and lets the model answer. If the model gives no
    /// answer, the conversation stays as it was before.
    fn turn(&mut self, change: impl FnOnce(&mut Conversation)) -> std::result::Result<(), Failure> {
        let before = self.conversation.clone();
        change(&mut self.conversation);
        match self.answer() {
            Ok(answer) if answer.is_empty() => {
                super::tell("(no answer; your line was removed)");
                self.conversation = before;
            }
            Ok(answer) => self.conversation.push(Role::Assistant, answer),
            // Only this answer was stopped, not the process.
            Err(Failure::Run(Error::Interrupted(_))) if !stop::process().asked() => {
                super::tell("(stopped; your line was removed)");
                self.conversation = before;
            }
            Err(failure) => {
                self.conversation = before;
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Runs the conversation and prints the model's answer as it comes.
    fn answer(&mut self) -> std::result::Result<String, Failure> {
        let context = self.chat.capacity();
        let (template, tokenizer) = (Arc::clone(&self.format.template), Arc::clone(&self.tokenizer));
        let (stop, messages) = (self.stop.clone(), self.conversation.messages().to_vec());
        let prompt = self.stop.unless_asked(move || {
            let render = |messages: &[chat::Message]| template.render(messages, &stop);
            chat::prompt(render, &*tokenizer, &messages, context)
        })?;
        if prompt.len() >= context {
            return Err(Error::prompt(format!("the conversation has grown longer than {}", self.whose()))
                .expected(format!("at most {} tokens, so that one is left for the answer", context - 1))
                .found(format!("{} tokens", prompt.len()))
                .next("your last line was removed: type a shorter one, or /reset to begin again")
                .into());
        }
        let mut stream = self.tokenizer.stream();
        // The text of a token depends on the tokens before it.
        for &id in &prompt {
            stream.push(id);
        }
        let mut out = output::Text::open();
        let (mut answer, mut beginning) = (String::new(), Beginning::default());
        let ended = self.chat.answer(&prompt, &self.format.ends, self.limit, |id| {
            let mut piece = stream.piece(id);
            answer.push_str(&piece.text);
            beginning.trim(&mut piece);
            out.print_piece(&piece).map_err(Failure::from)
        })?;
        answer += &out.finish(&mut stream)?;
        out.print("\n")?;
        drop(out);
        (self.answered, self.last_draw) = (self.chat.ran().to_vec(), self.chat.last_draw());
        match ended {
            Some(Ended::Text | Ended::Limit) => {}
            None => super::tell("(stopped)"),
            Some(Ended::Full) => super::tell(format_args!(
                "({} of {context} tokens is full: the answer is cut off; /reset begins again)",
                self.whose()
            )),
        }
        Ok(answer)
    }

    /// A description of the conversation's context.
    fn whose(&self) -> &'static str {
        if self.chat.capacity() < self.model.config.context {
            "the reserved context"
        } else {
            "the model's context"
        }
    }

    /// Opens the tracer on the conversation. The tracer reads the conversation in one pass and samples the answer's
    /// last token again.
    fn step(&self) -> Result<()> {
        tui::require_terminal()?;
        if self.answered.is_empty() {
            return Err(Error::usage("there is nothing to step through yet").next("say something first"));
        }
        self.stop.clear();
        let start = Start {
            ids: self.answered.clone(),
            draws: 1,
            sampler: self.last_draw.clone(),
            tokenizer: Some(Arc::clone(&self.tokenizer)),
            eos: self.format.ends.clone(),
            memory: self.memory,
            context: self.context,
        };
        let live = Live::start(Arc::clone(self.model), start)?;
        let setting =
            tui::Setting { drawing: Some(self.drawing), chapters: CHAPTERS, ..tui::Setting::default() };
        let seen = tui::visit(Box::new(live), &tui::OpenAt::default(), setting);
        self.stop.clear();
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_byte_takes_no_space_with_it() {
        let mut beginning = Beginning::default();
        let mut printed = Vec::new();
        for (bytes, text) in [(&b" "[..], " "), (b" \xe2", ""), (b" a", "\u{fffd} a"), (b" b", " b")] {
            let mut piece = Piece { bytes: bytes.into(), text: text.into() };
            beginning.trim(&mut piece);
            printed.push(piece);
        }
        let bytes: Vec<u8> = printed.iter().flat_map(|piece| piece.bytes.clone()).collect();
        let text: String = printed.iter().map(|piece| piece.text.as_str()).collect();
        assert_eq!((bytes.as_slice(), text.as_str()), (&b"\xe2 a b"[..], "\u{fffd} a b"));
    }
}
