//! Fuzzes tiktoken's tokenizer.model: tokens in base64, and their ranks.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::default);

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("tokenizer.model", bytes);
    FOLDER.tokenizer("tokenizer.model");
});
