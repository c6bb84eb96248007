//! Fuzzes llama2.c's tokenizer.bin.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::default);

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("tokenizer.bin", bytes);
    FOLDER.tokenizer("tokenizer.bin");
});
