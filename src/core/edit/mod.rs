//! Edits: values that a run changes while it computes them.
//!
//! An edit is data. It names a place, an operation and an operand: `L1/softmax[h=0] *= 0`. The forward pass applies it
//! at the point where the stage is offered to the probe, so everything after that point reads the edited values. A pass
//! without edits does no extra work.
//!
//! [`Edit::parse`] has the grammar. [`Edits`] is a list of edits with everything that they read.

mod edits;
mod kept;
mod operand;
mod parse;
mod place;
mod reach;

use std::fmt;
use std::path::PathBuf;

use crate::error::Error;
use crate::trace::{Address, Axis, ModelCard, Sizes, Stage, Subject};

pub use edits::{Changed, Edits, Given, Needed};
pub use kept::{Kept, PartAt};
pub use place::{Place, Selection};
pub use reach::Reach;

/// One edit, as the user wrote it. A switch such as `rope off` has several parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// The text.
    pub text: String,
    /// The changes, in the order of the pass.
    pub parts: Vec<Part>,
}

/// A change of some cells of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The cells.
    pub place: Place,
    /// How the operand changes a cell.
    pub operator: Operator,
    /// The operand.
    pub operand: Operand,
}

/// How an operand changes a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Set,
    /// `*=`
    Multiply,
    /// `+=`
    Add,
}

/// The right side of an edit.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A number.
    Number(f32),
    /// The input of the stage's operation in the same pass: the operation is switched off.
    Input,
    /// The mean of the stage over the tokens of the pass, before this edit.
    Mean,
    /// The mean of the stage over all tokens of the prompts in a file.
    MeanOver(PathBuf),
    /// An array in a `.npy` file.
    Array(PathBuf),
    /// factor · (first + sign · second), from other cells.
    Cells {
        /// The factor.
        factor: f32,
        /// The first source.
        first: Source,
        /// 1 or −1, and the second source.
        second: Option<Box<(f32, Source)>>,
    },
}

/// Cells of a run without edits.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The run.
    pub run: Origin,
    /// The cells. A part that the address omits is that of the edited cell.
    pub address: Address,
}

/// The run of a [`Source`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The same prompt, without edits.
    Plain,
    /// Another prompt, without edits.
    Prompt(String),
    /// A recorded trace.
    Trace(PathBuf),
}

impl Part {
    /// Whether `stage` must not be derived from other stages, in a run with this change: the change writes it, writes a
    /// stage that its derivation leaves out, or lets it read keys that the mask hides.
    pub fn stops_derivation(&self, stage: Stage) -> bool {
        let also: &[Stage] = match self.place.stage {
            Stage::Keys => &[Stage::Qk],
            Stage::Values => &[Stage::AttnHeads],
            Stage::MaskedScores => &[Stage::Softmax, Stage::AttnHeads],
            Stage::Softmax => &[Stage::AttnHeads],
            _ => &[],
        };
        self.place.stage == stage || also.contains(&stage)
    }
}

impl Edit {
    /// Parses an edit. See the module for the parts.
    ///
    /// ```text
    /// edit   = place ('=' | '*=' | '+=') value | place 'off' | part 'off'
    /// place  = ['s' SEL '/'] ['p' SEL '/'] ['L' SEL '/'] STAGE ['[' letter '=' SEL {',' letter '=' SEL} ']']
    /// SEL    = '*' | N ['-' N] {',' N ['-' N]}
    /// value  = NUMBER | 'mean' | 'mean(' FILE ')' | FILE.npy
    ///        | [NUMBER '*'] SOURCE | [NUMBER '*'] '(' SOURCE ('-' | '+') SOURCE ')'
    /// SOURCE = ['"' PROMPT '":' | TRACE ':'] ADDRESS
    /// part   = 'L' SEL ['/h' SEL | '/n' SEL | '/attn' | '/ffn'] | ['L' SEL '/'] ('rope' | 'mask')
    /// ```
    ///
    /// The letters are those of addresses. `pos` is the position of a token in the text.
    ///
    /// # Errors
    /// A message that names the wrong part and says what is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse::edit(text)
    }

    /// Parses a part of the model that `--without` switches off: `L0/h2`, `L0/n17`, `L0/attn`, `L0/ffn`, `L0`.
    ///
    /// # Errors
    /// As [`Edit::parse`].
    pub fn without(part: &str) -> Result<Self, String> {
        parse::off(part.trim(), format!("{} off", part.trim()))
    }

    /// The same edit with the stages of a model of `sizes`. See [`Stage::in_model`].
    #[must_use]
    pub fn in_model(mut self, sizes: &Sizes) -> Self {
        let resolve = |source: &mut Source| {
            if let Some(Subject::Step(step)) = &mut source.address.subject {
                *step = step.in_model(sizes, source.address.layer);
            }
        };
        let is_off = self.switched_off().is_some();
        for part in &mut self.parts {
            part.place.stage = match part.place.stage {
                // Without a gate, the neurons are another stage.
                Stage::FfnHidden if is_off => sizes.neurons(),
                stage => stage.in_model(sizes),
            };
            if let Operand::Cells { first, second, .. } = &mut part.operand {
                resolve(first);
                second.iter_mut().for_each(|second| resolve(&mut second.1));
            }
        }
        self
    }

    /// The edits of the run with this card, with the parts that were switched off.
    ///
    /// # Errors
    /// [`Error::Model`] with the text that is not an edit.
    pub fn of_card(card: &ModelCard) -> crate::error::Result<Vec<Self>> {
        let without = card.without.iter().map(|part| (part, Self::without(part)));
        let edits = card.edits.iter().map(|edit| (edit, Self::parse(edit)));
        let sizes = card.sizes();
        let read = |(text, edit): (&String, Result<Self, String>)| {
            edit.map(|edit| edit.in_model(&sizes)).map_err(|expected| {
                Error::model("the run names an edit that does not exist")
                    .expected(expected)
                    .found(text)
                    .next("record it again")
            })
        };
        without.chain(edits).map(read).collect()
    }

    /// Whether an edit of the run with this card stops the derivation of `stage` from other stages.
    pub fn stop_derivation(card: &ModelCard, stage: Stage) -> bool {
        let edits = Self::of_card(card).unwrap_or_default();
        edits.iter().flat_map(|edit| &edit.parts).any(|part| part.stops_derivation(stage))
    }

    /// Whether the edit reads an array, a trace or prompts in a file.
    pub fn reads_file(&self) -> bool {
        let is_trace = |source: &Source| matches!(source.run, Origin::Trace(_));
        self.parts.iter().any(|part| match &part.operand {
            Operand::MeanOver(_) | Operand::Array(_) => true,
            Operand::Cells { first, second, .. } => {
                is_trace(first) || second.as_ref().is_some_and(|second| is_trace(&second.1))
            }
            Operand::Number(_) | Operand::Input | Operand::Mean => false,
        })
    }

    /// The part that is switched off, if the edit is a switch.
    pub fn switched_off(&self) -> Option<&str> {
        self.text.strip_suffix(" off").map(str::trim)
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether `stage` has a row for each token of the pass.
fn has_tokens(stage: Stage) -> bool {
    stage.axes().contains(&Axis::Token)
}
