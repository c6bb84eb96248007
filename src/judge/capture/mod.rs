//! The capture format: a folder of `.npy` files that another runtime wrote, and its capture.toml, which says which
//! stage each file holds and in which memory layout. A folder that `llama-trace export` wrote is read in the same way,
//! with its manifest.json.
//!
//! | to | use |
//! |---|---|
//! | compare a folder | [`Folder`], a [`Traced`](crate::diff::Traced) |
//! | view, log or export a folder | [`RecordedFolder`], a [`Kept`](llama_trace_runs::record::Kept) |
//!
//! Such a folder is untrusted. A file that cannot be right is an error that says why, and memory is bounded by the sizes
//! of the files.

mod files;
mod folder;
mod map;
pub(crate) mod npy;
mod recorded;

pub use folder::Folder;
pub use map::config_of;
pub use npy::array;
pub use recorded::RecordedFolder;

pub(crate) use files::npy_files;
pub(crate) use map::{Capture, Layout, Padding, Pairs, WIDEST, in_pass, named};
