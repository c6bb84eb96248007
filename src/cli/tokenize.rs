//! `llama-trace tokenize`: the tokens of a text, and the merges of byte-pair encoding that lead to them.

use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::output;
use super::{LogFormat, TokenizeArgs};
use super::{input, prompt, threads};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::memory::naming;
use llama_trace_formats::tokenizer::{Priority, Stretch, Tokenizer, Way, check_length};

/// Maximum number of parts in a word that is printed again, as a whole, after each merge.
const MAX_SHOWN: usize = 64;

pub(super) fn run(args: &TokenizeArgs) -> Result<()> {
    // Reading a vocabulary uses the compute threads.
    threads::start(None)?;
    let tokenizer = input::open_tokenizer(&args.model)?;
    let text = match &args.text {
        Some(text) => prompt::only(text)?,
        None => prompt::read_text(Path::new("-"))?,
    };
    check_length(&*tokenizer, text.len(), None)?;
    let found = Tokens::new(&*tokenizer, &text, args)?;
    let written = match args.format {
        LogFormat::Text => found.print(&mut output::Lines::text()),
        LogFormat::Json => found.json(&mut output::Lines::json()),
    };
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::output("the tokens cannot be written").at("standard output").found(error))
        }
        _ => Ok(()),
    }
}

/// The output for a text.
struct Tokens<'t> {
    tokenizer: &'t dyn Tokenizer,
    ids: Vec<u32>,
    stretches: Option<Vec<Stretch>>,
}

impl<'t> Tokens<'t> {
    fn new(tokenizer: &'t dyn Tokenizer, text: &str, args: &TokenizeArgs) -> Result<Self> {
        let plain = args.no_special;
        let encode = |plain| {
            naming("the tokens of the text", || match plain {
                true => tokenizer.encode_plain(text),
                false => tokenizer.encode(text),
            })
        };
        let stretches = if args.merges {
            let stretches = tokenizer.merges(text, plain)?;
            Some(stretches.ok_or_else(|| {
                Error::usage("this tokenizer has no merges, or does not report them")
                    .expected("byte-pair encoding")
                    .next("leave --merges out")
            })?)
        } else {
            None
        };
        // With --merges, the tokens are the result of the merges.
        let ids = match &stretches {
            Some(stretches) => stretches.iter().flat_map(|stretch| &stretch.ids).copied().collect(),
            None => encode(plain)?,
        };
        Ok(Self { tokenizer, ids, stretches })
    }

    /// The texts of the tokens, made one at a time because there may be millions of them.
    fn pieces(&self) -> impl Iterator<Item = String> {
        self.ids.iter().map(|&id| self.tokenizer.label(id))
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        for (number, stretch) in self.stretches.iter().flatten().enumerate() {
            print_stretch(out, number, stretch)?;
        }
        let space = |number| if number == 0 { "" } else { " " };
        write!(out, "pieces  ")?;
        for (number, piece) in self.pieces().enumerate() {
            write!(out, "{}{piece:?}", space(number))?;
        }
        write!(out, "\nids     ")?;
        for (number, id) in self.ids.iter().enumerate() {
            write!(out, "{}{id}", space(number))?;
        }
        writeln!(out)
    }

    fn json(&self, out: &mut impl Write) -> std::io::Result<()> {
        let comma = |number| if number == 0 { "" } else { "," };
        write!(out, "{{\"ids\":[")?;
        for (number, id) in self.ids.iter().enumerate() {
            write!(out, "{}{id}", comma(number))?;
        }
        write!(out, "],\"pieces\":[")?;
        for (number, piece) in self.pieces().enumerate() {
            write!(out, "{}{}", comma(number), json!(piece))?;
        }
        write!(out, "]")?;
        if let Some(stretches) = &self.stretches {
            let stretches: Value = stretches.iter().map(stretch_json).collect();
            write!(out, ",\"stretches\":{stretches}")?;
        }
        writeln!(out, "}}")
    }
}

fn print_stretch(out: &mut impl Write, number: usize, stretch: &Stretch) -> std::io::Result<()> {
    let what = match stretch.way {
        Way::Merged => "merged",
        Way::Whole => "a whole token, which is never split",
        Way::Special => "a special token",
    };
    writeln!(out, "stretch {number}: {what}")?;
    writeln!(out, "  {:<16} {}", "", quoted(&stretch.after(0)))?;
    let short = stretch.parts.len() <= MAX_SHOWN;
    for (count, merge) in (1..).zip(&stretch.merges) {
        let priority = match merge.priority {
            Priority::Rank(rank) => format!("rank {rank}"),
            Priority::Score(score) => format!("score {score}"),
        };
        match short {
            true => writeln!(out, "  {priority:<16} {}", quoted(&stretch.after(count)))?,
            false => writeln!(out, "  {priority:<16} at {}: {:?}", merge.left, merge.text)?,
        }
    }
    let ids: Vec<String> = stretch.ids.iter().map(u32::to_string).collect();
    writeln!(out, "  {:<16} {}\n", "ids", ids.join(" "))
}

fn stretch_json(stretch: &Stretch) -> Value {
    let merges = stretch.merges.iter().map(|merge| {
        let mut object = json!({"left": merge.left, "right": merge.right, "text": merge.text});
        match merge.priority {
            Priority::Rank(rank) => object["rank"] = rank.into(),
            Priority::Score(score) => object["score"] = score.into(),
        }
        object
    });
    let way = match stretch.way {
        Way::Merged => "merged",
        Way::Whole => "whole",
        Way::Special => "special",
    };
    json!({"way": way, "parts": stretch.parts, "merges": merges.collect::<Vec<_>>(), "ids": stretch.ids})
}

/// Quoted strings, with control characters escaped.
fn quoted(parts: &[impl AsRef<str>]) -> String {
    parts.iter().map(|part| format!("{:?}", part.as_ref())).collect::<Vec<_>>().join(" ")
}
