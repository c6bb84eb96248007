//! capture.toml: the contents of a folder that another runtime wrote, and the memory layout of its tensors.

mod layout;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(crate) use self::layout::{Layout, Padding, Pairs};
use super::npy;
use crate::diff::{About, Found, Pass};
use llama_trace_core::config::{CacheDtype, DEFAULT_GROUP, ModelConfig, Precision};
use llama_trace_core::error::printable;
use llama_trace_core::trace::manifest::NEWER;
use llama_trace_core::trace::{Frame, FrameData, PassDims, Site, Stage, TokenLabel};

/// The format and version that the file states.
const FORMAT: &str = "llama-trace capture";
const VERSION: u64 = 1;

/// The maximum number of digits that a number in a file's name is padded to.
pub(crate) const WIDEST: usize = 6;

/// The maximum number of tokens of a folder. With at most this many, no size of a shape overflows.
pub(super) const TOKENS: usize = 1 << 20;

/// The keys that identify the file.
#[derive(Debug, Deserialize)]
struct Mark {
    format: String,
    version: u64,
}

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Capture {
    // Read as [`Mark`] and checked before the rest is read.
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u64,
    /// The run's name, for display.
    #[serde(default)]
    name: String,
    /// f32, bf16, f16 or q8.
    precision: Option<String>,
    /// The KV cache's number type: f32, f16 or bf16.
    cache: Option<String>,
    prompt: Option<String>,
    /// Settings of the model, under the names of a manifest's `card.config`. Only the settings that are stated are
    /// compared.
    #[serde(default)]
    config: Map<String, Value>,
    passes: Vec<PassRead>,
    /// The number of layers that ran, if not all. Stages after these layers are not compared.
    layers: Option<usize>,
    /// For each stage: its file and memory layout, if they are not those of `export`.
    #[serde(default)]
    stages: BTreeMap<String, Layout>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PassRead {
    start: usize,
    tokens: Vec<u32>,
    #[serde(default)]
    texts: Vec<String>,
    /// Rows of padding before the first token.
    #[serde(default)]
    padding: usize,
    /// Rows of padding after the last token.
    #[serde(default)]
    padding_after: usize,
    /// The index of the sequence in the batch.
    #[serde(default)]
    batch: Option<usize>,
}

impl PassRead {
    fn padding(&self) -> Padding {
        let around = [self.padding, self.padding_after];
        Padding { around, batch: self.batch, tokens: self.tokens.len() }
    }
}

impl Capture {
    /// Reads the file.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        // Another version may have other keys: check it first.
        if let Ok(Mark { format, version }) = toml::from_str(text) {
            match (&*format, version) {
                (FORMAT, VERSION) => {}
                (FORMAT, version) if version > VERSION => {
                    return Err(format!("format version {version}, {NEWER}"));
                }
                (format, version) => return Err(format!("format `{format}`, version {version}")),
            }
        }
        let capture: Self = toml::from_str(text).map_err(|error| {
            let line =
                error.span().and_then(|span| text.get(..span.start)).map(|before| before.split('\n').count());
            let line = line.map_or_else(String::new, |line| format!(" (line {line})"));
            format!("{}{line}", error.message())
        })?;
        let known = serde_json::to_value(usual()).unwrap_or_default();
        if let Some(other) = capture.config.keys().find(|name| known.get(name.as_str()).is_none()) {
            let names: Vec<_> =
                known.as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect();
            return Err(format!(
                "[config] `{other}`, which is not a setting; the settings are {}",
                names.join(", ")
            ));
        }
        capture.stages.iter().try_for_each(|(name, layout)| layout.check(name, &capture.config))?;
        Ok(capture)
    }

    /// The map's description of the run in the folder at `path`.
    ///
    /// # Errors
    /// A description of what cannot be right.
    pub(super) fn about(&self, path: &Path) -> Result<About, String> {
        let precision = match self.precision.as_deref() {
            None => None,
            Some("f32") => Some(Precision::F32),
            // bfloat16 has a shorter mantissa than float16, so its tolerance holds for both.
            Some("bf16" | "f16") => Some(Precision::Bf16),
            Some("q8") => Some(Precision::Q8 { group: DEFAULT_GROUP }),
            Some(other) => return Err(format!("precision `{other}` is not known: use f32, bf16, f16 or q8")),
        };
        let cache = match &self.cache {
            None => None,
            Some(name) => Some(
                CacheDtype::from_name(name)
                    .ok_or_else(|| format!("cache `{name}` is not known: use f32, f16 or bf16"))?,
            ),
        };
        let (mut passes, mut end) = (Vec::new(), 0);
        for (number, pass) in self.passes.iter().enumerate() {
            let tokens = pass.tokens.len();
            if pass.start != end || tokens == 0 || pass.start + tokens > TOKENS {
                return Err(format!(
                    "pass {number}: start = {} with {tokens} tokens, but the passes before it end at {end}; each pass has at least one token and begins at the end of the pass before it, and all passes together have at most {TOKENS} tokens",
                    pass.start
                ));
            }
            end = pass.start + tokens;
            let text = |i: usize, id: u32| pass.texts.get(i).cloned().unwrap_or_else(|| format!("#{id}"));
            let labels = pass.tokens.iter().enumerate().map(|(i, &id)| TokenLabel { id, text: text(i, id) });
            let dims = PassDims { pass: number, start: pass.start, tokens, ..PassDims::default() };
            passes.push(Pass { dims, tokens: labels.collect() });
        }
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        Ok(About {
            name: format!("{}{name}", path.display()),
            card: None,
            settings: self.config.clone(),
            precision,
            cache,
            fingerprint: None,
            sampling: None,
            prompt: self.prompt.clone(),
            passes,
            layers: self.layers,
            nowhere: self.nowhere(path),
            unsure: self.unsure(),
        })
    }

    /// For each stage with a `maybe`: the other stages that its file may hold.
    fn unsure(&self) -> BTreeMap<Stage, Vec<Stage>> {
        let of = |(name, layout): (&String, &Layout)| {
            let others = layout.maybe.as_ref()?.iter().filter_map(|other| Stage::from_name(other)).collect();
            Some((Stage::from_name(name)?, others))
        };
        self.stages.iter().filter_map(of).collect()
    }

    /// The stages whose file the map names, but which have no file in any pass or layer of the folder at `path`.
    fn nowhere(&self, path: &Path) -> BTreeMap<Stage, String> {
        /// More layers than any model has.
        const LAYERS: usize = 1000;
        let is_there = |&stage: &Stage| {
            let layers = if stage.in_layer() { 0..LAYERS } else { 0..1 };
            let site = |pass, layer| match stage.in_layer() {
                true => Site::layer(pass, layer, stage),
                false => Site::once(pass, stage),
            };
            let mut sites =
                (0..self.passes.len()).flat_map(|pass| layers.clone().map(move |layer| site(pass, layer)));
            sites.any(|site| path.join(self.file(site)).symlink_metadata().is_ok())
        };
        let named = |(name, layout): (&String, &Layout)| {
            let file = layout.file.as_ref()?;
            let mut stages = Stage::ALL.iter().filter(|stage| stage.name() == name);
            let stage = Stage::from_name(name)?;
            let why =
                || format!("[stages] names `{}`, but no pass and no layer has that file", printable(file));
            (!stages.any(is_there)).then(|| (stage, why()))
        };
        self.stages.iter().filter_map(named).collect()
    }

    /// Why a stage that is missing in the folder at `path` should be there: the map names its file, and other stages of
    /// the same layer and pass have their files. A layer or pass without any file may be left out on purpose.
    pub(crate) fn unwritten(&self, path: &Path, site: Site) -> Option<String> {
        let file = self.layout(site)?.file.as_ref()?;
        let alike = |stage: &&Stage| **stage != site.stage && stage.in_layer() == site.layer.is_some();
        let there = |stage: &Stage| {
            let other = self.file(site.other(*stage));
            // A file that layers or passes share does not show that this layer and pass were written.
            let elsewhere = [
                Site { layer: site.layer.map(|layer| layer + 1), ..site.other(*stage) },
                Site { pass: site.pass + 1, ..site.other(*stage) },
            ];
            let its_own = [site.layer.is_some(), self.passes.len() > 1];
            let own = elsewhere.iter().zip(its_own).all(|(site, own)| !own || self.file(*site) != other);
            own && path.join(other).symlink_metadata().is_ok()
        };
        let name = self.file(site).display().to_string();
        Stage::ALL
            .iter()
            .filter(alike)
            .any(there)
            .then(|| format!("[stages] names `{}`, but there is no {}", printable(file), printable(&name)))
    }

    /// The stage's entry, if it covers this layer.
    fn layout(&self, site: Site) -> Option<&Layout> {
        self.stages.get(site.stage.name()).filter(|layout| layout.is_of(site))
    }

    /// Returns whether the map names a file.
    pub(super) fn names_files(&self) -> bool {
        self.stages.values().any(|layout| layout.file.is_some())
    }

    /// The path of a stage's file, relative to the folder.
    pub(crate) fn file(&self, site: Site) -> PathBuf {
        let name = self.layout(site).and_then(|layout| layout.file.as_ref());
        name.map_or_else(|| PathBuf::from(site.file_name()), |name| named(name, site))
    }

    /// The paths of all files that a stage is computed from, relative to the folder.
    pub(super) fn files(&self, site: Site) -> Vec<PathBuf> {
        let of = |layout: &Layout| {
            [&layout.times, &layout.plus, &layout.minus].map(|name| Some(named(name.as_ref()?, site)))
        };
        let others = self.layout(site).map(of).into_iter().flatten().flatten();
        [self.file(site)].into_iter().chain(others).collect()
    }

    /// The values of a stage of the folder at `path`, in the layout of `export`.
    pub(super) fn stage(&self, path: &Path, site: Site) -> Found {
        let nothing = Layout::default();
        let layout = self.layout(site).unwrap_or(&nothing);
        let frame = match npy::read(&path.join(self.file(site)), site) {
            Found::Frame(frame) => frame,
            other => return other,
        };
        let FrameData::F32(values) = &frame.data else { return Found::Frame(frame) };
        let padded = self.passes.get(site.pass).map_or_else(Padding::default, PassRead::padding);
        let head_dim = self.config.get("head_dim").and_then(Value::as_u64).unwrap_or(0) as usize;
        match layout.arranged(values.clone(), path, site, padded, head_dim) {
            Ok(values) => {
                Found::Frame(Frame { site, axes: site.stage.axes(), data: FrameData::F32(values) }.into())
            }
            Err(why) => Found::Damaged(why),
        }
    }
}

/// The defaults of settings that a map need not state.
fn usual() -> ModelConfig {
    ModelConfig {
        layers: 0,
        ffn_dim: 0,
        vocab: 0,
        context: 0,
        norm_eps: 0.0,
        rope_theta: 0.0,
        ..ModelConfig::of_heads(0, 0, 0)
    }
}

/// The settings that a map must state if there is no model.
const NEEDED: [&str; 9] =
    ["dim", "layers", "heads", "kv_heads", "head_dim", "ffn_dim", "vocab", "norm_eps", "rope_theta"];

/// The configuration of a folder without a model card, from its map, with a context of `keys` tokens.
///
/// # Errors
/// A description of the settings that the map lacks, or that cannot be right.
pub fn config_of(about: &About, keys: usize) -> Result<ModelConfig, String> {
    let lacks: Vec<&str> = NEEDED.into_iter().filter(|key| !about.settings.contains_key(*key)).collect();
    if !lacks.is_empty() {
        return Err(format!("[config] without {}", lacks.join(", ")));
    }
    let mut config = ModelConfig { context: keys, ..usual() };
    let Value::Object(mut all) = json!(config) else { unreachable!("a configuration has fields") };
    // One setting at a time, so that the error names it.
    for (key, value) in &about.settings {
        all.insert(key.clone(), value.clone());
        config = serde_json::from_value(Value::Object(all.clone())).map_err(|error| {
            format!("[config] with an invalid {}: {}", printable(key), printable(&error.to_string()))
        })?;
    }
    Ok(config)
}

/// The path of a site. `{pass}` and `{layer}` are replaced by numbers: `{layer:02}` has at least two digits,
/// `{layer+1}` counts from 1.
pub(crate) fn named(name: &str, site: Site) -> PathBuf {
    fill(&in_pass(name, site.pass), "layer", site.layer).into()
}

/// The path with `{pass}` replaced.
pub(crate) fn in_pass(name: &str, pass: usize) -> String {
    fill(name, "pass", Some(pass))
}

fn fill(name: &str, place: &str, number: Option<usize>) -> String {
    let (mut filled, mut rest) = (String::new(), name);
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let written =
            after.split_once('}').and_then(|(inside, rest)| Some((digits(inside, place, number)?, rest)));
        match written {
            Some((digits, after)) => (filled, rest) = (filled + &digits, after),
            None => (filled, rest) = (filled + "{", after),
        }
    }
    filled + rest
}

/// The text that replaces `inside`, such as `layer+1:02`, if it names this `place`; empty if there is no number.
fn digits(inside: &str, place: &str, number: Option<usize>) -> Option<String> {
    let more = inside.strip_prefix(place)?;
    let (more, width) = match more.split_once(":0") {
        Some((more, width)) => (more, width.parse().ok().filter(|width| (1..=WIDEST).contains(width))?),
        None => (more, 0),
    };
    let more: isize = match more.strip_prefix(['+', '-']) {
        _ if more.is_empty() => 0,
        Some(digits) if digits.len() <= WIDEST && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            more.parse().ok()?
        }
        _ => return None,
    };
    // A number below 0 is written too; no file has that name.
    let written = |number: usize| format!("{:0width$}", (number as isize).saturating_add(more));
    Some(number.map_or_else(String::new, written))
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn};

    use super::*;

    fn read(more: &str) -> Result<Capture, String> {
        Capture::read(&format!(
            "format = \"llama-trace capture\"\nversion = 1\npasses = [{{start = 0, tokens = [1, 2]}}]\n{more}"
        ))
    }

    fn arranged(more: &str, shape: &[usize], stage: Stage) -> Result<ArrayD<f32>, String> {
        let capture = read(more).unwrap();
        let count = shape.iter().product::<usize>();
        let values = ArrayD::from_shape_vec(IxDyn(shape), (0..count).map(|i| i as f32).collect()).unwrap();
        let layout = &capture.stages[stage.name()];
        layout.arranged(values, Path::new("."), Site::layer(0, 0, stage), Padding::default(), 4)
    }

    #[test]
    fn a_tensor_is_brought_into_the_order_of_export() {
        let swapped =
            arranged("stages.xq.axes = ['batch', 'head', 'token', 'head_dim']", &[1, 2, 3, 4], Stage::Xq);
        let swapped = swapped.unwrap();
        assert_eq!((swapped.shape(), swapped[[2, 1, 3]]), (&[3, 2, 4][..], 23.0));
        let part = arranged("stages.xk.columns = [4, 6]", &[2, 8], Stage::Xk).unwrap();
        assert_eq!(part.iter().copied().collect::<Vec<_>>(), [4.0, 5.0, 12.0, 13.0]);
        let pairs = "config = {head_dim = 4}\nstages.xk.pairs = 'neighbours_to_halves'";
        let pairs = arranged(pairs, &[1, 8], Stage::Xk).unwrap();
        assert_eq!(pairs.iter().copied().collect::<Vec<_>>(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn a_cache_is_of_a_number_type_and_what_cannot_be_is_said_in_words() {
        let about = |more: &str| read(more).unwrap().about(Path::new("."));
        assert_eq!(about("").unwrap().cache, None);
        assert_eq!(about("cache = 'f16'").unwrap().cache, Some(CacheDtype::F16));
        assert_eq!(about("cache = 'q8'").unwrap_err(), "cache `q8` is not known: use f32, f16 or bf16");
        // The message says what is wrong, which keys are allowed, and where the mistake is.
        let wrong = read("stages.xq = 3").unwrap_err();
        let keys = "a table with file, layers, columns, axes, pairs, times, plus, minus or maybe";
        assert!(wrong.contains(&format!("invalid type: integer `3`, expected {keys}")), "{wrong}");
        assert!(wrong.contains("(line "), "{wrong}");
        let wrong = read("stages.xq = { file = 'q.npy', maybe = ['xw'] }").unwrap_err();
        assert!(
            wrong.contains("stage xq: its key `maybe` lists `xw`, but there is no such stage"),
            "{wrong}"
        );
        let later = "[[passes]]\nstart = 3\ntokens = [1]";
        let text = format!(
            "format = \"llama-trace capture\"\nversion = 1\n[[passes]]\nstart = 0\ntokens = [1, 2]\n{later}"
        );
        let wrong = Capture::read(&text).unwrap().about(Path::new(".")).unwrap_err();
        assert!(
            wrong.starts_with("pass 1: start = 3 with 1 tokens, but the passes before it end at 2"),
            "{wrong}"
        );
    }

    #[test]
    fn a_weight_that_rows_are_multiplied_by_has_a_value_for_each_column() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, shape: &[usize], value: f32| {
            let values = ArrayD::from_elem(IxDyn(shape), value);
            ndarray_npy::write_npy(folder.path().join(name), &values).unwrap();
        };
        write("norm.npy", &[2, 8], 3.0);
        let capture = read("stages.attn_norm = {file = 'norm.npy', times = 'weight.npy'}").unwrap();
        let found = |shape: &[usize]| {
            write("weight.npy", shape, 2.0);
            capture.stage(folder.path(), Site::layer(0, 0, Stage::AttnNorm))
        };
        for shape in [&[8][..], &[1, 8]] {
            let Found::Frame(frame) = found(shape) else { panic!("{shape:?} fits") };
            assert!(frame.values().numbers().all(|value| value == 6.0));
        }
        for shape in [&[4][..], &[1], &[16], &[2, 8], &[0], &[5]] {
            let Found::Damaged(why) = found(shape) else { panic!("{shape:?} fits no row") };
            let count = shape.iter().product::<usize>();
            assert!(why.contains(&format!("weight.npy has {count} values and not 8")) || count == 0, "{why}");
        }
    }

    /// Xorshift random numbers, without a crate.
    struct Random(u64);

    impl Random {
        fn below(&mut self, most: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % most.max(1) as u64) as usize
        }
    }

    #[test]
    fn whatever_stands_in_a_map_nothing_panics_and_memory_is_bounded_by_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, shape: &[usize]| {
            let count = shape.iter().product::<usize>();
            let values =
                ArrayD::from_shape_vec(IxDyn(shape), (0..count).map(|i| i as f32).collect()).unwrap();
            ndarray_npy::write_npy(folder.path().join(name), &values).unwrap();
        };
        let shapes: [&[usize]; 7] = [&[], &[0], &[4], &[2, 8], &[1, 2, 8], &[2, 2, 4], &[2, 2, 2, 4]];
        shapes.iter().enumerate().for_each(|(i, shape)| write(&format!("{i}.npy"), shape));
        std::fs::write(folder.path().join("7.npy"), b"\x93NUMPY\x01\x00\xff\xff{").unwrap();
        let numbers = ["0", "1", "2", "4", "8", "9223372036854775807", "-1", "1e9", "nan", "''"];
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let stages =
            [Stage::Xq, Stage::XkRope, Stage::Softmax, Stage::AttnNorm, Stage::Logits, Stage::RopeCos];
        let (mut read_maps, mut laid) = (0, 0);
        for _ in 0..4000 {
            let number = |random: &mut Random| {
                let most = if random.below(3) == 0 { 10 } else { 5 };
                numbers[random.below(most)]
            };
            let mut entry = vec![format!("file = '{}.npy'", random.below(9))];
            for _ in 0..random.below(4) {
                let axes = ["batch", "token", "head", "head_dim", "key", "dim", "vocab", "pair", "layer"];
                entry.push(match random.below(6) {
                    0 => format!("columns = [{}, {}]", number(&mut random), number(&mut random)),
                    1 => {
                        let some: Vec<_> =
                            (0..random.below(5)).map(|_| format!("'{}'", axes[random.below(9)])).collect();
                        format!("axes = [{}]", some.join(", "))
                    }
                    2 => format!(
                        "pairs = '{}'",
                        ["neighbours_to_halves", "halves_to_neighbours"][random.below(2)]
                    ),
                    3 => format!("times = '{}.npy'", random.below(9)),
                    4 => format!("plus = '{}.npy'", random.below(9)),
                    _ => format!("minus = '{{layer:0{}}}.npy'", random.below(9)),
                });
            }
            // With most amounts of padding, no file fits.
            let padding = |random: &mut Random| match random.below(4) {
                0 => number(random),
                _ => "0",
            };
            let stage = stages[random.below(stages.len())];
            let map = format!(
                "format = 'llama-trace capture'\nversion = 1\nlayers = {}\nconfig = {{ head_dim = {} }}\n\
                 passes = [{{ start = 0, tokens = [1, 2], padding = {}, padding_after = {}, batch = {} }}]\n\
                 stages.{stage} = {{ {} }}\n",
                number(&mut random),
                number(&mut random),
                padding(&mut random),
                padding(&mut random),
                padding(&mut random),
                entry.join(", ")
            );
            let Ok(capture) = Capture::read(&map) else { continue };
            read_maps += 1;
            drop(capture.about(folder.path()));
            let site = if stage.in_layer() { Site::layer(0, 0, stage) } else { Site::once(0, stage) };
            if let Found::Frame(frame) = capture.stage(folder.path(), site) {
                // The largest file has 32 values.
                assert!(frame.values().len() <= 32, "{map}");
                laid += 1;
            }
        }
        assert!(read_maps > 300 && laid > 20, "{read_maps} {laid}");
    }

    #[test]
    fn text_that_is_cut_or_changed_anywhere_is_a_map_or_an_error() {
        let map = "format = \"llama-trace capture\"\nversion = 1\nprecision = \"f32\"\n[config]\nhead_dim = 4\n\
                   [[passes]]\nstart = 0\ntokens = [1, 2]\n[stages]\nxq = { file = \"{layer:02}.npy\", columns = [0, 4], \
                   axes = [\"token\", \"head\", \"head_dim\"], pairs = \"neighbours_to_halves\" }\n";
        let read = |text: &str| {
            if let Ok(capture) = Capture::read(text) {
                drop(capture.about(Path::new(".")));
                drop(capture.stage(Path::new("."), Site::layer(0, 0, Stage::Xq)));
            }
        };
        (0..map.len()).for_each(|end| read(&map[..end]));
        for at in 0..map.len() {
            for other in ['\0', '\u{1b}', '"', '[', '}', '9', '-', 'é'] {
                read(&format!("{}{other}{}", &map[..at], &map[at + 1..]));
            }
        }
        read(&"[".repeat(100_000));
        read(&format!("x = {}", "[".repeat(100_000)));
        read(&format!("{map}{}", "stages.xq.file = 'x'\n".repeat(1000)));
    }

    #[test]
    fn what_is_wrong_with_a_map_is_said_in_words() {
        for (more, said) in [
            ("stages.xx.file = 'a.npy'", "no stage `xx`"),
            ("stages.xq.file = '../a.npy'", "not below the folder"),
            ("stages.xq.file = '/etc/passwd'", "not below the folder"),
            ("stages.xq.file = '{Pass}.{layer}.npy'", "`{Pass}.{layer}.npy` is not a place"),
            ("stages.ffn_norm.times = 'w.{layer:2}.npy'", "stage ffn_norm: `{layer:2}` in `w.{layer:2}.npy`"),
            (
                "stages.xq.axes = ['batch', 'head', 'head', 'head_dim']",
                "stage xq: its key `axes` has `head` twice",
            ),
            ("stages.xq.axes = ['dim']", "no axis `dim`"),
            ("stages.xq.pairs = 'halves_to_neighbours'", "head_dim"),
            ("stages.xq.colour = 'red'", "unknown field `colour`"),
            ("= 3", ""),
        ] {
            let error = read(more).unwrap_err();
            assert!(error.contains(said), "{more}: {error}");
        }
        assert!(Capture::read("format = 'x'\nversion = 1\npasses = []").unwrap_err().contains("`x`"));
        let newer = "format = 'llama-trace capture'\nversion = 2\npasses = []";
        assert!(Capture::read(newer).unwrap_err().contains("newer"));
        // In a file of another version, everything else may be different too.
        for (version, said) in [(2, "version 2, which is newer"), (0, "version 0")] {
            let other = format!("format = 'llama-trace capture'\nversion = {version}\nruns = []");
            assert!(Capture::read(&other).unwrap_err().contains(said), "{version}");
        }
        assert!(Capture::read("format = 3\nversion = 1\npasses = []").unwrap_err().contains("invalid type"));
        assert!(Capture::read("version = 1\npasses = []").unwrap_err().contains("missing field `format`"));
        let empty = Capture::read(
            "format = 'llama-trace capture'\nversion = 1\npasses = [{start = 3, tokens = [1]}]",
        );
        assert!(empty.unwrap().about(Path::new(".")).is_err());
        assert!(arranged("stages.xk.columns = [4, 9]", &[2, 8], Stage::Xk).is_err());
        assert!(arranged("stages.xq.axes = ['token']", &[2, 8], Stage::Xq).is_err());
    }
}
