//! A hub with one repository, and a separate server that stores large files. Both behave like the real ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use rustls::ServerConfig;
use serde_json::json;
use tempfile::TempDir;

use crate::common;
use crate::server::{Answer, Request, Server};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files of a repository.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// The server that receives a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Hub,
    Store,
}

type Twist = Box<dyn FnMut(At, &Request, Answer) -> Answer + Send>;

pub(crate) struct Hub {
    pub(crate) hub: Server,
    pub(crate) store: Server,
    pub(crate) home: TempDir,
    pub(crate) files: Files,
    twist: Arc<Mutex<Twist>>,
}

impl Hub {
    /// A hub with the repository org/tiny.
    pub(crate) fn new(files: Files) -> Self {
        Self::start(files, None)
    }

    /// Like [`Hub::new`], over https with this certificate.
    pub(crate) fn new_tls(files: Files, config: &Arc<ServerConfig>) -> Self {
        Self::start(files, Some(config))
    }

    fn start(files: Files, config: Option<&Arc<ServerConfig>>) -> Self {
        let twist: Arc<Mutex<Twist>> = Arc::new(Mutex::new(Box::new(|_, _, answer| answer)));
        let (stored, twisted) = (files.clone(), Arc::clone(&twist));
        let store = server(config, move |request| {
            twisted.lock().unwrap()(At::Store, request, store(&stored, request))
        });
        let (held, twisted, address) = (files.clone(), Arc::clone(&twist), store.url());
        let hub = server(config, move |request| {
            twisted.lock().unwrap()(At::Hub, request, hub(&held, &address, request))
        });
        Self { hub, store, home: tempfile::tempdir().unwrap(), files, twist }
    }

    /// From now on, `twist` changes every answer.
    pub(crate) fn twist(&self, twist: impl FnMut(At, &Request, Answer) -> Answer + Send + 'static) {
        *self.twist.lock().unwrap() = Box::new(twist);
    }

    /// The binary with `args`. It uses only this hub.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = common::command(args);
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_ascii_uppercase());
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HF_") || name.to_string_lossy().starts_with("HUGGING") {
                command.env_remove(name);
            }
        }
        for name in ["TRANSFORMERS_OFFLINE", "SSL_CERT_FILE", "SSL_CERT_DIR"] {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", self.hub.url()).env("HF_HOME", self.home.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The repository's folder in the cache.
    pub(crate) fn cached(&self) -> PathBuf {
        self.home.path().join("hub/models--org--tiny")
    }

    pub(crate) fn blob(&self, file: &str) -> PathBuf {
        self.cached().join("blobs").join(etag(file, &self.files[file]))
    }

    /// The content of a downloaded file. The file is a link to its blob, if the system has links.
    pub(crate) fn downloaded(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.cached().join("snapshots").join(COMMIT).join(file)).unwrap()
    }

    pub(crate) fn partial(&self, file: &str) -> PathBuf {
        let mut path = self.blob(file).into_os_string();
        path.push(".incomplete");
        path.into()
    }
}

fn server(
    config: Option<&Arc<ServerConfig>>,
    handler: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) -> Server {
    match config {
        Some(config) => Server::start_tls(Arc::clone(config), handler),
        None => Server::start(handler),
    }
}

/// The files of a folder.
pub(crate) fn files(folder: &Path) -> Files {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|entry| entry.path().is_file());
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

fn is_large(file: &str) -> bool {
    [".safetensors", ".gguf", ".pth", ".bin"].iter().any(|ending| file.ends_with(ending))
}

pub(crate) fn etag(file: &str, bytes: &[u8]) -> String {
    let digest = match is_large(file) {
        true => digest(&SHA256, bytes),
        false => {
            digest(&SHA1_FOR_LEGACY_USE_ONLY, &[format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat())
        }
    };
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hub(files: &Files, store: &str, request: &Request) -> Answer {
    let refused = |code: &str| Answer::status(404).with("X-Error-Code", code);
    let Some(path) = request.path.strip_prefix("/api/models/org/tiny/revision/") else {
        return file(files, store, request).unwrap_or_else(|| refused("RepoNotFound"));
    };
    if !["main", "refs%2Fpr%2F1", COMMIT].contains(&path) {
        return refused("RevisionNotFound").with("X-Error-Message", "Invalid rev id: nope");
    }
    let siblings: Vec<_> = files.keys().map(|name| json!({ "rfilename": name })).collect();
    Answer::body(json!({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).to_string())
}

/// The hub's answer to a request for a file. A small file is served by the hub itself after a redirect, and a large
/// file by the other server.
fn file(files: &Files, store: &str, request: &Request) -> Option<Answer> {
    let path = request.path.as_str();
    if let Some(name) = path.strip_prefix("/api/resolve-cache/") {
        let bytes = files.get(name)?;
        let answer = Answer::body(bytes.clone()).with("ETag", format!("W/\"{}\"", etag(name, bytes)));
        return Some(answer.with("X-Repo-Commit", COMMIT));
    }
    let name = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"))?;
    let bytes = files.get(name)?;
    let answer = match is_large(name) {
        true => Answer::status(302)
            .with("Location", format!("{store}/{name}?signature=x"))
            .with("X-Linked-Size", bytes.len().to_string())
            .with("X-Linked-Etag", format!("\"{}\"", etag(name, bytes))),
        false => Answer::status(307).with("Location", format!("/api/resolve-cache/{name}")),
    };
    Some(answer.with("X-Repo-Commit", COMMIT))
}

fn store(files: &Files, request: &Request) -> Answer {
    let name = request.path.trim_start_matches('/').split('?').next().unwrap();
    let Some(bytes) = files.get(name) else { return Answer::status(403) };
    match request.from() {
        None => Answer::body(bytes.clone()),
        Some(from) if from >= bytes.len() => Answer::status(416),
        Some(from) => {
            let to = request.to().unwrap_or(bytes.len()).min(bytes.len());
            let range = format!("bytes {from}-{}/{}", to - 1, bytes.len());
            Answer { status: 206, ..Answer::body(&bytes[from..to]) }.with("Content-Range", range)
        }
    }
}
