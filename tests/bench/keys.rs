//! Measures how fast the viewer answers a key. It types 1,000 random keys on a trace with the shape of Llama 3.1 8B,
//! 128 tokens, at 200x60.
//!
//! `cargo bench --bench keys` writes such a trace into the folder for temporary files and opens it as `llama-trace
//! open` does. The values are random, because the viewer's work does not depend on them. The command prints the time
//! from each key to the new screen, and the viewer's maximum memory.

#![allow(clippy::unwrap_used)] // a bench that fails may stop with a panic

use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_trace::chapters::CHAPTERS;
use llama_trace::config::{Arithmetic, ModelConfig, Pairing, Precision};
use llama_trace::record::about::Fingerprint;
use llama_trace::record::plan::{Texts, stages};
use llama_trace::record::writer::TextsOf;
use llama_trace::record::{About, Keep, Plan, Target, Trace, Writer};
use llama_trace::replay::Recorded;
use llama_trace::replay::derive::follows;
use llama_trace::trace::manifest::Drawing;
use llama_trace::trace::{Filters, ModelCard, PassDims, Probe, Run, Sampling, Site, Status, Values};
use llama_trace::tui::app::App;
use llama_trace::tui::events::action_of;
use llama_trace::tui::theme::{Depth, Theme};
use llama_trace::tui::update::update;
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

const TOKENS: usize = 128;
const SIZE: (u16, u16) = (200, 60);
const KEYS: usize = 1000;
const MEMORY: usize = 256 << 20;

const LETTERS: &[u8] = b"nnnnppNNPP]][[gGjjkkhhllHL0$vvvvassc*#z123456789i=+-";

const CODES: [KeyCode; 11] = [
    KeyCode::Up,
    KeyCode::Down,
    KeyCode::Left,
    KeyCode::Right,
    KeyCode::PageUp,
    KeyCode::PageDown,
    KeyCode::Home,
    KeyCode::End,
    KeyCode::Tab,
    KeyCode::Enter,
    KeyCode::Esc,
];

fn config() -> ModelConfig {
    ModelConfig {
        layers: 32,
        ffn_dim: 14336,
        vocab: 128_256,
        context: 131_072,
        rope_theta: 500_000.0,
        pairing: Pairing::Neighbours,
        ..ModelConfig::of_heads(32, 8, 128)
    }
}

/// Writes the trace.
fn record(path: &std::path::Path) {
    let card = ModelCard {
        name: "8b".into(),
        ignored: vec![],
        without: vec![],
        edits: vec![],
        config: config(),
        precision: Precision::F32,
        arithmetic: Arithmetic::Fused,
        backend: "cpu".into(),
    };
    let sizes = card.sizes();
    let dims = PassDims { pass: 0, start: 0, tokens: TOKENS, ..PassDims::default() };
    let stages = stages(&sizes, Filters::default(), Keep::Minimal, follows);
    let about = About {
        program: "bench".into(),
        cache: card.precision.cache_dtype().name().into(),
        sampling: Drawing {
            sampling: Sampling { temperature: 0.8, top_k: 0, top_p: 0.9, seed: 1, ..Sampling::default() },
            stream: 0,
        },
        sequences: 1,
        keep: Keep::Minimal,
        budget: None,
        stages: stages.iter().map(|stage| stage.name().to_owned()).collect(),
        exact: true,
        fingerprint: Fingerprint { config: String::new(), weights: String::new() },
        card,
    };
    let labels: Vec<String> = (0..sizes.vocab).map(|id| format!(" word{id}")).collect();
    let label_bytes = labels.iter().map(String::len).sum();
    let texts = Texts { labels: labels.len(), label_bytes, prompt_bytes: 0 };
    let plan = Plan::of(&about, &[vec![dims]], &[], texts).unwrap();
    let target = Target::check(path, false).unwrap();
    let mut writer = Writer::begin(&target, about, plan, TextsOf { labels, prompts: vec![None] }).unwrap();
    writer.next(std::iter::once((0, dims)));
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    // Random values. The same values serve for every stage.
    let random: Vec<f32> = (0..1 << 20).map(|_| rng.random_range(-3.0..3.0)).collect();
    for layer in [None].into_iter().chain((0..sizes.layers).map(Some)) {
        for &stage in stages.iter().filter(|stage| stage.in_layer() == layer.is_some()) {
            let site = layer.map_or(Site::once(0, stage), |layer| Site::layer(0, layer, stage));
            if !stage.present(&sizes, dims) {
                continue;
            }
            let shape = sizes.shape(stage.axes(), dims);
            let count: usize = shape.iter().product();
            let rows = sizes.rows(stage.axes(), dims);
            let width = count / rows;
            for row in 0..rows {
                if stage.is_ids() {
                    let ids: Vec<i64> = (0..width as i64).map(|id| id + 7 * row as i64).collect();
                    writer.record(site, row..row + 1, Values::I64(&ids));
                } else {
                    let start = rng.random_range(0..random.len() - width);
                    writer.record(site, row..row + 1, Values::F32(&random[start..start + width]));
                }
            }
        }
    }
    writer.check().unwrap();
    let bytes = writer.finish(&target).unwrap();
    println!("a trace of 32 layers, {TOKENS} tokens: {:.2} GB", bytes as f64 / 1e9);
}

fn event(rng: &mut ChaCha8Rng) -> Event {
    let code = match rng.random_range(0..3) {
        0 => CODES[rng.random_range(0..CODES.len())],
        _ => KeyCode::Char(LETTERS[rng.random_range(0..LETTERS.len())].into()),
    };
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Memory of this process in megabytes, without the mapped trace file, if the system reports it.
fn memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

fn main() {
    let seed = std::env::var("LLAMA_TRACE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("8b.trace");
    record(&path);
    let trace = Arc::new(Trace::open(&path).unwrap());
    let mut source = Recorded::new(trace, None, None, MEMORY).open(Run::ITSELF, 0).unwrap();
    let mut app = App::new(source.outline().clone(), Theme::new(Depth::True), SIZE).with_chapters(CHAPTERS);
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // The memory before the viewer reads the trace: the vocabulary's texts, the index and this program.
    let before = memory().unwrap_or(0.0);
    let (mut answered, mut there, mut most) = (Vec::new(), Vec::new(), 0.0_f64);
    for _ in 0..KEYS {
        let event = event(&mut rng);
        let start = Instant::now();
        if let Some(action) = action_of(&app, event.clone()) {
            update(&mut app, action);
        }
        app.sync(&mut *source);
        terminal.draw(|frame| frame.render_widget(&app, frame.area())).unwrap();
        answered.push((start.elapsed(), event, app.place().path(), app.view().name()));
        // Waits until all values on the screen have arrived, as a user does before the next key.
        while source.status() != Status::Idle || app.waits() {
            if start.elapsed() > Duration::from_secs(20) {
                panic!("{} is not there", app.place().path());
            }
            source.poll().unwrap();
            let asked = Instant::now();
            app.sync(&mut *source);
            terminal.draw(|frame| frame.render_widget(&app, frame.area())).unwrap();
            answered.push((asked.elapsed(), Event::Resize(0, 0), app.place().path(), app.view().name()));
            std::thread::sleep(Duration::from_millis(1));
        }
        there.push(start.elapsed());
        most = most.max(memory().unwrap_or(0.0));
    }
    answered.sort_by_key(|&(time, ..)| std::cmp::Reverse(time));
    there.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("seed {seed}: {KEYS} keys, {} screens of {}x{}", answered.len(), SIZE.0, SIZE.1);
    let at = |share: f64| ms(answered[(answered.len() as f64 * (1.0 - share)) as usize].0);
    println!(
        "a key and its screen: median {:.2} ms, 99th percentile {:.2} ms, longest {:.2} ms",
        at(0.5),
        at(0.99),
        ms(answered[0].0)
    );
    let at = |share: f64| ms(there[(there.len() as f64 * share) as usize]);
    println!("until all values were there: median {:.1} ms, 99th percentile {:.1} ms", at(0.5), at(0.99));
    for (time, event, place, view) in answered.iter().take(8) {
        let key = if let Event::Key(key) = event { format!("{:?}", key.code) } else { "news".into() };
        println!("  {:6.2} ms  {key} in {place}, {view}", ms(*time));
    }
    println!(
        "memory beside the file: {before:.0} MB at first, {most:.0} MB at most; the limit for values is {} MB",
        MEMORY >> 20
    );
}
