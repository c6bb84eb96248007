//! Edited passes compared with the same edits in transformers' own code, in float64 (`fixtures/edits`).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::task::Poll;

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::error::Result;
use llama_trace::generate::{Batch, Prompts, Sampler, Sampling, Session};
use llama_trace::model::{Model, pass};
use llama_trace::replay::{DEFAULT_MEMORY, Live, Start};
use llama_trace::stop::LOOK;
use llama_trace::trace::{
    Answer, Fork, Frame, NoProbe, PassDims, Probe, Query, Recorder, Region, Run, Select, Site, Source, Stage,
    Status, Values,
};
use llama_trace_core::edit::{Edit, Edits, Given, Needed, Origin};
use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;
use serde::Deserialize;

use super::common::{fixture, llama_trace, logits, stderr};
use super::reference::{TOLERANCE, difference, name, values};

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    /// The ids of each pass.
    passes: Vec<Vec<u32>>,
    edits: Vec<String>,
    /// The last row of each pass.
    logits: Vec<Vec<f64>>,
    /// An edited stage.
    stage: Option<Expected>,
    /// Whether the edits write the values that are there.
    #[serde(default)]
    same: bool,
}

#[derive(Deserialize)]
struct Expected {
    name: String,
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// The cases of each model, with the model without edits.
fn cases() -> Vec<(Model, Vec<Case>)> {
    let text = std::fs::read(fixture("edits/cases.json")).unwrap();
    let Cases { cases } = serde_json::from_slice(&text).unwrap();
    let mut models: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for case in cases {
        models.entry(case.model.clone()).or_default().push(case);
    }
    assert_eq!(models.len(), 7);
    let load = |name: &str| Model::load(&checkpoint::open(&folder(name)).unwrap(), Cpu::default()).unwrap();
    models.into_iter().map(|(name, cases)| (load(&name), cases)).collect()
}

/// The folder of a model.
fn folder(model: &str) -> PathBuf {
    fixture(&if model == "mqa" { "edits/mqa".into() } else { format!("golden/{model}") })
}

/// The last row of each pass's logits, and stages.
type Stages = (Vec<Vec<f32>>, HashMap<Site, Frame>);

/// The last row of each pass's logits, and the stages that `select` selects. Without `select`, the pass runs without a
/// probe, so it computes only what the last row needs.
fn run(model: &Model, passes: &[Vec<u32>], select: Option<&Select>) -> Result<Stages> {
    let mut session = Session::new(model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let (mut rows, mut frames) = (Vec::new(), HashMap::new());
    for ids in passes {
        let dims = session.next_pass(ids.len());
        match select {
            Some(select) => {
                let mut take = |frame: Frame| drop(frames.insert(frame.site, frame));
                session.read(ids, &mut Recorder::new(model.sizes(), dims, select, &mut take))?;
            }
            None => session.read(ids, &mut NoProbe)?,
        }
        let read = |row: &[f32]| {
            rows.push(row.to_vec());
            Ok(())
        };
        pass::last_logits(model, &session.work, 0, read)?;
    }
    Ok((rows, frames))
}

/// The model with the edits of `case`. `model` has no edits.
fn edited(model: &Model, case: &Case) -> Model {
    let mut start = 0;
    let dims = case.passes.iter().enumerate().map(|(pass, ids)| {
        start += ids.len();
        (0, PassDims { pass, start: start - ids.len(), tokens: ids.len(), ..PassDims::default() })
    });
    let dims: Vec<_> = dims.collect();
    let edits = parsed(case.edits.iter().cloned());
    edits.check(&model.card(), &dims).unwrap();
    with_sources(model, edits, &dims, &case.passes)
}

fn parsed(texts: impl Iterator<Item = String>) -> Edits {
    Edits::new(
        texts.map(|text| Edit::parse(&text).unwrap_or_else(|wrong| panic!("{text}: {wrong}"))).collect(),
    )
}

/// The model with `edits` and everything that they read. The plain run is that of `passes`.
fn with_sources(model: &Model, edits: Edits, dims: &[(usize, PassDims)], passes: &[Vec<u32>]) -> Model {
    let mut given = Given::default();
    for needed in edits.needs(&model.sizes(), dims, dims.len()) {
        match needed {
            Needed::Frame { origin, site, .. } => {
                let there = Site { sequence: 0, ..site };
                let frame = match &origin {
                    Origin::Plain => frame(model, passes, there),
                    Origin::Prompt(prompt) => frame(model, &[ids(prompt)], there),
                    Origin::Trace(file) => panic!("no case reads {}", file.display()),
                };
                given.frames.insert((origin, site), Arc::new(frame));
            }
            Needed::Array(file) => {
                let array = array(&file);
                given.arrays.insert(file, array);
            }
            Needed::Mean(file, layer, stage) => {
                let mean = mean(model, &file, layer, stage);
                given.means.insert((file, layer, stage), mean);
            }
        }
    }
    model.with_edits(edits.with(given))
}

/// The ids of a prompt such as `ids 9,4,17`. The models have no tokenizer.
fn ids(prompt: &str) -> Vec<u32> {
    prompt.strip_prefix("ids ").unwrap().split(',').map(|id| id.parse().unwrap()).collect()
}

fn frame(model: &Model, passes: &[Vec<u32>], site: Site) -> Frame {
    run(model, passes, Some(&Select::stages(&[site.stage]))).unwrap().1.remove(&site).unwrap()
}

fn file(name: &Path) -> PathBuf {
    fixture("edits").join(name)
}

fn array(name: &Path) -> ArrayD<f32> {
    let open = || std::fs::File::open(file(name)).unwrap();
    let double = || ArrayD::<f64>::read_npy(open()).unwrap().mapv(|value| value as f32);
    ArrayD::<f32>::read_npy(open()).unwrap_or_else(|_| double())
}

/// The mean of a stage over all tokens of the prompts in a file.
fn mean(model: &Model, name: &Path, layer: Option<usize>, stage: Stage) -> Vec<f32> {
    let text = std::fs::read_to_string(file(name)).unwrap();
    let (mut sums, mut tokens) = (Vec::<f64>::new(), 0);
    for ids in text.lines().map(ids) {
        let site = Site { layer, ..Site::once(0, stage) };
        let values = values(&frame(model, std::slice::from_ref(&ids), site));
        let width = values.len() / ids.len();
        sums.resize(width, 0.0);
        values.iter().enumerate().for_each(|(i, value)| sums[i % width] += value);
        tokens += ids.len();
    }
    sums.iter().map(|sum| (sum / tokens as f64) as f32).collect()
}

/// The distance of the pass that is farthest from the reference.
fn farthest(rows: &[Vec<f32>], case: &Case) -> f64 {
    assert_eq!(rows.len(), case.logits.len());
    let distances = rows.iter().zip(&case.logits).map(|(row, expected)| logits::distance(row, expected));
    distances.fold(0.0, |far, distance| if distance > far || distance.is_nan() { distance } else { far })
}

#[test]
fn every_edit_gives_the_logits_and_the_stage_of_the_reference() {
    let mut wrong = Vec::new();
    for (plain, cases) in cases() {
        for case in cases {
            let edits = format!("{}: {:?}", case.model, case.edits);
            let model = edited(&plain, &case);
            let mut frames = HashMap::new();
            for (how, select) in [("with every stage", Some(&Select::all())), ("without a probe", None)] {
                match run(&model, &case.passes, select) {
                    Ok((rows, taken)) => {
                        frames.extend(taken);
                        let distance = farthest(&rows, &case);
                        if distance.is_nan() || distance > TOLERANCE {
                            wrong.push(format!("{edits} {how}: relative L2 error {distance:e}"));
                        }
                    }
                    Err(error) => wrong.push(format!("{edits} {how}: {error}")),
                }
            }
            if let Some(expected) = &case.stage {
                let Some(frame) = frames.values().find(|frame| name(frame.site) == expected.name) else {
                    wrong.push(format!("{edits}: no {}", expected.name));
                    continue;
                };
                let map = |shape: &[usize], values| {
                    BTreeMap::from([(expected.name.clone(), (shape.to_vec(), values))])
                };
                let ours = map(frame.shape(), values(frame));
                let theirs = map(&expected.shape, expected.values.clone());
                wrong.extend(difference(&ours, &theirs).map(|what| format!("{edits}: {what}")));
            }
            if !case.same {
                let distance = farthest(&run(&plain, &case.passes, None).unwrap().0, &case);
                assert!(distance > TOLERANCE, "{edits}: the comparison cannot detect a missing edit");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_edit_that_writes_the_values_that_are_there_changes_no_bit() {
    let mut count = 0;
    for (plain, cases) in cases() {
        for case in cases.iter().filter(|case| case.same) {
            count += 1;
            let model = edited(&plain, case);
            let [(_, ours), (_, theirs)] =
                [&model, &plain].map(|model| run(model, &case.passes, Some(&Select::all())).unwrap());
            assert_eq!(ours.len(), theirs.len());
            for (site, frame) in &theirs {
                let [ours, theirs] = [&ours[site], frame].map(values);
                assert!(
                    ours.iter().map(|x| x.to_bits()).eq(theirs.iter().map(|x| x.to_bits())),
                    "{site} of {:?}",
                    case.edits
                );
            }
            let [(ours, _), (theirs, _)] =
                [&model, &plain].map(|model| run(model, &case.passes, None).unwrap());
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(logits::bits(ours), logits::bits(theirs), "{:?}", case.edits);
            }
        }
    }
    assert_eq!(count, 7);
}

/// Keeps the logits of each sequence of a batch.
#[derive(Default)]
struct Logits(BTreeMap<usize, Vec<f32>>);

impl Probe for Logits {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site.stage == Stage::Logits
    }

    fn record(&mut self, site: Site, _: Range<usize>, values: Values<'_>) {
        self.0.entry(site.sequence).or_default().extend(values.numbers().map(|value| value as f32));
    }
}

/// The logits of each prompt in the first pass of a batch.
fn batch(model: &Model, ids: &[Vec<u32>]) -> Result<BTreeMap<usize, Vec<f32>>> {
    let prompts =
        Prompts { ids: ids.to_vec(), ends: Vec::new(), draws: 1, context: None, chunk: None, memory: None };
    let mut batch = Batch::new(model, Sampler::new(Sampling::default()).unwrap(), prompts, |_| None).unwrap();
    assert!(batch.ready().unwrap());
    let mut logits = Logits::default();
    batch.pass(&mut logits)?;
    assert_eq!(batch.running(), 0);
    Ok(logits.0)
}

#[test]
fn an_edit_of_one_sequence_of_a_batch_changes_this_sequence_only() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (plain, cases) in cases() {
        for case in &cases {
            // Edits that need a decode pass are not for a batch of one pass.
            if case.edits.iter().any(|text| text.starts_with("p1") || text.starts_with("p2")) {
                continue;
            }
            count += 1;
            let prompt = case.passes[0].clone();
            let before = prompt.iter().rev().copied().chain([5, 4]).collect();
            let ids: [Vec<u32>; 3] = [before, prompt, vec![7, 3, 6]];
            let dims = ids.iter().map(|ids| PassDims {
                pass: 0,
                start: 0,
                tokens: ids.len(),
                ..PassDims::default()
            });
            let dims: Vec<_> = dims.enumerate().collect();
            let texts = case.edits.iter().map(|text| format!("s1/{}", text.trim_start_matches("s0/")));
            let model = with_sources(&plain, parsed(texts), &dims, &case.passes);
            let edits = format!("{}: {:?}", case.model, case.edits);
            let ours = match batch(&model, &ids) {
                Ok(ours) => ours,
                Err(error) => {
                    wrong.push(format!("{edits}: {error}"));
                    continue;
                }
            };
            let last = &ours[&1][ours[&1].len() - plain.config.vocab..];
            let distance = logits::distance(last, &case.logits[0]);
            if distance.is_nan() || distance > TOLERANCE {
                wrong.push(format!("{edits}: relative L2 error {distance:e}"));
            }
            let before = batch(&plain, &ids).unwrap();
            for other in [0, 2] {
                assert_eq!(logits::bits(&ours[&other]), logits::bits(&before[&other]), "{edits}");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "{count}");
}

/// The last row of the logits of a pass of `source`.
fn last_row(source: &mut dyn Source, pass: usize) -> Vec<f32> {
    while source.status() != Status::Idle {
        source.wait(LOOK);
        source.poll().unwrap();
    }
    let outline = source.outline();
    let (vocab, dims) = (outline.card.sizes().vocab, outline.passes[pass].dims);
    let site = Site { run: outline.run, ..Site::once(pass, Stage::Logits) };
    let query = Query::Block(site, Region(vec![dims.tokens - 1..dims.tokens, 0..vocab]));
    loop {
        source.poll().unwrap();
        if let Poll::Ready(answer) = source.ask(&query) {
            let Answer::Block(block) = answer.unwrap() else { panic!("{site}") };
            return (0..vocab).map(|v| block.get(&[dims.tokens - 1, v]).unwrap().real() as f32).collect();
        }
        source.wait(LOOK);
    }
}

#[test]
fn a_branch_of_an_edited_run_gives_the_logits_of_the_reference() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (plain, cases) in cases() {
        for case in cases.iter().step_by(4) {
            count += 1;
            let start = Start {
                ids: case.passes[0].clone(),
                draws: 1,
                sampler: Sampler::new(Sampling::default()).unwrap(),
                tokenizer: None,
                eos: Vec::new(),
                memory: DEFAULT_MEMORY,
                context: Some(plain.config.context.min(20)),
            };
            let live = Live::start(Arc::new(edited(&plain, case)), start).unwrap();
            let mut runs: Vec<Box<dyn Source>> = vec![Box::new(live)];
            let mut rows = vec![last_row(&mut *runs[0], 0)];
            // Each pass after the first is read in a branch of the run before it.
            for (pass, ids) in case.passes[1..].iter().enumerate() {
                let of = &mut runs[pass];
                let fork = Fork { of: of.outline().run, pass, token: ids[0], setting: None };
                let mut branch = of.branch(Run(pass as u16 + 1), fork).unwrap();
                while branch.outline().passes.len() < pass + 2 {
                    branch.advance().unwrap();
                    last_row(&mut *branch, 0);
                }
                rows.push(last_row(&mut *branch, pass + 1));
                runs.push(branch);
            }
            let distance = farthest(&rows, case);
            if distance.is_nan() || distance > TOLERANCE {
                wrong.push(format!("{}: {:?}: relative L2 error {distance:e}", case.model, case.edits));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 40, "{count}");
}

fn ok(args: &[&str]) -> Output {
    let output = llama_trace(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    output
}

#[test]
fn cells_of_a_trace_give_the_logits_of_the_reference() {
    let (temporary, mut count) = (tempfile::tempdir().unwrap(), 0);
    let path = |name: String| temporary.path().join(name).to_str().unwrap().to_owned();
    let cases = cases().into_iter().flat_map(|(_, cases)| cases);
    // A trace of the first pass needs no tokens that a run would draw.
    let of_prompts = cases.filter(|case| {
        case.edits.iter().all(|text| text.starts_with("p0")) && case.edits.concat().contains("\"ids ")
    });
    for (number, case) in of_prompts.enumerate().step_by(2) {
        count += 1;
        let (model, ids) =
            (folder(&case.model), |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>());
        let model = model.to_str().unwrap();
        let mut args =
            vec!["export".to_owned(), "--model".into(), model.into(), "--stage".into(), "logits".into()];
        args.extend(["--ids".into(), ids(&case.passes[0]).join(",")]);
        for (at, text) in case.edits.iter().enumerate() {
            let mut edit = text.clone();
            while let Some((before, rest)) = edit.split_once("\"ids ") {
                let (prompt, after) = rest.split_once('"').unwrap();
                let trace = path(format!("{number}-{at}-{}.trace", before.len()));
                let keep = ["all", "minimal"][count % 2];
                ok(&["record", "--model", model, "--ids", prompt, "--keep", keep, "--out", &trace]);
                edit = format!("{before}{trace}{after}");
            }
            args.extend(["--edit".into(), edit]);
        }
        let out = path(format!("out-{number}"));
        args.extend(["--out".into(), out.clone()]);
        ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let file = std::fs::File::open(format!("{out}/pass_000/logits.npy")).unwrap();
        let logits = ArrayD::<f32>::read_npy(file).unwrap();
        let last = logits.index_axis(ndarray::Axis(0), case.passes[0].len() - 1);
        let last: Vec<f32> = last.iter().copied().collect();
        let distance = logits::distance(&last, &case.logits[0]);
        assert!(distance <= TOLERANCE, "{}: {:?}: relative L2 error {distance:e}", case.model, case.edits);
    }
    assert!(count > 8, "{count}");
}
