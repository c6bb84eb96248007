//! Opening of a model on disk: recognises the format, reads the configuration, and returns the tensors without copying
//! them.
//!
//! [`open`] is the entry point. Files are memory-mapped and never written. Every length in a file is checked against
//! the file's size before it is used.

pub mod chat_template;
pub mod family;
pub mod fields;
pub mod names;
mod neutral;

pub mod gguf;

mod builtin;
mod class;
mod contents;
mod gather;
pub mod hf_config;
#[cfg(feature = "native")]
mod huge;
pub mod huggingface;
mod json;
pub mod limits;
mod llama2c;
mod meta;
mod pth;
pub mod random;
pub mod safetensors;
mod screen;
mod stored;
mod unread;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::files::gguf::is_gguf;
use crate::files::{Vocabulary, folder_of, is_folder};
use llama_trace_core::config::{DEFAULT_GROUP, ModelConfig};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Dtype, Dtypes, Tensor};

pub use builtin::BuiltIn;
pub use class::Class;
pub use family::Family;
pub use names::{LayerWeight, Naming, Weight};
pub use screen::Notes;

/// An open checkpoint: its configuration and its tensors, still in the mapped file.
#[derive(Debug)]
pub struct Checkpoint {
    /// A short name for display: the name of the directory or the file, or "built-in".
    pub name: String,
    /// The file format.
    pub format: Format,
    /// The path; `None` for the built-in model.
    pub path: Option<PathBuf>,
    /// The files of the built-in model, if this is the built-in model.
    built_in: Option<&'static BuiltIn>,
    /// The hyperparameters, checked.
    pub config: ModelConfig,
    /// Ids that end a text; generation stops there.
    pub eos: Vec<u32>,
    /// Deviations from the files: ignored fields, unread tensors and the like.
    pub notes: Notes,
    /// The tensors by their names in the file. `.bin` files have no names; their tensors get Meta's names.
    tensors: BTreeMap<String, Tensor>,
    /// Names and dtypes of tensors with an unsupported dtype, mostly buffers that no weight needs.
    unreadable: BTreeMap<String, String>,
    naming: Naming,
}

/// The supported kinds of checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A directory with config.json and files of weights.
    HuggingFace {
        /// The number of weight files.
        files: usize,
        /// Whether they are PyTorch's pickles; otherwise they are safetensors.
        pickled: bool,
    },
    /// llama2.c's `.bin`.
    Llama2c {
        /// 0, 1 or 2. Versions 0 and 1 are in float32; in version 2, the matrices are int8.
        version: u32,
    },
    /// Meta's params.json and consolidated.NN.pth.
    Meta {
        /// The number of .pth files. If there are several, every matrix is split across them.
        files: usize,
    },
    /// llama.cpp's format.
    Gguf {
        /// The version of the format: 2 or 3.
        version: u32,
        /// The number types of the matrices.
        dtypes: Dtypes,
        /// The number of files that the model was split into.
        files: usize,
    },
    /// Random numbers in the shape of a model, for measurements.
    Random,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HuggingFace { files, pickled } => {
                let kind = if *pickled { "PyTorch" } else { "safetensors" };
                write!(f, "Hugging Face directory, {files} {kind} file{}", if *files == 1 { "" } else { "s" })
            }
            Self::Random => f.write_str("random weights"),
            Self::Meta { files: 1 } => f.write_str("Meta's checkpoint, 1 .pth file"),
            Self::Meta { files } => write!(f, "Meta's checkpoint, {files} model-parallel .pth files"),
            Self::Llama2c { version } => write!(f, "llama2.c checkpoint, version {version}"),
            Self::Gguf { version, dtypes, files: 1 } => write!(f, "GGUF v{version}, {dtypes}"),
            Self::Gguf { version, dtypes, files } => write!(f, "GGUF v{version}, {dtypes}, {files} files"),
        }
    }
}

/// Opens the checkpoint at `path`.
///
/// # Errors
/// Returns [`Error::Model`] if the path does not exist, if its kind is unknown, or if the model is damaged.
pub fn open(path: &Path) -> Result<Checkpoint> {
    open_ignoring(path, &[])
}

/// Opens the checkpoint at `path` as if its configuration did not have the fields `ignore`. Fields are named as in
/// error messages.
///
/// # Errors
/// The errors of [`open`], and [`Error::Usage`] if there is no such field or ignoring it has no effect.
pub fn open_ignoring(path: &Path, ignore: &[String]) -> Result<Checkpoint> {
    let folder = is_folder(path).map_err(|error| {
        Error::model("there is no model at this path")
            .in_file(path)
            .expected("a directory in Hugging Face's or Meta's layout, a GGUF file, or a llama2.c .bin file")
            .found(error)
            .next("check the spelling; write a model of the Hugging Face hub as org/name; without --model the built-in model is used")
    })?;
    if folder {
        let shards = meta::shards(path);
        // A repository may have both formats. If config.json and its weights are there, Hugging Face's format is the
        // main one.
        match shards.is_empty() || huggingface::is_here(path) {
            true => huggingface::open(path, ignore),
            false => meta::open(path, &shards, ignore),
        }
    } else if let Some(folder) = huggingface::folder_of(path) {
        huggingface::open(folder, ignore)
    } else if meta::is_params(path) {
        open_ignoring(folder_of(path), ignore)
    } else {
        let bytes = crate::files::map(path)?;
        if is_gguf(&bytes) {
            gguf::open(path, ignore)
        } else if pth::is_pth(&bytes) {
            meta::open_file(path, ignore)
        } else {
            llama2c::open(&bytes, path, ignore)
        }
    }
}

impl Checkpoint {
    /// The tensor of `weight`, whose shape must be `shape` (outermost first). If the head is tied, one stored tensor
    /// serves as the embedding table and as the head.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the tensor is missing (with the most similar names), if it has another shape, or if
    /// its dtype is not supported.
    pub fn tensor(&self, weight: Weight, shape: &[usize]) -> Result<&Tensor> {
        let name = self.stored_name(weight);
        let place = || match &self.path {
            Some(path) => path.display().to_string(),
            None => self.built_in.map_or(self.name.as_str(), |built_in| built_in.place).into(),
        };
        if let Some(dtype) = self.unreadable.get(&name) {
            return Err(Error::model(format!("tensor `{name}` has an unsupported number type"))
                .at(place())
                .expected(format!("one of {}", Dtype::ALL.map(|dtype| dtype.to_string()).join(", ")))
                .found(dtype)
                .next("use a version of the model in one of these types"));
        }
        let Some(tensor) = self.tensors.get(&name) else {
            if let Some(class) = self.notes.class.as_ref().filter(|_| weight == Weight::Head) {
                return Err(self.no_head(class, &name).at(place()));
            }
            return Err(Error::model(format!("the checkpoint has no tensor `{name}`"))
                .at(place())
                .expected(format!("{} with shape {shape:?}", weight.describe()))
                .found(names::nearest(&name, self.tensors.keys()))
                .next("check that every file of the checkpoint is there and belongs to its configuration"));
        };
        if tensor.shape() != shape {
            return Err(Error::model(format!("tensor `{name}` has the wrong shape"))
                .at(place())
                .expected(format!("{shape:?}, as the configuration says: {}", weight.describe()))
                .found(format!("{:?}", tensor.shape()))
                .next("check that the configuration and the weights belong to the same model"));
        }
        Ok(tensor)
    }

    /// The error for a model that has no output head `name` because it is of another class.
    fn no_head(&self, class: &Class, name: &str) -> Error {
        let own = class.head().filter(|own| self.tensors.contains_key(*own));
        let next = match own {
            Some(_) => "open the language model that it was made from",
            None => {
                "use a version of the model that has its head; transformers would fill the head with random numbers"
            }
        };
        Error::model(format!("the model has no output head: it was saved as {class}"))
            .expected(format!("`{name}`, which makes logits of the next token, or tie_word_embeddings: true"))
            .found(own.map_or_else(|| "no head".into(), |own| format!("`{own}`")))
            .next(next)
    }

    /// Checks that all weights of the forward pass are present and valid, as [`Checkpoint::tensor`] does for one
    /// weight.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::tensor`].
    pub fn check_weights(&self) -> Result<()> {
        let layers = (0..self.config.layers)
            .flat_map(|layer| LayerWeight::ALL.map(|weight| Weight::Layer(layer, weight)));
        let read = [Weight::Embedding].into_iter().chain(layers).chain([
            Weight::FinalNorm,
            Weight::FinalNormBias,
            Weight::Head,
        ]);
        read.filter(|weight| weight.is_in(&self.config))
            .try_for_each(|weight| self.tensor(weight, &weight.shape(&self.config)).map(drop))
    }

    /// Returns whether the checkpoint has its own tensor for `weight`; for a tied head it has none.
    #[cfg(test)]
    pub(crate) fn has(&self, weight: Weight) -> bool {
        !(self.config.tied && weight == Weight::Head) && self.tensors.contains_key(&self.stored_name(weight))
    }

    /// The name of the stored tensor of `weight`. In a tied model one tensor serves as the embedding table and as the
    /// head, and some files store it only as the head.
    fn stored_name(&self, weight: Weight) -> String {
        let name = self.naming.name(weight);
        if !self.config.tied || !matches!(weight, Weight::Embedding | Weight::Head) {
            return name;
        }
        let [embedding, head] = [Weight::Embedding, Weight::Head].map(|weight| self.naming.name(weight));
        if !self.tensors.contains_key(&embedding) && self.tensors.contains_key(&head) {
            head
        } else {
            embedding
        }
    }

    /// The location of the checkpoint's tokenizer: tokenizer.json or tokenizer.model in a directory; `tokenizer.bin`,
    /// `tok<V>.bin` or `<model>.tokenizer.bin` beside a `.bin`; the vocabulary inside a GGUF file.
    pub fn vocabulary(&self) -> Vocabulary {
        let Some(path) = &self.path else {
            return match self.built_in {
                Some(built_in) => Vocabulary::BuiltIn(built_in.tokenizer, built_in.place),
                None => Vocabulary::Beside(Vec::new()),
            };
        };
        Vocabulary::Beside(match self.format {
            Format::Gguf { .. } => return Vocabulary::Inside(path.clone()),
            Format::HuggingFace { .. } => vec![path.join("tokenizer.json"), path.join("tokenizer.model")],
            Format::Meta { .. } => {
                // In Llama 1 and 2, each size has its own folder, and the tokenizer is in the folder above.
                let is_folder = is_folder(path).unwrap_or(false);
                let folder = if is_folder { path.to_path_buf() } else { path.with_file_name("") };
                vec![
                    folder.join("tokenizer.model"),
                    folder.join("tokenizer.json"),
                    folder.join("../tokenizer.model"),
                ]
            }
            Format::Llama2c { .. } => vec![
                path.with_extension("tokenizer.bin"),
                path.with_file_name(format!("tok{}.bin", self.config.vocab)),
                path.with_file_name("tokenizer.bin"),
            ],
            Format::Random => Vec::new(),
        })
    }

    /// The number of activations that share a scale if weights are multiplied in their stored integer form. It is the
    /// group size in the file, or [`DEFAULT_GROUP`] for ggml's block formats. `None` if the weights are floats.
    pub fn group(&self) -> Option<usize> {
        self.tensors.values().find_map(|tensor| match tensor.scales() {
            Some(scales) => Some(scales.group),
            None => (tensor.dtype().is_blocks() && tensor.shape().len() == 2).then_some(DEFAULT_GROUP),
        })
    }

    /// All tensors, each with its name in the file, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}
