//! Fuzzes config.json, generation_config.json and tokenizer_config.json beside weights. All three have the same text.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::default();
    folder.fixture("golden/tied_llama3/model.safetensors", "model.safetensors");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("config.json", bytes);
    FOLDER.put("generation_config.json", bytes);
    FOLDER.put("tokenizer_config.json", bytes);
    FOLDER.model("");
});
