//! Finds the tour or a chapter by its name, its number, or a word that it is about.

use llama_trace_core::chapters::Chapter;
use llama_trace_core::trace::Step;

use super::synonyms::{Synonym, meant};

/// Number of letters from which a word is looked for in titles.
const ENOUGH: usize = 3;

/// The chapters that a user may mean by `name`: the one with this name or number, or else those about this word. These
/// have the word in their title, or else a synonym, or else they explain the stages that it means.
pub fn find<'c>(chapters: &[&'c Chapter], name: &str) -> Vec<&'c Chapter> {
    let name = name.trim();
    if let Some(chapter) = chapters.iter().find(|chapter| chapter.is_named(name)) {
        return vec![*chapter];
    }
    let word = name.to_lowercase();
    if word.chars().count() < ENOUGH {
        return Vec::new();
    }
    let titled = |chapter: &Chapter, word: &str| {
        chapter.title().to_lowercase().contains(word) || chapter.slug.contains(&word.replace(' ', "-"))
    };
    let rows: Vec<&Synonym> = meant(&word).collect();
    let synonym = |chapter: &Chapter| {
        rows.iter().flat_map(|row| row.words).any(|other| other.len() >= ENOUGH && titled(chapter, other))
    };
    let finds = |step: Step| step.name() == word || rows.iter().any(|row| row.finds.contains(&step.name()));
    // The map of the pass is about everything, so it is found by its title only.
    let explains = |chapter: &Chapter| !chapter.slug.starts_with("00") && chapter.steps().any(finds);
    let rank = |chapter: &Chapter| {
        let fits = [titled(chapter, &word), synonym(chapter), explains(chapter)];
        fits.into_iter().position(|fits| fits)
    };
    let mut found: Vec<(usize, &'c Chapter)> =
        chapters.iter().copied().filter_map(|chapter| Some((rank(chapter)?, chapter))).collect();
    found.sort_by_key(|(rank, _)| *rank);
    // A chapter with the word in its title is about it; others are about similar words, or explain the same stages.
    if let Some((best, _)) = found.first().copied() {
        found.retain(|(rank, _)| *rank == best);
    }
    found.into_iter().map(|(_, chapter)| chapter).collect()
}
