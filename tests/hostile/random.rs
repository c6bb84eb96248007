//! Files with a few random changes. A child process with limits on memory and time opens and runs each of them.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{RngSeed, TestRunner};
use serde_json::Value;
use tempfile::TempDir;

use super::common::{data, fixture, llama_trace, models, stderr};
use super::{child, trace};
use llama_trace_core::testing::sampled;

/// Runs `check` on `cases` random changes, or on the number in `PROPTEST_CASES`. The changes are always the same,
/// unless `PROPTEST_RNG_SEED` is set.
fn each<S: Strategy>(cases: u32, changes: S, check: impl Fn(S::Value) -> Option<String>) {
    let asked = |name| std::env::var_os(name).is_some();
    let mut config =
        ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..Default::default() };
    if !asked("PROPTEST_CASES") {
        config.cases = sampled("changes of a file", 0..cases, cases as usize / 4).len() as u32;
    }
    if !asked("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(0);
    }
    let result = TestRunner::new(config).run(&changes, |change| match check(change) {
        None => Ok(()),
        Some(wrong) => Err(TestCaseError::fail(wrong)),
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// A change of a JSON value: the index of the child at each step down, and the change.
#[derive(Clone, Debug)]
struct Edit {
    path: Vec<Index>,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    /// Any other value.
    Replace(Index),
    /// Another value of the same type.
    Alike(Index),
    /// A list with only this value.
    Wrap,
    /// A second copy of the value, under another name.
    Double,
    /// Another name.
    Rename,
    /// No value: it is removed.
    Remove,
    /// The same list in reverse order.
    Reverse,
}

/// Values that a careless parser mishandles.
static VALUES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut values: Vec<Value> = [
        r#"null true false "" "a" "F32" "F64" "I32" "BF16" "llama3" "\u001b[2J" [] [[]] {} {"a":{}} [0] [1,2,3] 0 1 2 3 5 8"#,
        "-1 48 63 64 65 128 255 256 4096 65535 65536 1048575 1048576 1048577 2147483647 2147483648 4294967295",
        "4294967296 4611686018427387904 9223372036854775807 9223372036854775808 18446744073709551615",
        "18446744073709551616 -9223372036854775808 0.5 -0.0 1e-45 1e38 1e39 1e308 -1e308",
    ]
    .iter()
    .flat_map(|line| line.split(' '))
    .map(|text| serde_json::from_str(text).unwrap())
    .collect();
    values.push("x".repeat(70_000).into());
    values.push((0..100).fold(Value::Null, |inner, _| Value::Array(vec![inner])));
    values.push(vec![Value::from(1); 10_000].into());
    values
});

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let change = prop_oneof![
        4 => any::<Index>().prop_map(Change::Replace),
        4 => any::<Index>().prop_map(Change::Alike),
        1 => Just(Change::Wrap),
        1 => Just(Change::Double),
        1 => Just(Change::Rename),
        2 => Just(Change::Remove),
        1 => Just(Change::Reverse),
    ];
    let path = prop::collection::vec(any::<Index>(), 1..6);
    let edit = (path, change).prop_map(|(path, change)| Edit { path, change });
    // Most cases have one change, so the rest of the file is intact and is read to its end.
    prop_oneof![
        3 => prop::collection::vec(edit.clone(), 1),
        1 => prop::collection::vec(edit, 2..4),
    ]
}

impl Edit {
    /// Follows the path into `value` until the path ends or the value has no children, and makes the change there.
    fn apply(&self, mut value: &mut Value) {
        for (depth, step) in self.path.iter().enumerate() {
            let last = depth + 1 == self.path.len();
            let name = match &*value {
                Value::Array(list) if !list.is_empty() => Err(step.index(list.len())),
                Value::Object(object) if !object.is_empty() => {
                    Ok(object.keys().nth(step.index(object.len())).unwrap().clone())
                }
                _ => return,
            };
            let child = match &name {
                Ok(name) => &value[name],
                Err(at) => &value[at],
            };
            let ends = child.as_array().is_none_or(Vec::is_empty)
                && child.as_object().is_none_or(serde_json::Map::is_empty);
            if last || ends {
                return self.change.make(value, &name);
            }
            value = match &name {
                Ok(name) => &mut value[name],
                Err(at) => &mut value[at],
            };
        }
    }
}

impl Change {
    /// Changes the child of `parent` with this name or number.
    fn make(&self, parent: &mut Value, child: &Result<String, usize>) {
        match (self, parent, child) {
            (Self::Remove, Value::Object(object), Ok(name)) => drop(object.shift_remove(name)),
            (Self::Remove, Value::Array(list), Err(at)) => drop(list.remove(*at)),
            (Self::Double, Value::Object(object), Ok(name)) => {
                object.insert(format!("{name}2"), object[name].clone());
            }
            (Self::Double, Value::Array(list), Err(at)) => list.insert(*at, list[*at].clone()),
            (Self::Rename, Value::Object(object), Ok(name)) => {
                let value = object.shift_remove(name).unwrap_or_default();
                object.insert(format!("\u{1b}[2J{name}"), value);
            }
            (_, Value::Object(object), Ok(name)) => self.replace(&mut object[name]),
            (_, Value::Array(list), Err(at)) => self.replace(&mut list[*at]),
            _ => {}
        }
    }

    fn replace(&self, value: &mut Value) {
        match self {
            Self::Replace(index) => *value = index.get(&VALUES).clone(),
            Self::Alike(index) => {
                let kind = std::mem::discriminant(value);
                let alike: Vec<_> =
                    VALUES.iter().filter(|other| std::mem::discriminant(*other) == kind).collect();
                *value = (*index.get(&alike)).clone();
            }
            Self::Wrap => *value = Value::Array(vec![value.take()]),
            Self::Reverse => value.as_array_mut().into_iter().for_each(|list| list.reverse()),
            Self::Double | Self::Rename | Self::Remove => {}
        }
    }
}

/// One change of bytes.
#[derive(Clone, Debug)]
enum Cut {
    Byte(Index, u8),
    /// A little-endian number over four or eight bytes, at a multiple of four.
    Number(Index, i64, bool),
    Truncate(Index),
    Insert(Index, Vec<u8>),
}

/// Changes of the first `head` bytes, and of the length.
fn cuts() -> impl Strategy<Value = Vec<Cut>> {
    let numbers = vec![0, 1, -1, 2, 3, 7, 8, 9, 28, 100, 4096, 1 << 20, (1 << 20) + 1, 1 << 30, 1 << 40];
    let extremes = [i32::MAX.into(), i32::MIN.into(), u32::MAX.into(), i64::MAX, i64::MIN, -2, -8];
    let number = prop::sample::select([&numbers[..], &extremes].concat());
    let cut = prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Cut::Byte(at, byte)),
        6 => (any::<Index>(), number, any::<bool>()).prop_map(|(at, number, wide)| Cut::Number(at, number, wide)),
        1 => any::<Index>().prop_map(Cut::Truncate),
        1 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, new)| Cut::Insert(at, new)),
    ];
    prop::collection::vec(cut, 1..4)
}

fn cut(bytes: &mut Vec<u8>, cuts: &[Cut], head: usize) {
    for cut in cuts {
        let head = head.min(bytes.len());
        if head == 0 {
            return;
        }
        match cut {
            Cut::Byte(at, byte) => bytes[at.index(head)] = *byte,
            Cut::Number(at, number, wide) => {
                let at = at.index(head) / 4 * 4;
                let new = &number.to_le_bytes()[..if *wide { 8 } else { 4 }];
                let end = bytes.len().min(at + new.len());
                bytes[at..end].copy_from_slice(&new[..end - at]);
            }
            Cut::Truncate(at) => bytes.truncate(at.index(bytes.len())),
            Cut::Insert(at, new) => {
                let at = at.index(head);
                bytes.splice(at..at, new.iter().copied());
            }
        }
    }
}

/// A model in a folder. One file of it is changed.
struct Subject {
    folder: TempDir,
    file: PathBuf,
    whole: Vec<u8>,
    /// The command lines. Each case chooses one of them.
    commands: Vec<Vec<String>>,
}

impl Subject {
    /// `file` is changed. The commands receive `model`, or the folder itself if `model` is empty.
    fn new(folder: TempDir, model: &str, file: &str, commands: &[&[&str]]) -> Self {
        let file = folder.path().join(file);
        let whole = fs::read(&file).unwrap();
        let model = folder.path().join(model);
        let commands = commands
            .iter()
            .map(|args| args.iter().map(|arg| arg.replace("{}", model.to_str().unwrap())).collect())
            .collect();
        let subject = Self { folder, file, whole, commands };
        for number in 0..subject.commands.len() {
            let end = subject.run(number);
            assert_eq!((end.wrong(), end.code), (None, Some(0)), "the file is right before it is changed");
        }
        subject
    }

    fn run(&self, command: usize) -> child::End {
        let args: Vec<&str> = self.commands[command].iter().map(String::as_str).collect();
        child::run(&args, &[self.folder.path()])
    }

    /// Returns the error of a run with these bytes as the file.
    fn wrong(&self, bytes: &[u8], command: Index) -> Option<String> {
        // A new file each time, because a file that is still mapped must not change.
        fs::remove_file(&self.file).unwrap();
        fs::write(&self.file, bytes).unwrap();
        self.run(command.index(self.commands.len())).wrong()
    }

    fn json(&self, cases: u32) {
        let value: Value = serde_json::from_slice(&self.whole).unwrap();
        each(cases, (edits(), any::<Index>()), |(edits, command)| {
            let mut value = value.clone();
            edits.iter().for_each(|edit| edit.apply(&mut value));
            self.wrong(value.to_string().as_bytes(), command)
        });
    }

    fn bytes(&self, cases: u32, head: usize) {
        each(cases, (cuts(), any::<Index>()), |(cuts, command)| {
            let mut bytes = self.whole.clone();
            cut(&mut bytes, &cuts, head);
            self.wrong(&bytes, command)
        });
    }
}

/// Command lines that show a model, record a run of it, and draw pictures of the run. `{}` is the model's folder or
/// file.
const ON_IDS: &[&[&str]] = &[
    &["info", "--model", "{}"],
    &["log", "--model", "{}", "--ids", "1,2,3", "-n", "3", "--values"],
    &["--model", "{}", "--ids", "1,2,3", "-n", "3", "--temperature", "1"],
];
const ON_TEXT: &[&[&str]] = &[
    &["info", "--model", "{}"],
    &["log", "--model", "{}", "--ids", "1,2,3", "-n", "3", "--values"],
    &["log", "--model", "{}", "--prompt", "ab b é\u{1f999}", "-n", "2"],
];

fn golden(file: &str) -> Subject {
    let folder = models::golden("tied_llama3", |_| {});
    let from = fixture("golden/tied_llama3/generation_config.json");
    fs::copy(from, folder.path().join("generation_config.json")).unwrap();
    Subject::new(folder, "", file, ON_IDS)
}

fn llama2c(file: &str) -> Subject {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.bin"), models::bin()).unwrap();
    fs::write(folder.path().join("tokenizer.bin"), models::tok_bin(models::BIN_VOCAB)).unwrap();
    Subject::new(folder, "m.bin", file, ON_TEXT)
}

/// A copy of files of fixtures/formats, of which `file` is changed. The model is the file `model`, or the whole folder
/// if `model` is empty.
fn format(files: &[&str], model: &str, file: &str) -> Subject {
    let folder = tempfile::tempdir().unwrap();
    for name in files {
        let from = fixture("formats").join(name);
        fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
    }
    Subject::new(folder, model, file, ON_IDS)
}

#[test]
fn changed_configurations() {
    golden("config.json").json(300);
    golden("generation_config.json").json(60);
}

#[test]
fn changed_safetensors_headers() {
    let subject = golden("model.safetensors");
    let (length, rest) = subject.whole.split_first_chunk::<8>().unwrap();
    let (header, values) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    each(600, (edits(), any::<Index>()), |(edits, command)| {
        let mut header = header.clone();
        edits.iter().for_each(|edit| edit.apply(&mut header));
        let header = header.to_string();
        let length = (header.len() as u64).to_le_bytes();
        subject.wrong(&[&length[..], header.as_bytes(), values].concat(), command)
    });
}

#[test]
fn changed_safetensors_bytes() {
    golden("model.safetensors").bytes(200, 400);
}

#[test]
fn changed_indexes_of_shards() {
    let index = "model.safetensors.index.json";
    Subject::new(models::sharded(), "", index, ON_IDS).json(150);
}

#[test]
fn changed_bin_files() {
    llama2c("m.bin").bytes(300, 7 * 4);
}

#[test]
fn changed_tokenizer_bin_files() {
    let subject = llama2c("tokenizer.bin");
    subject.bytes(150, 100);
    subject.bytes(100, subject.whole.len());
}

#[test]
fn changed_files_of_llama2c_version_1() {
    format(&["llama2c/v1.bin"], "v1.bin", "v1.bin").bytes(200, 256);
}

/// Changes the header and all other bytes. Some of the scales become NaN.
#[test]
fn changed_files_of_llama2c_version_2() {
    for name in ["q8_unshared.bin", "q8_shared.bin"] {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(fixture("precision").join(name), folder.path().join(name)).unwrap();
        let subject = Subject::new(folder, name, name, ON_IDS);
        subject.bytes(150, 256);
        subject.bytes(50, subject.whole.len());
    }
}

#[test]
fn changed_gguf_files() {
    for name in ["f16.gguf", "k_blocks.gguf", "qwen3.gguf"] {
        format(&[&format!("gguf/{name}")], name, name).bytes(400, 1500);
    }
    let parts = [1, 2, 3].map(|part| format!("gguf/split-0000{part}-of-00003.gguf"));
    let [first, second, _] = parts.each_ref().map(|part| part.trim_start_matches("gguf/"));
    for part in [first, second] {
        format(&parts.each_ref().map(String::as_str), first, part).bytes(100, 1000);
    }
}

#[test]
fn changed_files_of_meta() {
    let single = ["meta/single/consolidated.00.pth", "meta/single/params.json"];
    let subject = format(&single, "", "consolidated.00.pth");
    subject.bytes(300, subject.whole.len());
    format(&single, "", "params.json").json(150);
    for cut in ["by_vocab", "by_dim"] {
        let files = ["consolidated.00.pth", "consolidated.01.pth", "params.json"];
        let files = files.map(|name| format!("meta/{cut}/{name}"));
        let subject = format(&files.each_ref().map(String::as_str), "", "consolidated.01.pth");
        subject.bytes(100, subject.whole.len());
    }
}

/// Changes tokenizer.model of Llama 2 and of Llama 3.
#[test]
fn changed_tokenizer_model_files() {
    for name in ["llama2c/tokenizer.model", "llama3/tokenizer.model"] {
        let Some(path) = data(name) else { continue };
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.model"), fs::read(path).unwrap()).unwrap();
        let commands: &[&[&str]] = &[&["tokenize", "--tokenizer", "{}", "Once upon a time, é\u{1f999}"]];
        let subject = Subject::new(folder, "tokenizer.model", "tokenizer.model", commands);
        subject.bytes(20, 1000);
        subject.bytes(20, subject.whole.len());
    }
}

#[test]
fn changed_tokenizer_json_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture("builtin/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let commands: &[&[&str]] = &[
        &["log", "--tokenizer", "{}", "--prompt", "Once upon a time, é\u{1f999}"],
        &["log", "--tokenizer", "{}", "--prompt", ""],
    ];
    let subject = Subject::new(folder, "tokenizer.json", "tokenizer.json", commands);
    subject.json(300);
    subject.bytes(100, subject.whole.len());
}

/// Changes the header of a trace, the description of the run in the header, and all other bytes.
#[test]
fn changed_traces() {
    let commands: &[&[&str]] = &[
        &["log", "--trace", "{}", "--values"],
        &["explain", "--trace", "{}", "p0/L1/softmax[h=1,t=5,k=4]"],
        &["log", "--trace", "{}", "--values", "--format", "json", "--stage", "cache_k,nucleus,attn_heads"],
    ];
    for keep in ["minimal", "all", "stats"] {
        let (folder, whole) = trace::recorded(keep);
        // An explanation needs values.
        let commands = if keep == "stats" { &commands[..1] } else { commands };
        let subject = Subject::new(folder, "a.trace", "a.trace", commands);
        let (header, values) = trace::parts(&whole);
        let run: Value = serde_json::from_str(header["__metadata__"]["run"].as_str().unwrap()).unwrap();
        each(100, (edits(), any::<Index>()), |(edits, command)| {
            let mut header = header.clone();
            edits.iter().for_each(|edit| edit.apply(&mut header));
            subject.wrong(&trace::whole(&header, &values), command)
        });
        each(100, (edits(), any::<Index>()), |(edits, command)| {
            let (mut header, mut run) = (header.clone(), run.clone());
            edits.iter().for_each(|edit| edit.apply(&mut run));
            header["__metadata__"]["run"] = Value::from(run.to_string());
            subject.wrong(&trace::whole(&header, &values), command)
        });
        subject.bytes(60, whole.len());
        subject.bytes(60, 2000);
    }
}

/// Changes the manifest of an export, and one of the files.
#[test]
fn changed_exports() {
    let commands: &[&[&str]] = &[
        &["log", "--trace", "{}", "--values"],
        &["explain", "--trace", "{}", "p0/L1/ffn_hidden[t=5,f=4]"],
        &["log", "--trace", "{}", "--values", "--format", "json", "--stage", "ffn_up,nucleus,attn_heads"],
        &["diff", "{}", "{}", "--format", "json"],
    ];
    let model = fixture("golden/mistral");
    for file in ["manifest.json", "pass_000/layer_01/ffn_up.npy"] {
        let folder = tempfile::tempdir().unwrap();
        let dump = folder.path().join("dump");
        let run = ["--model", model.to_str().unwrap(), "--ids", "1,5,9,3,7,2,8", "-n", "2"];
        let output = llama_trace([&["export", "--out", dump.to_str().unwrap()], &run[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let subject = Subject::new(folder, "dump", &format!("dump/{file}"), commands);
        if file.ends_with(".json") {
            subject.json(150);
            // Changes the part of the manifest before the list of the files.
            subject.bytes(60, 4000);
        } else {
            subject.bytes(100, 140);
        }
    }
}
