//! Parses the names of an export's files and folders.

use std::collections::BTreeSet;

use super::Manifest;

impl Manifest {
    /// The names of the files that the manifest `text` lists. Names that no export writes are left out.
    ///
    /// # Errors
    /// As [`Manifest::read`].
    pub fn file_names(text: &[u8]) -> Result<BTreeSet<String>, String> {
        let names = Self::read(text)?.files.into_iter().map(|file| file.file);
        // A manifest is untrusted. A name of another form was not written by an export.
        Ok(names.filter(|name| is_export(name)).collect())
    }
}

/// Returns whether `name` has the form of [`Manifest::file_name`].
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

/// The number of the pass whose files are in the folder `name` of an export.
pub fn pass_of(name: &str) -> Option<usize> {
    number(name, "pass_", 3)
}

/// The number of the sequence whose files are in the folder `name` of an export of several sequences.
pub fn sequence_of(name: &str) -> Option<usize> {
    number(name, "s", 1)
}

fn number(name: &str, before: &str, digits: usize) -> Option<usize> {
    let number = name.strip_prefix(before)?.parse().ok()?;
    (format!("{before}{number:0digits$}") == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Site, Stage};

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
