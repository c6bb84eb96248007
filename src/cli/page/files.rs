//! The files of the page: those in the program, and those that the user adds.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

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

#[cfg(has_page)]
const BUILT: Option<&[u8]> = Some(include_bytes!(env!("LLAMA_TRACE_PAGE_MODULE")));
#[cfg(not(has_page))]
const BUILT: Option<&[u8]> = None;

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
    let module = BUILT.ok_or_else(|| {
        Error::usage("this build was made without the web page")
            .expected("a released program or wheel, or a build with the page")
            .next("in the sources of llama-trace: .ci/page target/page && LLAMA_TRACE_PAGE=target/page cargo install --path .")
    })?;
    let files = WEB.into_iter().chain([(MODULE, module)]);
    Ok(files.map(|(name, bytes)| PageFile { name: name.into(), contents: Contents::Static(bytes) }).collect())
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

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::output("the file cannot be read").in_file(path).found(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_added_files_fit_into_links() {
        let added = |name: &str| PageFile::added(Path::new(name), Some(Vec::new()));
        for name in ["index.html", "llama-trace.wasm.gz", ".md", "a:b.md", "a%20.md", "a?.md", ".."] {
            assert!(added(name).is_err(), "{name}");
        }
        let file = added("folder/my lesson.md").unwrap();
        assert_eq!(
            (file.name.as_str(), file.size(), file.kind()),
            ("my lesson.md", 0, "text/markdown; charset=utf-8")
        );
    }
}
