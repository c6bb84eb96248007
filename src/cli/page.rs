//! `llama-trace page`: writes the tracer as a web page into a folder, or serves it on this machine.

mod files;
mod serve;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use super::{shell, tell};
use files::PageFile;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::lesson::{LARGEST, Lesson};
use llama_trace_formats::files::read_text;
use llama_trace_runs::record::Trace;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("place").required(true)))]
pub(super) struct PageArgs {
    /// Folder to write the page into
    #[arg(long, short, value_name = "DIR", group = "place")]
    out: Option<PathBuf>,

    /// Serve the page on this machine until Ctrl-C
    #[arg(long, group = "place")]
    serve: bool,

    /// Port for --serve [default: a free one]
    #[arg(long, value_name = "N", requires = "serve", conflicts_with = "out")]
    port: Option<u16>,

    /// Add a lesson, an .md file
    #[arg(long, value_name = "FILE")]
    lesson: Option<PathBuf>,

    /// Add a trace of `record`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Replace files that exist
    #[arg(long, conflicts_with = "serve")]
    force: bool,
}

/// Runs the command.
pub(super) fn run(args: &PageArgs) -> Result<()> {
    let mut files = files::all()?;
    let mut links = Vec::new();
    if let Some(path) = &args.lesson {
        files.push(lesson(path)?);
        links.push(("lesson", path));
    }
    if let Some(path) = &args.trace {
        Trace::open(path)?;
        files.push(PageFile::added(path, None)?);
        links.push(("trace", path));
    }
    let links: Vec<String> = links.into_iter().map(|(key, path)| link(key, path)).collect();
    match &args.out {
        Some(folder) => write(&files, folder, args.force, &links),
        None => serve::run(files, args.port, &links),
    }
}

/// The part of an address that opens an added file.
fn link(key: &str, path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let escaped: String = name
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    format!("#{key}={escaped}")
}

/// The file of a lesson, which must be valid.
fn lesson(path: &Path) -> Result<PageFile> {
    if path.extension().is_none_or(|extension| extension != "md") {
        return Err(Error::usage("the file of a lesson ends with .md").at("--lesson").found(path.display()));
    }
    let text = read_text(path, LARGEST as u64)?;
    let slug = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if let Err(problems) = Lesson::parse(&slug, &text) {
        let line = problems.first().map_or(1, |problem| problem.line);
        let what = problems.first().map_or("no lesson", |problem| &problem.what);
        return Err(Error::model(format!("this is not a lesson: {what}"))
            .at(format!("{}:{line}", path.display()))
            .next("`llama-trace learn --check FILE` lists all problems"));
    }
    PageFile::added(path, Some(text.into_bytes()))
}

/// Writes the files into `folder`, which may exist.
fn write(files: &[PageFile], folder: &Path, force: bool, links: &[String]) -> Result<()> {
    let failed = |path: &Path, error: std::io::Error| {
        Error::output("the page cannot be written").in_file(path).found(error)
    };
    for file in files {
        let path = folder.join(&file.name);
        match fs::symlink_metadata(&path) {
            Err(_) => {}
            Ok(about) if force && about.is_file() => {}
            Ok(about) => {
                let next = match about.is_file() {
                    true => "give another folder, or --force to replace the files of the page",
                    false => "give another folder: this is no file",
                };
                return Err(Error::output("a file of the page exists already").in_file(&path).next(next));
            }
        }
    }
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for file in files {
        super::snapshot::write_quietly(&folder.join(&file.name), force, "file of the page", &file.bytes()?)?;
    }
    let bytes: usize = files.iter().map(PageFile::size).sum();
    tell(format_args!(
        "wrote {} files with {bytes} bytes to {}",
        files.len(),
        printable(&folder.display().to_string())
    ));
    for link in links {
        shell::print(format!("index.html{link}\n").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn a_folder_or_the_server_is_asked_for() {
        let parsed = |args: &[&str]| {
            let command = PageArgs::augment_args(Command::new("page"));
            command.try_get_matches_from([&["page"], args].concat()).map_err(|error| error.to_string())
        };
        let missing = parsed(&[]).unwrap_err();
        assert!(missing.contains("--out <DIR>") && missing.contains("--serve"), "{missing}");
        assert!(parsed(&["--out", "x"]).is_ok() && parsed(&["--serve", "--port", "80"]).is_ok());
        for wrong in
            [&["--out", "x", "--serve"][..], &["--out", "x", "--port", "80"], &["--serve", "--force"]]
        {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
