//! Reading of untrusted files: careful opening, mapping, recognition of the kind, display in messages. `gguf` is here,
//! because both checkpoints and vocabularies come in such files. Without `native`, files are bytes in memory.

pub mod gguf;
pub mod magic;

mod beside;
#[cfg(feature = "native")]
mod disk;
#[cfg(any(test, not(feature = "native")))]
pub mod given;
mod json;
mod name;
#[cfg_attr(target_arch = "wasm32", path = "sha256_wasm.rs")]
mod sha256;
mod vocabulary;

use std::path::Path;

pub(crate) use beside::{Added, Beside, Class, Texts};
#[cfg(feature = "native")]
pub use disk::{File, Given, Huge, at_once, itself, map, open_regular, read_text};
#[cfg(feature = "native")]
pub(crate) use disk::{exists, full, is_folder, names, size};
#[cfg(not(feature = "native"))]
pub(crate) use given::{exists, full, is_folder, names, size};
#[cfg(not(feature = "native"))]
pub use given::{forget, give, map, read_text};
pub(crate) use json::read_json;
pub use name::{brief, printable};
pub use sha256::Sha256;
pub use vocabulary::Vocabulary;

/// The directory of the file at `path`.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
