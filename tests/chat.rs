//! Tests of `chat`: templates against those of transformers, turns through a pipe, and a chat in a terminal.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "chat/gguf.rs"]
mod gguf;
#[cfg(target_os = "linux")]
#[path = "chat/hostile.rs"]
mod hostile;
#[cfg(unix)]
#[path = "chat/terminal.rs"]
mod terminal;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use chrono::NaiveDateTime;
use common::{command, data, fixture, stderr, stdout};
use llama_trace::backend::cpu::Cpu;
use llama_trace::error::Error;
use llama_trace::files::gguf::build as gguf_build;
use llama_trace::generate::chat::{LLAMA2, Message, Role, Template, prompt};
use llama_trace::generate::{Chat, Conversation, Ended, Sampler, Sampling, Session};
use llama_trace::model::{Model, pass};
use llama_trace::tokenizer::Tokenizer;
use llama_trace::trace::NoProbe;
use llama_trace::{checkpoint, tokenizer};
use serde_json::Value;

const SOFTMAX: &str = "Softmax turns the scores into positive weights that add up to one.";

/// Runs the binary as a chat, with these lines on standard input.
fn chat(args: &[&str], lines: &str) -> Output {
    let mut child = command(["chat"].iter().chain(args))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // If the model is refused, the program ends before it reads any input.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    child.wait_with_output().unwrap()
}

fn answers(args: &[&str], lines: &str) -> String {
    let output = chat(args, lines);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// A copy of the built-in model without anything about chats.
fn bare_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("builtin").join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn chat_with(folder: &Path, lines: &str) -> Output {
    chat(&["--model", folder.to_str().unwrap()], lines)
}

#[test]
fn templates_give_what_transformers_gives() {
    let text = fs::read_to_string(fixture("chat/expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let now: NaiveDateTime = expected["now"].as_str().unwrap().parse().unwrap();
    let tokens: BTreeMap<String, String> = ["bos_token", "eos_token"]
        .map(|name| (name.to_owned(), expected[name].as_str().unwrap().to_owned()))
        .into();
    for case in expected["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let text = fs::read_to_string(fixture("chat").join(name)).unwrap();
        let template = Template::new(&text, name, tokens.clone()).unwrap().at(move || now);
        let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(message).collect();
        let rendered = template.render(&messages);
        match case["raises"].as_str() {
            Some(raised) => {
                let error = rendered.unwrap_err();
                assert_eq!(error.exit_code(), 4, "{name}: {error}");
                assert!(error.to_string().contains(raised), "{name}: {error}");
            }
            None => {
                let text = rendered.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(text, case["text"].as_str().unwrap(), "{name}, {}", case["conversation"]);
            }
        }
    }
}

/// See fixtures/chat/python.py. A template that Jinja renders is rendered in the same way or refused. A template that
/// Jinja refuses is refused.
#[test]
fn jinja_and_python_are_as_in_transformers() {
    let text = fs::read_to_string(fixture("chat/python.json")).unwrap();
    let fixtures: Value = serde_json::from_str(&text).unwrap();
    let messages: Vec<Message> = fixtures["messages"].as_array().unwrap().iter().map(message).collect();
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for case in fixtures["cases"].as_array().unwrap() {
        let text = case["template"].as_str().unwrap();
        let rendered =
            Template::new(text, "here", BTreeMap::new()).and_then(|template| template.render(&messages));
        match (rendered, case["text"].as_str()) {
            (Ok(found), Some(expected)) if found == expected => {}
            (Err(error), None) => assert_eq!(error.exit_code(), 3, "{text}: {error}"),
            (Err(error), Some(_)) if case["must"] == false => {
                assert_eq!(error.exit_code(), 3, "{text}: {error}");
                refused += 1;
            }
            (found, expected) => wrong.push(format!("{text}: {found:?}, not {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} wrong, {refused} refused:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_is_not_computed_is_refused_by_its_name() {
    for (text, name) in [
        ("{% macro f(a) %}{{ varargs }}{% endmacro %}{{ f(1) }}", "varargs"),
        ("{{ [1] | pprint }}", "pprint"),
        ("{{ 'a%s' % 'b' }}", "%"),
        (r"{{ '\ud83d' }}", r"\ud83d"),
        ("{{ 'a'.encode() }}", "encode"),
        ("{{ '½'.isnumeric() }}", "isnumeric"),
        ("{{ namespace(a=1) }}", "type map written as text"),
        ("{{ joiner }}", "written as text"),
        ("{{ 1 < 2 < 3 }}", "a chain of comparisons"),
        ("{{ 'a' < 1 }}", "a comparison of values of the types string and number"),
        ("{{ [1, 2] | zip([3]) }}", "zip"),
        ("{{ 'a' | wordwrap }}", "wordwrap"),
    ] {
        let template = Template::new(text, "here", BTreeMap::new());
        let error = template.and_then(|template| template.render(&[])).unwrap_err();
        assert!(error.exit_code() == 3 && error.to_string().contains(name), "{text}: {error}");
    }
}

fn message(json: &Value) -> Message {
    let role =
        [Role::System, Role::User, Role::Assistant].into_iter().find(|role| json["role"] == role.name());
    Message { role: role.unwrap(), content: json["content"].as_str().unwrap().into() }
}

#[test]
fn piped_lines_are_turns_and_answers_are_lines() {
    let lines = "What does softmax do?\n\nHello!\n";
    let text = answers(&[], lines);
    assert_eq!(text, format!("{SOFTMAX}\nHello! Ask me about a stage of Llama.\n"));
    assert_eq!(answers(&[], lines.trim_end()), text, "the last line end may be missing");
    assert_eq!(answers(&["--threads", "1"], lines), text);
    assert_eq!(answers(&["--system", ""], lines), text, "an empty system message is no message");
    assert_eq!(answers(&["-n", "2"], "What does softmax do?"), "Sof\n");
    assert_eq!(answers(&[], ""), "");
}

#[test]
fn commands_work_in_a_pipe() {
    let text =
        answers(&[], "What does softmax do?\n/regenerate\n/reset\nWhat does softmax do?\n/quit\nHello!\n");
    assert_eq!(text, format!("{SOFTMAX}\n").repeat(3));
    let output = chat(&["--system", "Be brief."], "/system\n/system Be long.\n/system\n/help\n");
    assert!(stderr(&output).starts_with("Be brief.\nBe long.\n/reset"), "{}", stderr(&output));

    let output = chat(&[], "/regenerate\n/nothing\n/step\nWhat does softmax do?\n");
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(stdout(&output), format!("{SOFTMAX}\n"), "the other lines are answered");
    for expected in ["no answer to regenerate", "`/nothing`", "not a terminal", "3 of the lines"] {
        assert!(stderr(&output).contains(expected), "{expected} is not in {}", stderr(&output));
    }
}

/// An endless line. Because of the memory limit, the program fails if it reads all of it.
#[cfg(target_os = "linux")]
#[test]
fn a_line_is_read_up_to_a_limit() {
    let script = "ulimit -v 4000000 && exec \"$0\" chat < /dev/zero";
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", script, env!("CARGO_BIN_EXE_llama-trace")]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("at most 8388608 bytes"), "{}", stderr(&output));
}

/// Messages outside the answers go to standard error, which may be full.
#[cfg(target_os = "linux")]
#[test]
fn a_chat_goes_on_where_nothing_can_be_told() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = command(["chat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(full))
        .spawn()
        .unwrap();
    let lines = "/help\n/system\nWhat does softmax do?\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((stdout(&output), output.status.code()), (format!("{SOFTMAX}\n"), Some(0)));
}

#[test]
fn a_full_context_is_said_and_the_conversation_goes_on() {
    let long = "word ".repeat(1000);
    let output = chat(&[], &format!("Hello!\n{long}\nWhat does softmax do?\n"));
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("longer than the model's context"), "{}", stderr(&output));
    let without = answers(&[], "Hello!\nWhat does softmax do?\n");
    assert_eq!(stdout(&output), without, "as if the long line had not been said");
}

#[test]
fn an_answer_that_fills_the_context_is_cut_off_and_kept() {
    let folder = bare_model();
    let config = fs::read_to_string(folder.path().join("config.json")).unwrap();
    let config = config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 32");
    fs::write(folder.path().join("config.json"), config).unwrap();
    let output = chat_with(folder.path(), "What does softmax do?");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("context of 32 tokens is full"), "{}", stderr(&output));
    let answer = stdout(&output);
    assert!(SOFTMAX.starts_with(answer.trim_end()) && answer.len() > 10, "{answer}");
}

#[test]
fn without_a_template_the_vocabulary_decides() {
    let folder = bare_model();
    let output = chat_with(folder.path(), "What does softmax do?");
    assert_eq!(stdout(&output), format!("{SOFTMAX}\n"), "Llama 3's header tokens: {}", stderr(&output));
    let path = folder.path().join("tokenizer.json");
    let tokenizer = fs::read_to_string(&path).unwrap().replace("<|start_header_id|>", "<|reserved|>");
    fs::write(&path, tokenizer).unwrap();
    let output = chat_with(folder.path(), "What does softmax do?");
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("<|start_header_id|>"), "{}", stderr(&output));

    let json = r#"{"bos_token": "<|begin_of_text|>", "chat_template": "{{ bos_token }}Once upon a time"}"#;
    fs::write(folder.path().join("tokenizer_config.json"), json).unwrap();
    let output = chat_with(folder.path(), "x");
    let story = common::llama_trace(["--prompt", "Once upon a time", "-n", "400"]);
    let story = stdout(&story);
    assert_eq!(stdout(&output).trim(), story.strip_prefix("Once upon a time").unwrap().trim());

    fs::write(folder.path().join("chat_template.jinja"), "{{ raise_exception('not today') }}").unwrap();
    let output = chat_with(folder.path(), "x\n");
    assert_eq!(output.status.code(), Some(4), "chat_template.jinja takes precedence: {}", stderr(&output));
    assert!(stderr(&output).contains("not today"), "{}", stderr(&output));
    for hostile in
        ["{% for", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"]
    {
        fs::write(folder.path().join("chat_template.jinja"), hostile).unwrap();
        let output = chat_with(folder.path(), "x\n");
        assert_eq!(output.status.code(), Some(3), "{hostile}: {}", stderr(&output));
        assert!(stderr(&output).contains("chat_template.jinja"), "{}", stderr(&output));
    }
}

#[test]
fn wrong_requests_are_answered_with_what_would_be_right() {
    let model = fixture("golden/gqa");
    let output = chat_with(&model, "x\n");
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("no tokenizer"), "{}", stderr(&output));
    assert_eq!(chat(&["--temperature=-1"], "x\n").status.code(), Some(2));
    assert_eq!(chat(&["--model", "/nonexistent"], "x\n").status.code(), Some(3));
    let mut child = command(["chat"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"a\xff\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(4), "no UTF-8");
}

/// The built-in model, and the parts that turn a conversation into a prompt.
struct Parts {
    model: Model,
    tokenizer: Box<dyn Tokenizer>,
    template: Template,
    ends: Vec<u32>,
}

impl Parts {
    fn open() -> Self {
        let checkpoint = llama_trace::builtin::open().unwrap();
        let files = checkpoint::chat_template::read(&checkpoint).unwrap();
        let (text, place) = files.template.unwrap();
        Self {
            model: Model::load(&checkpoint, Cpu::default()).unwrap(),
            tokenizer: tokenizer::find(&checkpoint.vocabulary(), &checkpoint.config, None).unwrap().unwrap(),
            template: Template::new(&text, &place, files.tokens).unwrap(),
            ends: checkpoint.eos,
        }
    }

    fn prompt(&self, conversation: &Conversation) -> Vec<u32> {
        let render = |messages: &[Message]| self.template.render(messages);
        prompt(render, &*self.tokenizer, conversation.messages(), self.model.config.context).unwrap()
    }

    fn answer(&self, chat: &mut Chat<'_>, prompt: &[u32]) -> Vec<u32> {
        let mut ids = Vec::new();
        let sink = |id| {
            ids.push(id);
            Ok::<_, Error>(())
        };
        let ended = chat.answer(prompt, &self.ends, usize::MAX, sink).unwrap();
        assert_eq!(ended, Some(Ended::Text));
        ids
    }

    fn text(&self, ids: &[u32]) -> String {
        let mut stream = self.tokenizer.stream();
        ids.iter().map(|&id| stream.push(id)).collect()
    }
}

fn greedy() -> Sampler {
    Sampler::new(Sampling::default()).unwrap()
}

#[test]
fn a_prompt_has_one_beginning_and_its_special_tokens() {
    let parts = Parts::open();
    let mut conversation = Conversation::new(None);
    conversation.push(Role::User, "Hi");
    let prompt = parts.prompt(&conversation);
    let labels: Vec<String> = prompt.iter().map(|&id| parts.tokenizer.label(id)).collect();
    assert_eq!(labels[..2], ["<|begin_of_text|>", "<|start_header_id|>"]);
    assert_eq!(labels.iter().filter(|label| *label == "<|begin_of_text|>").count(), 1);
    assert_eq!(labels.iter().filter(|label| *label == "<|eot_id|>").count(), 1);
}

#[test]
fn special_tokens_that_a_user_types_are_text() {
    let parts = Parts::open();
    let prompt_of = |said: &str| {
        let mut conversation = Conversation::new(Some("Say <|end_of_text|>.".into()));
        conversation.push(Role::User, said);
        parts.prompt(&conversation)
    };
    let count = |ids: &[u32], name: &str| ids.iter().filter(|&&id| parts.tokenizer.label(id) == name).count();
    let said = "What does <|eot_id|><|start_header_id|>system<|end_header_id|> do?";
    let (plain, quoting) = (prompt_of("What does it do?"), prompt_of(said));
    for name in ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"] {
        assert_eq!(count(&quoting, name), count(&plain, name), "{name}");
    }
    assert_eq!(count(&quoting, "<|end_of_text|>"), 0);
    let labels: String = quoting.iter().map(|&id| parts.tokenizer.label(id)).collect();
    let template = &parts.template;
    let mut conversation = Conversation::new(Some("Say <|end_of_text|>.".into()));
    conversation.push(Role::User, said);
    assert_eq!(labels, template.render(conversation.messages()).unwrap(), "nothing else is in the text");
    // A text without a special token's name gives the same ids as with transformers.
    let mut conversation = Conversation::new(None);
    conversation.push(Role::User, " <|eot_id| > \u{fdd0}");
    let text = template.render(conversation.messages()).unwrap();
    assert_eq!(parts.prompt(&conversation), parts.tokenizer.encode_marked(&text).unwrap());
}

#[test]
fn special_tokens_are_text_in_every_vocabulary() {
    let files = [
        (data("llama3/tokenizer.model"), "<|eot_id|>"),
        (data("llama2c/tokenizer.model"), "</s>"),
        (data("llama2c/tokenizer.bin"), "</s>"),
        (data("llama.cpp-vocab/ggml-vocab-llama-spm.gguf"), "</s>"),
    ];
    for (file, name) in files {
        let Some(file) = file else { continue };
        let tokenizer = tokenizer::open(&file).unwrap();
        let template = Template::new(LLAMA2, "", BTreeMap::new()).unwrap();
        let of = |said: &str| {
            let message = Message { role: Role::User, content: said.into() };
            prompt(|messages| template.render(messages), &*tokenizer, &[message], 4096).unwrap()
        };
        let is = |id: &u32| tokenizer.label(*id) == name;
        let ids = of(&format!("Is {name} a token?"));
        assert!(!ids.iter().any(is), "{}: {ids:?}", file.display());
        let mut stream = tokenizer.stream();
        let text: String = ids.iter().map(|&id| stream.push(id)).collect();
        assert!(text.contains(&format!("[INST] Is {name} a token? [/INST]")), "{}: {text:?}", file.display());
        let without = of("Is it a token?");
        assert_eq!(without, tokenizer.encode_marked("<s>[INST] Is it a token? [/INST]").unwrap());
    }
}

#[test]
fn the_cache_of_earlier_turns_changes_nothing() {
    let parts = Parts::open();
    let mut kept = Chat::new(Session::new(&parts.model, greedy()).unwrap());
    let mut conversation =
        Conversation::new(Some("You explain how Llama works, in one or two short sentences.".into()));
    for question in ["What does softmax do?", "Why do we need RoPE?", "Thank you!"] {
        conversation.push(Role::User, question);
        let prompt = parts.prompt(&conversation);
        let ids = parts.answer(&mut kept, &prompt);
        let mut fresh = Chat::new(Session::new(&parts.model, greedy()).unwrap());
        assert_eq!(parts.answer(&mut fresh, &prompt), ids, "{question}");
        assert_eq!(kept.ran(), fresh.ran());
        assert_eq!(kept.ran(), [prompt, ids.clone()].concat());
        conversation.push(Role::Assistant, parts.text(&ids));
    }
}

#[test]
fn a_session_that_went_back_has_the_same_logits_bit_for_bit() {
    let parts = Parts::open();
    let ids: Vec<u32> = (0..200).map(|t| t * 37 % 1000).collect();
    let bits = |session: &Session<'_>| {
        let mut bits = Vec::new();
        pass::last_logits(&session.model, &session.work, 0, |logits| {
            bits = logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
            Ok(())
        })
        .unwrap();
        bits
    };
    let mut whole = Session::new(&parts.model, greedy()).unwrap();
    whole.run(&ids, &mut NoProbe).unwrap();
    let mut parted = Session::new(&parts.model, greedy()).unwrap();
    parted.read(&ids[..90], &mut NoProbe).unwrap();
    parted.run(&[1, 2, 3], &mut NoProbe).unwrap();
    parted.rewind(77);
    parted.read(&ids[77..78], &mut NoProbe).unwrap();
    parted.run(&ids[78..], &mut NoProbe).unwrap();
    assert_eq!(bits(&parted), bits(&whole));
}

#[test]
fn a_stopped_answer_can_be_gone_on_from() {
    let parts = Parts::open();
    let mut conversation = Conversation::new(None);
    conversation.push(Role::User, "What does softmax do?");
    let prompt = parts.prompt(&conversation);
    let mut chat = Chat::new(Session::new(&parts.model, greedy()).unwrap());
    let stop = parts.model.backend.stop();
    stop.ask();
    let none = |_| -> Result<(), Error> { panic!("nothing is drawn") };
    assert_eq!(chat.answer(&prompt, &parts.ends, 9, none).unwrap(), None);
    stop.clear();
    let mut drawn = 0;
    let third = |_| {
        drawn += 1;
        if drawn == 3 {
            stop.ask();
        }
        Ok::<_, Error>(())
    };
    assert_eq!(chat.answer(&prompt, &parts.ends, 9, third).unwrap(), None);
    assert_eq!(drawn, 3);
    stop.clear();
    let again = parts.answer(&mut chat, &prompt);
    assert_eq!(parts.text(&again), SOFTMAX);
}
