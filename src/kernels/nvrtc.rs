//! NVRTC, the library that compiles the kernels for the device: where to find it, and its functions.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use super::libraries::{self, VARIABLE, builtins, candidates, load};

use llama_trace_core::error::{Error, Result};

/// A version: (12, 8) is 12.8.
pub type Version = (u32, u32);

/// The only architecture with warpgroup products on tensor cores (wgmma). Newer architectures do not have them.
pub const WARPGROUPS: Version = (9, 0);

/// The library's name in file names.
const NAME: &str = "nvrtc";

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
type Name = unsafe extern "C" fn(Program, *const c_char) -> Code;
type Lowered = unsafe extern "C" fn(Program, *const c_char, *mut *const c_char) -> Code;

/// The loaded library.
pub struct Nvrtc {
    version: Version,
    place: PathBuf,
    create: Create,
    compile: Compile,
    destroy: Destroy,
    cubin_size: Size,
    cubin: Fill,
    ptx_size: Size,
    ptx: Fill,
    log_size: Size,
    log: Fill,
    words: Words,
    name: Name,
    lowered: Lowered,
    /// Keeps the library loaded. So the function pointers stay valid.
    _library: Library,
}

/// A source to compile.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The source's name, for messages.
    pub name: &'a str,
    /// CUDA C++.
    pub text: &'a str,
    /// Headers that the source may include: names and texts.
    pub headers: &'a [(&'a str, &'a str)],
    /// The defines: `NAME=VALUE`.
    pub defines: &'a [String],
}

/// The options of every compilation. None of them trades exactness for speed: division, square root and subnormal
/// numbers follow IEEE 754. A multiplication and a following addition are fused, as in `ops/`.
pub const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--device-as-default-execution-space",
    "--fmad=true",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
];

/// Returns pip's requirement for the newest NVRTC that the driver supports.
fn wheel((major, minor): Version) -> String {
    match major {
        ..=12 => format!("nvidia-cuda-nvrtc-cu12==12.{minor}.*"),
        // From CUDA 13 on, the package's name has no version number.
        13 => format!("nvidia-cuda-nvrtc==13.{minor}.*"),
        _ => "nvidia-cuda-nvrtc==13.*".to_owned(),
    }
}

impl Nvrtc {
    /// Finds the newest NVRTC of this machine that is not newer than the driver.
    ///
    /// # Errors
    /// [`Error::Usage`] with the searched folders, if there is no such NVRTC.
    pub fn find(driver: Version) -> Result<Self> {
        Self::find_in(driver, &libraries::folders(|name| env::var_os(name).map(PathBuf::from)))
    }

    /// Does the same with these folders and the loader's path.
    fn find_in(driver: Version, folders: &[PathBuf]) -> Result<Self> {
        let mut too_new = Vec::new();
        let mut best: Option<Self> = None;
        for candidate in candidates(NAME, folders) {
            let Some(found) = Self::open(&candidate) else { continue };
            if found.version > driver {
                too_new.push(format!("{}.{} in {}", found.version.0, found.version.1, candidate.display()));
            } else if best.as_ref().is_none_or(|best| best.version < found.version) {
                best = Some(found);
            }
        }
        let looked = || {
            let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("in the loader's path and in {}", names.join(", "))
        };
        best.ok_or_else(|| {
            let found = match too_new.is_empty() {
                true => format!("none {}", looked()),
                false => format!("only newer ones: {}", too_new.join(", ")),
            };
            Error::usage("there is no NVRTC, which compiles the kernels for this device")
                .expected(format!("libnvrtc.so of version {}.{} or older", driver.0, driver.1))
                .found(found)
                .next(format!("pip install \"{}\", and name its folder in {VARIABLE}", wheel(driver)))
        })
    }

    /// Loads the library at `path`. If `path` is only a name, loads the library of this name from the loader's path.
    fn open(path: &Path) -> Option<Self> {
        // NVRTC looks for its built-in functions only in the loader's path. So they are loaded from its own folder
        // first.
        for beside in builtins(path) {
            std::mem::forget(load(&beside)?);
        }
        let library = load(path)?;
        /// Returns the function `name`.
        ///
        /// # Safety
        /// It must have the type `F`.
        unsafe fn get<F: Copy>(library: &Library, name: &CStr) -> Option<F> {
            // SAFETY: the caller guarantees the type.
            unsafe { library.get::<F>(name.to_bytes_with_nul()).ok().map(|symbol| *symbol) }
        }
        // SAFETY: the types are those of nvrtc.h of CUDA 12 and 13, where these functions are alike. The function
        // pointers do not outlive the library.
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
                ptx_size: get(&library, c"nvrtcGetPTXSize")?,
                ptx: get(&library, c"nvrtcGetPTX")?,
                log_size: get(&library, c"nvrtcGetProgramLogSize")?,
                log: get(&library, c"nvrtcGetProgramLog")?,
                words: get(&library, c"nvrtcGetErrorString")?,
                name: get(&library, c"nvrtcAddNameExpression")?,
                lowered: get(&library, c"nvrtcGetLoweredName")?,
                _library: library,
            };
            (tell, found)
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to variables for an int.
        let code = unsafe { tell(&raw mut major, &raw mut minor) };
        let version = (u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
        (code == 0).then_some(Self { version, ..found })
    }

    /// The library's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The library's file, or its name in the loader's path.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Compiles `source` for compute capability `architecture`. Returns the machine code and the compiler's log.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first error of the log, if the compiler refuses.
    pub fn compile(
        &self,
        source: Source<'_>,
        architecture: Version,
        more: &[&str],
    ) -> Result<(Vec<u8>, String)> {
        self.make(source, &target(architecture), more, None, (self.cubin_size, self.cubin))
    }

    /// Compiles only the kernel `kernel` of `source`, in a fraction of the time that all kernels take. Returns the
    /// kernel's mangled name in the machine code, and the machine code.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::compile`].
    pub fn kernel(
        &self,
        source: Source<'_>,
        architecture: Version,
        kernel: &str,
    ) -> Result<(CString, Vec<u8>)> {
        let mut name = CString::default();
        let alone = Some((kernel, &mut name));
        let (code, _) =
            self.make(source, &target(architecture), &["-DALONE"], alone, (self.cubin_size, self.cubin))?;
        Ok((name, code))
    }

    /// Compiles `source` to PTX for compute capability `architecture` and newer ones; with `alone`, only for this one.
    /// Drops the comments at the beginning, which name the compiler's build.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::compile`].
    pub fn ptx(&self, source: Source<'_>, (major, minor): Version, alone: bool) -> Result<String> {
        let alone = if alone { "a" } else { "" };
        let target = format!("--gpu-architecture=compute_{major}{minor}{alone}");
        let (text, _) = self.make(source, &target, &[], None, (self.ptx_size, self.ptx))?;
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_end_matches('\0');
        Ok(text.find(".version").map_or(text, |first| &text[first..]).to_owned())
    }

    /// Compiles `source`, and returns the output of the functions `size` and `fill`. If only one kernel is compiled,
    /// `alone` holds its name and the place for its mangled name.
    fn make(
        &self,
        source: Source<'_>,
        target: &str,
        more: &[&str],
        alone: Option<(&str, &mut CString)>,
        (size, fill): (Size, Fill),
    ) -> Result<(Vec<u8>, String)> {
        let of = |text: &str| {
            CString::new(text)
                .map_err(|_| Error::usage(format!("the source {} contains a NUL byte", source.name)))
        };
        let (text, name) = (of(source.text)?, of(&format!("{}.cu", source.name))?);
        let (mut names, mut texts) = (Vec::new(), Vec::new());
        for (name, text) in source.headers {
            names.push(of(name)?);
            texts.push(of(text)?);
        }
        let mut options = vec![of(target)?];
        for option in OPTIONS.iter().chain(more) {
            options.push(of(option)?);
        }
        for define in source.defines {
            options.push(of(&format!("-D{define}"))?);
        }
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (names, texts, options) = (pointers_of(&names), pointers_of(&texts), pointers(&options));
        let mut program: Program = ptr::null_mut();
        // SAFETY: every pointer is to a string that lives until the program is destroyed, and the lists have the stated
        // lengths. `program` is a variable for a handle.
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
        let alone = match alone {
            Some((kernel, name)) => Some((of(&format!("{kernel}<0>"))?, name)),
            None => None,
        };
        let named = alone.as_ref().map_or(0, |(kernel, _)| {
            // SAFETY: the program was made, and the kernel's name is a string.
            unsafe { (self.name)(program, kernel.as_ptr()) }
        });
        let compiled = match named {
            // SAFETY: the program was made, and `options` has the stated length.
            0 => unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) },
            refused => refused,
        };
        let log = self.bytes(program, self.log_size, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
        let code = match compiled {
            0 => self.bytes(program, size, fill),
            code => Err(code),
        };
        let code = match alone {
            Some((kernel, name)) if code.is_ok() => {
                let mut lowered = ptr::null();
                // SAFETY: the program was compiled with this name. `lowered` is a variable for a string that lives as
                // long as the program.
                match unsafe { (self.lowered)(program, kernel.as_ptr(), &raw mut lowered) } {
                    0 => {
                        // SAFETY: as above.
                        unsafe { CStr::from_ptr(lowered) }.clone_into(name);
                        code
                    }
                    refused => Err(refused),
                }
            }
            _ => code,
        };
        // SAFETY: the program was made, and is not used again.
        unsafe { (self.destroy)(&raw mut program) };
        match code {
            Ok(code) => Ok((code, log)),
            Err(code) => self.check(code, source, &log).map(|()| (Vec::new(), log)),
        }
    }

    /// Returns the output of `fill` for a program. `size` returns its length.
    fn bytes(&self, program: Program, size: Size, fill: Fill) -> std::result::Result<Vec<u8>, Code> {
        let mut length = 0;
        // SAFETY: the program exists, and `length` is a variable for a size.
        let code = unsafe { size(program, &raw mut length) };
        if code != 0 {
            return Err(code);
        }
        let mut bytes = vec![0_u8; length];
        // SAFETY: the buffer has the length that the library itself returned.
        match unsafe { fill(program, bytes.as_mut_ptr().cast()) } {
            0 => Ok(bytes),
            code => Err(code),
        }
    }

    fn check(&self, code: Code, source: Source<'_>, log: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library has a string for every code. The string lives as long as the library.
        let words = unsafe { CStr::from_ptr((self.words)(code)) }.to_string_lossy();
        // The compiler's errors contain "error", those of its assembler "fatal".
        let says = |line: &&str| line.contains("error") || line.contains("fatal");
        let first = log.lines().find(says).unwrap_or(&words);
        Err(Error::usage(format!(
            "NVRTC {}.{} does not compile the kernel `{}`",
            self.version.0, self.version.1, source.name
        ))
        .at(source.defines.join(" "))
        .found(first)
        .next("report this message with the device's name, and run with --device cpu"))
    }
}

/// Returns the option for machine code of an architecture. The architecture with wgmma has the suffix `a`, without
/// which wgmma cannot be used.
fn target((major, minor): Version) -> String {
    let alone = if (major, minor) == WARPGROUPS { "a" } else { "" };
    format!("--gpu-architecture=sm_{major}{minor}{alone}")
}

fn pointers_of(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn where_there_is_none_the_message_says_where_it_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        // No NVRTC has a version as old as this.
        let error = Nvrtc::find_in((1, 0), &[folder.path().to_owned()]).err().unwrap();
        let text = error.to_string();
        assert_eq!(error.exit_code(), 2);
        assert!(text.contains("version 1.0 or older") && text.contains(VARIABLE), "{text}");
        let looked = text.contains(&*folder.path().display().to_string());
        assert!(looked || text.contains("only newer ones"), "{text}");
    }

    #[test]
    fn the_wheel_is_one_that_the_driver_takes() {
        assert_eq!(wheel((12, 4)), "nvidia-cuda-nvrtc-cu12==12.4.*");
        assert_eq!(wheel((13, 0)), "nvidia-cuda-nvrtc==13.0.*");
        assert_eq!(wheel((14, 1)), "nvidia-cuda-nvrtc==13.*");
    }

    #[test]
    fn a_file_that_is_no_library_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libnvrtc.so.12"), "no library").unwrap();
        assert_eq!(candidates(NAME, &[folder.path().to_owned()]).len(), if cfg!(windows) { 2 } else { 3 });
        assert!(Nvrtc::open(&folder.path().join("libnvrtc.so.12")).is_none());
    }
}
