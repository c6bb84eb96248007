//! The notes in `chapters/`, which explain the stages and the ideas around them. A program embeds them.
//!
//! A note is Markdown. Its first line is its title. Comments of one line each follow; they are hidden when the note is
//! shown:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- steps: xq_rope, xk_rope -->` | the stages and views it explains; a step may have several notes |
//! | `<!-- prompt: Once upon a time -->` | the prompt that its numbers belong to |
//! | `<!-- passes: 3 -->` | the number of passes, as with `-n`; default one |
//! | `<!-- sampling: --temperature 1 --seed 7 -->` | options of the sampler; default greedy |
//! | `<!-- precision: q8 -->` | the arithmetic, as with `--precision`; default f32 |
//!
//! Then come the sections `What`, `Why`, `Formula`, `Shapes`, `Look` and `Exercise`. The exercise has its answer in a
//! `<details>` block. The comments `scene` and `ask` make the note a lesson: see [`crate::lesson`].
//!
//! **Numbers.** A number of the built-in model is directly followed by a comment with its address: `0.31<!--
//! p0/L1/softmax[h=2,t=5,k=1] -->`.
//!
//! | address | what it gives |
//! |---|---|
//! | `p0/L1/softmax[h=2,t=5,k=1]` | one value; the letters are those of [`crate::trace::Axis::index`] |
//! | `p0/L0/xq.shape` | a shape, written `(5, 4, 32)`; views have one too |
//! | `p0/L0/xq[h=2].max` | a statistic of all values that the index selects (the index may be partial): `min`, `max`, `mean`, `std`, `rms`, `norm`, `sum`, `count`, `zeros`, `neg_inf`, `negative`, `positive`, `at_least(1)` |
//! | `p0/logits[t=4].argmax` | if the index leaves one axis free: the index of the largest value on that axis; `arg3` and `top3` give the index and the value of the third largest |
//! | `p0/tokens[t=1].text`, `p0/logits[t=4].argmax.text` | the token with this id or at this position, in a code span: `` `␣upon` `` |
//! | `config/D` | D, H, G, C, F, V, `layers`, `context`, `eps`, `theta`; in q8 `g`, the values that share a scale |
//! | `heads.json/induction/score` | a number in `fixtures/builtin/heads.json` |
//! | `p0/L0/qk[h=0,t=4,k=1] ÷ sqrt(config/C)` | addresses and numbers joined by ` + `, ` − `, ` · `, ` ÷ `, with parentheses, `sqrt`, `exp`, `ln` and `pi` |
//!
//! It is an error if a decimal or a size of the model (128, 1024, …) has no address. Code and formulas may contain any
//! numbers. A number may change with the weights; the words around it must stay true if it does.
//!
//! An index may be `last`, and `{induction}` or `{previous_token}` stands for the layer or the head of
//! `heads.json`: `p0/L{induction}/softmax[h={induction},t=last].max`. An index in braces may be an address itself.
//!
//! **Commands.** Every line that begins with `$ ` in a block marked `console` is run. It must end with exit code 0, or
//! with 2 in a block marked `console exit=2`. `console heads=induction` means that `--layer` and `--head` are those of
//! `heads.json`. The lines below a command are its output. A line `…` matches any lines, and a line that ends in `…`
//! matches every line with that beginning. In the working directory, `fixtures` has the built-in model and the stages
//! of the example port (`fixtures/port`), as in the repository.
//!
//! `tests/chapters.rs` checks all this against the trace. With `LLAMA_TRACE_BLESS=1`, it writes the numbers into the
//! notes instead.

use std::ops::Deref;

use crate::trace::Step;

/// One note.
#[derive(Clone, Copy, Debug)]
pub struct Chapter {
    /// The file's name without `.md`: `08-rope`.
    pub slug: &'static str,
    /// Its Markdown, comments included.
    pub text: &'static str,
}

/// The number in a chapter's slug: 8 in `08-rope`.
#[must_use]
pub fn number_in(slug: &str) -> Option<usize> {
    slug.split_once('-')?.0.parse().ok()
}

impl Chapter {
    /// Whether a user means this chapter by `name`: `16`, `16-attention-patterns` or `attention-patterns`.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        self.slug == name
            || self.slug.split_once('-').is_some_and(|(_, rest)| rest == name)
            || name.parse().is_ok_and(|number| number_in(self.slug) == Some(number))
    }
}

/// The notes of a program, in reading order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chapters(pub &'static [Chapter]);

impl Deref for Chapters {
    type Target = [Chapter];

    fn deref(&self) -> &[Chapter] {
        self.0
    }
}

impl Chapters {
    /// The notes on `step`: first the note about the step itself, then the notes on ideas around it, and last the map of
    /// the pass (number 00). For a view without notes of its own, these are the notes on its stage.
    pub fn about(self, step: Step) -> impl Iterator<Item = &'static Chapter> {
        let step = step.first_of_name();
        let has = |step: Step| move |chapter: &&Chapter| chapter.steps().any(|other| other == step);
        let own = self.iter().any(|chapter| has(step)(&chapter));
        let step = if own { step } else { Step::Stage(step.stage()) };
        let maps = self.0.iter().take_while(|chapter| chapter.slug.starts_with("00"));
        self.0.iter().skip(maps.clone().count()).chain(maps).filter(has(step))
    }
}

impl Chapter {
    /// The title: the first line.
    pub fn title(&self) -> &'static str {
        self.text.lines().next().unwrap_or(self.slug).trim_start_matches('#').trim()
    }

    /// The text with the answers of its exercises hidden. `key` is the key that shows the answers.
    pub fn folded(&self, key: &str) -> String {
        let (begins, named, ends) = ("<details><summary>", "</summary>", "</details>");
        let mut parts = self.text.split(begins);
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once(named).unwrap_or((part, ""));
            let (_, rest) = rest.split_once(ends).unwrap_or((rest, ""));
            text += &format!("▸ **{name}** (`{key}` shows it){rest}");
        }
        text
    }

    /// The arithmetic of its numbers, if it is not float32: "bf16", "q8".
    pub fn precision(&self) -> Option<&'static str> {
        let (_, rest) = self.text.split_once("<!-- precision:")?;
        Some(rest.split_once("-->")?.0.trim())
    }

    /// The steps that it explains.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let list = self.text.split_once("<!-- steps:").and_then(|(_, rest)| rest.split_once("-->"));
        list.map_or("", |(list, _)| list).split(',').filter_map(|name| Step::from_name(name.trim()))
    }
}
