//! What the viewer asks of the page around it.

/// A request to the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Shows this link in the address bar, and copies it. It is the part of the address after `#`.
    Copy(String),
    /// Saves a file: its name and its bytes.
    Download(String, Vec<u8>),
    /// Keeps a text under a key in the browser's storage.
    Keep(String, String),
    /// Fetches a file beside the page, by its name.
    Fetch(String),
    /// Reads this line to users of screen readers.
    Read(String),
}

impl Outcome {
    /// The number of its kind, for the page's script.
    pub fn kind(&self) -> u32 {
        match self {
            Self::Copy(_) => 0,
            Self::Download(..) => 1,
            Self::Keep(..) => 2,
            Self::Fetch(_) => 3,
            Self::Read(_) => 4,
        }
    }

    /// Its text and its bytes.
    pub fn parts(&self) -> (&str, &[u8]) {
        match self {
            Self::Download(name, bytes) => (name, bytes),
            Self::Keep(key, text) => (key, text.as_bytes()),
            Self::Copy(text) | Self::Fetch(text) | Self::Read(text) => (text, &[]),
        }
    }
}
