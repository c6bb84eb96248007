//! `--model org/name[@revision]`: downloads from the hub to a path, with progress on a terminal. Ctrl-C stops
//! the download.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

use super::ModelArgs;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::stop;
use llama_trace_hub as hub;
use llama_trace_hub::{Found, Name, Settings, Watch};
pub(super) use llama_trace_hub::{Need, SparseCopy};

/// The place of the model that the options name.
pub(super) struct Place {
    /// None for the built-in model.
    pub(super) path: Option<PathBuf>,
    /// The files at `path`, if its weights are still on the hub.
    pub(super) sparse: Option<SparseCopy>,
    /// The model's name on the hub, if it comes from there.
    pub(super) name: Option<String>,
}

/// Finds the model. A path is used as it is. A model with a hub name is downloaded into the cache. An existing path is
/// never taken for a hub name.
pub(super) fn locate(args: &ModelArgs, need: Need) -> Result<Place> {
    match (&args.model, name(args)) {
        (_, Some(name)) => {
            let mut settings = Settings::from_env(args.offline)?;
            settings.ignore_config.clone_from(&args.ignore_config);
            let found = fetch(name, need, settings)?;
            Ok(Place { path: Some(found.path), sparse: found.sparse, name: Some(found.name) })
        }
        (path, None) => Ok(Place { path: path.clone(), sparse: None, name: None }),
    }
}

/// The model's name on the hub, if the option is such a name.
pub(super) fn name(args: &ModelArgs) -> Option<Name> {
    let model = args.model.as_ref().filter(|path| std::fs::symlink_metadata(path).is_err())?;
    Name::parse(model.to_str()?)
}

fn fetch(name: Name, need: Need, settings: Settings) -> Result<Found> {
    let (sender, receiver) = mpsc::channel();
    let bar = Bar::default();
    let mut watch = bar.clone();
    // Downloads on a separate thread, because a thread that waits for a server cannot check for Ctrl-C. This thread
    // ends with the program, and the data it has written stays.
    let fetch = move || {
        // After Ctrl-C the result is not read.
        let _ = sender.send(hub::fetch(&name, need, &settings, &mut watch));
    };
    std::thread::Builder::new().name("download".into()).spawn(fetch).map_err(|error| stopped(&error))?;
    let found = loop {
        let found = receiver.recv_timeout(stop::LOOK);
        // The download thread checks for Ctrl-C too, and may have ended first.
        if stop::process().asked() {
            bar.clear();
            return Err(Error::interrupted("interrupted; the fetched parts are kept")
                .next("run the same command again: it goes on from there"));
        }
        match found {
            Ok(found) => break found?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(error @ RecvTimeoutError::Disconnected) => return Err(stopped(&error)),
        }
    };
    let Found { name, commit, path, fetched, sparse, instead } = &found;
    let commit = &commit[..commit.len().min(7)];
    let how = match (fetched, instead) {
        ((0, _), None) => "in the cache".into(),
        ((0, _), Some(why)) => format!("in the cache ({why})"),
        ((files, bytes), _) => format!("{files} files fetched, {} in all", DecimalBytes(*bytes)),
    };
    match sparse {
        Some(SparseCopy { left, .. }) => super::tell(format_args!(
            "{name} at {commit} from the hub: {how}; {} of weights were not fetched",
            DecimalBytes(*left)
        )),
        None => super::tell(format_args!(
            "{name} at {commit} from the hub: {how}: {}",
            printable(&path.display().to_string())
        )),
    }
    Ok(found)
}

fn stopped(error: &dyn std::fmt::Display) -> Error {
    Error::model("the download stopped")
        .found(error)
        .next("run the same command again: it goes on from there")
}

/// A progress bar on standard error for the file being downloaded, if that is a terminal. Dropping it ends the drawing.
#[derive(Clone, Default)]
struct Bar(Arc<Mutex<Option<ProgressBar>>>);

impl Bar {
    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Bar {
    fn begin(&mut self, name: &str, size: u64) {
        let bar = ProgressBar::new(size).with_message(printable(name).into_owned());
        let template = "{msg} {bar:24} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        *self.bar() = Some(bar);
    }

    fn at(&mut self, bytes: u64) {
        if let Some(bar) = &*self.bar() {
            let first = bar.position() == 0;
            bar.set_position(bytes);
            if first {
                // Bytes of an earlier run must not count for the speed of this one.
                bar.tick();
                bar.reset_eta();
            }
        }
    }

    fn end(&mut self) {
        self.clear();
    }

    fn say(&mut self, line: &str) {
        super::tell(line);
    }
}
