//! The kind of the files that a user dropped or chose, by their names.

use std::path::{Path, PathBuf};

use llama_trace_core::error::{Error, Result};

/// What a set of files is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A model: a folder or a file.
    Model(PathBuf),
    /// A trace.
    Trace(PathBuf),
    /// A lesson.
    Lesson(PathBuf),
    /// A file of marks.
    Marks(PathBuf),
}

/// The kind of the files, by their names.
///
/// # Errors
/// [`Error::Model`] if no name is known.
pub fn chosen(paths: &[PathBuf]) -> Result<Chosen> {
    let named = |name: &str| paths.iter().find(|path| path.file_name().is_some_and(|own| own == name));
    let ends = |suffix: &str| {
        paths.iter().find(|path| path.extension().is_some_and(|own| own.eq_ignore_ascii_case(suffix)))
    };
    let folder = |path: &PathBuf| path.parent().map(Path::to_owned).unwrap_or_default();
    if let Some(config) = named("config.json").or(named("params.json")) {
        return Ok(Chosen::Model(folder(config)));
    }
    if let Some(trace) = ends("trace") {
        return Ok(Chosen::Trace(trace.clone()));
    }
    let weights = |path: &&PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        !(name.starts_with("tok") || name.ends_with(".tokenizer.bin"))
    };
    let bin = paths.iter().filter(|path| path.extension().is_some_and(|own| own == "bin")).find(weights);
    if let Some(model) = ends("gguf").or(bin) {
        return Ok(Chosen::Model(model.clone()));
    }
    if let Some(lesson) = ends("md") {
        return Ok(Chosen::Lesson(lesson.clone()));
    }
    if let Some(marks) = ends("marks") {
        return Ok(Chosen::Marks(marks.clone()));
    }
    let names: Vec<_> =
        paths.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
    Err(Error::model("these files are neither a model nor a trace, a lesson or marks")
        .expected(
            "config.json, model.safetensors and tokenizer.json together; a .gguf file; a llama2.c .bin and its tokenizer.bin; a .trace; a lesson .md; or .marks",
        )
        .found(names.join(", "))
        .next("drop all files of a model at once"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_kind() {
        let kind = |names: &[&str]| {
            let paths: Vec<PathBuf> = names.iter().map(|name| Path::new("given").join(name)).collect();
            chosen(&paths).map_err(|error| error.to_string())
        };
        let model = |name: &str| Ok(Chosen::Model(Path::new("given").join(name)));
        let folder = ["tokenizer.json", "model.safetensors", "config.json", "README.md", "pytorch_model.bin"];
        assert_eq!(kind(&folder), Ok(Chosen::Model("given".into())));
        assert_eq!(kind(&["tokenizer.bin", "stories15M.bin"]), model("stories15M.bin"));
        assert_eq!(kind(&["tok512.bin", "stories260K.bin"]), model("stories260K.bin"));
        assert_eq!(kind(&["a.GGUF"]), model("a.GGUF"));
        assert_eq!(kind(&["run.trace"]), Ok(Chosen::Trace("given/run.trace".into())));
        assert_eq!(kind(&["my.marks"]), Ok(Chosen::Marks("given/my.marks".into())));
        assert!(kind(&["a.exe", "tokenizer.bin"]).unwrap_err().contains("a.exe, tokenizer.bin"));
        assert!(kind(&[]).is_err());
    }
}
