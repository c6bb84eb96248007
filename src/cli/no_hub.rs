//! `--model` in a build without the feature `hub`: paths only.

use std::path::PathBuf;

use super::ModelArgs;
use llama_trace_core::error::{Error, Result};

/// The part of a model that is needed.
#[derive(Clone, Copy)]
pub(super) enum Need {
    Model,
    Headers,
    Tokenizer,
}

/// A model whose weights are still on the hub. In a build without the feature there is none.
pub(super) enum SparseCopy {}

/// The place of the model that the options name.
pub(super) struct Place {
    /// None for the built-in model.
    pub(super) path: Option<PathBuf>,
    pub(super) sparse: Option<SparseCopy>,
    pub(super) name: Option<String>,
}

/// The path, unchanged.
///
/// # Errors
/// [`Error::Usage`] for a name of the hub.
pub(super) fn locate(args: &ModelArgs, _: Need) -> Result<Place> {
    if let Some(name) = name(args) {
        let found = if args.offline { format!("`{name}`, --offline") } else { format!("`{name}`") };
        return Err(Error::not_built("models of the Hugging Face hub", "hub").found(found));
    }
    Ok(Place { path: args.model.clone(), sparse: None, name: None })
}

/// The model's name, if it has the form of a hub name and no such path exists.
pub(super) fn name(args: &ModelArgs) -> Option<&str> {
    let model = args.model.as_ref().filter(|path| std::fs::symlink_metadata(path).is_err())?.to_str()?;
    let (owner, rest) = model.split_once('/')?;
    let name = rest.split([':', '@']).next()?;
    (!owner.is_empty() && !owner.starts_with(['.', '~']) && !name.is_empty() && !name.contains('/'))
        .then_some(model)
}
