//! Reads a lesson's file.

use super::comments::{Comment, Part, Problem, clean, parts};
use super::expression::{Place, Position};
use super::question_text::{question, trimmed};
use super::scene_settings::Settings;
use super::{Lesson, Scene};
use crate::trace::Step;

/// Largest size of a lesson's file in bytes.
pub const LARGEST: usize = 1 << 20;
/// Largest number of scenes.
const MOST_SCENES: usize = 256;

/// A scene whose text is being collected.
struct Open {
    line: usize,
    settings: Settings,
    words: Vec<(usize, String)>,
    ask: Option<(Comment, Vec<(usize, String)>)>,
}

impl Lesson {
    /// Parses the text of the file `slug.md`.
    ///
    /// # Errors
    /// The mistakes in the text, at least one, in the order of their lines.
    pub fn parse(slug: &str, text: &str) -> Result<Self, Vec<Problem>> {
        let one = |what: String| vec![Problem { line: 1, what }];
        if text.len() > LARGEST {
            return Err(one(format!("a lesson has at most {LARGEST} bytes, not {}", text.len())));
        }
        let text = clean(text);
        let title = text.lines().next().unwrap_or_default();
        let Some(title) = title.strip_prefix("# ").map(str::trim).filter(|title| !title.is_empty()) else {
            return Err(one("a lesson begins with its title: `# A title`".into()));
        };
        let mut problems = Vec::new();
        let mut reader = Reader {
            scenes: Vec::new(),
            open: None,
            header: Settings::default(),
            step: None,
            before: Vec::new(),
        };
        for (line, part) in parts(&text, &mut problems) {
            match part {
                // The title.
                Part::Text(_) if line == 1 => {}
                Part::Text(text) => reader.text(line, text),
                Part::Settings(comment) => reader.comment(comment, &mut problems),
            }
        }
        reader.end(&mut problems);
        let scenes = reader.scenes;
        if scenes.len() > MOST_SCENES {
            let what = format!("a lesson has at most {MOST_SCENES} scenes");
            problems.push(Problem { line: scenes[MOST_SCENES].line, what });
        }
        if problems.is_empty() {
            return Ok(Self { slug: slug.to_owned(), title: title.to_owned(), scenes });
        }
        problems.sort_by_key(|problem| problem.line);
        Err(problems)
    }
}

/// Collects the scenes of a file.
struct Reader {
    scenes: Vec<Scene>,
    open: Option<Open>,
    /// The settings before the first scene.
    header: Settings,
    /// The first of the steps in the header.
    step: Option<Step>,
    /// The text before the first scene.
    before: Vec<(usize, String)>,
}

impl Reader {
    fn text(&mut self, line: usize, text: String) {
        let lines = match &mut self.open {
            None => &mut self.before,
            Some(Open { ask: Some((_, lines)), .. }) => lines,
            Some(open) => &mut open.words,
        };
        lines.push((line, text));
    }

    fn comment(&mut self, comment: Comment, problems: &mut Vec<Problem>) {
        let mut problem = |line, what: String| problems.push(Problem { line, what });
        match comment.key.as_str() {
            "scene" => self.scene(&comment, problems),
            "ask" => {
                self.begin();
                match &mut self.open {
                    Some(Open { ask: Some(_), .. }) => {
                        problem(comment.line, "the scene has a question already: begin another scene".into());
                    }
                    Some(open) => open.ask = Some((comment, Vec::new())),
                    None => {}
                }
            }
            key if self.open.is_some() => {
                let what = format!(
                    "`{key}` as a comment of its own stands before the first scene; in a scene, write it into the scene's comment"
                );
                problem(comment.line, what);
            }
            key => {
                if let Some((line, text)) = comment.settings.first() {
                    problem(
                        *line,
                        format!("`{}`: a setting before the first scene has one line", text.trim()),
                    );
                }
                if key == "steps" {
                    let names = comment.value.split(',').map(str::trim);
                    let mut steps = names.map(|name| Step::from_name(name).ok_or(name));
                    match steps.clone().find_map(Result::err) {
                        Some(name) => problem(comment.line, format!("there is no step `{name}`")),
                        None => self.step = steps.next().and_then(Result::ok),
                    }
                } else if comment.value.is_empty() {
                    problem(comment.line, format!("`{key}` has no value"));
                } else if let Err(what) = self.header.set_run(key, &comment.value) {
                    problem(comment.line, what);
                }
            }
        }
    }

    /// Begins the scene of the text before the first one, at the first of the steps in the header.
    fn begin(&mut self) {
        if self.open.is_some() {
            return;
        }
        let step = self.step.or_else(|| Step::from_name("tokens"));
        let in_layer = step.is_some_and(|step| step.stage().in_layer());
        let layer = in_layer.then(|| Position::number(0));
        let mut settings = self.header.clone();
        settings.place = Place { pass: Some(0), layer, step, ..Place::default() };
        settings.screen.at = settings.place.to_string();
        let words = std::mem::take(&mut self.before);
        let line = words.iter().find(|(_, text)| !text.trim().is_empty()).map_or(1, |(line, _)| *line);
        self.open = Some(Open { line, settings, words, ask: None });
    }

    fn scene(&mut self, comment: &Comment, problems: &mut Vec<Problem>) {
        if self.open.is_none() && self.before.iter().any(|(_, text)| !text.trim().is_empty()) {
            self.begin();
        }
        let mut words = Vec::new();
        let settings = match &mut self.open {
            Some(open) => {
                if open.ask.is_none() {
                    words = open.words.split_off(heading(&open.words));
                }
                open.settings.clone()
            }
            None => {
                // The first scene is complete without a pass.
                let mut settings = self.header.clone();
                settings.place.pass = Some(0);
                settings
            }
        };
        let next = settings.next((comment.line, &comment.value), &comment.settings, problems);
        self.close(problems);
        self.open = Some(Open { line: comment.line, settings: next, words, ask: None });
    }

    fn close(&mut self, problems: &mut Vec<Problem>) {
        let Some(Open { line, settings, words, ask }) = self.open.take() else { return };
        let lines: Vec<&str> = words.iter().map(|(_, text)| text.as_str()).collect();
        let step = settings.place.step;
        let question = ask.and_then(|(comment, text)| question(&comment, step, &text, problems));
        // A file with more scenes is refused. The rest of them are not kept.
        if self.scenes.len() <= MOST_SCENES {
            let (run, screen) = (settings.run, settings.screen);
            self.scenes.push(Scene { line, run, screen, words: trimmed(&lines), question });
        }
    }

    fn end(&mut self, problems: &mut Vec<Problem>) {
        self.begin();
        self.close(problems);
    }
}

/// The line at which the headings at the end of a scene begin. They belong to the next scene.
fn heading(words: &[(usize, String)]) -> usize {
    let is_text = |(_, line): &&(usize, String)| !line.trim().is_empty() && !line.starts_with('#');
    words.iter().rposition(|line| is_text(&line)).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::super::{Chosen, CompareSetting, Kind, PromptSetting, Right, RunSetting};
    use super::*;

    fn scenes(text: &str) -> Vec<Scene> {
        Lesson::parse("t", text).unwrap_or_else(|problems| panic!("{problems:?}")).scenes
    }

    /// The problems, each as `LINE: text`.
    fn problems(text: &str) -> Vec<String> {
        let problems = Lesson::parse("t", text).expect_err(text);
        problems.iter().map(|problem| format!("{}: {}", problem.line, problem.what)).collect()
    }

    const WHOLE: &str = "# A title\n<!-- steps: softmax -->\n<!-- prompt: The fox -->\n<!-- passes: 2 -->\n\n\
        <!-- scene: p0/L{induction}/softmax[h={induction},t=last] -->\n## Look\n\nOne.\n\n\
        <!-- scene: [k=3]\nview: layers\nhold: h\ncompare: h=1\nstrip: surprise\nscale: largest\npanels: tensor notes\ntry: --temperature 1.5\n-->\nTwo.\n\n## Three\n\n\
        <!-- scene: p1/logits\nprompt: A\nids: 1 403\nedit: L1/softmax[h=0] = 0\ncompare: plain\nsampling: --temperature 1 --seed 7\nprecision: bf16\n-->\nThree.\n\
        <!-- ask: token\nanswer: t=0, v=p1/logits[t=0].argmax\nhint: * | Elsewhere.\n-->\nWhich?\n\n<details><summary>Answer</summary>\n\nThis.\n\n</details>\n\nAfter.\n\
        <!-- scene -->\n<!-- scene: probs\nedit: none\ncompare: none\nview: default\n-->\n";

    #[test]
    fn a_scene_inherits_what_it_does_not_set() {
        let scenes = scenes(WHOLE);
        let at: Vec<_> = scenes.iter().map(|scene| scene.screen.at.as_str()).collect();
        assert_eq!(
            at,
            [
                "p0/L{induction}/softmax[h={induction},t=last]",
                "p0/L{induction}/softmax[k=3,h={induction},t=last]",
                "p1/logits",
                "p1/logits",
                "p1/probs"
            ]
        );
        let words: Vec<_> = scenes.iter().map(|scene| scene.words.as_str()).collect();
        assert_eq!(words, ["## Look\n\nOne.", "Two.", "## Three\n\nThree.", "", ""]);
        let run = &scenes[0].run;
        assert_eq!((&run.prompts[..], run.passes), (&[PromptSetting::Text("The fox".into())][..], 2));
        assert_eq!(scenes[1].run, scenes[0].run);
        let view = |inherited| Some(Chosen { value: "layers".to_owned(), inherited });
        assert_eq!((&scenes[1].screen.view, &scenes[2].screen.view), (&view(false), &view(true)));
        assert_eq!(scenes[2].screen.hold, Some(Chosen { value: 'h', inherited: true }));
        assert_eq!(scenes[1].screen.compare, Some(CompareSetting::Place("h=1".into())));
        assert_eq!(scenes[3].screen.compare, Some(CompareSetting::Plain));
        assert_eq!((&scenes[4].screen.compare, &scenes[4].screen.view), (&None, &None));
        assert_eq!(scenes[4].screen.panels, Some(vec!["tensor".into(), "notes".into()]));
        let wanted = RunSetting {
            prompts: vec![PromptSetting::Text("A".into()), PromptSetting::Ids(vec![1, 403])],
            passes: 2,
            sampling: ["--temperature", "1", "--seed", "7"].map(str::to_owned).to_vec(),
            precision: Some("bf16".into()),
            edits: vec!["L1/softmax[h=0] = 0".into()],
        };
        assert_eq!((&scenes[2].run, &scenes[3].run), (&wanted, &wanted));
        assert!(scenes[4].run.edits.is_empty());
        let question = scenes[2].question.as_ref().unwrap();
        assert_eq!(
            (question.kind, question.hides_cells, question.text.as_str()),
            (Kind::Token, true, "Which?")
        );
        assert_eq!(question.explanation, "This.\n\n\n\nAfter.".replace("\n\n\n\n", "\n\n\n"));
        assert_eq!(
            question.answer,
            Right::Indices(vec![('t', "0".into()), ('v', "p1/logits[t=0].argmax".into())])
        );
        let lines: Vec<_> = scenes.iter().map(|scene| scene.line).collect();
        assert_eq!((lines[0], lines[1], question.line), (6, 11, 33));
    }

    #[test]
    fn the_text_before_the_first_scene_is_a_scene() {
        let scenes = scenes(
            "# T\n<!-- steps: softmax, scores -->\n\nWhat.\n\n## Look\n\n<!-- scene: p0/tokens -->\nHere.\n",
        );
        assert_eq!(scenes.len(), 2);
        assert_eq!((scenes[0].screen.at.as_str(), scenes[0].words.as_str()), ("p0/L0/softmax", "What."));
        assert_eq!(scenes[1].words, "## Look\n\nHere.");
        let scenes = tests::scenes("# T\n\nOnly words.\n");
        assert_eq!((scenes.len(), scenes[0].screen.at.as_str(), scenes[0].line), (1, "p0/tokens", 3));
    }

    #[test]
    fn each_mistake_has_its_line() {
        let scene = |settings: &str| format!("# T\n<!-- scene: p0/L0/softmax\n{settings}\n-->\n");
        let ask = |text: &str| format!("# T\n<!-- scene: p0/L0/softmax -->\n<!-- ask: {text}\n-->\nWhich?\n");
        for (text, expected) in [
            (String::new(), "1: a lesson begins with its title"),
            ("no title\n".into(), "1: a lesson begins with its title"),
            ("# T\n<!-- scene -->\n".into(), "2: the first scene names no stage"),
            (
                "# T\n<!-- scene: p0/L0/softmaxx -->\n".into(),
                "2: there is no stage `softmaxx`; did you mean softmax",
            ),
            ("# T\n<!-- scene: L0/softmax[z=1] -->\n".into(), "2: softmax has no axis `z`"),
            ("# T\n<!-- scene: L0/softmax[h={p0/x}] -->\n".into(), "2: there is no stage `x`"),
            ("# T\n<!-- scene: L0/wq[o=1] -->\n".into(), "2: wq is a weight"),
            ("# T\n<!-- scene: r1:L0/xq -->\n".into(), "2: `r1:` is the name of a run"),
            ("# T\n\n<!-- scene: p0/tokens\nview: list\n".into(), "3: the comment has no end"),
            ("# T\n<!-- a note\n".into(), "2: the comment has no end"),
            ("# T\n<!-- scene: p0/tokens\n<!-- scene: p0/logits -->\n".into(), "3: `<!--` in a comment"),
            ("# T\n<!-- scene: p0/tokens --> text\n".into(), "2: `text` follows the comment"),
            ("# T\n<!-- scen: p0/tokens -->\n".into(), "2: there is no comment `scen`; did you mean scene"),
            (
                "# T\n<!-- scene: p0/tokens -->\n<!-- passes: 2 -->\n".into(),
                "3: `passes` as a comment of its own",
            ),
            ("# T\n<!-- steps: xqq -->\n".into(), "2: there is no step `xqq`"),
            ("# T\n<!-- prompt: -->\n".into(), "2: `prompt` has no value"),
            (scene("viev: list"), "3: there is no setting `viev`; did you mean view"),
            (scene("view"), "3: `view` is no setting"),
            (scene("view:"), "3: `view` has no value"),
            (scene("view: list\nscale: slice\nview: list"), "5: `view` is set twice"),
            (scene("passes: 0"), "3: passes is a number from 1 to 64"),
            (scene("passes: 65"), "3: passes is a number from 1 to 64"),
            (scene("precision: f64"), "3: there is no precision `f64`"),
            (scene("strip: none"), "3: there is no strip `none`"),
            (scene("panels: tensor note"), "3: there is no panel `note`; did you mean notes"),
            (scene("hold: v"), "3: `v` is no axis of the scene's stage: its letters are h, t, k"),
            (scene("sampling: --temperature hot"), "3: temperature is 0 or more, not `hot`"),
            (scene("try: warmth 1"), "3: `warmth` is not an option"),
            (scene("compare: nothing"), "3: there is no stage `nothing`"),
            (scene("ids: 1 two"), "3: `two` is no token id"),
            (scene("edit: L0/softmax"), "3: `L0/softmax` has no operation"),
            (scene("edit: L0/attn_heads = values.npy"), "3: `L0/attn_heads = values.npy` reads a file"),
            (scene("edit: L0/attn_heads = mean(prompts.txt)"), "reads a file"),
            (scene("edit: L0/attn_heads = other.trace:L0/attn_heads"), "reads a file"),
            (ask("riddle\nanswer: 1"), "3: there is no kind of question `riddle`"),
            (ask("number"), "3: the question has no `answer:`"),
            (ask("number\nanswer: 1 +"), "4: `+` is left over"),
            (ask("number\nanswer: 1\nanswer: 2"), "5: `answer` is set twice"),
            (ask("number\nanswer: 1\ntolerance: -1"), "5: a tolerance is a number over 0"),
            (ask("key\nanswer: k=1\ntolerance: 1"), "5: only a number has a tolerance"),
            (ask("key\nanswer: t=1"), "4: a key is asked for"),
            (ask("key\nanswer: 3"), "4: `3` is no index"),
            (ask("key\nanswer: k=1,k=2"), "4: `k` has an index already"),
            (ask("key\nanswer: v=1"), "4: `v` is no axis of the scene's stage"),
            (ask("layer\nanswer: t=1"), "4: a layer is asked for"),
            (ask("number\nanswer: 1\nhint: 2"), "5: a hint is `ANSWER | text`"),
            (ask("number\nanswer: 1\nhint: 2 | A\nhint: 2 | B"), "6: there is a hint to this answer already"),
            (ask("number\nanswer: 1\nhide: all"), "5: `hide` is cells or none"),
            (ask("number\nanswer: 1\nhelp: all"), "5: there is no setting of a question `help`"),
            (ask("choice\nanswer: 1"), "3: a choice has 2 to 9 choices, not 0"),
            (ask("stage\nanswer: nowhere"), "4: there is no stage `nowhere`"),
            ("# T\n<!-- ask: number\nanswer: 1\n-->\n".into(), "2: the question has no text"),
            (
                ask("number\nanswer: 1") + "<!-- ask: number\nanswer: 1\n-->\nWhich?\n",
                "7: the scene has a question already",
            ),
        ] {
            let found = problems(&text);
            assert!(
                found.iter().any(|problem| problem.contains(expected)),
                "{text}\n`{expected}` is not in {found:?}"
            );
            assert_eq!(found.len(), 1, "{text}\n{found:?}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let many = |text: &str, count: usize| (0..count).map(|_| text).collect::<String>();
        let scene = |settings: &str| format!("# T\n<!-- scene: p0/L0/softmax\n{settings}-->\n");
        assert!(problems(&format!("# T\n{}", " ".repeat(LARGEST)))[0].contains("1048576 bytes"));
        assert!(
            problems(&format!("# T\n{}", many("<!-- scene: p0/tokens -->\n", 257)))[0]
                .contains("258: a lesson has at most 256")
        );
        assert_eq!(scenes(&format!("# T\n{}", many("<!-- scene: p0/tokens -->\n", 256))).len(), 256);
        assert!(problems(&scene(&many("prompt: a\n", 65)))[0].contains("at most 64 prompts"));
        assert!(problems(&scene(&many("edit: L0/ffn off\n", 65)))[0].contains("at most 64 edits"));
        assert!(
            problems(&scene(&format!("prompt: {}\n", many("é", 2001))))[0]
                .contains("2000 characters, not 2001")
        );
        assert!(problems(&scene(&format!("ids: {}\n", many("1 ", 2001))))[0].contains("not 2001"));
        let deep = format!(
            "# T\n<!-- scene: p0/L0/softmax[h={}0{}] -->\n",
            "{p0/tokens[t=".repeat(40),
            "]}".repeat(40)
        );
        assert!(problems(&deep)[0].contains("nested more than 32 deep"));
    }

    #[test]
    fn line_ends_marks_and_control_characters_do_no_harm() {
        let plain = scenes(WHOLE);
        let strange = format!(
            "\u{feff}{}",
            WHOLE.replace('\n', "\r\n").replace("Two.", "T\u{1b}\u{202e}w\0o\u{9b}.\u{7f}")
        );
        assert_eq!(scenes(&strange), plain);
    }

    #[test]
    fn comments_in_fences_and_notes_of_authors_are_text() {
        let text = "# T\n<!-- scene: p0/tokens -->\n```\n<!-- scene: nothing -->\n```\n<!-- TODO: more\n<b> -->\nEnd.\n";
        let scenes = scenes(text);
        assert_eq!(scenes.len(), 1);
        assert!(
            scenes[0].words.contains("<!-- scene: nothing -->") && scenes[0].words.contains("TODO: more")
        );
    }

    #[test]
    fn every_beginning_of_a_lesson_is_read_or_refused() {
        for end in (0..WHOLE.len()).filter(|end| WHOLE.is_char_boundary(*end)) {
            if let Err(problems) = Lesson::parse("t", &WHOLE[..end]) {
                assert!(!problems.is_empty() && problems.iter().all(|problem| problem.line > 0));
            }
        }
    }
}
