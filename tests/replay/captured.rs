//! Folders that the capture scripts wrote from runs of other runtimes. Correct runs agree with ours. For each mistake
//! of a port, written in the layout of each script, `diff` finds the first stage that shows the mistake.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::thread;

use llama_trace::trace::{Frame, PassDims, Site, Sizes, Stage};
use ndarray::{ArrayD, Axis as At, IxDyn};
use ndarray_npy::{ReadNpyExt, WriteNpyExt};
use serde_json::Value;
use tempfile::TempDir;
use toml::{Table, Value as Toml};

use super::common::{fixture, llama_trace, stderr, stdout};
use super::diff::{BUGS, IDS};
use super::model;
use super::port::{Kept, Port};

const RUNTIMES: [&str; 3] = ["transformers", "llama-cpp", "transformer-lens"];

/// The report of `diff` on `captured`. The reference is an export of the same ids on the model in `folder`.
fn judged(folder: &Path, reference: &Path, captured: &Path) -> Value {
    let [model, a, b] = [folder, reference, captured].map(|path| path.to_str().unwrap());
    let output = llama_trace(["diff", "--model", model, "--format", "json", a, b]);
    let report: Value =
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(output.status.code(), Some(if report["same"] == true { 0 } else { 1 }));
    report
}

/// A value as JSON. TOML has the same syntax, except for tables.
fn json(value: &Toml) -> String {
    serde_json::to_string(value).unwrap()
}

fn export(folder: &Path, ids: &str, passes: &str, out: &Path) {
    let [model, out] = [folder, out].map(|path| path.to_str().unwrap());
    let args = ["export", "--model", model, "--precision", "f32", "--ids", ids, "-n", passes, "--out", out];
    let output = llama_trace(args);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn captured_runs_of_each_runtime_agree_with_ours() {
    for (name, model) in [("gqa", "golden/gqa"), ("builtin", "builtin")] {
        for runtime in RUNTIMES {
            let (model, captured) = (fixture(model), fixture(&format!("capture/{runtime}/{name}")));
            let map: Table = fs::read_to_string(captured.join("capture.toml")).unwrap().parse().unwrap();
            let passes = map["passes"].as_array().unwrap();
            let ids: Vec<_> = passes[0]["tokens"].as_array().unwrap().iter().map(json).collect();
            let folder = TempDir::new().unwrap();
            let reference = folder.path().join("a");
            export(&model, &ids.join(","), &passes.len().to_string(), &reference);
            let report = judged(&model, &reference, &captured);
            assert_eq!(report["same"], true, "{runtime} {name}: {report}");
            assert!(report["smallest_tolerance"].as_f64().unwrap() < 1e-6, "{runtime} {name}: {report}");
            // Every stage that the script claims to write was compared.
            let missing: Vec<_> =
                report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            for stage in shown(runtime) {
                let site = format!("/{stage}");
                let found = missing.iter().any(|at| at.starts_with("p0/") && at.ends_with(&site));
                assert!(!found, "{runtime} {name}: {stage} is missing");
            }
        }
    }
}

/// The stages that a runtime's script writes for a model without norms on queries and keys.
fn shown(runtime: &str) -> BTreeSet<Stage> {
    let folder = fixture(&format!("capture/{runtime}/gqa"));
    let map: Table = fs::read_to_string(folder.join("capture.toml")).unwrap().parse().unwrap();
    let named = map.get("stages").and_then(Toml::as_table).cloned().unwrap_or_default();
    let named = named.keys().map(|name| Stage::from_name(name).unwrap());
    let there = |stage: &Stage| {
        let file = if stage.in_layer() { Site::layer(0, 0, *stage) } else { Site::once(0, *stage) };
        folder.join(file.file_name()).exists()
    };
    let without = [Stage::XqNorm, Stage::XkNorm];
    named.chain(Stage::ALL.iter().copied().filter(there)).filter(|stage| !without.contains(stage)).collect()
}

/// The layout of a runtime's script, from the capture.toml that the script wrote.
struct Layout {
    stages: BTreeMap<Stage, Table>,
    shown: BTreeSet<Stage>,
}

impl Layout {
    fn of(runtime: &str) -> Self {
        let text = fs::read_to_string(fixture(&format!("capture/{runtime}/gqa/capture.toml"))).unwrap();
        let map: Table = text.parse().unwrap();
        let named = map.get("stages").and_then(Toml::as_table).cloned().unwrap_or_default();
        let entry = |(name, lies): (String, Toml)| {
            (Stage::from_name(&name).unwrap(), lies.as_table().unwrap().clone())
        };
        Self { stages: named.into_iter().map(entry).collect(), shown: shown(runtime) }
    }

    /// Writes `run` to `folder` in this layout. `sizes` are the model's.
    fn write(&self, run: &Kept, sizes: &Sizes, folder: &Path) {
        let c = sizes.head_dim;
        let mut stages = Table::new();
        for (&stage, lies) in self.stages.iter().filter(|(stage, _)| self.shown.contains(stage)) {
            let mut lies = lies.clone();
            if lies.contains_key("columns") {
                // Both halves of a head have the same angles.
                lies.insert("columns".into(), Toml::Array(vec![0.into(), (c as i64 / 2).into()]));
            }
            stages.insert(stage.name().into(), lies.into());
        }
        for (site, frame) in run.frames.iter().filter(|(site, _)| self.shown.contains(&site.stage)) {
            let file = self
                .stages
                .get(&site.stage)
                .map_or_else(|| site.file_name(), |lies| named(lies["file"].as_str().unwrap(), *site));
            self.write_one(*site, frame, c, folder, &file);
        }
        let ids: Vec<_> = run.about.passes[0].tokens.iter().map(|token| token.id).collect();
        let mut map = format!(
            "format = 'llama-trace capture'\nversion = 1\nprecision = 'f32'\nconfig = {{ head_dim = {c} }}\n\
             passes = [{{ start = 0, tokens = {ids:?} }}]\n[stages]\n"
        );
        for (stage, lies) in stages {
            let lies: Vec<_> = lies
                .as_table()
                .unwrap()
                .iter()
                .map(|(key, value)| format!("{key} = {}", json(value)))
                .collect();
            map += &format!("{stage} = {{ {} }}\n", lies.join(", "));
        }
        fs::write(folder.join("capture.toml"), map).unwrap();
    }

    fn write_one(&self, site: Site, frame: &Frame, c: usize, folder: &Path, file: &str) {
        let mut values = frame.floats().unwrap().to_owned();
        let nothing = Table::new();
        let lies = self.stages.get(&site.stage).unwrap_or(&nothing);
        if let Some(weight) = lies.get("times") {
            // The file has the values before they are multiplied by the norm's weight. Any weight serves here, so the
            // test makes one up.
            let width = *values.shape().last().unwrap();
            let row = ArrayD::from_shape_fn(IxDyn(&[width]), |i| 1.0 + 0.25 * (i[0] % 7) as f32);
            values /= &row;
            write(&folder.join(named(weight.as_str().unwrap(), site)), &row);
        }
        if lies.get("pairs").is_some() {
            let shape = values.shape().to_vec();
            let mut flat = values.into_raw_vec_and_offset().0;
            for head in flat.chunks_exact_mut(c) {
                let halves = head.to_vec();
                for i in 0..c / 2 {
                    (head[2 * i], head[2 * i + 1]) = (halves[i], halves[i + c / 2]);
                }
            }
            values = ArrayD::from_shape_vec(IxDyn(&shape), flat).unwrap();
        }
        if let Some(axes) = lies.get("axes").and_then(Toml::as_array) {
            let own: Vec<_> = site.stage.axes().iter().map(|axis| axis.name()).collect();
            let order: Vec<_> = axes
                .iter()
                .filter_map(|axis| own.iter().position(|name| Some(*name) == axis.as_str()))
                .collect();
            values = values.permuted_axes(order).insert_axis(At(0));
        }
        if lies.contains_key("columns") {
            let last = At(values.ndim() - 1);
            values = ndarray::concatenate(last, &[values.view(), values.view()]).unwrap();
        }
        write(&folder.join(file), &values);
    }
}

fn named(name: &str, site: Site) -> String {
    let layer = site.layer.map_or_else(String::new, |layer| layer.to_string());
    name.replace("{pass}", &site.pass.to_string()).replace("{layer}", &layer)
}

fn write(path: &Path, values: &ArrayD<f32>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    values.as_standard_layout().write_npy(fs::File::create(path).unwrap()).unwrap();
}

/// The first stage among `shown` in which the two runs differ.
fn first(right: &Kept, wrong: &Kept, sizes: &Sizes, shown: &BTreeSet<Stage>) -> Option<Site> {
    let dims = PassDims { pass: 0, start: 0, tokens: IDS.len(), ..PassDims::default() };
    let differs = |site: &Site| {
        let (Some(a), Some(b)) = (right.frames.get(site), wrong.frames.get(site)) else { return false };
        let (a, b) = (a.floats().unwrap(), b.floats().unwrap());
        let far =
            |(a, b): (&f32, &f32)| a.is_finite() != b.is_finite() || (a - b).abs() > 1e-3 * b.abs().max(0.1);
        a.shape() != b.shape() || a.iter().zip(b.iter()).any(far)
    };
    Site::all(sizes, dims).into_iter().filter(|site| shown.contains(&site.stage)).find(differs)
}

#[test]
fn every_mistake_in_a_captured_folder_is_found_at_the_first_stage_that_shows_it() {
    let references = TempDir::new().unwrap();
    let ids: Vec<_> = IDS.iter().map(ToString::to_string).collect();
    let models: HashMap<&str, _> = BUGS.iter().map(|(_, on, ..)| (*on, model(on))).collect();
    for on in models.keys() {
        export(&fixture(&format!("golden/{on}")), &ids.join(","), "1", &references.path().join(on));
    }
    let check = |runtime: &str| {
        let layout = Layout::of(runtime);
        for (bug, on, ..) in BUGS {
            let (config, sizes) = (&models[on].config, models[on].sizes());
            let [right, wrong] = ["", bug].map(|bug| Port::new(on, config, bug).run(&IDS));
            let folder = TempDir::new().unwrap();
            layout.write(&wrong, &sizes, folder.path());
            let report =
                judged(&fixture(&format!("golden/{on}")), &references.path().join(on), folder.path());
            let found =
                report["first"]["address"].as_str().map(|at| at.split('[').next().unwrap().to_owned());
            let expected = match bug {
                "bos" => Some("p0/tokens".to_owned()),
                _ => first(&right, &wrong, &sizes, &layout.shown).map(|site| site.to_string()),
            };
            assert_eq!(found, expected, "{runtime}: {bug}: {report}");
            let name = bug.split(':').next().unwrap();
            let named: Vec<_> = report["diagnosis"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|one| one["name"].as_str())
                .collect();
            // The port's soft cap (2.0) is not one of the known caps. `diff` could compute it from scores, but not from
            // attention weights alone.
            let known = !(bug.is_empty() || bug == "softcap" && found.as_deref() == Some("p0/L0/softmax"));
            assert_eq!(known, named.contains(&name), "{runtime}: {bug} at {found:?}: {named:?}");
        }
    };
    thread::scope(|scope| {
        let running: Vec<_> = RUNTIMES.map(|runtime| scope.spawn(move || check(runtime))).into();
        running.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn the_test_layouts_have_the_shapes_of_the_captured_folders() {
    // The files of the scripts must have the same shapes as the files of the layout. Otherwise the test above would use
    // folders that no script writes.
    let model = model("gqa");
    for runtime in RUNTIMES {
        let (layout, folder) = (Layout::of(runtime), TempDir::new().unwrap());
        let run = Port::new("gqa", &model.config, "").run(&[1, 5, 9, 13, 17, 21]);
        layout.write(&run, &model.sizes(), folder.path());
        for site in run.frames.keys().filter(|site| layout.shown.contains(&site.stage)) {
            let file = layout
                .stages
                .get(&site.stage)
                .map_or_else(|| site.file_name(), |lies| named(lies["file"].as_str().unwrap(), *site));
            let shape = |folder: &Path| {
                let values: ArrayD<f32> =
                    ArrayD::read_npy(fs::File::open(folder.join(&file)).unwrap()).unwrap();
                let lengths = values.shape().iter().copied().filter(|&length| length != 1);
                // The heads may be joined in one axis or not.
                (lengths.clone().product::<usize>(), values.shape().last().copied())
            };
            let (ours, theirs) = (shape(folder.path()), shape(&fixture(&format!("capture/{runtime}/gqa"))));
            assert_eq!(ours.0, theirs.0, "{runtime}: {file}");
        }
    }
}
