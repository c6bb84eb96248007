//! Puts the web page into the program if `LLAMA_TRACE_PAGE` names its folder, which `.ci/page` builds.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-env-changed=LLAMA_TRACE_PAGE");
    println!("cargo::rustc-check-cfg=cfg(has_page)");
    let Some(folder) = env::var_os("LLAMA_TRACE_PAGE").filter(|folder| !folder.is_empty()) else { return };
    let module = Path::new(&folder).join("llama-trace.wasm.gz");
    match module.canonicalize() {
        Ok(module) => {
            println!("cargo::rerun-if-changed={}", module.display());
            println!("cargo::rustc-env=LLAMA_TRACE_PAGE_MODULE={}", module.display());
            println!("cargo::rustc-cfg=has_page");
        }
        Err(error) => println!(
            "cargo::error=LLAMA_TRACE_PAGE names a folder without the page: {}: {error}; .ci/page builds it",
            module.display()
        ),
    }
}
