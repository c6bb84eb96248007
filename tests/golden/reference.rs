//! The float64 reference of `fixtures/golden`, and the distance of a backend's stages from it. `replay/bits` uses both
//! too, for the CUDA backend.

use std::collections::BTreeMap;
use std::path::Path;

use llama_trace::backend::Backend;
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::trace::{Frame, FrameData, Recorder, Select, Site};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

pub(crate) const MODELS: [&str; 6] = ["gqa", "mha_bias", "tied_llama3", "mistral", "qwen2", "qwen3"];

/// The largest relative L2 error of a stage: ‖ours − reference‖ / ‖reference‖.
pub(crate) const TOLERANCE: f64 = 1e-5;

/// Values of a stage in float64, with their shape.
pub(crate) type Tensor = (Vec<usize>, Vec<f64>);

pub(crate) fn reference(model: &str) -> BTreeMap<String, Tensor> {
    read(&super::fixture(&format!("golden/{model}/stages.safetensors")))
}

/// The stages in a file, by name.
pub(crate) fn read(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let value = |view: &TensorView| -> Vec<f64> {
        let words = view.data().as_chunks::<8>().0.iter();
        match view.dtype() {
            Dtype::F32 => {
                let words = view.data().as_chunks::<4>().0.iter();
                words.map(|word| f64::from(f32::from_le_bytes(*word))).collect()
            }
            Dtype::BF16 => {
                let words = view.data().as_chunks::<2>().0.iter();
                words.map(|word| half::bf16::from_le_bytes(*word).to_f64()).collect()
            }
            Dtype::F64 => words.map(|word| f64::from_le_bytes(*word)).collect(),
            Dtype::I64 => words.map(|word| i64::from_le_bytes(*word) as f64).collect(),
            other => panic!("{other:?}"),
        }
    };
    tensors.iter().map(|(name, view)| (name.to_owned(), (view.shape().to_vec(), value(&view)))).collect()
}

pub(crate) fn ids(model: &str, key: &str) -> Vec<u32> {
    numbers(&super::fixture(&format!("golden/{model}/greedy.json")), key)
}

/// A list of ids in a JSON file.
pub(crate) fn numbers(path: &Path, key: &str) -> Vec<u32> {
    let text = std::fs::read(path).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    json[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub(crate) fn open(model: &str) -> Checkpoint {
    checkpoint::open(&super::fixture(&format!("golden/{model}"))).unwrap()
}

/// Every stage of a prefill and two decode passes on a backend, keyed by the file name of an export.
pub(crate) fn record_on(
    backend: impl Backend + 'static,
    checkpoint: &Checkpoint,
    prompt: &[u32],
) -> BTreeMap<String, Tensor> {
    let model = Model::load(checkpoint, backend).unwrap();
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let (select, mut stages) = (Select::all(), BTreeMap::new());
    let mut ids = prompt.to_vec();
    for _ in 0..3 {
        let dims = session.next_pass(ids.len());
        let mut take = |frame: Frame| {
            stages.insert(name(frame.site), (frame.shape().to_vec(), values(&frame)));
        };
        ids = vec![session.run(&ids, &mut Recorder::new(model.sizes(), dims, &select, &mut take)).unwrap()];
    }
    stages
}

pub(crate) fn name(site: Site) -> String {
    site.file_name().trim_end_matches(".npy").to_owned()
}

/// The values of a frame in float64.
pub(crate) fn values(frame: &Frame) -> Vec<f64> {
    match &frame.data {
        FrameData::F32(array) => array.iter().map(|&value| f64::from(value)).collect(),
        FrameData::I64(array) => array.iter().map(|&value| value as f64).collect(),
        FrameData::I8(array) => array.iter().map(|&value| f64::from(value)).collect(),
    }
}

/// Describes the first difference between `ours` and `reference`. Every stage must be in both.
pub(crate) fn difference(
    ours: &BTreeMap<String, Tensor>,
    reference: &BTreeMap<String, Tensor>,
) -> Option<String> {
    let (our_names, their_names) = (ours.keys().collect::<Vec<_>>(), reference.keys().collect::<Vec<_>>());
    if our_names != their_names {
        return Some(format!("stages differ: {our_names:?} and {their_names:?}"));
    }
    ours.iter().find_map(|(name, tensor)| {
        stage_difference(tensor, &reference[name]).map(|what| format!("{name}: {what}"))
    })
}

pub(crate) fn stage_difference(ours: &Tensor, reference: &Tensor) -> Option<String> {
    if ours.0 != reference.0 {
        return Some(format!("shape {:?}, not {:?}", ours.0, reference.0));
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (i, (a, b)) in ours.1.iter().zip(&reference.1).enumerate() {
        if a.is_finite() != b.is_finite() || (!b.is_finite() && a != b) {
            return Some(format!("value {i} is {a}, not {b}"));
        }
        if b.is_finite() {
            error += (a - b).powi(2);
            norm += b.powi(2);
        }
    }
    // If all values of the reference are zero (a mask's finite part), all of ours must be zero too.
    let relative = if norm == 0.0 { error } else { (error / norm).sqrt() };
    (relative > TOLERANCE || relative.is_nan()).then(|| format!("relative L2 error {relative:e}"))
}
