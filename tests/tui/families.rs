//! Models of other families: every step in every view, and the views that show their own stages.

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::model::Model;
use llama_trace::trace::{Address, Axis, Stage};
use llama_trace::tui::OpenAt;
use llama_trace::tui::open::open;
use llama_trace::tui::view::views::fitting;

use crate::desk::Desk;

const IDS: [u32; 7] = [3, 5, 7, 9, 11, 13, 2];

/// Norms after a sublayer and soft caps; a RoPE of its own in some layers; one norm for both sublayers; no gate; norms
/// after RoPE; layers without RoPE; no norms before.
const FAMILIES: [&str; 7] = ["gemma2", "gemma3", "cohere", "apertus", "hunyuan", "smollm3", "olmo3"];

fn desk(family: &str, address: &str, size: (u16, u16)) -> Desk {
    let folder = format!("{}/fixtures/families/{family}", env!("CARGO_MANIFEST_DIR"));
    let model = Model::load(&checkpoint::open(folder.as_ref()).unwrap(), Cpu::default()).unwrap();
    Desk::on(model, IDS.to_vec(), None, address, size)
}

fn open_at(desk: &mut Desk, address: &str) {
    open(&mut desk.app, &OpenAt { at: Some(Address::parse(address).unwrap()), ..OpenAt::default() }).unwrap();
    desk.wait();
}

#[test]
fn every_step_of_every_family_is_drawn_in_every_view() {
    let sizes = [(80, 24), (120, 40), (200, 60)];
    for (family, size) in FAMILIES.into_iter().zip(sizes.into_iter().cycle()) {
        let mut desk = desk(family, "p0/tokens", size);
        for number in 0..desk.app.walk().len() {
            let place = desk.app.walk().at(number);
            // The first two layers differ in some families.
            if place.layer.is_some_and(|layer| layer > 1) {
                continue;
            }
            for view in fitting(place.step) {
                open_at(&mut desk, &place.path());
                desk.choose(view.name());
                // The pass has the address of a layer, and the flow that of a box.
                let screen = desk.screen();
                assert_eq!(desk.app.view().name(), view.name(), "{family}: {}", place.path());
                assert!(screen.contains(place.step.name()), "{family}: {}\n{screen}", place.path());
                for mark in ["{", "NaN"] {
                    assert!(!screen.contains(mark), "{family}: {} has `{mark}`\n{screen}", place.path());
                }
            }
        }
    }
}

#[test]
fn every_number_of_a_family_is_explained_by_what_the_run_recorded() {
    for family in FAMILIES {
        let mut desk = desk(family, "p0/tokens", (120, 60));
        for number in 0..desk.app.walk().len() {
            let place = desk.app.walk().at(number);
            if place.step.stage() == Stage::Tokens {
                continue;
            }
            open_at(&mut desk, &place.path());
            desk.key(llama_trace::tui::user_event::KeyCode::Enter);
            let told = desk.app.explanation();
            let Some(Ok(explanation)) = told else { panic!("{family}: {}: {told:?}", place.path()) };
            let value = f64::from(explanation.value as f32);
            for split in explanation
                .splits
                .iter()
                .filter(|split| split.by.contains("RoPE") || split.by.contains("position"))
            {
                let sum: f64 = split.parts.iter().map(|(_, part)| part).sum();
                let near = (sum - value).abs() <= 1e-4 * value.abs().max(1.0);
                assert!(near, "{family}: {}: {} is {sum}, not {value}", place.path(), split.by);
            }
            if let Some(result) = explanation.result {
                let near = (result - value).abs() <= 1e-5 * value.abs().max(1e-2);
                assert!(near || result == value, "{family}: {}: {result}, {value}", place.path());
            }
        }
    }
}

#[test]
fn the_neurons_have_the_stages_of_their_family() {
    for (family, size) in [("apertus", (80, 24)), ("arcee", (120, 40))] {
        let desk = desk(family, "p0/L0/ffn_act", size).choose_view("neurons");
        desk.shows("unit       up      act");
        desk.hides("unit     gate");
    }
    let gemma = desk("gemma2", "p0/L1/ffn_hidden", (120, 40)).choose_view("neurons");
    gemma.shows("unit     gate       up      act   hidden");
    gemma.shows("no direct effects: norms after each sublayer");
    let llama = desk("smollm3", "p0/L1/ffn_hidden", (120, 40)).choose_view("neurons");
    llama.shows("unit     gate     silu       up   hidden");
}

#[test]
fn the_matrices_of_attention_have_the_same_views_with_a_soft_cap() {
    let names = |address: &str| {
        let desk = desk("gemma2", address, (120, 40));
        fitting(desk.app.place().step).map(llama_trace::tui::view::kind::View::name).collect::<Vec<_>>()
    };
    let capped = names("p0/L0/capped_scores");
    assert_eq!(capped, names("p0/L0/scores"));
    assert!(["heads", "bars", "layers"].iter().all(|name| capped.contains(name)), "{capped:?}");
    assert_eq!(names("p0/capped_logits").iter().filter(|name| **name == "sampler").count(), 1);
}

/// The lens, the strip and the sampler read what the model draws from.
#[test]
fn the_views_of_answers_read_the_logits_after_the_cap() {
    let mut desk = desk("gemma2", "p0/L2/ffn_residual[t=6]", (120, 40)).choose_view("lens");
    let screen = desk.screen();
    open_at(&mut desk, "p0/probs");
    let vocab = desk.app.shape()[0];
    let probs: Vec<f64> = (0..vocab)
        .map(|id| match desk.app.tensor().unwrap().get(&[id]).unwrap() {
            llama_trace::trace::frame::Number::F32(value) => f64::from(value),
            llama_trace::trace::frame::Number::I64(id) => id as f64,
        })
        .collect();
    assert_eq!(desk.app.place().step.axes(), [Axis::Vocab]);
    // The run draws at temperature 0.8, the lens at 1.
    let powers: Vec<f64> = probs.iter().map(|prob| prob.powf(0.8)).collect();
    let sum: f64 = powers.iter().sum();
    let (id, most) = powers.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    let line = format!("1. #{id}");
    let found = screen.lines().find(|row| row.contains(&line)).unwrap_or_else(|| panic!("{line}\n{screen}"));
    assert!(found.contains(&format!("{:.3}", most / sum)), "{found}: {}", most / sum);
}

impl Desk {
    fn choose_view(mut self, name: &str) -> Self {
        self.choose(name);
        self
    }
}
