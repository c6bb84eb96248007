//! A folder that `export` or a capture script wrote, as a recorded run for the viewer, `log` and `export`.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{ArrayD, IxDyn};
use serde_json::{Map, Value};

use super::folder::Folder;
use super::map::config_of;
use crate::diff::{About, Found, fitted};
use llama_trace_core::config::{Arithmetic, CacheDtype, ModelConfig, Precision};
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::{Frame, FrameData, ModelCard, Run, Site, Stage, Stats, Values};
use llama_trace_runs::record::read::Pass;
use llama_trace_runs::record::{Branch, Kept};

/// A folder that `export` or a capture script wrote, open as a recorded run.
pub struct RecordedFolder {
    folder: Folder,
    place: String,
    card: ModelCard,
    passes: Vec<Vec<Pass>>,
    /// The texts of the tokens that were read or drawn.
    texts: HashMap<u32, String>,
    /// The last stage that was read whole. It is kept because a reader of rows requests the same stage several times.
    last: Mutex<Option<Arc<Frame>>>,
}

impl RecordedFolder {
    /// Opens the folder at `path`. If it has no model card, the configuration comes from `config`, or else from its
    /// capture.toml.
    ///
    /// # Errors
    /// As [`Folder::open`], and [`Error::Model`] if the configuration is unknown or cannot be right.
    pub fn open(path: &Path, config: impl FnOnce() -> Result<Option<ModelConfig>>) -> Result<Self> {
        let folder = Folder::open(path)?;
        let wrong = |found: String| {
            Error::model("the folder cannot be opened")
                .in_file(path)
                .expected("a run that `llama-trace export` or a capture script wrote")
                .found(found)
                .next("write the folder again")
        };
        let files = folder.manifest().map_or(&[][..], |manifest| &manifest.files);
        if !files.is_empty() && !files.iter().any(|file| file.file.ends_with(".npy")) {
            return Err(wrong("pictures, and no values".into()).next("export it with --format npy"));
        }
        let abouts: Vec<&About> = (0..folder.sequences()).map(|sequence| folder.about_of(sequence)).collect();
        let ends = abouts.iter().flat_map(|about| about.passes.last()).map(|pass| pass.dims.keys());
        let keys = ends.max().unwrap_or(0);
        let first = abouts[0];
        let card = match &first.card {
            Some(card) => card.clone(),
            None => {
                let config = match config()? {
                    Some(config) => config,
                    None => config_of(first, keys).map_err(|found| {
                        wrong(found).next(
                            "add what is missing to the file, or add --model with the model that was run",
                        )
                    })?,
                };
                let precision = first.precision.unwrap_or(Precision::F32);
                let (name, backend) = (first.name.clone(), "captured".to_owned());
                ModelCard {
                    name,
                    ignored: Vec::new(),
                    without: Vec::new(),
                    edits: Vec::new(),
                    config,
                    precision,
                    arithmetic: Arithmetic::Fused,
                    backend,
                }
            }
        };
        card.check()
            .map_err(|error| error.in_file(path).next("write the folder again, or correct its map"))?;
        let (mut passes, mut texts) = (Vec::new(), HashMap::new());
        for (sequence, about) in abouts.iter().enumerate() {
            passes.push(passes_of(&folder, sequence, about, &card, &mut texts).map_err(&wrong)?);
        }
        let place = path.display().to_string();
        Ok(Self { folder, place, card, passes, texts, last: Mutex::default() })
    }

    /// The model's settings that the folder states, under the names of a
    /// [`ModelConfig`].
    pub fn settings(&self) -> Map<String, Value> {
        self.folder.about_of(0).known()
    }

    /// Returns whether another program wrote the folder.
    pub fn is_captured(&self) -> bool {
        self.folder.manifest().is_none()
    }

    /// Returns whether the folder has a file for every stage of every pass.
    pub fn is_complete(&self) -> bool {
        let (sizes, files) = (self.card.sizes(), self.folder.manifest().map_or(0, |it| it.files.len()));
        let all = self.passes.iter().flatten().map(|pass| Site::all(&sizes, pass.dims).len());
        files == all.sum::<usize>()
    }

    /// The stage as a frame of its own shape, and the index of the first value that the file has.
    fn whole(&self, site: Site, shape: &[usize]) -> Result<Option<(Arc<Frame>, usize)>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frame) = last.as_ref().filter(|frame| frame.site == site) {
            return Ok(Some((Arc::clone(frame), 0)));
        }
        let frame = match self.folder.read(site) {
            Found::Frame(frame) => frame,
            Found::Missing => return Ok(None),
            Found::Damaged(why) | Found::TooLarge(why) => return Err(self.damaged(site, &why)),
        };
        let (frame, first) = fitted(site, shape, &frame).map_err(|why| self.damaged(site, &why))?;
        let frame = Arc::new(frame);
        if first == 0 {
            *last = Some(Arc::clone(&frame));
        }
        Ok(Some((frame, first)))
    }

    fn damaged(&self, site: Site, why: &str) -> Error {
        Error::model(format!("the file of {site} is not valid"))
            .in_file(&self.folder.file(site))
            .expected(format!("the values of {}", site.stage))
            .found(printable(why))
            .next("write the folder again; without the file the stage is absent, or is derived from others")
    }
}

/// The passes of a sequence in order. Adds the texts of their tokens to `texts`.
fn passes_of(
    folder: &Folder,
    sequence: usize,
    about: &About,
    card: &ModelCard,
    texts: &mut HashMap<u32, String>,
) -> std::result::Result<Vec<Pass>, String> {
    let (mut passes, mut end) = (Vec::<Pass>::new(), 0);
    let own = folder.manifest().map_or(&[][..], |manifest| &manifest.passes);
    let mut own = own.iter().filter(|pass| pass.sequence.unwrap_or(0) == sequence);
    for pass in &about.passes {
        let dims = pass.dims;
        if dims.start != end {
            return Err(format!(
                "pass {} starts after {} tokens, but {end} tokens were read before it",
                dims.pass, dims.start
            ));
        }
        end = dims.keys();
        let drawn = own.next().and_then(|pass| pass.sampled.as_ref());
        for token in pass.tokens.iter().chain(drawn) {
            if token.id as usize >= card.config.vocab {
                return Err(format!("token {} of a vocabulary of {}", token.id, card.config.vocab));
            }
            // A capture.toml may leave out the texts of its ids.
            if token.text != format!("#{}", token.id) {
                texts.entry(token.id).or_insert_with(|| token.text.clone());
            }
        }
        let tokens: Vec<u32> = pass.tokens.iter().map(|token| token.id).collect();
        // The first token of a pass was drawn by the pass before it.
        if let Some(before) = passes.last_mut().filter(|before| before.sampled.is_none()) {
            before.sampled = tokens.first().copied();
        }
        passes.push(Pass { dims, tokens, sampled: drawn.map(|token| token.id) });
    }
    if passes.is_empty() {
        return Err(format!("no pass of sequence {sequence}"));
    }
    Ok(passes)
}

impl Kept for RecordedFolder {
    fn card(&self) -> &ModelCard {
        &self.card
    }

    fn cache(&self) -> Option<CacheDtype> {
        self.folder.manifest().and_then(|manifest| CacheDtype::from_name(manifest.cache.as_ref()?))
    }

    fn sampling(&self) -> Option<Drawing> {
        self.folder.manifest().and_then(|manifest| manifest.sampling)
    }

    fn tells(&self, site: Site) -> bool {
        match site.stage {
            // A capture need not say which token its last pass drew.
            Stage::Sampled => {
                self.passes[site.sequence].get(site.pass).is_some_and(|pass| pass.sampled.is_some())
            }
            stage => stage.is_ids() || self.holds(site),
        }
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn sequences(&self) -> usize {
        self.passes.len()
    }

    fn branches(&self) -> &[Branch] {
        &[]
    }

    fn passes(&self, run: Run, sequence: usize) -> &[Pass] {
        self.passes.get(sequence).filter(|_| run == Run::ITSELF).map_or(&[], |passes| passes)
    }

    fn prompt(&self, sequence: usize) -> Option<String> {
        (sequence < self.sequences()).then(|| self.folder.about_of(sequence).prompt.clone()).flatten()
    }

    fn label(&self, id: u32) -> Option<String> {
        self.texts.get(&id).cloned()
    }

    fn holds(&self, site: Site) -> bool {
        self.dims(site).is_some() && self.folder.file(site).symlink_metadata().is_ok()
    }

    fn rows(&self, site: Site, rows: Range<usize>) -> Result<Option<FrameData>> {
        let Some(dims) = self.dims(site) else { return Ok(None) };
        let shape = self.card.sizes().shape(site.stage.axes(), dims);
        if let Some(data) = self.folder.rows(site, &shape, rows.clone()) {
            return Ok(Some(data));
        }
        let Some((frame, first)) = self.whole(site, &shape)? else { return Ok(None) };
        let width = shape.last().copied().unwrap_or(1);
        if rows.start * width < first {
            return Err(Error::usage(format!("the folder has no {site} for the tokens before the last"))
                .found("only the rows of the last token")
                .next("capture all rows, or add --model with the model that was run"));
        }
        let shape = IxDyn(&[rows.len(), width]);
        let values = frame.values().slice(rows.start * width..rows.end * width);
        Ok(match values {
            Values::F32(values) => ArrayD::from_shape_vec(shape, values.to_vec()).map(FrameData::F32),
            Values::I64(values) => ArrayD::from_shape_vec(shape, values.to_vec()).map(FrameData::I64),
            Values::I8(values) => ArrayD::from_shape_vec(shape, values.to_vec()).map(FrameData::I8),
        }
        .ok())
    }

    fn stats(&self, _: Site) -> Option<Stats> {
        None
    }

    fn why_not(&self, site: Site) -> String {
        format!("there is no file {}", printable(&self.folder.file(site).display().to_string()))
    }
}
