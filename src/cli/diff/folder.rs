//! A folder that `export` or a capture script wrote, as a run that is compared.

use std::path::{Path, PathBuf};

use super::capture::{Capture, TOKENS};
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
    says: Says,
    about: About,
}

/// The file that says what is in it.
enum Says {
    Export(Box<Manifest>),
    Capture(Box<Capture>),
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
        let [manifest, capture] = ["manifest.json", "capture.toml"].map(|name| path.join(name));
        let wrong = |file: &Path, found: String| {
            let expected = "what `llama-trace export` or a capture script wrote";
            Error::model("the file cannot be right").in_file(file).expected(expected).found(found)
        };
        if manifest.exists() {
            let read = Manifest::read(read_text(&manifest, LIMIT)?.as_bytes());
            let read = read.map_err(|found| wrong(&manifest, found))?;
            let about = about(path, &read).map_err(|found| wrong(&manifest, found))?;
            return Ok(Self { path: path.to_owned(), says: Says::Export(Box::new(read)), about });
        }
        if capture.exists() {
            let read = Capture::read(&read_text(&capture, LIMIT)?).map_err(|found| wrong(&capture, found))?;
            let about = read.about(path).map_err(|found| wrong(&capture, found))?;
            return Ok(Self { path: path.to_owned(), says: Says::Capture(Box::new(read)), about });
        }
        Err(Error::model("the folder has no manifest.json and no capture.toml, which say what its files are")
            .in_file(path)
            .expected("a folder that `llama-trace export` or a capture script wrote")
            .next("`llama-trace capture transformers` prints a script that writes such a folder"))
    }
}

fn about(path: &Path, manifest: &Manifest) -> std::result::Result<About, String> {
    // Of several sequences the first is compared.
    let own = manifest.passes.iter().filter(|pass| pass.sequence.unwrap_or(0) == 0);
    let (mut passes, mut end) = (Vec::new(), 0_usize);
    for pass in own {
        let tokens = pass.tokens.len();
        if pass.start > end || tokens == 0 || pass.start + tokens > TOKENS {
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
        settings: serde_json::Map::new(),
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
        Ok(match &self.says {
            Says::Export(manifest) => npy::read(&self.path.join(manifest.file_name(site)), site),
            Says::Capture(capture) => capture.stage(&self.path, site),
        })
    }
}
