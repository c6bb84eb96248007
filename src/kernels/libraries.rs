//! Search paths of NVIDIA's libraries that do not come with the driver.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use libloading::Library;

/// The supported major versions, the newest first.
const MAJORS: [u32; 2] = [13, 12];

/// The environment variable with the folders to search first, separated as in PATH.
pub(crate) const VARIABLE: &str = "LLAMA_TRACE_NVRTC";

/// Loads a library, and makes its symbols visible to libraries that are loaded later. `None` if it cannot be loaded.
pub fn load(path: &Path) -> Option<Library> {
    // SAFETY: NVIDIA's libraries may be loaded at any time and by any thread. Files with the names of these libraries
    // are trusted like the program itself, in the loader's path and in the user's folders.
    #[cfg(unix)]
    unsafe {
        use libloading::os::unix;
        let library = unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_GLOBAL).ok()?;
        Some(library.into())
    }
    // SAFETY: as above.
    #[cfg(not(unix))]
    unsafe {
        Library::new(path).ok()
    }
}

/// Returns the folders to search in addition to the loader's path. `variable` returns the value of an environment
/// variable.
pub fn folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        variable(VARIABLE).map(|list| env::split_paths(&list).collect()).unwrap_or_default();
    for home in
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&variable).chain([PathBuf::from("/usr/local/cuda")])
    {
        all.extend(["lib64", "lib", "bin", "targets/x86_64-linux/lib"].map(|inner| home.join(inner)));
    }
    // The wheels of PyPI, in each Python that can be found.
    let mut pythons: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable).collect();
    let path = variable("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let has_python = |folder: &PathBuf| folder.join("python3").exists();
    pythons.extend(path.into_iter().filter(has_python).filter_map(|bin| bin.parent().map(Path::to_owned)));
    pythons.extend(variable("HOME").map(|home| home.join(".local")));
    pythons.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for python in pythons {
        for version in entries(&python.join("lib")).filter(|path| named(path, "python3")) {
            for packages in ["site-packages", "dist-packages"].map(|packages| version.join(packages)) {
                all.extend(MAJORS.map(|major| packages.join(format!("nvidia/cu{major}/lib"))));
                all.extend(["cuda_nvrtc", "cublas"].map(|name| packages.join(format!("nvidia/{name}/lib"))));
            }
        }
    }
    let mut seen = HashSet::new();
    all.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
    all
}

/// Returns the candidates for the library `name` (`nvrtc`, `cublasLt`): first names that the loader searches for, then files.
pub fn candidates(name: &str, folders: &[PathBuf]) -> Vec<PathBuf> {
    let name = |major: u32| match (cfg!(windows), name) {
        (true, "nvrtc") => format!("nvrtc64_{major}0_0.dll"),
        (true, name) => format!("{name}64_{major}.dll"),
        (false, name) => format!("lib{name}.so.{major}"),
    };
    let mut all: Vec<_> = MAJORS.iter().map(|major| PathBuf::from(name(*major))).collect();
    for folder in folders {
        all.extend(MAJORS.map(|major| folder.join(name(major))).into_iter().filter(|path| path.exists()));
    }
    all
}

/// Returns the libraries of built-in functions in NVRTC's folder. Empty if NVRTC's path is not absolute.
pub(crate) fn builtins(path: &Path) -> Vec<PathBuf> {
    let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) else { return Vec::new() };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let major = name.rsplit('.').next().unwrap_or_default().to_owned();
    let beside = entries(folder).filter(|path| named(path, &format!("libnvrtc-builtins.so.{major}.")));
    beside.collect()
}

fn named(path: &Path, beginning: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
}

/// Returns the entries of a folder, sorted by name; empty if the folder cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut all: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    all.sort();
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_the_toolkit_and_of_the_wheels() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let wheels = "venv/lib/python3.12/site-packages/nvidia/";
        let there = [
            "first/a",
            "cuda/lib64",
            &format!("{wheels}cu13/lib"),
            &format!("{wheels}cuda_nvrtc/lib"),
            "path/lib/python3.13/dist-packages/nvidia/cublas/lib",
            "venv/lib/other",
            "path/bin/python3",
        ];
        there.iter().for_each(|path| fs::create_dir_all(at(path)).unwrap());
        let found = folders(|name| match name {
            VARIABLE => Some(env::join_paths([at("first/a"), at("not/there")]).unwrap().into()),
            "CUDA_HOME" => Some(at("cuda")),
            "VIRTUAL_ENV" => Some(at("venv")),
            "PATH" => Some(env::join_paths([at("first"), at("path/bin"), at("path/bin")]).unwrap().into()),
            _ => None,
        });
        let own: Vec<_> = found.iter().filter_map(|path| path.strip_prefix(root.path()).ok()).collect();
        assert_eq!(own, there[..5].iter().map(Path::new).collect::<Vec<_>>());
    }
}
