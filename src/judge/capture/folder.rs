//! A folder that `export` or a capture script wrote, as a run for `diff`.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::files::npy_files;
use super::map::{Capture, TOKENS};
use super::npy;
use crate::diff::{self, About, Found, Pass, Traced};
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::trace::manifest::NEWER;
use llama_trace_core::trace::{FrameData, Manifest, PassDims, Sampling, Site, Sizes};
use llama_trace_formats::files::read_text;

/// The largest manifest.json or capture.toml that is read, in bytes.
const LIMIT: u64 = 256 << 20;

/// A folder that `export` or a capture script wrote. Each sequence numbers its own passes.
pub struct Folder {
    path: PathBuf,
    says: Says,
    /// The files that the manifest lists.
    listed: HashSet<String>,
    /// For each sequence: its description in the folder.
    abouts: Vec<About>,
    /// For each sequence: the numbers that its passes have in the names of the files.
    numbers: Vec<Vec<usize>>,
    /// The sequence that [`Traced`] answers for.
    sequence: usize,
}

/// The file that describes the folder.
enum Says {
    Export(Box<Manifest>),
    Capture(Box<Capture>),
}

impl Folder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// [`Error::Model`] if there is no folder, or its manifest.json or capture.toml is missing or wrong.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            let found = if path.exists() { "a file" } else { "nothing" };
            return Err(Error::model("there is no run at this path")
                .in_file(path)
                .expected("a trace that `llama-trace record` wrote, or a folder that `llama-trace export` or a capture script wrote")
                .found(found)
                .next("check the path"));
        }
        let [manifest, capture] = ["manifest.json", "capture.toml"].map(|name| path.join(name));
        let wrong = |file: &Path, found: String| {
            let expected = "a file that `llama-trace export` or a capture script wrote";
            let next = match found.ends_with(NEWER) {
                true => "use a newer llama-trace",
                false => "write the folder again, or correct the file",
            };
            Error::model("the file is not valid").in_file(file).expected(expected).found(found).next(next)
        };
        if manifest.exists() {
            let read = Manifest::read(read_text(&manifest, LIMIT)?.as_bytes());
            let read = read.map_err(|found| wrong(&manifest, found))?;
            let sequences = read
                .passes
                .iter()
                .map(|pass| pass.sequence.unwrap_or(0).saturating_add(1))
                .max()
                .unwrap_or(1);
            if sequences > read.passes.len().max(1) {
                return Err(wrong(
                    &manifest,
                    format!("sequence {} without the sequences before it", sequences - 1),
                ));
            }
            let (mut abouts, mut numbers) = (Vec::new(), Vec::new());
            for sequence in 0..sequences {
                let (about, own) = about(path, &read, sequence).map_err(|found| wrong(&manifest, found))?;
                abouts.push(about);
                numbers.push(own);
            }
            let listed = read.files.iter().map(|file| file.file.clone()).collect();
            let says = Says::Export(Box::new(read));
            return Ok(Self { path: path.to_owned(), says, listed, abouts, numbers, sequence: 0 });
        }
        if capture.exists() {
            let read = Capture::read(&read_text(&capture, LIMIT)?).map_err(|found| wrong(&capture, found))?;
            let about = read.about(path).map_err(|found| wrong(&capture, found))?;
            if path.join("s0").is_dir() && !path.join("pass_000").exists() && !read.names_files() {
                return Err(Error::model(
                    "this folder has a capture.toml and the runs of several prompts; \
                     it may have the run of only one prompt",
                )
                .in_file(path)
                .expected("pass_000/, or files that [stages] names")
                .found("s0/, as `llama-trace export` writes several prompts")
                .next("write a folder for each prompt, with a capture.toml of its own"));
            }
            let numbers = vec![about.passes.iter().map(|pass| pass.dims.pass).collect()];
            let says = Says::Capture(Box::new(read));
            let (path, listed) = (path.to_owned(), HashSet::new());
            return Ok(Self { path, says, listed, abouts: vec![about], numbers, sequence: 0 });
        }
        Err(Error::model("the folder has no manifest.json and no capture.toml to describe its files")
            .in_file(path)
            .expected("a folder that `llama-trace export` or a capture script wrote")
            .found("neither")
            .next("for a folder of your own, `llama-trace diff A FOLDER --suggest-map` proposes a capture.toml; `llama-trace capture transformers` prints a script that writes such a folder"))
    }

    /// The number of sequences.
    pub fn sequences(&self) -> usize {
        self.abouts.len()
    }

    /// Selects the sequence that [`Traced`] answers for.
    pub fn go_to(&mut self, sequence: usize) {
        self.sequence = sequence;
    }

    /// The description of `sequence`, which must be below [`Self::sequences`].
    pub(super) fn about_of(&self, sequence: usize) -> &About {
        &self.abouts[sequence]
    }

    /// The manifest of a folder that `export` wrote.
    pub(super) fn manifest(&self) -> Option<&Manifest> {
        match &self.says {
            Says::Export(manifest) => Some(manifest),
            Says::Capture(_) => None,
        }
    }

    /// The path of a stage's file. A capture.toml may name one file for several sites.
    pub(super) fn file(&self, site: Site) -> PathBuf {
        let site = self.numbered(site);
        self.path.join(match &self.says {
            Says::Export(manifest) => manifest.file_name(site).into(),
            Says::Capture(capture) => capture.file(site),
        })
    }

    /// Returns whether the stage has its own file in this pass; a file that all passes share does not count after pass
    /// 0.
    fn writes(&self, site: Site) -> bool {
        let file = self.file(site);
        file.is_file() && (site.pass == 0 || file != self.file(Site { pass: 0, ..site }))
    }

    /// The values of a stage.
    pub(super) fn read(&self, site: Site) -> Found {
        let found = match &self.says {
            Says::Export(_) => npy::read(&self.file(site), site),
            Says::Capture(capture) => capture.stage(&self.path, self.numbered(site)),
        };
        match found {
            Found::Damaged(why) => {
                let file = self.file(site);
                let name = file.strip_prefix(&self.path).unwrap_or(&file).display().to_string();
                Found::Damaged(format!("{}: {why}", printable(&name)))
            }
            other => other,
        }
    }

    /// Rows of a stage of `shape`, as an array of shape (rows, width). Only these rows are read from the file. `None`
    /// if the stage must be read as a whole.
    pub(super) fn rows(&self, site: Site, shape: &[usize], rows: Range<usize>) -> Option<FrameData> {
        self.manifest()?;
        npy::rows(&self.file(site), shape, rows)
    }

    /// The names of the `.npy` files that belong to no stage of a model of these sizes.
    pub fn unknown_files(&self, sizes: &Sizes) -> Vec<String> {
        let mut names: BTreeSet<_> = npy_files(&self.path).into_iter().collect();
        for (sequence, about) in self.abouts.iter().enumerate() {
            let written = |site: &Site| self.writes(Site { sequence, ..*site });
            let of_pass = |pass: &Pass| {
                let mut sites = Site::all(sizes, pass.dims);
                sites.extend(diff::beyond(sizes, pass.dims).into_iter().filter(written));
                sites
            };
            for site in about.passes.iter().flat_map(of_pass) {
                let site = self.numbered(Site { sequence, ..site });
                let files = match &self.says {
                    Says::Export(manifest) => vec![manifest.file_name(site).into()],
                    Says::Capture(capture) => capture.files(site),
                };
                for file in files.iter().filter_map(|file| file.to_str()) {
                    names.remove(file);
                }
            }
        }
        names.into_iter().collect()
    }

    /// The site with the number that its pass has in the names of the files.
    fn numbered(&self, site: Site) -> Site {
        let own = self.numbers.get(site.sequence).and_then(|own| own.get(site.pass));
        Site { pass: own.copied().unwrap_or(site.pass), ..site }
    }
}

/// A manifest's description of a sequence, and the numbers of its passes in the manifest.
fn about(
    path: &Path,
    manifest: &Manifest,
    sequence: usize,
) -> std::result::Result<(About, Vec<usize>), String> {
    let own = manifest.passes.iter().filter(|pass| pass.sequence.unwrap_or(0) == sequence);
    let (mut passes, mut numbers, mut end) = (Vec::new(), Vec::new(), 0_usize);
    let sampling = manifest.sampling.map(|drawing| drawing.sampling);
    let filters = sampling.map(Sampling::filters).unwrap_or_default();
    for pass in own {
        let tokens = pass.tokens.len();
        if pass.start > end || tokens == 0 || pass.start + tokens > TOKENS {
            return Err(format!(
                "pass {}: start {} with {tokens} tokens, but the passes before it end at {end}",
                pass.pass, pass.start
            ));
        }
        end = pass.start + tokens;
        let dims = PassDims { pass: passes.len(), start: pass.start, tokens, filters };
        passes.push(Pass { dims, tokens: pass.tokens.clone() });
        numbers.push(pass.pass);
    }
    let prompt = match manifest.prompts.get(sequence) {
        Some(prompt) => prompt.clone(),
        None => manifest.prompt.clone(),
    };
    let about = About {
        name: path.display().to_string(),
        precision: manifest.card.as_ref().map(|card| card.precision),
        card: manifest.card.clone(),
        cache: manifest.cache.as_deref().and_then(CacheDtype::from_name),
        sampling,
        prompt,
        passes,
        ..About::default()
    };
    Ok((about, numbers))
}

impl Traced for Folder {
    fn about(&self) -> &About {
        &self.abouts[self.sequence]
    }

    fn has_beyond(&self, site: Site) -> bool {
        self.writes(Site { sequence: self.sequence, ..site })
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        let own = Site { sequence: self.sequence, ..site };
        Ok(match (self.read(own), self.manifest()) {
            // An export lists only the files that it wrote, so a listed file was lost.
            (Found::Missing, Some(manifest)) => {
                let name = manifest.file_name(self.numbered(own));
                match self.listed.contains(&name) {
                    true => Found::Damaged(format!(
                        "{name}: manifest.json lists this file, but it does not exist"
                    )),
                    false => Found::Missing,
                }
            }
            (found, _) => found.of(site),
        })
    }

    fn unwritten(&self, site: Site) -> Option<String> {
        match &self.says {
            Says::Export(_) => None,
            Says::Capture(capture) => capture.unwritten(&self.path, site),
        }
    }
}
