//! A built-in model: a Hugging Face directory whose files are embedded in the binary.

use super::huggingface::assemble;
use super::{Checkpoint, Format, hf_config, safetensors};
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Bytes;

/// The files of a built-in model.
#[derive(Debug)]
pub struct BuiltIn {
    /// Its name in messages: "the built-in model".
    pub place: &'static str,
    /// config.json.
    pub config: &'static str,
    /// generation_config.json.
    pub generation_config: &'static str,
    /// model.safetensors.
    pub weights: &'static [u8],
    /// tokenizer.json.
    pub tokenizer: &'static str,
    /// tokenizer_config.json.
    pub tokenizer_config: &'static str,
    /// chat_template.jinja.
    pub chat_template: &'static str,
}

impl BuiltIn {
    /// Opens the model with the code for directories, as if its configuration did not have the fields `ignore`.
    ///
    /// # Errors
    /// The errors of a directory with these files.
    pub fn open(&'static self, ignore: &[String]) -> Result<Checkpoint> {
        let Self { place, .. } = *self;
        let config = hf_config::model_config(self.config, place, ignore)?;
        let eos = hf_config::stop_ids(Some((self.generation_config, place)), (self.config, place))?;
        let contents = safetensors::parse(&Bytes::Static(self.weights), place)?;
        let format = Format::HuggingFace { files: 1, pickled: false };
        let checkpoint = assemble("built-in".into(), config, eos, contents, format, place)?;
        Ok(Checkpoint { built_in: Some(self), ..checkpoint })
    }
}
