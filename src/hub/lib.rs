//! Models of the Hugging Face hub: `org/name[@revision]`, downloaded into the cache of Python's huggingface_hub, and
//! opened from there.
//!
//! ```text
//!  name ─▶ listing of the commit ─▶ config.json and the like ─▶ weights ─▶ a folder that `open` reads
//!              │ unavailable                  │ in the cache
//!              └──────▶ the cache ◀───────────┘
//! ```
//!
//! This is a separate client on [`ureq`], because the crate `hf-hub` is not enough for files of gigabytes. Version 1 of
//! it needs an asynchronous runtime and does not resume a broken download. Earlier versions do not check the downloaded
//! bytes.

mod address;
mod cache;
mod client;
mod download;
mod files;
mod name;
mod pace;
mod refusal;
mod resolve;
mod settings;
mod sparse;
mod trust;
mod verify;

use std::collections::HashSet;
use std::path::PathBuf;

pub use files::Need;
pub use name::Name;
pub use settings::Settings;
pub use sparse::SparseCopy;

use self::cache::Cache;
use self::client::{Client, Failure, Listing, Meta};
use self::download::Download;
use self::files::Weights;
use llama_trace_core::error::{Error, Result};
use llama_trace_formats::checkpoint::{hf_config, huggingface};
use llama_trace_formats::files::printable;
use llama_trace_formats::files::read_text;

/// The maximum size in bytes of a config.json that is checked before its weights are downloaded.
const MAX_CONFIG: u64 = 1 << 20;

/// Receives the progress of downloads.
pub trait Watch {
    /// The download of the file `name` of `size` bytes begins.
    fn begin(&mut self, name: &str, size: u64);
    /// `bytes` bytes of the file are downloaded.
    fn at(&mut self, bytes: u64);
    /// The download has ended.
    fn end(&mut self);
    /// A message for the user.
    fn say(&mut self, line: &str);
}

/// A model of the hub in the cache.
#[derive(Debug)]
pub struct Found {
    /// `org/name`.
    pub name: String,
    /// The commit of its files.
    pub commit: String,
    /// The path to open: a folder, or the requested file.
    pub path: PathBuf,
    /// The number of downloaded files, and their bytes.
    pub fetched: (usize, u64),
    /// The sparse copy that `path` is in, if the weights were not downloaded.
    pub sparse: Option<SparseCopy>,
    /// Why only the cache was used: the hub was not asked, or the request failed.
    pub instead: Option<String>,
}

/// Downloads the files of the model `name` that `need` requires and the cache does not have.
///
/// # Errors
/// [`Error::Model`] if the model is not available or not supported; [`Error::Output`] if it cannot be written.
pub fn fetch(name: &Name, need: Need, settings: &Settings, watch: &mut dyn Watch) -> Result<Found> {
    let cache = Cache::new(&settings.cache, name);
    let kept = Kept { name, need, cache: &cache };
    if settings.offline {
        return kept.found(Some("the hub was not asked".into())).map_err(|missing| offline(&kept, &missing));
    }
    // A commit never changes: if it is complete, no request is needed.
    if name.is_pinned()
        && kept.is_whole()
        && let Ok(found) = kept.found(None)
    {
        return Ok(found);
    }
    let client = Client::new(settings, name);
    let listing = match client.listing() {
        Ok(listing) => listing,
        Err(failure) => {
            let gone = matches!(&failure, Failure::Refused { code, .. } if code == "RevisionNotFound");
            let found = kept.found(Some(refusal::told(&failure))).ok().filter(|_| !gone);
            return found.ok_or_else(|| refusal::report(&failure, &client));
        }
    };
    let mut fetch = Fetch {
        client: &client,
        cache: &cache,
        listing: &listing,
        watch,
        ignore: &settings.ignore_config,
        fetched: (0, 0),
        sparse: None,
    };
    fetch.all(name, need)?;
    let Fetch { fetched, sparse, .. } = fetch;
    for file in files::optional().filter(|file| !listing.files.iter().any(|listed| listed == file)) {
        cache.set_lacks(&listing.commit, file);
    }
    cache.set_commit(name, &listing.commit);
    let mut found = Found { fetched, ..kept.of_commit(listing.commit.clone(), None) };
    if let Some(sparse) = sparse {
        found.path = name.file.as_ref().map_or(sparse.folder().into(), |file| sparse.folder().join(file));
        found.sparse = Some(sparse);
    }
    Ok(found)
}

/// A model's files in the cache.
struct Kept<'k> {
    name: &'k Name,
    need: Need,
    cache: &'k Cache,
}

impl Kept<'_> {
    /// Returns the model if it is complete; otherwise the missing file.
    fn found(&self, instead: Option<String>) -> std::result::Result<Found, String> {
        let commit = self.cache.commit(self.name);
        let commit = commit.ok_or_else(|| format!("no revision `{}`", self.name.revision))?;
        files::find(&self.cache.snapshot(&commit), self.name, self.need)
            .map_err(|missing| format!("no {missing} of commit {commit}"))?;
        Ok(self.of_commit(commit, instead))
    }

    /// Returns whether each optional file is in the cache, or known to be absent.
    fn is_whole(&self) -> bool {
        let Some(commit) = self.cache.commit(self.name) else { return false };
        let folder = self.cache.snapshot(&commit);
        // A GGUF file needs no other files, and one tokenizer is enough.
        let tokenizer = files::tokenizer(&folder).is_some();
        let known = |file: &str| {
            folder.join(file).exists()
                || self.cache.lacks(&commit, file)
                || tokenizer && file.starts_with("tokenizer.")
        };
        match self.need {
            _ if self.name.file.is_some() => true,
            Need::Tokenizer => files::BESIDE_TOKENIZER.into_iter().all(known),
            Need::Model | Need::Headers => files::optional().all(known),
        }
    }

    fn of_commit(&self, commit: String, instead: Option<String>) -> Found {
        let folder = self.cache.snapshot(&commit);
        let path = match (&self.name.file, self.need) {
            (Some(file), _) => folder.join(file),
            (None, Need::Tokenizer) => files::tokenizer(&folder).unwrap_or(folder),
            (None, Need::Model | Need::Headers) => folder,
        };
        Found { name: self.name.to_string(), commit, path, fetched: (0, 0), sparse: None, instead }
    }
}

/// Returns the error for an incomplete cache if the hub may not be asked.
fn offline(kept: &Kept<'_>, missing: &str) -> Error {
    Error::model(format!(
        "{} is not in the cache, or is incomplete there, and the program is offline",
        kept.name
    ))
    .in_file(kept.cache.folder())
    .expected("the files of the model")
    .found(missing)
    .next("leave --offline out, and HF_HUB_OFFLINE unset, to download it")
}

/// A download of one commit.
struct Fetch<'f, 's> {
    client: &'f Client<'s>,
    cache: &'f Cache,
    listing: &'f Listing,
    watch: &'f mut dyn Watch,
    /// Fields of the configuration to ignore.
    ignore: &'f [String],
    fetched: (usize, u64),
    sparse: Option<SparseCopy>,
}

impl Fetch<'_, '_> {
    fn all(&mut self, name: &Name, need: Need) -> Result<()> {
        let Listing { commit, files } = self.listing;
        let small = files::small(files, name, need);
        if need == Need::Tokenizer && name.file.is_none() {
            if small.is_empty() {
                return Err(Error::model("the repository has no tokenizer in a supported format")
                    .at(name)
                    .expected("tokenizer.json or tokenizer.model")
                    .found(format!("{} other files", files.len()))
                    .next("give a tokenizer with --tokenizer"));
            }
            return small.iter().try_for_each(|file| self.file(file));
        }
        // Check the list of files before the first download.
        let weights = files::weights(files, name)?;
        for file in &small {
            self.file(file)?;
        }
        let folder = self.cache.snapshot(commit);
        let mut index = None;
        let (weights, cut) = match weights {
            Weights::HuggingFace(file) => {
                // Check that the architecture is supported before gigabytes are downloaded.
                let config = folder.join(files::CONFIG);
                let text = read_text(&config, MAX_CONFIG)?;
                hf_config::model_config(&text, &config.display().to_string(), self.ignore)?;
                let weights = match huggingface::is_index(file) {
                    true => {
                        self.file(file)?;
                        index = Some(file);
                        huggingface::shard_names(&folder.join(file))?
                    }
                    false => vec![file.into()],
                };
                (weights, file.starts_with("model.safetensors"))
            }
            Weights::Gguf(files) => (files, true),
            // Meta's files are archives, with the directory at the end and values everywhere: the headers cannot be
            // separated.
            Weights::Meta(files) => (files, false),
        };
        self.are_listed(&weights)?;
        if need == Need::Headers && cut && weights.iter().any(|file| !folder.join(file).exists()) {
            return self.sparse(&[&small[..], index.as_slice()].concat(), &weights);
        }
        weights.iter().try_for_each(|file| self.file(file))
    }

    fn are_listed(&self, files: &[String]) -> Result<()> {
        let listed: HashSet<&String> = self.listing.files.iter().collect();
        let Some(missing) = files.iter().find(|file| !listed.contains(file)) else { return Ok(()) };
        Err(Error::model(format!("the repository has no `{}`", printable(missing)))
            .at(refusal::place(self.client))
            .expected("every file that the index names")
            .found(format!("{} files, but not this one", listed.len()))
            .next("look for another revision, or tell the repository's owners"))
    }

    fn sparse(&mut self, small: &[&str], weights: &[String]) -> Result<()> {
        let commit = self.listing.commit.as_str();
        let mut sparse = SparseCopy::new()?;
        for file in small {
            sparse.copy(file, &self.cache.snapshot(commit).join(file))?;
        }
        for file in weights {
            let meta = self.client.meta(commit, file);
            let fetched = match meta {
                Ok(meta) => sparse.weights(self.client, commit, file, meta.size)?,
                Err(failure) => Err(failure),
            };
            fetched.map_err(|failure| refusal::report(&failure, self.client))?;
        }
        self.sparse = Some(sparse);
        Ok(())
    }

    /// Makes sure that one file is in the folder of the commit.
    fn file(&mut self, file: &str) -> Result<()> {
        let commit = self.listing.commit.as_str();
        let there = self.cache.snapshot(commit).join(file);
        if there.exists() {
            return Ok(());
        }
        let meta =
            self.client.meta(commit, file).map_err(|failure| refusal::report(&failure, self.client))?;
        let blob = self.cache.blob(&meta.etag);
        let lock = self.cache.lock(&meta.etag, || {
            self.watch.say(&format!("another program is fetching {file}; waiting for it"));
        })?;
        // Another process may have downloaded it in the meantime. Without links, it has moved the blob away.
        if there.exists() {
            return Ok(());
        }
        let fresh = !blob.exists();
        if fresh {
            self.blob(file, &meta)?;
        }
        self.cache.link(commit, file, &meta.etag, fresh)?;
        drop(lock);
        Ok(())
    }

    fn blob(&mut self, file: &str, meta: &Meta) -> Result<()> {
        let commit = self.listing.commit.as_str();
        self.watch.begin(file, meta.size);
        let download = Download { client: self.client, cache: self.cache, commit, file, meta };
        let done = download.run(self.watch);
        self.watch.end();
        self.fetched.0 += 1;
        self.fetched.1 += meta.size;
        done
    }
}
