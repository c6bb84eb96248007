//! What an export's manifest is made of, and which files an earlier one names.

use std::collections::BTreeSet;

use crate::cli::RunArgs;
use crate::cli::device::Device;
use crate::cli::input::Run;
use llama_trace_core::trace::Manifest;
use llama_trace_core::trace::manifest::Drawing;

/// The file that marks a directory as an export.
pub(super) const MANIFEST: &str = "manifest.json";

/// The manifest of an export of `run`, which has no files yet.
pub(super) fn new<D: Device>(run: &Run<D>, args: &RunArgs) -> Manifest {
    let prompts = run.prompts.iter().map(|prompt| prompt.text.clone()).collect();
    let mut manifest = Manifest::new(run.model.card(), prompts, Some(drawing(args)));
    manifest.cache = Some(run.model.backend.cache_dtype().name().to_owned());
    manifest
}

/// How the tokens of a run are drawn.
pub(in crate::cli) fn drawing(args: &RunArgs) -> Drawing {
    args.sampling.drawing(args.stream.unwrap_or(0))
}

/// The files of an export that is there already.
#[derive(Debug, Default)]
pub(super) struct Earlier(BTreeSet<String>);

impl Earlier {
    /// Reads an earlier export's manifest.
    ///
    /// # Errors
    /// What it is instead, where it is not one.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let names = Manifest::read(text)?.files.into_iter().map(|file| file.file);
        // A name of another form was not written by an export, whatever the manifest says.
        Ok(Self(names.filter(|name| is_export(name)).chain([MANIFEST.to_owned()]).collect()))
    }

    pub(super) fn names(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Its files, the manifest among them.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Whether `name` has the form of [`Manifest::file_name`].
fn is_export(name: &str) -> bool {
    let parts: Vec<_> = name.split('/').collect();
    let parts = match &parts[..] {
        [sequence, rest @ ..] if sequence_of(sequence).is_some() => rest,
        all => all,
    };
    let (pass, layer, file) = match *parts {
        [pass, file] => (pass, None, file),
        [pass, layer, file] => (pass, Some(layer), file),
        _ => return false,
    };
    let stage =
        [".npy", ".svg", ".png"].iter().find_map(|suffix| file.strip_suffix(suffix)).unwrap_or_default();
    pass_of(pass).is_some()
        && layer.is_none_or(|layer| number(layer, "layer_", 2).is_some())
        && !stage.is_empty()
        && stage.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// The pass whose files are in the folder `name` of an export.
pub(super) fn pass_of(name: &str) -> Option<usize> {
    number(name, "pass_", 3)
}

/// The sequence whose files are in the folder `name` of an export of several.
pub(super) fn sequence_of(name: &str) -> Option<usize> {
    number(name, "s", 1)
}

fn number(name: &str, before: &str, digits: usize) -> Option<usize> {
    let number = name.strip_prefix(before)?.parse().ok()?;
    (format!("{before}{number:0digits$}") == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::{Site, Stage};

    #[test]
    fn only_names_of_the_exports_own_form_are_its_files() {
        for stage in Stage::ALL {
            let name = match stage.in_layer() {
                true => Site::layer(1234, 123, *stage).file_name(),
                false => Site::once(7, *stage).file_name(),
            };
            assert!(is_export(&name) && is_export(&format!("s12/{name}")), "{name}");
            assert!(is_export(&name.replace(".npy", ".svg")) && is_export(&name.replace(".npy", ".png")));
        }
        for name in [
            "xq.npy",
            "/etc/xq.npy",
            "pass_000/../xq.npy",
            "pass_000/..",
            "../pass_000/xq.npy",
            "pass_0/xq.npy",
            "pass_0000/xq.npy",
            "pass_000/layer_0/xq.npy",
            "pass_000/layer_00/x/xq.npy",
            "pass_000/xq.txt",
            "pass_000/.npy",
            "pass_000/X.npy",
            "pass_000//xq.npy",
            "pass_+00/xq.npy",
            "s0/xq.npy",
            "s/pass_000/xq.npy",
            "s00/pass_000/xq.npy",
            "s0/s1/pass_000/xq.npy",
            "t0/pass_000/xq.npy",
        ] {
            assert!(!is_export(name), "{name}");
        }
    }
}
