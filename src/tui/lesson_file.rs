//! The file of `--lesson`, to which the key `W` appends the screen as a scene.

use std::path::{Path, PathBuf};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::{Lesson, Scene};

use super::scene_text::SceneText;
use super::text_file::TextFile;

const FILE: TextFile = TextFile { content: "the lesson", name: "a lesson", option: "--lesson FILE" };

/// The file of a lesson that is being written.
#[derive(Debug)]
pub struct LessonFile {
    path: PathBuf,
    /// The text as it was read or written last; none if the file does not exist yet.
    text: Option<String>,
}

impl LessonFile {
    /// The lesson in the file at `path`. The file need not exist; the first scene creates it.
    ///
    /// # Errors
    /// [`Error::Usage`] with the line that is wrong, or with the reason why the file cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let text = FILE.read(path)?;
        let file = Self { path: path.to_owned(), text };
        file.check()?;
        Ok(file)
    }

    /// Checks that the text is a lesson, or the beginning of one.
    fn check(&self) -> Result<()> {
        let Some(text) = self.text.as_deref().filter(|text| text.contains("<!-- scene")) else {
            return Ok(());
        };
        match Lesson::parse(&self.slug(), text) {
            Ok(_) => Ok(()),
            Err(problems) => {
                let line = problems.first().map_or(1, |problem| problem.line);
                let what = problems.into_iter().next().map_or_else(String::new, |problem| problem.what);
                Err(Error::usage(what).at(format!("{}:{line}", self.path.display())))
            }
        }
    }

    fn slug(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The last scene, whose settings the next one inherits.
    pub(super) fn last(&self) -> Option<Scene> {
        Lesson::parse(&self.slug(), self.text.as_deref()?).ok()?.scenes.pop()
    }

    /// Appends a scene and returns its number, counted from 1.
    ///
    /// # Errors
    /// [`Error::Usage`] if another program changed the file meanwhile, or if the lesson would set another run than that
    /// of the scene; [`Error::Output`] if it cannot be written.
    pub(super) fn append(&mut self, scene: &SceneText) -> Result<usize> {
        let now = FILE.read(&self.path)?;
        if now != self.text {
            self.text = now;
            self.check()?;
            return Err(Error::usage("another program changed the lesson meanwhile")
                .in_file(&self.path)
                .next("W again appends the scene to the lesson as it is now"));
        }
        let mut text = match &self.text {
            Some(text) => text.clone(),
            None => format!("# {}\n", self.slug()),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        if !text.ends_with("\n\n") {
            text.push('\n');
        }
        let line = text.lines().count() + 1;
        text.push_str(&scene.text);
        let count = self.count(&text, line, scene)?;
        FILE.write(&self.path, &text)?;
        self.text = Some(text);
        Ok(count)
    }

    /// The number of scenes in `text`, whose last scene must be the appended one, at `line`.
    fn count(&self, text: &str, line: usize, scene: &SceneText) -> Result<usize> {
        let wrong = |what: String, line: usize| {
            Err(Error::usage(format!("nothing was appended: {what}"))
                .at(format!("{}:{line}", self.path.display())))
        };
        match Lesson::parse(&self.slug(), text) {
            Ok(lesson) => match lesson.scenes.last() {
                Some(last) if last.line == line && last.run == scene.run => Ok(lesson.scenes.len()),
                _ => wrong("the lesson would not show this screen; is a code block open?".to_owned(), line),
            },
            Err(problems) => {
                let first = problems.into_iter().next();
                first.map_or_else(|| wrong(String::new(), line), |first| wrong(first.what, first.line))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::lesson::RunSetting;
    use std::fs;

    const SCENE: &str = "<!-- scene: p0/L0/xq[t=1,h=0,c=0] -->\n\n";

    fn scene() -> SceneText {
        SceneText { text: SCENE.to_owned(), run: RunSetting::default() }
    }

    #[test]
    fn scenes_are_appended_and_a_new_file_gets_a_title() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my-lesson.md");
        let mut file = LessonFile::open(&path).unwrap();
        assert_eq!(file.last(), None);
        assert_eq!(file.append(&scene()).unwrap(), 1);
        assert_eq!(file.append(&scene()).unwrap(), 2);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("# my-lesson\n\n{SCENE}{SCENE}"));
        assert_eq!(file.last().unwrap().screen.at, "p0/L0/xq[t=1,h=0,c=0]");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_changed_meanwhile_is_refused_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lesson.md");
        let mut file = LessonFile::open(&path).unwrap();
        file.append(&scene()).unwrap();
        let mine = format!("{}Words of the teacher.\n", fs::read_to_string(&path).unwrap());
        fs::write(&path, &mine).unwrap();
        let error = file.append(&scene()).unwrap_err().to_string();
        assert!(error.contains("another program changed the lesson"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), mine);
        assert_eq!(file.append(&scene()).unwrap(), 2);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{mine}\n{SCENE}"));
    }

    #[test]
    fn a_scene_that_the_lesson_would_show_otherwise_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lesson.md");
        let bf16 = RunSetting { precision: Some("bf16".into()), ..RunSetting::default() };
        let wrong = [
            ("# A\n", SceneText { run: bf16, ..scene() }, "the lesson would not show this screen"),
            ("# A\n```text\n", scene(), "the lesson would not show this screen"),
            (
                "# A\n",
                SceneText { text: SCENE.replace(" -->", "\npasses: 65\n-->"), ..scene() },
                "passes is a number from 1 to 64",
            ),
        ];
        for (before, scene, told) in wrong {
            fs::write(&path, before).unwrap();
            let error = LessonFile::open(&path).unwrap().append(&scene).unwrap_err().to_string();
            assert!(error.contains("nothing was appended") && error.contains(told), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
        }
    }

    #[test]
    fn only_a_regular_file_with_a_lesson_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let told = |path: &Path| LessonFile::open(path).unwrap_err().to_string();
        assert!(told(folder.path()).contains("not a regular file"));
        let path = folder.path().join("lesson.md");
        fs::write(&path, "# A\n\n<!-- scene: p0/L0/xq\nwarmth: 3\n-->\n").unwrap();
        assert!(told(&path).contains("lesson.md:"), "{}", told(&path));
    }
}
