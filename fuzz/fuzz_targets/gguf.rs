//! Fuzzes a GGUF file: metadata, the table of tensors, and the vocabulary.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::default);

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("model.gguf", bytes);
    FOLDER.model("model.gguf");
    FOLDER.tokenizer("model.gguf");
});
