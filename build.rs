//! Puts the web page into the program if `LLAMA_TRACE_PAGE` names its folder, which `.ci/page` builds.

use std::io::{Read, Result, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

const MODEL: &str = "fixtures/builtin/model.safetensors";

fn main() {
    println!("cargo::rerun-if-env-changed=LLAMA_TRACE_PAGE");
    println!("cargo::rerun-if-changed={MODEL}");
    println!("cargo::rustc-check-cfg=cfg(has_page)");
    let Some(folder) = env::var_os("LLAMA_TRACE_PAGE").filter(|folder| !folder.is_empty()) else { return };
    let module = Path::new(&folder).join("llama-trace.wasm.gz");
    println!("cargo::rerun-if-changed={}", module.display());
    match without_model(&module) {
        Ok(Some((rest, at))) => {
            println!("cargo::rustc-env=LLAMA_TRACE_PAGE_MODULE={}", rest.display());
            println!("cargo::rustc-env=LLAMA_TRACE_PAGE_MODEL_AT={at}");
            println!("cargo::rustc-cfg=has_page");
        }
        Ok(None) => println!(
            "cargo::error=LLAMA_TRACE_PAGE names a page with another built-in model: {}; build it again with .ci/page",
            module.display()
        ),
        Err(error) => println!(
            "cargo::error=LLAMA_TRACE_PAGE names a folder without the page: {}: {error}; .ci/page builds it",
            module.display()
        ),
    }
}

/// The page's module has the built-in model inside, and so has the program. Writes a compressed file with the rest of the
/// module. Returns its path, and where the model belongs in the rest; `None` if the model is not in the module.
fn without_model(module: &Path) -> Result<Option<(PathBuf, usize)>> {
    let mut whole = Vec::new();
    GzDecoder::new(fs::File::open(module)?).read_to_end(&mut whole)?;
    let model = fs::read(MODEL)?;
    let Some(at) = whole.windows(model.len()).position(|bytes| bytes == model) else { return Ok(None) };
    whole.drain(at..at + model.len());
    let rest = Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("page-module.gz");
    let mut encoder = GzEncoder::new(fs::File::create(&rest)?, Compression::best());
    encoder.write_all(&whole)?;
    encoder.finish()?;
    Ok(Some((rest, at)))
}
