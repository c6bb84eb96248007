//! Fuzzes model.safetensors beside a configuration.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::default();
    folder.fixture("golden/gqa/config.json", "config.json");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("model.safetensors", bytes);
    FOLDER.model("");
});
