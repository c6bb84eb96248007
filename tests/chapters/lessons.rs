//! Lessons: every scene and every answer has its values, on the built-in model and on others; broken lessons are
//! refused with their line; printed pages hold no markup of a stranger.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::common::{data, fixture};
use llama_trace::chapters::{CHAPTERS, TOUR};
use llama_trace::lesson::{Expression, Lesson};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

/// Runs `llama-trace learn` with its state in `folder`.
fn learn(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llama-trace"));
    command.env("CUDA_VISIBLE_DEVICES", "").env("XDG_STATE_HOME", folder).current_dir(folder);
    command.arg("learn").args(words).stdin(std::process::Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code, standard output and standard error.
fn told(output: &Output) -> (i32, String, String) {
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Writes a lesson into a new folder.
fn lesson(markdown: &str) -> (tempfile::TempDir, &'static str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("own.md"), markdown).unwrap();
    (folder, "own.md")
}

#[test]
fn every_scene_and_every_answer_of_the_lessons_has_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, error) = told(&learn(folder.path(), &["--check"]));
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    assert_eq!(out.lines().count(), CHAPTERS.len() + 1, "{out}");
    let lessons =
        CHAPTERS.iter().chain([&TOUR]).map(|chapter| Lesson::parse(chapter.slug, chapter.text).unwrap());
    let questions = lessons.flat_map(|lesson| lesson.scenes).filter_map(|scene| scene.question).count();
    assert!(questions >= 120, "{questions} questions");
}

/// A list of the vocabulary is sorted by size, so it shows which of the named tokens is the likeliest.
#[test]
fn a_choice_among_tokens_hides_the_list_of_tokens() {
    let mut found = 0;
    for chapter in CHAPTERS.iter().chain([&TOUR]) {
        for scene in Lesson::parse(chapter.slug, chapter.text).unwrap().scenes {
            let Some(question) = scene.question else { continue };
            let lists = ["logits", "probs", "nucleus"].iter().any(|stage| scene.screen.at.contains(stage));
            let of_tokens = |choice: &String| choice.starts_with('`');
            if lists && !question.choices.is_empty() && question.choices.iter().all(of_tokens) {
                assert!(question.hides_cells, "{}:{}", chapter.slug, question.line);
                found += 1;
            }
        }
    }
    assert!(found > 1, "{found}");
}

/// The built-in model with the two norms that make it a Qwen3 model. All their weights are 1.
fn qwen3() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = fixture("builtin");
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config["model_type"] = json!("qwen3");
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    let width = config["hidden_size"].as_u64().unwrap() / config["num_attention_heads"].as_u64().unwrap();
    config["head_dim"] = json!(width);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let ones: Vec<u8> = (0..width).flat_map(|_| 1_f32.to_le_bytes()).collect();
    let mut all: BTreeMap<String, TensorView<'_>> =
        tensors.iter().map(|(name, view)| (name.to_owned(), view)).collect();
    for layer in 0..config["num_hidden_layers"].as_u64().unwrap() {
        for norm in ["q_norm", "k_norm"] {
            let view = TensorView::new(Dtype::F32, vec![width as usize], &ones).unwrap();
            all.insert(format!("model.layers.{layer}.self_attn.{norm}.weight"), view);
        }
    }
    safetensors::serialize_to_file(all, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

#[test]
fn lessons_run_on_a_model_of_another_family() {
    let (folder, model) = (tempfile::tempdir().unwrap(), qwen3());
    let (_, out, error) =
        told(&learn(folder.path(), &["--check", "--model", model.path().to_str().unwrap()]));
    assert_eq!(
        out.lines().filter(|line| line.contains(" scenes, ")).count(),
        CHAPTERS.len() + 1,
        "{out}{error}"
    );
    // It has the built-in model's sizes, so only scenes that name heads are left out.
    let wrong: Vec<&str> = out.lines().filter(|line| !line.contains(" scenes, ")).collect();
    assert_eq!(wrong, Vec::<&str>::new());
    assert!(out.contains("left out because they name heads of the built-in model"), "{out}");
}

/// The sizes are smaller than the built-in model's. Scenes that name a missing place are left out, each with its reason.
#[test]
fn lessons_run_on_a_smaller_model() {
    for name in ["stories260K/stories260K.bin", "stories260K/stories260K.gguf"] {
        let Some(model) = data(name) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let (code, out, error) =
            told(&learn(folder.path(), &["--check", "--model", model.to_str().unwrap()]));
        assert_eq!(code, 0, "{out}{error}");
        assert_eq!(
            out.lines().filter(|line| line.ends_with(" 0 problems")).count(),
            CHAPTERS.len() + 1,
            "{out}"
        );
        let others: Vec<&str> = out.lines().filter(|line| !line.ends_with(" 0 problems")).collect();
        let is_reason = |line: &&str| {
            line.contains(".md:") && line.contains(": left out: ") && line.contains("past the last of")
        };
        assert_eq!(others.iter().find(|line| !is_reason(line)), None);
        // Most scenes fit any model.
        assert!(others.len() < 30, "{out}");
    }
}

/// A lesson that fits any model with two layers, four heads and a vocabulary of 40: it names tokens by their ids.
const ANY: &str = "# Any model\n<!-- scene: p0/L{config/layers - 1}/softmax[h=1,t=last]\nids: 1 5 9 7 9\npasses: 2\n-->\nWords.\n\
    <!-- ask: key\nanswer: k=p0/L1/softmax[h=1,t=last].argmax\nhint: k=p0/L1/softmax[h=1,t=last].arg2 | The second.\nhint: * | Look.\n-->\nWhich key?\n\n\
    <details><summary>Answer</summary>\n\nThat one.\n\n</details>\n\
    <!-- scene: p1/logits[v={p1/logits[t=0].argmax}] -->\n\
    <!-- ask: number\nanswer: p1/logits[t=0].max\ntolerance: 1%\n-->\nHow much?\n\
    <!-- scene: p0/L0/xq[h=0]\nids: 1 2\nids: 3 4 5\nview: default\n-->\n\
    <!-- ask: shape\nanswer: p0/L0/xq.shape\nhint: s1/p0/L0/xq.shape | That is the second sequence.\n-->\nWhich shape?\n\
    <!-- scene: p0/L0/ffn_down\nids: 1 2 3\nedit: L0/attn_heads[h=0] = 0\ncompare: plain\nprecision: bf16\n-->\n\
    <!-- ask: choice\nanswer: if(p0/L0/ffn_down.count = 3 * config/D, 2, 1)\n-->\nHow many?\n\n1. Few\n2. Many\n";

#[test]
fn a_lesson_runs_on_files_of_other_formats() {
    let (folder, name) = lesson(ANY);
    for model in [
        "formats/llama2c/v0.bin",
        "formats/gguf/f16.gguf",
        "formats/gguf/qwen3.gguf",
        "golden/qwen3",
        "golden/gqa",
    ] {
        let path = fixture(model);
        let (code, out, error) =
            told(&learn(folder.path(), &["--check", name, "--model", path.to_str().unwrap()]));
        assert_eq!(
            (code, out.as_str()),
            (0, "own.md: 4 scenes, 4 questions, 0 problems\n"),
            "{model}: {out}{error}"
        );
    }
}

#[test]
fn problems_of_a_lesson_are_named_with_their_line() {
    let scene = |comment: &str| format!("# T\n\n<!-- scene: {comment} -->\nWords.\n");
    let ask = |ask: &str| {
        scene("p0/L1/softmax[h=0,t=0]") + &format!("<!-- ask: {ask}\n-->\nWhich?\n\n1. A\n2. B\n")
    };
    for (markdown, expected) in [
        (String::new(), "own.md:1: a lesson begins with its title"),
        (scene("p0/L1/softmaxx"), "own.md:3: there is no stage `softmaxx`"),
        (scene("p0/L9/softmax"), "own.md:3: there is no p0/L9/softmax in this run"),
        (scene("p3/L1/softmax"), "own.md:3: there is no p3/L1/softmax in this run"),
        (scene("p0/L1/softmax[h=9]"), "own.md:3: 9 is past the last of 4"),
        (scene("p0/L1/softmax\nview: heatmaps\n"), "own.md:3: "),
        (scene("p0/tokens\nview: rope\n"), "own.md:3: "),
        (scene("p0/tokens\nview: rope\npasses: many\n"), "own.md:5: passes is a number from 1 to 64"),
        (scene("p0/tokens\nedit: L9/ffn off\n"), "own.md:3: "),
        (scene("p0/tokens\nids: 99999\n"), "own.md:3: "),
        (ask("number\nanswer: ln(0)"), "own.md:5: the answer has no value: the value is -inf"),
        (ask("key\nanswer: k=99"), "own.md:5: the answer has no value: 99 is past the last of 5"),
        (ask("choice\nanswer: 3"), "own.md:5: the answer has no value: the choices are 1 to 2"),
        (ask("key\nanswer: k=0\nhint: k={1 - 1} | No."), "own.md:5: hint 1 is about the right answer"),
        (
            ask("number\nanswer: 100\ntolerance: 2%\nhint: 101 | No."),
            "own.md:5: hint 1 is about the right answer",
        ),
    ] {
        let (folder, name) = lesson(&markdown);
        let (code, out, error) = told(&learn(folder.path(), &["--check", name]));
        assert!(out.starts_with(expected), "{markdown}\n{expected}\n{out}{error}");
        assert!(
            code == 3 && error.contains("where: own.md:") && out.ends_with("1 problem\n"),
            "{markdown}\n{out}{error}"
        );
    }
    let (folder, name) =
        lesson("# T\n<!-- scene: p0/tokens\nviev: list\n-->\n<!-- ask: riddle -->\nWhich?\n");
    let (code, out, error) = told(&learn(folder.path(), &[name, "--export", "page.html"]));
    assert_eq!((code, out.as_str()), (3, ""));
    assert!(
        error.contains("did you mean view?") && error.contains("own.md:3") && error.contains("1 more"),
        "{error}"
    );
}

#[test]
fn files_that_are_no_lessons_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bytes.md"), b"# T\n\n\xff\n").unwrap();
    fs::write(folder.path().join("large.md"), vec![b'#'; (1 << 20) + 1]).unwrap();
    fs::create_dir(folder.path().join("folder.md")).unwrap();
    for (name, code, expected) in [
        ("bytes.md", 3, "bytes.md:3"),
        ("large.md", 3, "too large"),
        ("folder.md", 3, "a directory"),
        ("missing.md", 3, "cannot be opened"),
        ("tuor", 2, "did you mean tour?"),
        ("temperature", 0, ""),
        ("swiglu", 0, ""),
        ("attention", 2, "several lessons are about `attention`"),
        ("99", 2, "`llama-trace learn` lists the lessons"),
    ] {
        let (own, _, error) = told(&learn(folder.path(), &["--check", name]));
        assert!(own == code && error.contains(expected), "{name}: {own} {error}");
    }
    let (code, _, error) = told(&learn(folder.path(), &["tour", "--check", "--edit", "L0/ffn off"]));
    assert!(code == 2 && error.contains("their own runs"), "{error}");
}

#[test]
fn the_list_names_every_lesson() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, error) = told(&learn(folder.path(), &[]));
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(out.lines().next().unwrap().starts_with("tour "), "{out}");
    for chapter in CHAPTERS.iter() {
        assert!(out.contains(chapter.title()), "{out}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a list stores nothing");
    fs::create_dir(folder.path().join("llama-trace")).unwrap();
    let state = folder.path().join("llama-trace/lessons.json");
    fs::write(&state, r#"{"tour": {"scene": 2, "answers": ["right"], "tries": [1], "finished": false}}"#)
        .unwrap();
    let (_, out, _) = told(&learn(folder.path(), &[]));
    assert!(out.lines().next().unwrap().contains("scene 3 of"), "{out}");
    let (_, out, _) = told(&learn(folder.path(), &["--no-progress"]));
    assert!(!out.contains("scene 3 of"), "{out}");
    fs::write(&state, "no progress").unwrap();
    let (code, _, error) = told(&learn(folder.path(), &[]));
    assert!(code == 0 && error.contains("neither read nor stored"), "{error}");
}

#[test]
fn a_page_holds_its_pictures_and_no_markup_of_a_stranger() {
    let markdown = "# <script>alert(1)</script> & more\n<!-- scene: p0/L1/softmax[h=0,t=last]\nprompt: <script>alert(2)</script> \"&'\n-->\n\
        Text <script>alert(3)</script> [link](javascript:alert(4)) ![image](https://a.b/c.png) **bold**\n\n<img src=x onerror=alert(5)>\n\n\
        <!-- ask: choice\nanswer: 2\nhint: * | No.\n-->\nWhich <b>one</b>?\n\n1. <i>First</i>\n2. Second `<b>`\n\n<details><summary>Answer</summary>\n\nThe **explanation**.\n\n</details>\n\
        <!-- scene: p0/logits -->\n<!-- ask: number\nanswer: p0/logits[t=0].max\n-->\nHow much?\n\n<details><summary>Answer</summary>\n\nSo much.\n\n</details>\n";
    let (folder, name) = lesson(markdown);
    let path = folder.path().join("page.html");
    let export =
        |more: &[&str]| told(&learn(folder.path(), &[&[name, "--export", "page.html"], more].concat()));
    let (code, _, error) = export(&[]);
    assert_eq!(code, 0, "{error}");
    let page = fs::read_to_string(&path).unwrap();
    assert_eq!(page.matches("<svg ").count(), 2);
    for bad in [
        "<script",
        "<img",
        "javascript:",
        "onerror",
        "<i>",
        "<b>",
        "<!--",
        "https://a.b",
        "explanation",
        "So much",
    ] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("<title>&lt;script&gt;alert(1)&lt;/script&gt; &amp; more</title>"));
    assert!(
        page.contains("“&lt;script&gt;alert(2)&lt;/script&gt; &quot;&amp;&#39;”")
            && page.contains("<strong>bold</strong>")
    );
    assert!(page.contains("@media print"));
    // The picture of a question hides the values that it asks for: the axes have labels, the cells have no numbers.
    let (code, _, error) = export(&["--answers"]);
    assert!(code == 5 && error.contains("--force"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), page);
    let (code, _, error) = export(&["--answers", "--force"]);
    assert_eq!(code, 0, "{error}");
    let page = fs::read_to_string(&path).unwrap();
    assert!(
        page.contains("<h2>Answers</h2>") && page.contains("The <strong>explanation</strong>."),
        "the key is there"
    );
    assert!(page.contains("<strong>2: Second `&lt;b&gt;`</strong>"), "{}", &page[page.len() - 900..]);
    let (code, _, error) = told(&learn(folder.path(), &[name, "--export", "page.txt"]));
    assert!(code == 2 && error.contains(".html"), "{error}");
}

#[test]
fn a_prompt_of_a_lesson_reads_no_standard_input_and_no_file() {
    let (folder, name) =
        lesson("# T\n<!-- scene: p0/tokens\nprompt: -\n-->\n<!-- scene: p0/tokens\nprompt: @own.md\n-->\n");
    let (code, out, error) = told(&learn(folder.path(), &["--check", name]));
    assert_eq!((code, out.as_str()), (0, "own.md: 2 scenes, 0 questions, 0 problems\n"), "{error}");
}

/// Pieces of lessons, so that random texts are often nearly right.
const PIECES: [&str; 24] = [
    "# T\n",
    "<!-- scene: ",
    "<!-- scene -->\n",
    "p0/L1/softmax",
    "[h=0,t=last]",
    "{induction}",
    " -->\n",
    "-->\n",
    "\n",
    "<!-- ask: number\n",
    "<!-- ask: choice\n",
    "answer: ",
    "hint: * | x\n",
    "1. a\n2. b\n",
    "edit: L0/ffn off\n",
    "prompt: x\n",
    "view: list\n",
    "<details>",
    "```\n",
    "\u{feff}\r\n",
    "if(1, 2, 3)",
    "{p0/tokens[t={",
    "\0\u{202e}",
    "é",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_is_a_lesson_or_has_a_problem_with_a_line(parts in prop::collection::vec(0..PIECES.len(), 0..60), noise in ".{0,40}") {
        let mut markdown: String = parts.iter().map(|part| PIECES[*part]).collect();
        markdown += &noise;
        for text in [markdown.clone(), format!("# T\n{markdown}")] {
            let lines = text.lines().count().max(1);
            match Lesson::parse("t", &text) {
                Ok(lesson) => prop_assert!(!lesson.scenes.is_empty()),
                Err(problems) => prop_assert!(problems.iter().all(|problem| (1..=lines).contains(&problem.line))),
            }
        }
    }

    #[test]
    fn any_text_is_an_expression_or_an_error(text in "[p0-9/L{}\\[\\]()a-z=,.<> +*−÷·_-]{0,80}") {
        if let Err(wrong) = Expression::parse(&text) {
            prop_assert!(!wrong.is_empty());
        }
    }
}
