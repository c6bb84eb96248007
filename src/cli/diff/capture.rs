//! capture.toml: what a folder of another runtime holds, and how its tensors lie. It is data that anybody can write.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use ndarray::{ArrayD, Axis as At, IxDyn, Slice};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::npy;
use crate::config::{DEFAULT_GROUP, Precision};
use crate::diff::{About, Found, Pass};
use crate::trace::{Axis, Frame, FrameData, PassDims, Site, Stage, TokenLabel};

/// What the file says that it is, and which form of it.
const FORMAT: &str = "llama-trace capture";
const VERSION: u64 = 1;

/// The most tokens that a folder may say it has: shapes of so many can be counted.
pub(super) const TOKENS: usize = 1 << 20;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Capture {
    format: String,
    version: u64,
    /// What ran: for people.
    #[serde(default)]
    name: String,
    /// f32, bf16, f16 or q8.
    precision: Option<String>,
    prompt: Option<String>,
    /// Settings of the model, under the names of a manifest's `card.config`; those that are there are compared.
    #[serde(default)]
    config: Map<String, Value>,
    passes: Vec<PassRead>,
    /// Where a stage is and how it lies, where it is not as `export` writes it.
    #[serde(default)]
    stages: BTreeMap<String, Lies>,
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
}

/// How a tensor lies in its file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Lies {
    /// Its path below the folder, with {pass} and {layer}.
    file: Option<String>,
    /// Its last axis from one index to another: a part of a fused tensor.
    columns: Option<[usize; 2]>,
    /// Its axes in the file's order, `batch` among them, of which the first is taken.
    axes: Option<Vec<String>>,
    /// Which order RoPE's pairs of components are brought from, and to which.
    pairs: Option<Pairs>,
    /// A file of one row that each row is multiplied by: the weight of a norm that was captured before it.
    times: Option<String>,
    /// A file that is added: a residual that was captured before the sum.
    plus: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Pairs {
    NeighboursToHalves,
    HalvesToNeighbours,
}

impl Capture {
    /// Reads the file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let capture: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        match (&*capture.format, capture.version) {
            (FORMAT, VERSION) => {}
            (FORMAT, version) if version > VERSION => {
                return Err(format!("version {version}, which is newer than this program's"));
            }
            (format, version) => return Err(format!("format `{format}`, version {version}")),
        }
        capture.stages.iter().try_for_each(|(name, lies)| lies.check(name, &capture.config))?;
        Ok(capture)
    }

    /// What it says about the run in the folder at `path`.
    ///
    /// # Errors
    /// What cannot be, in words.
    pub(super) fn about(&self, path: &Path) -> Result<About, String> {
        let precision = match self.precision.as_deref() {
            None => None,
            Some("f32") => Some(Precision::F32),
            // Both keep 16 bits; bfloat16 has the fewer ones after the point.
            Some("bf16" | "f16") => Some(Precision::Bf16),
            Some("q8") => Some(Precision::Q8 { group: DEFAULT_GROUP }),
            Some(other) => return Err(format!("precision `{other}`: f32, bf16, f16 or q8")),
        };
        let (mut passes, mut end) = (Vec::new(), 0);
        for (number, pass) in self.passes.iter().enumerate() {
            let tokens = pass.tokens.len();
            if pass.start > end || tokens == 0 || pass.start + tokens > TOKENS {
                return Err(format!("pass {number} of {tokens} tokens after {}", pass.start));
            }
            end = pass.start + tokens;
            let text = |i: usize, id: u32| pass.texts.get(i).cloned().unwrap_or_else(|| format!("#{id}"));
            let labels = pass.tokens.iter().enumerate().map(|(i, &id)| TokenLabel { id, text: text(i, id) });
            let dims = PassDims { pass: number, start: pass.start, tokens };
            passes.push(Pass { dims, tokens: labels.collect() });
        }
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        Ok(About {
            name: format!("{}{name}", path.display()),
            card: None,
            settings: self.config.clone(),
            precision,
            fingerprint: None,
            drawing: None,
            prompt: self.prompt.clone(),
            passes,
        })
    }

    /// The values of a stage of the folder at `path`.
    pub(super) fn stage(&self, path: &Path, site: Site) -> Found {
        let nothing = Lies::default();
        let lies = self.stages.get(site.stage.name()).unwrap_or(&nothing);
        let file =
            lies.file.as_ref().map_or_else(|| PathBuf::from(site.file_name()), |name| named(name, site));
        let frame = match npy::read(&path.join(file), site) {
            Found::Frame(frame) => frame,
            other => return other,
        };
        let FrameData::F32(values) = &frame.data else { return Found::Frame(frame) };
        let padding = self.passes.get(site.pass).map_or(0, |pass| pass.padding);
        let head_dim = self.config.get("head_dim").and_then(Value::as_u64).unwrap_or(0) as usize;
        match lies.laid(values.clone(), path, site, padding, head_dim) {
            Ok(values) => {
                Found::Frame(Frame { site, axes: site.stage.axes(), data: FrameData::F32(values) }.into())
            }
            Err(why) => Found::Damaged(why),
        }
    }
}

/// A path with its places filled in.
fn named(name: &str, site: Site) -> PathBuf {
    let layer = site.layer.map_or_else(String::new, |layer| layer.to_string());
    name.replace("{pass}", &site.pass.to_string()).replace("{layer}", &layer).into()
}

impl Lies {
    fn check(&self, name: &str, config: &Map<String, Value>) -> Result<(), String> {
        if Stage::from_name(name).is_none() {
            return Err(format!("there is no stage `{name}`"));
        }
        for file in [&self.file, &self.times, &self.plus].into_iter().flatten() {
            let below = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
            if !below {
                return Err(format!("`{file}` of {name} is not below the folder"));
            }
        }
        for axis in self.axes.iter().flatten() {
            let known =
                axis == "batch" || Stage::from_name(name).is_some_and(|stage| axis_of(stage, axis).is_some());
            if !known {
                return Err(format!("{name} has no axis `{axis}`"));
            }
        }
        if self.pairs.is_some() && config.get("head_dim").and_then(Value::as_u64).is_none_or(|c| c == 0) {
            return Err(format!("pairs of {name} need head_dim in [config]"));
        }
        Ok(())
    }

    /// The values as `export` would write them.
    fn laid(
        &self,
        mut values: ArrayD<f32>,
        path: &Path,
        site: Site,
        padding: usize,
        head_dim: usize,
    ) -> Result<ArrayD<f32>, String> {
        if let Some([from, to]) = self.columns {
            let last = values.ndim().checked_sub(1).ok_or("it has no axes")?;
            if from >= to || to > values.len_of(At(last)) {
                return Err(format!("it has no columns {from} to {to}"));
            }
            values = values.slice_axis(At(last), Slice::from(from..to)).to_owned();
        }
        if let Some(axes) = &self.axes {
            values = in_order(values, axes, site.stage)?;
        }
        for (at, axis) in site.stage.axes().iter().enumerate().filter(|_| padding > 0) {
            if matches!(axis, Axis::Token | Axis::Key)
                && at < values.ndim()
                && padding < values.len_of(At(at))
            {
                values = values.slice_axis(At(at), Slice::from(padding..)).to_owned();
            }
        }
        let (shape, mut flat) =
            (values.shape().to_vec(), values.as_standard_layout().iter().copied().collect::<Vec<_>>());
        if let Some(pairs) = self.pairs {
            let half = head_dim / 2;
            for head in flat.chunks_exact_mut(head_dim) {
                let before = head.to_vec();
                for i in 0..half {
                    let (a, b, [first, second]) = (i, i + half, [2 * i, 2 * i + 1]);
                    match pairs {
                        Pairs::NeighboursToHalves => (head[a], head[b]) = (before[first], before[second]),
                        Pairs::HalvesToNeighbours => (head[first], head[second]) = (before[a], before[b]),
                    }
                }
            }
        }
        let other = |name: &String| match npy::read(&path.join(named(name, site)), site) {
            Found::Frame(frame) => Ok(frame.values().numbers().map(|x| x as f32).collect::<Vec<_>>()),
            Found::Missing => Err(format!("{name} is not there")),
            Found::Damaged(why) => Err(format!("{name}: {why}")),
        };
        if let Some(name) = &self.times {
            let row = other(name)?;
            if row.is_empty() || !flat.len().is_multiple_of(row.len()) {
                return Err(format!("{name} has {} values, which fit no row", row.len()));
            }
            flat.iter_mut().enumerate().for_each(|(at, value)| *value *= row[at % row.len()]);
        }
        if let Some(name) = &self.plus {
            let more = other(name)?;
            if more.len() != flat.len() {
                return Err(format!("{name} has {} values and not {}", more.len(), flat.len()));
            }
            flat.iter_mut().zip(more).for_each(|(value, more)| *value += more);
        }
        ArrayD::from_shape_vec(IxDyn(&shape), flat).map_err(|error| error.to_string())
    }
}

/// Which axis of a stage has this name.
fn axis_of(stage: Stage, name: &str) -> Option<usize> {
    stage.axes().iter().position(|axis| axis.name() == name)
}

/// The values with their axes in the stage's order.
fn in_order(mut values: ArrayD<f32>, axes: &[String], stage: Stage) -> Result<ArrayD<f32>, String> {
    if axes.len() != values.ndim() {
        return Err(format!("it has {} axes and not {}", values.ndim(), axes.len()));
    }
    let mut axes = axes.to_vec();
    while let Some(batch) = axes.iter().position(|axis| axis == "batch") {
        if values.len_of(At(batch)) == 0 {
            return Err("its batch is empty".into());
        }
        values = values.index_axis_move(At(batch), 0);
        axes.remove(batch);
    }
    let order: Option<Vec<usize>> =
        stage.axes().iter().map(|axis| axes.iter().position(|name| name == axis.name())).collect();
    match order {
        Some(order) if order.len() == axes.len() => Ok(values.permuted_axes(IxDyn(&order))),
        _ => Err(format!("its axes are {} and not those of {stage}", axes.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &str) -> Result<Capture, String> {
        Capture::read(&format!(
            "format = \"llama-trace capture\"\nversion = 1\npasses = [{{start = 0, tokens = [1, 2]}}]\n{more}"
        ))
    }

    fn laid(more: &str, shape: &[usize], stage: Stage) -> Result<ArrayD<f32>, String> {
        let capture = read(more).unwrap();
        let count = shape.iter().product::<usize>();
        let values = ArrayD::from_shape_vec(IxDyn(shape), (0..count).map(|i| i as f32).collect()).unwrap();
        let lies = &capture.stages[stage.name()];
        lies.laid(values, Path::new("."), Site::layer(0, 0, stage), 0, 4)
    }

    #[test]
    fn a_tensor_is_brought_into_the_order_of_export() {
        let swapped =
            laid("stages.xq.axes = ['batch', 'head', 'token', 'head_dim']", &[1, 2, 3, 4], Stage::Xq);
        let swapped = swapped.unwrap();
        assert_eq!((swapped.shape(), swapped[[2, 1, 3]]), (&[3, 2, 4][..], 23.0));
        let part = laid("stages.xk.columns = [4, 6]", &[2, 8], Stage::Xk).unwrap();
        assert_eq!(part.iter().copied().collect::<Vec<_>>(), [4.0, 5.0, 12.0, 13.0]);
        let pairs = "config = {head_dim = 4}\nstages.xk.pairs = 'neighbours_to_halves'";
        let pairs = laid(pairs, &[1, 8], Stage::Xk).unwrap();
        assert_eq!(pairs.iter().copied().collect::<Vec<_>>(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn what_is_wrong_with_a_map_is_said_in_words() {
        for (more, said) in [
            ("stages.xx.file = 'a.npy'", "no stage `xx`"),
            ("stages.xq.file = '../a.npy'", "not below the folder"),
            ("stages.xq.file = '/etc/passwd'", "not below the folder"),
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
        let empty = Capture::read(
            "format = 'llama-trace capture'\nversion = 1\npasses = [{start = 3, tokens = [1]}]",
        );
        assert!(empty.unwrap().about(Path::new(".")).is_err());
        assert!(laid("stages.xk.columns = [4, 9]", &[2, 8], Stage::Xk).is_err());
        assert!(laid("stages.xq.axes = ['token']", &[2, 8], Stage::Xq).is_err());
    }
}
