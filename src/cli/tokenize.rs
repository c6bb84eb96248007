//! `llama-trace tokenize`: the tokens of a text, and how byte-pair encoding arrives at them.

use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::output;
use super::{LogFormat, TokenizeArgs};
use super::{input, prompt};
use crate::error::{Error, Result};
use crate::tokenizer::{Priority, Stretch, Tokenizer, Way, check_length};

/// A stretch of more parts than this is not written out anew for each merge.
const MAX_SHOWN: usize = 64;

pub(super) fn run(args: &TokenizeArgs) -> Result<()> {
    let tokenizer = input::open_tokenizer(&args.model)?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => prompt::read_text(Path::new("-"))?,
    };
    check_length(&*tokenizer, text.len(), None)?;
    let found = Tokens::new(&*tokenizer, &text, args)?;
    let written = match args.format {
        LogFormat::Text => found.print(&mut output::Lines::text()),
        LogFormat::Json => writeln!(output::Lines::json(), "{}", found.json()),
    };
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::output("the tokens cannot be written").at("standard output").found(error))
        }
        _ => Ok(()),
    }
}

/// What is shown of a text.
struct Tokens {
    ids: Vec<u32>,
    pieces: Vec<String>,
    stretches: Option<Vec<Stretch>>,
}

impl Tokens {
    fn new(tokenizer: &dyn Tokenizer, text: &str, args: &TokenizeArgs) -> Result<Self> {
        let plain = args.no_special;
        let stretches = if args.merges {
            let stretches = tokenizer.merges(text, plain)?;
            Some(stretches.ok_or_else(|| {
                Error::usage("this tokenizer merges nothing, or does not tell")
                    .expected("byte-pair encoding")
                    .next("leave --merges out")
            })?)
        } else {
            None
        };
        // With --merges, the result shown is the one that the merges arrive at.
        let ids = match &stretches {
            Some(stretches) => stretches.iter().flat_map(|stretch| &stretch.ids).copied().collect(),
            None if plain => tokenizer.encode_plain(text)?,
            None => tokenizer.encode(text)?,
        };
        let pieces = ids.iter().map(|&id| tokenizer.label(id)).collect();
        Ok(Self { ids, pieces, stretches })
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        for (number, stretch) in self.stretches.iter().flatten().enumerate() {
            print_stretch(out, number, stretch)?;
        }
        writeln!(out, "pieces  {}", quoted(&self.pieces))?;
        let ids: Vec<String> = self.ids.iter().map(u32::to_string).collect();
        writeln!(out, "ids     {}", ids.join(" "))
    }

    fn json(&self) -> Value {
        let mut object = json!({"ids": self.ids, "pieces": self.pieces});
        if let Some(stretches) = &self.stretches {
            object["stretches"] = stretches.iter().map(stretch_json).collect();
        }
        object
    }
}

fn print_stretch(out: &mut impl Write, number: usize, stretch: &Stretch) -> std::io::Result<()> {
    let what = match stretch.way {
        Way::Merged => "merged",
        Way::Whole => "a token as a whole, which is never split",
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

/// Strings in quotation marks, with what a terminal would not show escaped.
fn quoted(parts: &[impl AsRef<str>]) -> String {
    parts.iter().map(|part| format!("{:?}", part.as_ref())).collect::<Vec<_>>().join(" ")
}
