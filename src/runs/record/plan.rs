//! The contents and layout of a trace file, decided before the first pass runs.

#[cfg(feature = "native")]
mod ended;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::about::{About, Keep};
use super::branch::Branch;
use super::layout::{Course, Key, Layout, Part};
use super::tables::{self, BLOCK, COUNTS, DIGESTS, STATS};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Filters, PassDims, Site, Sizes, Stage};

/// A tensor of the file and its place.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    /// The offset of its first byte, from the end of the header.
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// The number and total size of the texts in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// Number of tokens with a label.
    pub labels: usize,
    /// Bytes of the labels.
    pub label_bytes: usize,
    /// Bytes of the prompts.
    pub prompt_bytes: usize,
}

/// The tensors of a file.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The passes.
    pub layout: Layout,
    /// The stages with statistics.
    pub stages: Vec<Stage>,
    /// The texts.
    pub texts: Texts,
    tensors: Vec<Tensor>,
    names: HashMap<String, usize>,
    keys: HashMap<Key, Held>,
    /// For the sites of a tensor, the running totals of blocks with a digest. They are the same in every layer.
    blocks: HashMap<(Option<Course>, Part, Stage), Vec<usize>>,
    rows: usize,
}

/// The place of a tensor of `stages` in the file.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The first of its rows in the tables.
    row: usize,
    /// The number of the tensor with its values, and the index of its first digest; `None` if the values are not kept.
    values: Option<(usize, usize)>,
}

/// The stages that are kept for a model with these sizes and draws with these filters.
pub fn stages(sizes: &Sizes, filters: Filters, keep: Keep, derivable: impl Fn(Stage) -> bool) -> Vec<Stage> {
    // A pass that hides keys has every stage of the model.
    let hiding = PassDims { pass: 0, start: 0, tokens: 2, filters };
    let kept = |stage: &Stage| stage.present(sizes, hiding) && (keep != Keep::Minimal || !derivable(*stage));
    Stage::ALL.iter().copied().filter(kept).collect()
}

/// Whether the values of `stage` are always kept.
pub(super) fn always(stage: Stage) -> bool {
    matches!(stage, Stage::Tokens | Stage::Sampled)
}

/// The priority of a stage under a budget: first the residual stream, attention and the head, then the rest, and
/// derivable stages last.
fn rank(stage: Stage) -> usize {
    const ORDER: [Stage; 12] = [
        Stage::Embedding,
        Stage::AttnOutput,
        Stage::FfnDown,
        Stage::XqRope,
        Stage::XkRope,
        Stage::Xv,
        Stage::Logits,
        Stage::FinalNorm,
        Stage::RopeCos,
        Stage::RopeSin,
        Stage::AttnNorm,
        Stage::FfnNorm,
    ];
    let derived = if stage.info().derived_from.is_some() { 1000 } else { 0 };
    derived
        + ORDER
            .iter()
            .position(|other| *other == stage.first_of_name())
            .unwrap_or(ORDER.len() + stage as usize)
}

fn dtype(stage: Stage) -> Dtype {
    match stage {
        _ if stage.is_ids() => Dtype::I64,
        _ if stage.is_int8() => Dtype::I8,
        _ => Dtype::F32,
    }
}

impl Plan {
    /// The file of a run with these passes, by course. It holds the values of `stages` for which `kept` is true.
    pub(super) fn new(
        sizes: Sizes,
        (passes, branches): (&[Vec<PassDims>], &[Branch]),
        stages: Vec<Stage>,
        texts: Texts,
        kept: impl Fn(Key) -> bool,
    ) -> Self {
        let layout = Layout::new(sizes, passes, branches, &stages);
        let mut plan = Self {
            layout,
            stages,
            texts,
            tensors: Vec::new(),
            names: HashMap::new(),
            keys: HashMap::new(),
            blocks: HashMap::new(),
            rows: 0,
        };
        let keys: Vec<Key> = plan.layout.keys(&plan.stages).collect();
        let mut digests = 0_usize;
        for &key in &keys {
            let mut held = Held { row: plan.rows, values: None };
            plan.rows += plan.layout.rows(key);
            if kept(key) {
                // The number of the tensor is set below.
                held.values = Some((usize::MAX, digests));
                digests = digests.saturating_add(plan.blocks_of(key));
            }
            plan.keys.insert(key, held);
        }
        let (rows, all) = (plan.rows, plan.layout.passes().count());
        // The wider types first, which keeps all tensors aligned to their size.
        let tables = [
            (tables::PASSES, Dtype::I64, vec![all, 4]),
            (tables::INDEX, Dtype::I64, vec![rows, 4]),
            (COUNTS.name, Dtype::I64, vec![rows, 3]),
            (tables::LABEL_ENDS, Dtype::I64, vec![texts.labels]),
            (tables::PROMPT_ENDS, Dtype::I64, vec![passes.len() - branches.len(), 2]),
            (tables::BRANCHES, Dtype::I64, vec![branches.len(), 4]),
            (STATS.name, Dtype::F32, vec![rows, 4]),
            (DIGESTS.name, Dtype::I8, vec![digests, DIGESTS.bytes]),
            (tables::LABELS, Dtype::I8, vec![texts.label_bytes]),
            (tables::PROMPTS, Dtype::I8, vec![texts.prompt_bytes]),
        ];
        for section in [Dtype::I64, Dtype::F32, Dtype::I8] {
            for (name, _, shape) in tables.iter().filter(|(_, dtype, _)| *dtype == section) {
                plan.add((*name).to_owned(), section, shape.clone());
            }
            for &key in keys.iter().filter(|key| dtype(key.stage) == section && kept(**key)) {
                let shape = plan.layout.shape(key);
                let at = plan.add(key.to_string(), section, shape);
                if let Some((tensor, _)) = plan.keys.get_mut(&key).and_then(|held| held.values.as_mut()) {
                    *tensor = at;
                }
            }
        }
        plan
    }

    /// The number of digests of a tensor.
    fn blocks_of(&mut self, key: Key) -> usize {
        let place = (key.course, key.part, key.stage);
        let ends = self.blocks.entry(place).or_insert_with(|| self.layout.blocks(key, BLOCK));
        ends.last().copied().unwrap_or(0)
    }

    /// The file of a run that is recorded according to `about`. `passes` has the passes of the longest possible run:
    /// first those of each sequence, then those of each branch. If there is a budget, the file stays within it.
    ///
    /// # Errors
    /// [`Error::Usage`] if even the tokens and the statistics exceed the budget.
    pub fn of(about: &About, passes: &[Vec<PassDims>], branches: &[Branch], texts: Texts) -> Result<Self> {
        let passes = (passes, branches);
        let sizes = about.card.sizes();
        let stages = about.stages().unwrap_or_default();
        let whole = Self::new(sizes, passes, stages.clone(), texts, |key| {
            about.keep != Keep::Stats || always(key.stage)
        });
        let Some(budget) = about.budget.filter(|budget| *budget < whole.bytes(about) as u64) else {
            return Ok(whole);
        };
        let budget = usize::try_from(budget).unwrap_or(usize::MAX);
        let least = Self::new(sizes, passes, stages.clone(), texts, |key| always(key.stage));
        let digests = |key: Key| {
            let ends = whole.blocks.get(&(key.course, key.part, key.stage));
            ends.and_then(|ends| ends.last()).map_or(0, |count| count * DIGESTS.bytes)
        };
        // The header of the complete file is at least as long as that of any smaller file.
        let fixed = whole.header_bytes(about) + least.data_bytes();
        let Some(mut room) = budget.checked_sub(fixed) else {
            return Err(Error::usage("the budget is too small")
                .at("--budget")
                .expected(format!("at least {fixed} bytes, for the tokens and the statistics"))
                .found(format!("{budget} bytes"))
                .next("give a larger --budget, or generate fewer tokens"));
        };
        let mut keys: Vec<Key> =
            whole.keys.keys().copied().filter(|key| whole.holds(*key) && !always(key.stage)).collect();
        keys.sort_by_key(|key| (rank(key.stage), key.layer, key.part, key.course));
        let mut kept = HashSet::new();
        for key in keys {
            let bytes = whole.layout.count(key) * key.stage.value_bytes() + digests(key);
            if bytes <= room {
                room -= bytes;
                kept.insert(key);
            }
        }
        Ok(Self::new(sizes, passes, stages, texts, |key| always(key.stage) || kept.contains(&key)))
    }

    fn add(&mut self, name: String, dtype: Dtype, shape: Vec<usize>) -> usize {
        let start = self.data_bytes();
        // If a damaged file makes the product overflow, the result matches no tensor in the file.
        let count = shape.iter().copied().fold(1, usize::saturating_mul);
        let bytes = count.saturating_mul(dtype.bitsize() / 8);
        self.names.insert(name.clone(), self.tensors.len());
        self.tensors.push(Tensor { name, dtype, shape, start, bytes });
        self.tensors.len() - 1
    }

    /// The size of all tensors in bytes.
    pub(super) fn data_bytes(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.start.saturating_add(last.bytes))
    }

    /// The size of the header with its length field. The header for fewer passes is not larger.
    pub(super) fn header_bytes(&self, about: &About) -> usize {
        8 + self.header(about).len().next_multiple_of(8)
    }

    /// The size of the file in bytes.
    pub fn bytes(&self, about: &About) -> usize {
        self.header_bytes(about) + self.data_bytes()
    }

    /// The header, without its length.
    pub(super) fn header(&self, about: &About) -> Vec<u8> {
        let tensors = self.tensors.iter().map(|tensor| {
            let Tensor { name, dtype, shape, start, bytes } = tensor;
            let data_offsets = (*start, start + bytes);
            (name.clone(), TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets })
        });
        let header = Metadata::new(None, tensors.collect());
        let header = header.unwrap_or_else(|_| unreachable!("the tensors lie side by side"));
        let mut all = serde_json::Map::new();
        // In a fixed order, which makes the files of two equal runs equal.
        all.insert("__metadata__".into(), about.metadata().into_iter().collect());
        if let Ok(serde_json::Value::Object(tensors)) = serde_json::to_value(&header) {
            all.extend(tensors);
        }
        serde_json::Value::Object(all).to_string().into_bytes()
    }

    /// A table.
    pub(super) fn table(&self, name: &str) -> &Tensor {
        &self.tensors[self.names[name]]
    }

    /// Whether the values of a tensor are kept.
    pub fn holds(&self, key: Key) -> bool {
        self.keys.get(&key).is_some_and(|held| held.values.is_some())
    }

    /// The row of `site` in the tables; `None` if it has no statistics.
    pub(super) fn row(&self, site: Site) -> Option<usize> {
        let held = self.keys.get(&self.layout.key(site))?;
        Some(held.row + self.layout.place(site)?.0)
    }

    /// The digests of `site`: the first row of its tensor in the table of digests, and the range of its own digests,
    /// counted from that row. `None` if its values are not kept.
    pub(super) fn digests(&self, site: Site) -> Option<(usize, Range<usize>)> {
        let key = self.layout.key(site);
        let (_, first) = self.keys.get(&key)?.values?;
        let (number, _) = self.layout.place(site)?;
        let ends = self.blocks.get(&(key.course, key.part, key.stage))?;
        Some((first, *ends.get(number)?..*ends.get(number + 1)?))
    }

    /// The place of the values of `site`: the offset of their tensor from the end of the header in bytes, and their
    /// offset in the tensor. `None` if they are not kept.
    pub(super) fn place(&self, site: Site) -> Option<(usize, usize)> {
        let (tensor, _) = self.keys.get(&self.layout.key(site))?.values?;
        let (_, first) = self.layout.place(site)?;
        Some((self.tensors[tensor].start, first * site.stage.value_bytes()))
    }

    /// Takes the places of the tensors from the header of a file.
    ///
    /// # Errors
    /// A message about a tensor that is missing in the header, or has another shape there.
    pub(super) fn placed(mut self, header: &Metadata) -> std::result::Result<Self, String> {
        for tensor in &mut self.tensors {
            let info = header.info(&tensor.name);
            let fits = |info: &&TensorInfo| info.dtype == tensor.dtype && info.shape == tensor.shape;
            match info.filter(fits) {
                Some(info) => tensor.start = info.data_offsets.0,
                None => {
                    let found = info.map_or("none".into(), |info| format!("{} {:?}", info.dtype, info.shape));
                    let Tensor { name, dtype, shape, .. } = tensor;
                    return Err(format!("{name}: expected {dtype} {shape:?}, found {found}"));
                }
            }
        }
        Ok(self)
    }

    /// The stages that the budget left out, in words: `ffn_up in layers 0-3`.
    pub fn left_out(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for &stage in &self.stages {
            let of = |key: &&Key| key.stage == stage;
            let mut layers: Vec<Option<usize>> =
                self.keys.keys().filter(of).filter(|key| !self.holds(**key)).map(|key| key.layer).collect();
            layers.sort_unstable();
            layers.dedup();
            match &layers[..] {
                [] => {}
                [Some(first), .., Some(last)] if last - first + 1 == layers.len() => {
                    out.push(format!("{stage} in layers {first}-{last}"));
                }
                [None] => out.push(stage.to_string()),
                layers => {
                    let layers: Vec<_> = layers.iter().flatten().map(ToString::to_string).collect();
                    out.push(format!("{stage} in layers {}", layers.join(", ")));
                }
            }
        }
        out
    }
}
