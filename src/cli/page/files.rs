//! The files of the page: those in the program, and those that the user adds.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::builtin::BUILT_IN;
use llama_trace_core::error::{Error, Result};

macro_rules! web {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../page/web/", $name)).as_slice())
    };
}

/// The page's files except its module.
const WEB: [(&str, &[u8]); 7] = [
    web!("index.html"),
    web!("page.css"),
    web!("page.js"),
    web!("worker.js"),
    web!("service.js"),
    web!("font.woff2"),
    ("font-licence.txt", include_bytes!("../../picture/font/LICENSE-DejaVu")),
];

/// The name of the module, a compressed file.
const MODULE: &str = "llama-trace.wasm.gz";

/// The module without the built-in model, compressed, and the position of the model in it (`build.rs`). The program has
/// the model anyway.
#[cfg(has_page)]
const REST: Option<(&[u8], &str)> =
    Some((include_bytes!(env!("LLAMA_TRACE_PAGE_MODULE")), env!("LLAMA_TRACE_PAGE_MODEL_AT")));
#[cfg(not(has_page))]
const REST: Option<(&[u8], &str)> = None;

/// A file of the page.
#[derive(Clone, Debug)]
pub(super) struct PageFile {
    /// Its name, without a folder.
    pub(super) name: String,
    contents: Contents,
}

#[derive(Clone, Debug)]
enum Contents {
    Static(&'static [u8]),
    Owned(Vec<u8>),
    /// A file of this size that is read when it is needed: a trace may be large.
    OnDisk(PathBuf, usize),
}

/// The files that are in the program.
///
/// # Errors
/// [`Error::Usage`] if this build has no page.
pub(super) fn all() -> Result<Vec<PageFile>> {
    let (rest, at) = REST.ok_or_else(|| {
        Error::usage("this build was made without the web page")
            .expected("a released program or wheel, or a build with the page")
            .next("in the sources of llama-trace: .ci/page target/page && LLAMA_TRACE_PAGE=target/page cargo install --path .")
    })?;
    let module = module(rest, at.parse().unwrap_or(0), BUILT_IN.weights)
        .map_err(|error| Error::output("the page's module cannot be written").found(error))?;
    let files = WEB.into_iter().map(|(name, bytes)| (name, Contents::Static(bytes)));
    let files = files.chain([(MODULE, Contents::Owned(module))]);
    Ok(files.map(|(name, contents)| PageFile { name: name.into(), contents }).collect())
}

/// The compressed module: `rest`, which is compressed too, with `model` inserted at `at`.
fn module(rest: &[u8], at: usize, model: &[u8]) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    GzDecoder::new(rest).read_to_end(&mut whole)?;
    let at = at.min(whole.len());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for part in [&whole[..at], model, &whole[at..]] {
        encoder.write_all(part)?;
    }
    encoder.finish()
}

impl PageFile {
    /// A file of the user, whose contents are `bytes`, or are read when they are needed.
    ///
    /// # Errors
    /// [`Error::Usage`] if its name is a name of the page's own files, or cannot be in a link.
    pub(super) fn added(path: &Path, bytes: Option<Vec<u8>>) -> Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let bad = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '%' | '?' | '#');
        let taken = WEB.iter().any(|(own, _)| *own == name) || name == MODULE;
        if name.is_empty() || name.starts_with('.') || name.contains(bad) || taken {
            return Err(Error::usage("the page cannot have a file with this name")
                .in_file(path)
                .expected("a name without : % ? # that does not begin with a dot")
                .next("rename the file"));
        }
        let contents = match bytes {
            Some(bytes) => Contents::Owned(bytes),
            None => {
                let size = fs::metadata(path).map_err(|error| unreadable(path, &error))?.len();
                Contents::OnDisk(path.to_owned(), usize::try_from(size).unwrap_or(usize::MAX))
            }
        };
        Ok(Self { name, contents })
    }

    /// Its number of bytes.
    pub(super) fn size(&self) -> usize {
        match &self.contents {
            Contents::Static(bytes) => bytes.len(),
            Contents::Owned(bytes) => bytes.len(),
            Contents::OnDisk(_, size) => *size,
        }
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`Error::Output`] if the file of the user cannot be read any more.
    pub(super) fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        Ok(match &self.contents {
            Contents::Static(bytes) => Cow::Borrowed(bytes),
            Contents::Owned(bytes) => Cow::Borrowed(bytes),
            Contents::OnDisk(path, _) => {
                Cow::Owned(fs::read(path).map_err(|error| unreadable(path, &error))?)
            }
        })
    }

    /// Its type, for a browser.
    pub(super) fn kind(&self) -> &'static str {
        match self.name.rsplit_once('.').map(|(_, suffix)| suffix) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("woff2") => "font/woff2",
            Some("txt") => "text/plain; charset=utf-8",
            Some("md") => "text/markdown; charset=utf-8",
            _ => "application/octet-stream",
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::output("the file cannot be read").in_file(path).found(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_put_into_the_module() {
        let mut rest = GzEncoder::new(Vec::new(), Compression::fast());
        rest.write_all(b"before after").unwrap();
        let module = module(&rest.finish().unwrap(), 7, b"the model ").unwrap();
        assert_eq!(io::read_to_string(GzDecoder::new(&module[..])).unwrap(), "before the model after");
    }

    #[test]
    fn names_of_added_files_fit_into_links() {
        let added = |name: &str| PageFile::added(Path::new(name), Some(Vec::new()));
        for name in ["index.html", "llama-trace.wasm.gz", ".md", "folder/a:b.md", "a%20.md", "a?.md", ".."] {
            assert!(added(name).is_err(), "{name}");
        }
        let file = added("folder/my lesson.md").unwrap();
        assert_eq!(
            (file.name.as_str(), file.size(), file.kind()),
            ("my lesson.md", 0, "text/markdown; charset=utf-8")
        );
    }
}
