//! `llama-trace --prompt "…"`: prints the prompt and the generated text. A single text is printed token by token.
//! Several texts are generated together, and each is printed when it is complete.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::input::{self, Run, say_full};
use super::output::{self, Failure};
use super::progress::Progress;
use super::prompt::Prompt;
use super::{LogFormat, MemoryArgs, RunArgs};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::NoProbe;
use llama_trace_engine::generate::Ended;
use llama_trace_formats::tokenizer::{Piece, TextStream, Tokenizer};

/// Number of tokens sampled without `-n`.
const DEFAULT_TOKENS: usize = 128;

/// Runs the command.
pub(super) fn run(args: &RunArgs, memory: &MemoryArgs, format: LogFormat) -> Result<()> {
    if memory.memory.is_some() {
        return Err(Error::usage("--memory limits the values that the tracer holds; this run has no tracer")
            .expected("--memory with --step or chat")
            .next("add --step, or leave out --memory"));
    }
    let wanted = args.tokens.unwrap_or(DEFAULT_TOKENS);
    let run = Run::open(args)?.edited(args, wanted)?;
    output::end(input::on_a_computing_thread(|| print_texts(&run, wanted, format)))
}

fn print_texts(run: &Run, wanted: usize, format: LogFormat) -> std::result::Result<(), Failure> {
    let mut batch = run.batch(wanted)?;
    let mut texts = Texts::begin(run, format)?;
    let started = Instant::now();
    let (mut count, mut first, mut full) = (0, None, Vec::new());
    let mut work = || -> std::result::Result<(), Failure> {
        while batch.ready()? {
            let drawn = batch.pass(&mut NoProbe)?;
            first.get_or_insert_with(|| started.elapsed());
            count += drawn.len();
            for drawn in drawn {
                texts.add(drawn.sequence, drawn.id, drawn.ended)?;
                full.extend((drawn.ended == Some(Ended::Full)).then_some(drawn.sequence));
            }
            let rate = count as f64 / started.elapsed().as_secs_f64();
            texts.bar.say(format!("{} running, {rate:.1} tokens/s", batch.running()));
        }
        if wanted == 0 {
            texts.end_all()?;
        }
        Ok(())
    };
    let worked = work();
    texts.bar.finish();
    if let Err(Failure::Write(error)) = worked {
        return Err(error.into());
    }
    // Finished texts are printed even if other texts failed. After a device error, unfinished texts are printed too.
    let failed = matches!(&worked, Err(Failure::Run(error)) if !matches!(error, Error::Interrupted(_)));
    texts.finish(failed)?;
    worked?;
    if texts.streams() && !texts.out.is_terminal() && !full.is_empty() {
        super::tell("");
    }
    say_full(run, &full);
    run.say_edits()?;
    if batch.not_a_number() {
        super::tell(super::NOT_A_NUMBER);
    }
    if let (Some(first), true) = (first, std::io::stderr().is_terminal()) {
        let read = run.prompts.iter().map(|prompt| prompt.ids.len()).sum();
        say_speed(run.prompts.len(), read, (count, started.elapsed(), first));
    }
    Ok(())
}

/// Reports the speed. The `prompts` prompts have `read` tokens in all. All `drawn` tokens were sampled in `time`, the
/// first of them in `first`.
fn say_speed(prompts: usize, read: usize, (drawn, time, first): (usize, Duration, Duration)) {
    let seconds = |time: Duration| time.as_secs_f64();
    if prompts > 1 {
        let rate = drawn as f64 / seconds(time);
        return super::tell(format_args!(
            "{prompts} prompts with {read} tokens in all; {drawn} sampled in {:.3} s, {rate:.1} tokens/s",
            seconds(time)
        ));
    }
    let rate = if drawn > 1 { (drawn - 1) as f64 / seconds(time - first) } else { 0.0 };
    super::tell(format_args!(
        "{read} prompt tokens in {:.3} s; {drawn} sampled, {rate:.1} tokens/s after the first",
        seconds(first),
    ));
}

/// A text being generated.
struct Growing<'a> {
    prompt: &'a Prompt,
    /// The text of the prompt's tokens. It is printed if the prompt was given as ids.
    begins: Piece,
    /// The stream that decodes the tokens; none without a tokenizer.
    stream: Option<TextStream<'a>>,
    ids: Vec<u32>,
    /// The text after the prompt.
    text: Piece,
    ended: Option<Ended>,
}

impl<'a> Growing<'a> {
    fn new(prompt: &'a Prompt, tokenizer: Option<&'a dyn Tokenizer>) -> Self {
        let stream = tokenizer.map(|tokenizer| tokenizer.stream());
        let (ids, ended) = (Vec::new(), None);
        let mut growing =
            Self { prompt, begins: Piece::default(), stream, ids, text: Piece::default(), ended };
        // The stream needs the prompt's tokens too, because the text of a token depends on the tokens before it.
        for &id in &prompt.ids {
            let piece = growing.piece(id);
            growing.begins.push(&piece);
        }
        growing
    }

    fn piece(&mut self, id: u32) -> Piece {
        match &mut self.stream {
            Some(stream) => stream.piece(id),
            None => {
                let text = format!("#{id} ");
                Piece { bytes: text.clone().into_bytes(), text }
            }
        }
    }
}

impl Growing<'_> {
    /// The text as a line of JSON.
    fn object(&self, sequence: usize) -> Value {
        json!({
            "sequence": sequence,
            "prompt": self.prompt.text.as_ref().map_or_else(|| json!(self.prompt.ids), |text| json!(text)),
            "text": self.text.text,
            "ids": self.ids,
            "ended": self.ended.map(|ended| match ended {
                Ended::Text => "text",
                Ended::Limit => "limit",
                Ended::Full => "full",
            }),
        })
    }
}

/// All texts, printed in the order of their prompts.
struct Texts<'a> {
    texts: Vec<Growing<'a>>,
    /// Number of texts that were printed.
    printed: usize,
    out: output::Text,
    format: LogFormat,
    bar: Progress,
}

impl<'a> Texts<'a> {
    /// The texts of `run`, before the first token is sampled.
    fn begin(run: &'a Run, format: LogFormat) -> std::result::Result<Self, Failure> {
        let growing = |prompt| Growing::new(prompt, run.tokenizer.as_deref());
        let texts: Vec<_> = run.prompts.iter().map(growing).collect();
        let bar = Progress::new(texts.len(), "prompts");
        let mut all = Self { texts, printed: 0, out: output::Text::open(), format, bar };
        if all.streams() {
            all.print_prompt(0)?;
        }
        Ok(all)
    }

    /// Returns whether each token is printed as soon as it is sampled: in text format, with only one text.
    fn streams(&self) -> bool {
        self.format == LogFormat::Text && self.texts.len() == 1
    }

    /// Appends a token to a text. If `ended` is given, the text ends with this token.
    fn add(&mut self, sequence: usize, id: u32, ended: Option<Ended>) -> std::io::Result<()> {
        let streams = self.streams();
        let text = &mut self.texts[sequence];
        text.ids.push(id);
        if ended != Some(Ended::Text) {
            let piece = text.piece(id);
            if streams {
                self.out.print_piece(&piece)?;
            } else {
                text.text.push(&piece);
            }
        }
        match ended {
            Some(ended) => self.end(sequence, ended),
            None => Ok(()),
        }
    }

    /// Ends every text now.
    fn end_all(&mut self) -> std::io::Result<()> {
        (0..self.texts.len()).try_for_each(|sequence| self.end(sequence, Ended::Limit))
    }

    /// Ends a text. Prints the ended texts, in order, up to the first unfinished one.
    fn end(&mut self, sequence: usize, ended: Ended) -> std::io::Result<()> {
        let text = &mut self.texts[sequence];
        text.ended = Some(ended);
        let rest = text.stream.as_mut().map(TextStream::finish).unwrap_or_default();
        // `rest` is the incomplete character that the stream held back. A pipe already got its bytes with the tokens.
        text.text.text += &rest;
        if self.streams() {
            if self.out.is_terminal() {
                self.out.print(&rest)?;
                self.out.print("\n")?;
            }
            self.printed = 1;
            return Ok(());
        }
        self.bar.add(1);
        let all = &self.texts[self.printed..];
        let ready = all.iter().take_while(|text| text.ended.is_some()).count();
        (0..ready).try_for_each(|_| self.print_next())
    }

    /// Prints the ended texts that come after an unfinished one. With `begun`, also prints the unfinished texts that
    /// have started.
    fn finish(&mut self, begun: bool) -> std::io::Result<()> {
        while self.printed < self.texts.len() {
            let text = &self.texts[self.printed];
            if text.ended.is_some() || begun && !text.ids.is_empty() && !self.streams() {
                self.print_next()?;
            } else {
                self.printed += 1;
            }
        }
        Ok(())
    }

    /// Prints the whole first text that is not printed yet.
    fn print_next(&mut self) -> std::io::Result<()> {
        let sequence = self.printed;
        self.printed += 1;
        // The bar may be on the same terminal.
        self.bar.clone().aside(|| {
            if self.format == LogFormat::Json {
                return writeln!(output::Lines::json(), "{}", self.texts[sequence].object(sequence));
            }
            self.out.print(&format!("== s{sequence} ==\n"))?;
            self.print_prompt(sequence)?;
            self.out.print_piece(&self.texts[sequence].text)?;
            self.out.print("\n")
        })
    }

    /// Prints the prompt of a text.
    fn print_prompt(&mut self, sequence: usize) -> std::io::Result<()> {
        let Growing { prompt, begins, .. } = &self.texts[sequence];
        match &prompt.text {
            Some(text) => self.out.print(text),
            None => self.out.print_piece(begins),
        }
    }
}
