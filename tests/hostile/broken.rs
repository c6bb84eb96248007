//! Models whose weights are NaN or infinite, or as large or small as in no trained model. The first version of a port
//! often has them. Every view and every command must still end.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use llama_trace::backend::cpu::Cpu;
use llama_trace::chapters::CHAPTERS;
use llama_trace::checkpoint;
use llama_trace::config::Precision;
use llama_trace::generate::{Sampler, Sampling};
use llama_trace::model::Model;
use llama_trace::replay::{DEFAULT_MEMORY, Live, Start};
use llama_trace::trace::stage::Section;
use llama_trace::trace::{Address, Step, Subject};
use llama_trace::tui::screen_option::ScreenOption;
use llama_trace::tui::snapshot::Snapshot;
use llama_trace::tui::theme::{Depth, Theme};
use llama_trace::tui::view::kind::View;
use llama_trace::tui::view::views::fitting;
use llama_trace::tui::{OpenAt, Runs};

use super::common::models;

/// Time after which a process or a thread counts as hanging. A passing test never waits this long.
const HANGS: Duration = Duration::from_secs(60);

/// Returns the broken value of the weight at this index. `None` if this weight is not broken.
type Weight = fn(usize) -> Option<f32>;

/// Kinds of broken models: their names, and the weights that are broken.
const KINDS: [(&str, Weight); 12] = [
    ("NaN", |_| Some(f32::NAN)),
    ("a NaN in wq", |i| (i == WQ + 3).then_some(f32::NAN)),
    ("infinite", |_| Some(f32::INFINITY)),
    ("infinite below 0", |_| Some(f32::NEG_INFINITY)),
    ("an infinity in wq", |i| (i == WQ + 3).then_some(f32::NEG_INFINITY)),
    ("the largest", |_| Some(f32::MAX)),
    ("of two signs, whose products overflow", |i| Some(if i.is_multiple_of(3) { -1e30 } else { 1e30 })),
    ("an overflow in wq", |i| (WQ..WQ + 64).contains(&i).then_some(if i % 2 == 0 { 3e38 } else { -3e38 })),
    ("an infinity in the head", |i| (i == 7 * 8 + 3).then_some(f32::INFINITY)),
    ("an overflow in the norms", |i| (WQ - 2 * 8..WQ).contains(&i).then_some(1e30)),
    ("denormal", |_| Some(1e-42)),
    ("0", |_| Some(0.0)),
];

/// Offset of the first layer's query weights in the llama2.c model, after the embedding and the norms of 2 layers.
const WQ: usize = models::BIN_VOCAB * 8 + 2 * 8;
const HEADER: usize = 7 * 4;

/// The small llama2.c model with these weights, its tokenizer and a template.
fn broken(folder: &Path, weight: Weight) -> String {
    let mut bytes = models::bin();
    for (i, value) in bytes[HEADER..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *value = weight(i).map_or(*value, f32::to_le_bytes);
    }
    let path = folder.join("m.bin");
    fs::write(&path, bytes).unwrap();
    fs::write(folder.join("tokenizer.bin"), models::tok_bin(models::BIN_VOCAB)).unwrap();
    fs::write(folder.join("chat_template.jinja"), "{{ messages[-1].content }}").unwrap();
    path.to_str().unwrap().to_owned()
}

/// Draws every view of the tracer, each on the first stage that it fits. On attention, the logits and `ffn_hidden`,
/// draws every view that fits.
fn draw_all(path: &Path, precision: Precision) {
    let checkpoint = checkpoint::open(path).unwrap();
    let model = Model::load(&checkpoint, Cpu::default().with_precision(precision)).unwrap();
    let start = Start {
        ids: vec![1, 260, 261],
        draws: 2,
        sampler: Sampler::new(Sampling { temperature: 0.8, ..Sampling::default() }).unwrap(),
        tokenizer: None,
        eos: Vec::new(),
        memory: DEFAULT_MEMORY,
        context: None,
    };
    let mut runs = Runs::new(Box::new(Live::start(Arc::new(model), start).unwrap()));
    let mut drawn: Vec<&str> = Vec::new();
    for section in [Section::Layer, Section::End, Section::Sampler, Section::Start] {
        for step in Step::in_section(section) {
            let all = ["softmax", "masked_scores", "logits", "ffn_hidden"].contains(&step.name());
            for view in fitting(step).map(View::name) {
                if drawn.contains(&view) && !all {
                    continue;
                }
                let at = Address { subject: Some(Subject::Step(step)), ..Address::default() };
                let screen = vec![(ScreenOption::View, view.to_owned())];
                let open = OpenAt { at: Some(at), screen, ..OpenAt::default() };
                let still = Snapshot {
                    open: &open,
                    chapters: CHAPTERS,
                    theme: Theme::new(Depth::True),
                    drawing: None,
                    size: (100, 40),
                };
                match still.draw(&mut runs, || Ok(())) {
                    Ok(_) => drawn.push(view),
                    // The pass does not have this step.
                    Err(error) => assert_eq!(error.exit_code(), 2, "{view} of {}: {error}", step.name()),
                }
            }
        }
    }
    assert!(drawn.len() > 30, "{drawn:?}");
}

#[test]
fn every_view_of_a_broken_model_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, weight) in KINDS {
        let path = broken(folder.path(), weight);
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 4 }] {
            let (sender, done) = channel();
            let path = path.clone();
            let thread = thread::spawn(move || {
                draw_all(path.as_ref(), precision);
                sender.send(()).unwrap();
            });
            // A hanging thread ends with the test process.
            if done.recv_timeout(HANGS).is_err() {
                assert!(thread.is_finished(), "weights that are {kind}, in {precision:?}: it hangs");
                panic!("weights that are {kind}, in {precision:?}: {:?}", thread.join().unwrap_err());
            }
        }
    }
}

/// Waits until the process ends. Kills it if it hangs.
fn code(mut child: Child, what: &str) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if started.elapsed() > HANGS {
            child.kill().unwrap();
            panic!("{what}: it hangs");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn every_command_on_a_broken_model_ends() {
    let folder = tempfile::tempdir().unwrap();
    let sound = broken(&folder.path().join(""), |_| None);
    let sound = fs::rename(&sound, folder.path().join("sound.bin")).map(|()| folder.path().join("sound.bin"));
    let sound = sound.unwrap().to_str().unwrap().to_owned();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (svg, trace) = (out("a.svg"), out("t.lt"));
    for (number, (kind, weight)) in KINDS.into_iter().enumerate() {
        let model = broken(folder.path(), weight);
        let other = format!("model={sound}");
        let commands: [(&[&str], &[i32]); 10] = [
            (&["snapshot", "--ids", "1,260,261", "--at", "L0/softmax", "--out", &svg, "--force"], &[0]),
            (&["diff", "--ids", "1,260,261", "--a", "precision=f32", "--b", &other], &[0, 1]),
            // A run is equal to itself, even if values are NaN.
            (&["diff", "--ids", "1,260,261", "--a", "threads=1", "--b", "threads=2"], &[0]),
            (&["explain", "L0/softmax[h=1,t=2,k=1]", "--ids", "1,260,261"], &[0]),
            (&["explain", "logits[t=2,v=7]", "--ids", "1,260,261"], &[0]),
            (&["lens", "--ids", "1,260,261"], &[0]),
            (&["check", "--ids", "1,260,261"], &[0, 1]),
            (&["record", "--ids", "1,260,261", "-n", "2", "--out", &trace, "--force"], &[0]),
            (&["snapshot", "--trace", &trace, "--at", "L0/softmax", "--out", &svg, "--force"], &[0]),
            (&["chat", "-n", "2"], &[0]),
        ];
        for (at, (command, codes)) in commands.into_iter().enumerate() {
            let mut args: Vec<&str> = command.to_vec();
            if !args.contains(&"--trace") {
                args.extend(["--model", &model]);
            }
            // Runs each command in each precision, over all kinds of broken weights.
            let precision = ["f32", "bf16", "q8"][(number + at) % 3];
            if !["diff", "snapshot"].contains(&args[0]) || !args.contains(&"--trace") && args[0] != "diff" {
                args.extend(["--precision", precision]);
            }
            let mut child = Command::new(env!("CARGO_BIN_EXE_llama-trace"))
                .args(&args)
                .env("CUDA_VISIBLE_DEVICES", "")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // A command that does not read its input may end before the input is written.
            drop(child.stdin.take().unwrap().write_all(b"ab\nab\n"));
            let what = format!("weights that are {kind}: {args:?}");
            let code = code(child, &what);
            assert!(code.is_some_and(|code| codes.contains(&code)), "{what} ends with {code:?}");
        }
    }
}
