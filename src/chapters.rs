//! The notes under `chapters/`, built into the program: one for each stage and idea.
//!
//! A note begins with its title and a comment that names the steps it explains:
//! `<!-- steps: xq_rope, xk_rope -->`. Numbers in it that come from the built-in model are followed by a
//! comment with the address they were read from, hidden when the note is shown.

use crate::trace::Step;

/// One note.
#[derive(Clone, Copy, Debug)]
pub struct Chapter {
    /// The file's name without `.md`: `07-rope`.
    pub slug: &'static str,
    /// Its Markdown, comments included.
    pub text: &'static str,
}

macro_rules! chapters {
    ($($slug:literal,)*) => {
        /// Every note, in reading order.
        pub static CHAPTERS: &[Chapter] = &[
            $(Chapter { slug: $slug, text: include_str!(concat!("../chapters/", $slug, ".md")) },)*
        ];
    };
}

chapters! {
    "01-tokens",
}

impl Chapter {
    /// The text of its first line.
    pub fn title(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches('#').trim()
    }

    /// The steps that it explains.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        let list = self.text.split_once("<!-- steps:").and_then(|(_, rest)| rest.split_once("-->"));
        list.map_or("", |(list, _)| list).split(',').filter_map(|name| Step::from_name(name.trim()))
    }

    /// The note on `step`. A view without one of its own shares its source's.
    pub fn of(step: Step) -> Option<&'static Self> {
        let find = |step| CHAPTERS.iter().find(|chapter| chapter.steps().any(|other| other == step));
        find(step).or_else(|| find(Step::Stage(step.stage())))
    }
}
