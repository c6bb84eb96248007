//! The progress of the lessons, in a file of the user's state folder.

use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::tell;
use super::find::Source;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::Lesson;
use llama_trace_ending::scratch::Scratch;
use llama_trace_tui::{Answered, LessonProgress};

/// Largest size of the file, in bytes.
const MOST: u64 = 1 << 20;
/// Prefix of the temporary folder beside the file.
const KIND: &str = "progress";
const FILE: &str = "lessons.json";

/// The stored progress of all lessons.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// The file; none if nothing is stored.
    file: Option<PathBuf>,
    lessons: Map<String, Value>,
}

/// The stored progress of one lesson.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    /// Number of the last scene, from 0.
    scene: usize,
    /// The state of each scene's question: `open`, `right` or `shown`.
    answers: Vec<State>,
    /// Wrong tries before the answer of each scene.
    tries: Vec<usize>,
    /// Whether the lesson was read to its end.
    finished: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    #[default]
    Open,
    Right,
    Shown,
}

impl Progress {
    /// Reads the file. If it cannot be read, or if there is no folder for it, prints a warning, and nothing is stored.
    pub(super) fn open(off: bool) -> Self {
        if off {
            return Self::default();
        }
        let Some(folder) = folder(&|name| env::var_os(name).map(PathBuf::from)) else {
            let home = if cfg!(windows) { "LOCALAPPDATA" } else { "HOME" };
            tell(format_args!(
                "warning: the progress is neither read nor stored, because {home} names no folder; set {home} or XDG_STATE_HOME, or give --no-progress"
            ));
            return Self::default();
        };
        let file = folder.join(FILE);
        match read(&file) {
            Ok(lessons) => Self { file: Some(file), lessons },
            Err(error) => {
                tell(format_args!("warning: the progress is neither read nor stored: {error}"));
                Self::default()
            }
        }
    }

    /// The progress of a lesson with `scenes` scenes. Progress of a version with another number of scenes keeps only what
    /// fits.
    pub(super) fn of(&self, source: &Source, scenes: usize) -> Known {
        let known = self.lessons.get(&source.key).cloned();
        let mut known: Known = known.and_then(|known| serde_json::from_value(known).ok()).unwrap_or_default();
        known.answers.resize(scenes, State::Open);
        known.tries.resize(scenes, 0);
        known.scene = known.scene.min(scenes.saturating_sub(1));
        known
    }

    /// Stores the progress of a lesson. The progress of the others is that in the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn store(&mut self, key: &str, progress: &LessonProgress) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let known = Known {
            scene: progress.scene,
            answers: progress.answers.iter().map(|(answer, _)| State::of(*answer)).collect(),
            tries: progress.answers.iter().map(|(_, tries)| *tries).collect(),
            finished: progress.finished,
        };
        // Another session may have stored its progress meanwhile.
        self.lessons = read(file)?;
        self.lessons.insert(key.to_owned(), serde_json::to_value(known).unwrap_or_default());
        write(file, &self.lessons)
    }
}

impl Known {
    /// The scene at which the lesson goes on: the first one whose question is open, or else the scene after the last one
    /// that was shown. A finished lesson begins again.
    pub(super) fn resumes(&self, lesson: &Lesson) -> usize {
        let is_open = |at: &usize| {
            let asks = lesson.scenes[*at].question.is_some();
            asks && self.answers.get(*at) == Some(&State::Open)
        };
        let last = lesson.scenes.len().saturating_sub(1);
        match self.finished {
            true => (0..=last).find(is_open).unwrap_or(0),
            false => (0..=last).find(is_open).map_or(self.scene, |open| open.min(self.scene)),
        }
    }

    /// The state of each question.
    pub(super) fn answers(&self) -> Vec<Answered> {
        let answered = |state: &State| match state {
            State::Open => Answered::Open,
            State::Right => Answered::Right,
            State::Shown => Answered::Shown,
        };
        self.answers.iter().map(answered).collect()
    }

    /// The progress in words.
    pub(super) fn state(&self, lesson: &Lesson) -> String {
        let scenes = lesson.scenes.len();
        let asked = lesson.scenes.iter().filter(|scene| scene.question.is_some()).count();
        let right = self.answers.iter().filter(|state| **state == State::Right).count();
        let begun = self.scene > 0 || self.answers.iter().any(|state| *state != State::Open);
        match (self.finished, begun) {
            (true, _) => format!("done, {right} of {asked} right"),
            (false, true) => format!("scene {} of {scenes}, {right} of {asked} right", self.scene + 1),
            (false, false) => format!("{scenes} scenes, {asked} questions"),
        }
    }
}

impl State {
    fn of(answer: Answered) -> Self {
        match answer {
            Answered::Open => Self::Open,
            Answered::Right => Self::Right,
            Answered::Shown => Self::Shown,
        }
    }
}

/// The folder for the program's state; none if the environment names no home. `var` is an environment variable.
fn folder(var: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let var = |name: &str| var(name).filter(|path| path.is_absolute());
    let state = var("XDG_STATE_HOME").or_else(|| {
        if cfg!(windows) {
            return var("LOCALAPPDATA");
        }
        let inside = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/state" };
        var("HOME").map(|home| home.join(inside))
    })?;
    Some(state.join("llama-trace"))
}

/// The lessons in the file; none if there is no file.
fn read(file: &Path) -> Result<Map<String, Value>> {
    let wrong = |found: String| {
        Error::usage("this is not the program's file of progress")
            .in_file(file)
            .found(found)
            .next("move the file away, or give --no-progress")
    };
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let mut bytes = Vec::new();
    let is_file = opened.metadata().is_ok_and(|about| about.is_file());
    if !is_file {
        return Err(wrong("a folder, a pipe or a device".into()));
    }
    opened.take(MOST + 1).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > MOST {
        return Err(wrong(format!("more than {MOST} bytes")));
    }
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

/// Writes the file as a whole.
fn write(file: &Path, lessons: &Map<String, Value>) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::output("the progress cannot be stored").in_file(file).found(error).next("give --no-progress")
    };
    let folder = file.parent().unwrap_or(Path::new("."));
    let text = serde_json::to_string_pretty(lessons).unwrap_or_default() + "\n";
    let written = fs::create_dir_all(folder).and_then(|()| Scratch::new(folder, KIND)).and_then(|scratch| {
        let whole = scratch.path().join(FILE);
        let mut new = File::create_new(&whole)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(whole, file)
    });
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn source(key: &str) -> Source {
        Source {
            file: String::new(),
            slug: key.into(),
            key: key.into(),
            text: Cow::Borrowed(""),
            is_own: false,
        }
    }

    fn lesson() -> Lesson {
        let ask = "<!-- ask: number\nanswer: 1\n-->\nWhich?\n";
        let text = format!("# T\n<!-- scene: p0/tokens -->\n{ask}<!-- scene -->\n<!-- scene -->\n{ask}");
        Lesson::parse("t", &text).unwrap()
    }

    fn progress(scene: usize, answers: [Answered; 3], finished: bool) -> LessonProgress {
        LessonProgress {
            slug: "t".into(),
            scene,
            answers: answers.map(|answer| (answer, 2)).to_vec(),
            finished,
        }
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let at = |given: &[(&str, &str)]| {
            let var =
                |name: &str| given.iter().find(|(own, _)| *own == name).map(|(_, path)| PathBuf::from(path));
            folder(&var)
        };
        if cfg!(target_os = "linux") {
            let (state, home) = (("XDG_STATE_HOME", "/state"), ("HOME", "/me"));
            assert_eq!(at(&[state, home]), Some("/state/llama-trace".into()));
            assert_eq!(
                at(&[("XDG_STATE_HOME", "relative"), home]),
                Some("/me/.local/state/llama-trace".into())
            );
            assert_eq!(at(&[]), None);
        }
    }

    #[test]
    fn progress_is_stored_beside_that_of_other_sessions_and_read_back() {
        use Answered::{Open, Right, Shown};
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join(FILE);
        let opened = || Progress { file: Some(file.clone()), lessons: read(&file).unwrap() };
        let (mut first, mut second) = (opened(), opened());
        first.store("a", &progress(1, [Right, Open, Open], false)).unwrap();
        second.store("b", &progress(2, [Right, Open, Shown], true)).unwrap();
        let known = |key: &str| opened().of(&source(key), 3);
        let (a, b, lesson) = (known("a"), known("b"), lesson());
        assert_eq!((a.answers(), a.resumes(&lesson)), (vec![Right, Open, Open], 1));
        assert_eq!((b.answers(), b.resumes(&lesson)), (vec![Right, Open, Shown], 0));
        assert_eq!(a.state(&lesson), "scene 2 of 3, 1 of 2 right");
        assert_eq!(b.state(&lesson), "done, 1 of 2 right");
        assert_eq!(known("c").state(&lesson), "3 scenes, 2 questions");
        // The lesson has become shorter.
        assert_eq!(opened().of(&source("b"), 1).resumes(&lesson), 0);
        let left = fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "temporary folders are removed");
    }

    #[test]
    fn a_lesson_goes_on_at_its_first_open_question() {
        use Answered::{Open, Right, Shown};
        let resumes = |scene, answers, finished| {
            let mut stored = Progress::default();
            let folder = tempfile::tempdir().unwrap();
            stored.file = Some(folder.path().join(FILE));
            stored.store("t", &progress(scene, answers, finished)).unwrap();
            stored.of(&source("t"), 3).resumes(&lesson())
        };
        assert_eq!(resumes(2, [Open, Open, Open], false), 0);
        assert_eq!(resumes(1, [Shown, Open, Open], false), 1);
        assert_eq!(resumes(2, [Right, Open, Right], false), 2);
        assert_eq!(resumes(2, [Right, Open, Right], true), 0);
    }

    #[test]
    fn a_file_of_another_kind_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        for text in ["[1]", "{", "\u{0}"] {
            fs::write(&file, text).unwrap();
            let mut stored = Progress { file: Some(file.clone()), lessons: Map::new() };
            let error = stored.store("t", &progress(0, [Answered::Open; 3], false)).unwrap_err();
            assert!(error.to_string().contains("not the program's file"), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        // Values of another version are ignored.
        fs::write(&file, r#"{"t": {"scene": -1}, "u": 3}"#).unwrap();
        let stored = Progress { file: Some(file.clone()), lessons: read(&file).unwrap() };
        assert_eq!(stored.of(&source("t"), 3).scene, 0);
    }
}
