//! Compiles the kernels for the CPU. The code that all modules share (`emulate.cpp`) is compiled once; each module is
//! compiled on its own and linked with it. The libraries are kept in the target folder, for all tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use ring::digest::{Context, SHA256};

use llama_trace_kernels::FOLDER;
use llama_trace_kernels::sources::Module;

/// The options of the compiler. With them, the process stops at a misaligned address, or at a shift or conversion out
/// of range. A GPU does not support these, or gives another result than the CPU.
const OPTIONS: &str = include_str!("emulate.options");

/// The folder of `emulate.cpp`.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The system's compiler: CXX, or c++.
fn compiler() -> String {
    std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".into())
}

/// The version text of the compiler; `None` if there is no compiler.
fn compiler_version() -> Option<&'static [u8]> {
    static VERSION: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
        let output = Command::new(compiler()).arg("--version").output().ok()?;
        output.status.success().then_some(output.stdout)
    });
    VERSION.as_deref()
}

/// Whether kernels can be compiled here. If not, prints why.
pub(super) fn is_possible() -> bool {
    let possible = cfg!(unix)
        && compiler_version().is_some()
        && [FOLDER, HERE].iter().all(|folder| Path::new(folder).is_dir());
    if !possible {
        println!(
            "skipped: {} is no C++ compiler that runs here, or the kernels' sources are missing",
            compiler()
        );
    }
    possible
}

/// Compiles a module, unless it was compiled from the same sources before.
pub(super) fn library(module: &Module) -> Result<PathBuf, String> {
    let (path, command) = compilation(module)?;
    compile(&path, command).map_err(|error| format!("{module:?}: {error}"))?;
    Ok(path)
}

/// Returns the path of a module's library, and the command that compiles it. The command lacks the name of the output.
/// All tests of a target folder share these libraries. The names of equal modules are equal.
///
/// # Errors
/// If a source cannot be read, or if the code that all modules share does not compile.
pub fn compilation(module: &Module) -> Result<(PathBuf, Command), String> {
    let common = common()?;
    let hash = digest(Some(module))?;
    let mut command = command();
    command.args(["-shared", "-I", FOLDER]).arg(format!("-DKERNELS=\"{}.cu\"", module.file));
    command.args(module.defines.iter().map(|define| format!("-D{define}")));
    command.arg("kernels.cpp").arg(common);
    Ok((folder()?.join(format!("{}-{hash}.so", module.file)), command))
}

/// Returns the object file of the code that all modules share. It is compiled once.
fn common() -> Result<&'static Path, String> {
    static COMMON: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        let path = folder()?.join(format!("emulate-{}.o", digest(None)?));
        let mut command = command();
        command.args(["-c", "emulate.cpp"]);
        compile(&path, command)?;
        Ok(path)
    });
    COMMON.as_deref().map_err(Clone::clone)
}

/// The compiler with the options of all sources.
fn command() -> Command {
    let mut command = Command::new(compiler());
    command.current_dir(HERE).args(OPTIONS.split_whitespace()).arg("-fPIC");
    command
}

/// Runs the command, unless its output is there. Other processes may do the same. Each writes to a file of its own,
/// which then takes the place of the output.
fn compile(path: &Path, mut command: Command) -> Result<(), String> {
    if path.exists() {
        return Ok(());
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let output = command.arg("-o").arg(&new).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    fs::rename(&new, path).map_err(|error| error.to_string())
}

/// The folder of the compiled code: target/debug/deps/… → target/tmp/kernels.
fn folder() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = exe.ancestors().nth(3).unwrap_or(&exe).join("tmp/kernels");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    Ok(folder)
}

/// Returns a hash of the compiler, the options and the sources: those of a module, or of the code that all modules
/// share.
fn digest(module: Option<&Module>) -> Result<String, String> {
    let mut paths = Vec::new();
    for folder in [FOLDER, HERE] {
        let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
        paths.extend(entries.flatten().map(|entry| entry.path()));
    }
    paths.sort();
    let mut hash = Context::new(&SHA256);
    hash.update(compiler_version().unwrap_or_default());
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A module depends on its own file of kernels and on the shared sources, but on no other file of kernels and on
        // no generated file.
        let is_used = match module {
            _ if name.starts_with("emulate.") => true,
            Some(module) => {
                name.ends_with(".cuh") || name == "kernels.cpp" || name == format!("{}.cu", module.file)
            }
            None => false,
        };
        if is_used {
            hash.update(&fs::read(&path).map_err(|error| error.to_string())?);
        }
    }
    module.iter().flat_map(|module| &module.defines).for_each(|define| hash.update(define.as_bytes()));
    Ok(hash.finish().as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect())
}
