//! Judges the outputs of the programs in `fixtures/kata`: no wrong one passes, most are named, no right one is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::diff::NAMES;

/// The seed of the cases whose outputs are stored.
const SEED: u64 = 53;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/kata")
}

/// A program of the fixtures, with its outputs.
struct Solution {
    name: String,
    is_right: bool,
    /// The names of its mistake, separated by `|`; `-` if the table does not have it.
    label: String,
    outputs: Vec<Output>,
}

/// The programs of a kata.
fn solutions(kata: &Kata) -> Vec<Solution> {
    let bytes = fs::read(fixtures().join("outputs").join(format!("{}.bin", kata.name))).unwrap();
    let mut all: BTreeMap<String, Solution> = BTreeMap::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let line = std::str::from_utf8(&rest[..end]).unwrap();
        let [kind, name, label, length] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let length: usize = length.parse().unwrap();
        let (file, after) = rest[end + 1..].split_at(length);
        rest = after;
        let new = || Solution {
            name: name.into(),
            is_right: kind == "right",
            label: label.into(),
            outputs: Vec::new(),
        };
        all.entry(name.into()).or_insert_with(new).outputs.push(Output::parse(file).unwrap());
    }
    all.into_values().collect()
}

/// Runs the programs on the cases, and stores their outputs.
fn bless(kata: &Kata, cases: &[Case], python: &str) {
    let folder = tempfile::tempdir().unwrap();
    for (i, case) in cases.iter().enumerate() {
        let path = folder.path().join(format!("{i:02}"));
        fs::create_dir(&path).unwrap();
        case.inputs.iter().for_each(|input| input.write(&path.join(format!("{}.npy", input.name))).unwrap());
        fs::write(path.join("numbers.json"), case.numbers_json()).unwrap();
    }
    let outputs = fixtures().join("outputs");
    fs::create_dir_all(&outputs).unwrap();
    let mut command = Command::new(python);
    command.arg(fixtures().join(format!("{}.py", kata.name))).arg(folder.path());
    let status = command.arg(outputs.join(format!("{}.bin", kata.name))).status().unwrap();
    assert!(status.success(), "{}", kata.name);
}

#[test]
fn no_wrong_program_passes_most_are_named_and_no_right_one_is_refused() {
    let python = std::env::var("LLAMA_TRACE_PYTHON").ok();
    let (mut wrong, mut named, mut right, mut stages, mut problems) = (0, 0, 0, 0, Vec::new());
    for kata in KATAS {
        let cases = random(kata, SEED).unwrap();
        if let (Some(python), true) = (&python, std::env::var_os("LLAMA_TRACE_BLESS").is_some()) {
            bless(kata, &cases, python);
        }
        let mut of_stage = 0;
        for Solution { name, is_right, label, outputs } in solutions(kata) {
            assert_eq!(outputs.len(), cases.len(), "{}: {name}", kata.name);
            let judgement = judge(kata, &cases, &outputs).unwrap();
            match (judgement, is_right) {
                (Judgement::Correct, true) => right += 1,
                (Judgement::Correct, false) => problems.push(format!("{}: {name} passes", kata.name)),
                (Judgement::Wrong(found), true) => {
                    problems.push(format!("{}: {name} is refused: {:?}", kata.name, found.cell));
                }
                (Judgement::Wrong(found), false) => {
                    (wrong, of_stage) = (wrong + 1, of_stage + 1);
                    let names: Vec<_> = found.mistakes.iter().map(|one| one.name).collect();
                    if label.split('|').any(|label| names.contains(&label)) {
                        named += 1;
                    } else {
                        println!("{}: {name} is {label}, named {:?}", kata.name, found.mistakes);
                    }
                }
            }
        }
        stages += usize::from(of_stage >= 10);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    println!("{wrong} wrong, {named} named, {right} right, {stages} stages with 10 or more");
    assert!(wrong >= 300 && stages >= 20 && right >= 60, "{wrong} wrong, {stages} stages, {right} right");
    assert!(named * 10 >= wrong * 9, "{named} of {wrong} are named");
}

#[test]
fn the_programs_are_labelled_with_names_of_the_table() {
    let mut count = 0;
    for file in fs::read_dir(fixtures()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "py") || path.ends_with("solutions.py") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for label in text.lines().filter_map(|line| line.strip_prefix("@wrong(\"")?.strip_suffix("\")")) {
            for name in label.split('|') {
                assert!(NAMES.contains(&name), "{name} in {}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 300, "{count}");
}

#[test]
fn every_computing_stage_has_a_kata() {
    use llama_trace_core::trace::Stage;
    use llama_trace_core::trace::stage::Op;
    // These stages of other families are computed as others are, from other inputs. The models of the katas are Llamas.
    let others = [
        // The kata `rope_table`, with the θ of the layer.
        Stage::LayerRopeCos,
        Stage::LayerRopeSin,
        // The kata `qk_norm`, of the rotated queries and keys.
        Stage::XqRopeNorm,
        Stage::XkRopeNorm,
        // The kata `rms_norm`, of what a sublayer adds to the stream.
        Stage::PostAttnNorm,
        Stage::PostFfnNorm,
        // One formula of one number, which `diff` judges in a port. The kata `silu` is of this kind.
        Stage::CappedScores,
        Stage::CappedLogits,
        Stage::FfnAct,
    ];
    let covered =
        |stage: &Stage| others.contains(stage) || KATAS.iter().any(|kata| kata.stages.contains(stage));
    let left: Vec<&Stage> = Stage::ALL.iter().filter(|stage| !covered(stage)).collect();
    // The tokens are an input. The heads' outputs are quantised like the other rows, after they are joined.
    assert_eq!(left, [&Stage::Tokens, &Stage::AttnHeadsQ8, &Stage::AttnHeadsScale]);
    assert_eq!(Stage::Tokens.info().op, Op::Input);
}
