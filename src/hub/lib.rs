//! Models of the Hugging Face hub: `org/name[@revision]`, fetched into the cache that Python's
//! huggingface_hub keeps, and opened from there.
//!
//! ```text
//!  name ─▶ listing of the commit ─▶ config.json and the like ─▶ weights ─▶ a folder that `open` reads
//!              │ not to be had                │ in the cache
//!              └──────▶ the cache ◀───────────┘
//! ```
//!
//! The crate `hf-hub` was looked at first. Its version 1 brings an asynchronous runtime and does not go on
//! with a download that broke off; earlier ones do not check what came. Both matter with files of
//! gigabytes, so this is a client of its own, on [`ureq`].

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

/// The largest config.json that is looked into before its weights are fetched.
const MAX_CONFIG: u64 = 1 << 20;

/// Whoever shows how far a download is.
pub trait Watch {
    /// The file `name` of `size` bytes begins.
    fn begin(&mut self, name: &str, size: u64);
    /// So many bytes of it are there.
    fn at(&mut self, bytes: u64);
    /// The file is there.
    fn end(&mut self);
    /// Something to tell.
    fn say(&mut self, line: &str);
}

/// A model of the hub, as it lies in the cache.
#[derive(Debug)]
pub struct Found {
    /// `org/name`.
    pub name: String,
    /// The commit that it is of.
    pub commit: String,
    /// What to open: a folder, or the file that was wanted.
    pub path: PathBuf,
    /// Files that were fetched, and their bytes.
    pub fetched: (usize, u64),
    /// What `path` leads to, where the weights were not fetched.
    pub sparse: Option<SparseCopy>,
    /// Why the hub was not asked, or in vain, where the cache alone was used.
    pub instead: Option<String>,
}

/// Fetches what `need` says of the model `name`, where it is not in the cache yet.
///
/// # Errors
/// [`Error::Model`] where it cannot be had, or is none that is read here; [`Error::Output`] where it cannot
/// be kept.
pub fn fetch(name: &Name, need: Need, settings: &Settings, watch: &mut dyn Watch) -> Result<Found> {
    let cache = Cache::new(&settings.cache, name);
    let kept = Kept { name, need, cache: &cache };
    if settings.offline {
        return kept.found(Some("the hub was not asked".into())).map_err(|missing| offline(&kept, &missing));
    }
    // A commit is what it is: where it is whole there is nothing to ask.
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

/// What the cache has of a model.
struct Kept<'k> {
    name: &'k Name,
    need: Need,
    cache: &'k Cache,
}

impl Kept<'_> {
    /// The model where all of it is there; else what is missing.
    fn found(&self, instead: Option<String>) -> std::result::Result<Found, String> {
        let commit = self.cache.commit(self.name);
        let commit = commit.ok_or_else(|| format!("no revision `{}`", self.name.revision))?;
        files::find(&self.cache.snapshot(&commit), self.name, self.need)
            .map_err(|missing| format!("no {missing} of commit {commit}"))?;
        Ok(self.of_commit(commit, instead))
    }

    /// Whether of the files that may be missing each is there, or known to be missing.
    fn is_whole(&self) -> bool {
        let Some(commit) = self.cache.commit(self.name) else { return false };
        let folder = self.cache.snapshot(&commit);
        // Of a GGUF file nothing else is read, and one tokenizer is enough.
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

/// The error where the hub may not be asked and the cache has not all.
fn offline(kept: &Kept<'_>, missing: &str) -> Error {
    Error::model(format!("{} is not in the cache, or not all of it, and the hub may not be asked", kept.name))
        .in_file(kept.cache.folder())
        .expected("the files of the model")
        .found(missing)
        .next("leave --offline out, or HF_HUB_OFFLINE unset, until it is fetched")
}

/// What is under way for one commit.
struct Fetch<'f, 's> {
    client: &'f Client<'s>,
    cache: &'f Cache,
    listing: &'f Listing,
    watch: &'f mut dyn Watch,
    /// Fields of the configuration that are to be ignored.
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
                return Err(Error::model("the repository has no tokenizer that is read here")
                    .at(name)
                    .expected("tokenizer.json or tokenizer.model")
                    .found(format!("{} other files", files.len()))
                    .next("give a tokenizer with --tokenizer"));
            }
            return small.iter().try_for_each(|file| self.file(file));
        }
        // Whether there is anything to open is known before the first byte comes.
        let weights = files::weights(files, name)?;
        for file in &small {
            self.file(file)?;
        }
        let folder = self.cache.snapshot(commit);
        let mut index = None;
        let (weights, cut) = match weights {
            Weights::HuggingFace(file) => {
                // Before gigabytes come, whether they are of a kind that is computed here.
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
            // What an archive holds is told at its end, and where each value is, all over it.
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
            .found(format!("{} files, and not this one", listed.len()))
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

    /// Sees to it that one file is in the folder of the commit.
    fn file(&mut self, file: &str) -> Result<()> {
        let commit = self.listing.commit.as_str();
        if self.cache.snapshot(commit).join(file).exists() {
            return Ok(());
        }
        let meta =
            self.client.meta(commit, file).map_err(|failure| refusal::report(&failure, self.client))?;
        let blob = self.cache.blob(&meta.etag);
        let lock = self.cache.lock(&meta.etag, || {
            self.watch.say(&format!("another program is fetching {file}; waiting for it"));
        })?;
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
