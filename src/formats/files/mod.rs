//! Reading of untrusted files: careful opening, mapping, recognition of the kind, display in messages. `gguf` is here
//! because both checkpoints and vocabularies come in such files.

pub mod gguf;
pub mod magic;

mod beside;
mod huge;
mod json;
mod map;
mod name;
mod regular;
mod vocabulary;

pub(crate) use beside::{Added, Beside, Class, Texts};
pub use huge::{Given, Huge};
pub(crate) use json::read_json;
pub use map::{File, map};
pub use name::{brief, printable};
pub use regular::{at_once, folder_of, itself, open_regular, read_text};
pub use vocabulary::Vocabulary;
