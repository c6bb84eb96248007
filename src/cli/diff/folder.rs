//! A folder that `export` or a capture script wrote, as a run that is compared.

use std::path::{Path, PathBuf};

use super::npy;
use crate::diff::{About, Found, Pass, Traced};
use crate::error::{Error, Result};
use crate::explain::Drawing;
use crate::files::read_text;
use crate::trace::{Manifest, PassDims, Site};

/// What a manifest may take.
const LIMIT: u64 = 256 << 20;

/// The folder.
pub(super) struct Folder {
    path: PathBuf,
    manifest: Manifest,
    about: About,
}

impl Folder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is no folder, [`Error::Model`] where its manifest is missing or none.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            let found = if path.exists() { "a file" } else { "nothing" };
            return Err(Error::usage("there is no folder to compare")
                .in_file(path)
                .expected("a folder that `llama-trace export` or a capture script wrote")
                .found(found)
                .next("check the path"));
        }
        let file = path.join("manifest.json");
        if !file.exists() {
            return Err(Error::model("the folder has no manifest.json, which says what its files are")
                .in_file(path)
                .expected("a folder that `llama-trace export` or a capture script wrote")
                .next("`llama-trace capture transformers` prints a script that writes such a folder"));
        }
        let text = read_text(&file, LIMIT)?;
        let manifest = Manifest::read(text.as_bytes()).map_err(|found| {
            Error::model("the manifest cannot be read")
                .in_file(&file)
                .expected("an export's manifest")
                .found(found)
        })?;
        let about = about(path, &manifest).map_err(|found| {
            Error::model("the manifest cannot be right")
                .in_file(&file)
                .expected("passes, one after the other")
                .found(found)
        })?;
        Ok(Self { path: path.to_owned(), manifest, about })
    }
}

fn about(path: &Path, manifest: &Manifest) -> std::result::Result<About, String> {
    // Of several sequences the first is compared.
    let own = manifest.passes.iter().filter(|pass| pass.sequence.unwrap_or(0) == 0);
    let (mut passes, mut end) = (Vec::new(), 0_usize);
    let context = manifest.card.as_ref().map_or(usize::MAX, |card| card.config.context);
    for pass in own {
        let tokens = pass.tokens.len();
        if pass.start > end || tokens == 0 || pass.start.saturating_add(tokens) > context {
            return Err(format!("pass {} of {tokens} tokens after {}", pass.pass, pass.start));
        }
        end = pass.start + tokens;
        let dims = PassDims { pass: pass.pass, start: pass.start, tokens };
        passes.push(Pass { dims, tokens: pass.tokens.clone() });
    }
    let drawing = manifest.sampling.map(|drawing| Drawing {
        temperature: drawing.temperature,
        top_k: drawing.top_k,
        top_p: drawing.top_p,
    });
    Ok(About {
        name: path.display().to_string(),
        precision: manifest.card.as_ref().map(|card| card.precision),
        card: manifest.card.clone(),
        fingerprint: None,
        drawing,
        prompt: manifest.prompt.clone().or_else(|| manifest.prompts.first().cloned().flatten()),
        passes,
    })
}

impl Traced for Folder {
    fn about(&self) -> &About {
        &self.about
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        Ok(npy::read(&self.path.join(self.manifest.file_name(site)), site))
    }
}
