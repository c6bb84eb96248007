//! The progress of a lesson as a short text, for the browser's storage: `3 ro-s- f` is scene 3, the answer of each scene
//! (right, shown or open), and `f` for a finished lesson.

use llama_trace_tui::{Answered, LessonProgress};

/// The stored progress of a lesson.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number of the scene, from 0.
    pub scene: usize,
    /// The answer of each scene.
    pub answers: Vec<Answered>,
}

/// Maximum length of a stored text. No lesson has as many scenes.
const MOST: usize = 4096;

/// The progress as text.
pub fn write(progress: &LessonProgress) -> String {
    let letter = |answer: &(Answered, usize)| match answer.0 {
        Answered::Right => 'r',
        Answered::Shown => 's',
        Answered::Open => 'o',
    };
    let answers: String = progress.answers.iter().map(letter).collect();
    let end = if progress.finished { " f" } else { "" };
    format!("{} {answers}{end}", progress.scene)
}

/// Reads a stored text. Another program may have changed it, so a text that is no progress is as good as none. A
/// finished lesson begins again.
pub fn read(text: &str) -> Stored {
    let mut parts = text.get(..MOST.min(text.len())).unwrap_or_default().split(' ');
    let scene = parts.next().and_then(|scene| scene.parse().ok());
    let answers = parts.next().unwrap_or_default().chars().map(|letter| match letter {
        'r' => Answered::Right,
        's' => Answered::Shown,
        _ => Answered::Open,
    });
    let answers = answers.collect();
    match (scene, parts.next()) {
        (Some(_), Some("f")) => Stored { scene: 0, answers },
        (Some(scene), None) => Stored { scene, answers },
        _ => Stored::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_comes_back_and_other_texts_are_none() {
        let answers = vec![(Answered::Right, 0), (Answered::Open, 3), (Answered::Shown, 1)];
        let mut progress = LessonProgress { slug: "tour".into(), scene: 2, answers, finished: false };
        assert_eq!(write(&progress), "2 ros");
        let stored = read("2 ros");
        assert_eq!(stored.scene, 2);
        assert_eq!(stored.answers, [Answered::Right, Answered::Open, Answered::Shown]);
        progress.finished = true;
        assert_eq!(read(&write(&progress)).scene, 0);
        for text in ["", "x", "-1 ro", "99999999999999999999 r", "1 r x", "\u{e9}"] {
            assert_eq!(read(text), Stored::default(), "{text:?}");
        }
    }
}
