//! NVRTC, which compiles the kernels for the device at hand: where it is looked for, and how it is called.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use crate::error::{Error, Result};

/// A version: (12, 8) is 12.8.
pub(super) type Version = (u32, u32);

/// The major versions that are known here, the newest first.
const MAJORS: [u32; 2] = [13, 12];

/// A folder, or several as in PATH, in which NVRTC is looked for first.
const VARIABLE: &str = "LLAMA_TRACE_NVRTC";

/// A `nvrtcProgram`.
type Program = *mut u8;

/// `nvrtcResult`: 0 is success.
type Code = c_int;

type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Code;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code;
type Destroy = unsafe extern "C" fn(*mut Program) -> Code;
type Size = unsafe extern "C" fn(Program, *mut usize) -> Code;
type Fill = unsafe extern "C" fn(Program, *mut c_char) -> Code;
type Words = unsafe extern "C" fn(Code) -> *const c_char;
type Tell = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;

/// The library, loaded.
pub struct Nvrtc {
    version: Version,
    place: PathBuf,
    create: Create,
    compile: Compile,
    destroy: Destroy,
    cubin_size: Size,
    cubin: Fill,
    log_size: Size,
    log: Fill,
    words: Words,
    /// Kept so that the functions stay where they are.
    _library: Library,
}

/// A source to be compiled.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// CUDA C++.
    pub text: &'a str,
    /// What it may include: names and texts.
    pub headers: &'a [(&'a str, &'a str)],
    /// `NAME=VALUE`.
    pub defines: &'a [String],
}

/// The options of every compilation. Nothing that trades exactness for speed: divisions, roots and small numbers are
/// IEEE's, and a multiplication and an addition become one operation, as in `ops/`.
pub const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--device-as-default-execution-space",
    "--fmad=true",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
];

impl Nvrtc {
    /// The newest NVRTC of this machine that is not newer than the driver.
    ///
    /// # Errors
    /// [`Error::Usage`] with what was looked for, where there is none.
    pub fn find(driver: Version) -> Result<Self> {
        Self::find_in(driver, &folders(|name| env::var_os(name).map(PathBuf::from)))
    }

    /// The same in these folders, and where the loader looks.
    fn find_in(driver: Version, folders: &[PathBuf]) -> Result<Self> {
        let mut too_new = Vec::new();
        let mut best: Option<Self> = None;
        for candidate in candidates(folders) {
            let Some(found) = Self::open(&candidate) else { continue };
            if found.version > driver {
                too_new.push(format!("{}.{} in {}", found.version.0, found.version.1, candidate.display()));
            } else if best.as_ref().is_none_or(|best| best.version < found.version) {
                best = Some(found);
            }
        }
        let looked = || {
            let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("in the loader's path, {}", names.join(", "))
        };
        best.ok_or_else(|| {
            let found = match too_new.is_empty() {
                true => format!("none, {}", looked()),
                false => format!("only newer ones: {}", too_new.join(", ")),
            };
            Error::usage("there is no NVRTC, which compiles the kernels for this device")
                .expected(format!("libnvrtc.so of version {}.{} or older", driver.0, driver.1))
                .found(found)
                .next(format!(
                    "pip install nvidia-cuda-nvrtc-cu{}, and name its folder in {VARIABLE}; or run with --device cpu",
                    driver.0.min(MAJORS[0])
                ))
        })
    }

    /// The library at `path`, or of this name in the loader's path.
    fn open(path: &Path) -> Option<Self> {
        // It looks for its other half where the loader does, not beside itself.
        for beside in builtins(path) {
            std::mem::forget(load(&beside)?);
        }
        let library = load(path)?;
        /// The function `name`.
        ///
        /// # Safety
        /// It must have the type `F`.
        unsafe fn get<F: Copy>(library: &Library, name: &CStr) -> Option<F> {
            // SAFETY: the caller knows the type.
            unsafe { library.get::<F>(name.to_bytes_with_nul()).ok().map(|symbol| *symbol) }
        }
        // SAFETY: the types are those of nvrtc.h of CUDA 12 and 13, in which these functions are alike, and the
        // functions are kept no longer than the library.
        let (tell, found) = unsafe {
            let tell: Tell = get(&library, c"nvrtcVersion")?;
            let found = Self {
                version: (0, 0),
                place: path.to_owned(),
                create: get(&library, c"nvrtcCreateProgram")?,
                compile: get(&library, c"nvrtcCompileProgram")?,
                destroy: get(&library, c"nvrtcDestroyProgram")?,
                cubin_size: get(&library, c"nvrtcGetCUBINSize")?,
                cubin: get(&library, c"nvrtcGetCUBIN")?,
                log_size: get(&library, c"nvrtcGetProgramLogSize")?,
                log: get(&library, c"nvrtcGetProgramLog")?,
                words: get(&library, c"nvrtcGetErrorString")?,
                _library: library,
            };
            (tell, found)
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for an int.
        let code = unsafe { tell(&raw mut major, &raw mut minor) };
        let version = (u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
        (code == 0).then_some(Self { version, ..found })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file or the name that it was loaded from.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Compiles `source` for compute capability `architecture`: the machine code, and what the compiler said.
    ///
    /// # Errors
    /// [`Error::Usage`] with the compiler's first words, where it refuses.
    pub fn compile(
        &self,
        source: Source<'_>,
        architecture: Version,
        more: &[&str],
    ) -> Result<(Vec<u8>, String)> {
        let of = |text: &str| {
            CString::new(text).map_err(|_| Error::usage(format!("the source {} has a NUL", source.name)))
        };
        let (text, name) = (of(source.text)?, of(&format!("{}.cu", source.name))?);
        let (mut names, mut texts) = (Vec::new(), Vec::new());
        for (name, text) in source.headers {
            names.push(of(name)?);
            texts.push(of(text)?);
        }
        let mut options = vec![of(&format!("--gpu-architecture=sm_{}{}", architecture.0, architecture.1))?];
        for option in OPTIONS.iter().chain(more) {
            options.push(of(option)?);
        }
        for define in source.defines {
            options.push(of(&format!("-D{define}"))?);
        }
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (names, texts, options) = (pointers_of(&names), pointers_of(&texts), pointers(&options));
        let mut program: Program = ptr::null_mut();
        // SAFETY: every pointer is to a string that lives until the program is destroyed, and the lists are as long as
        // is said; `program` is a place for a handle.
        let made = unsafe {
            (self.create)(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                source.headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(made, source, "")?;
        // SAFETY: the program was made, and the options are as many as is said.
        let compiled = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        let log = self.bytes(program, self.log_size, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
        let code = match compiled {
            0 => self.bytes(program, self.cubin_size, self.cubin),
            code => Err(code),
        };
        // SAFETY: the program was made, and is not used again.
        unsafe { (self.destroy)(&raw mut program) };
        match code {
            Ok(code) => Ok((code, log)),
            Err(code) => self.check(code, source, &log).map(|()| (Vec::new(), log)),
        }
    }

    /// What `fill` writes of a program, as much as `size` says.
    fn bytes(&self, program: Program, size: Size, fill: Fill) -> std::result::Result<Vec<u8>, Code> {
        let mut length = 0;
        // SAFETY: the program is there, and `length` a place for a size.
        let code = unsafe { size(program, &raw mut length) };
        if code != 0 {
            return Err(code);
        }
        let mut bytes = vec![0_u8; length];
        // SAFETY: there is room for as many bytes as the library itself said.
        match unsafe { fill(program, bytes.as_mut_ptr().cast()) } {
            0 => Ok(bytes),
            code => Err(code),
        }
    }

    fn check(&self, code: Code, source: Source<'_>, log: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library has a string for every code, which is there as long as it is.
        let words = unsafe { CStr::from_ptr((self.words)(code)) }.to_string_lossy();
        let first = log.lines().find(|line| line.contains("error")).unwrap_or(&words);
        Err(Error::usage(format!(
            "NVRTC {}.{} does not compile the kernel `{}`",
            self.version.0, self.version.1, source.name
        ))
        .at(source.defines.join(" "))
        .found(first)
        .next("tell us with these words and the device's name; --device cpu runs without it"))
    }
}

fn pointers_of(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

/// Loads a library, and has it be there for those that are loaded later.
fn load(path: &Path) -> Option<Library> {
    // SAFETY: NVIDIA's libraries may be loaded at any time and by any thread; what stands in the loader's path and in
    // the user's folders under their names is trusted like the program itself.
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

/// The folders in which NVRTC may lie outside the loader's path.
fn folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        variable(VARIABLE).map(|list| env::split_paths(&list).collect()).unwrap_or_default();
    for home in
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&variable).chain([PathBuf::from("/usr/local/cuda")])
    {
        all.extend(["lib64", "lib", "bin", "targets/x86_64-linux/lib"].map(|inner| home.join(inner)));
    }
    // The wheels of PyPI, in each Python that is known to be there.
    let mut pythons: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable).collect();
    pythons.extend(variable("HOME").map(|home| home.join(".local")));
    pythons.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for python in pythons {
        for version in entries(&python.join("lib")).filter(|path| named(path, "python3")) {
            for packages in ["site-packages", "dist-packages"].map(|packages| version.join(packages)) {
                all.extend(MAJORS.map(|major| packages.join(format!("nvidia/cu{major}/lib"))));
                all.push(packages.join("nvidia/cuda_nvrtc/lib"));
            }
        }
    }
    all.retain(|folder| folder.is_dir());
    all.dedup();
    all
}

/// What may be NVRTC: names for the loader, then files.
fn candidates(folders: &[PathBuf]) -> Vec<PathBuf> {
    let name = |major: u32| match cfg!(windows) {
        true => format!("nvrtc64_{major}0_0.dll"),
        false => format!("libnvrtc.so.{major}"),
    };
    let mut all: Vec<_> = MAJORS.iter().map(|major| PathBuf::from(name(*major))).collect();
    for folder in folders {
        all.extend(MAJORS.map(|major| folder.join(name(major))).into_iter().filter(|path| path.exists()));
    }
    all
}

/// The library of built-in functions beside NVRTC, where it lies in a folder.
fn builtins(path: &Path) -> Vec<PathBuf> {
    let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) else { return Vec::new() };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let major = name.rsplit('.').next().unwrap_or_default().to_owned();
    let beside = entries(folder).filter(|path| named(path, &format!("libnvrtc-builtins.so.{major}.")));
    beside.collect()
}

fn named(path: &Path, beginning: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
}

/// What is in a folder, in the order of the names; nothing where it cannot be read.
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
            "venv/lib/other",
        ];
        there.iter().for_each(|path| fs::create_dir_all(at(path)).unwrap());
        let found = folders(|name| match name {
            VARIABLE => Some(env::join_paths([at("first/a"), at("not/there")]).unwrap().into()),
            "CUDA_HOME" => Some(at("cuda")),
            "VIRTUAL_ENV" => Some(at("venv")),
            _ => None,
        });
        let own: Vec<_> = found.iter().filter_map(|path| path.strip_prefix(root.path()).ok()).collect();
        assert_eq!(own, there[..4].iter().map(Path::new).collect::<Vec<_>>());
    }

    #[test]
    fn where_there_is_none_the_message_says_where_it_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        // Nothing is as old as that.
        let error = Nvrtc::find_in((1, 0), &[folder.path().to_owned()]).err().unwrap();
        let text = error.to_string();
        assert_eq!(error.exit_code(), 2);
        assert!(text.contains("version 1.0 or older") && text.contains(VARIABLE), "{text}");
        let looked = text.contains(&*folder.path().display().to_string());
        assert!(looked || text.contains("only newer ones"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libnvrtc.so.12"), "no library").unwrap();
        assert_eq!(candidates(&[folder.path().to_owned()]).len(), if cfg!(windows) { 2 } else { 3 });
        assert!(Nvrtc::open(&folder.path().join("libnvrtc.so.12")).is_none());
    }
}
