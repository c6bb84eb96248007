//! Fuzzes a llama2.c checkpoint: the header, and the size of the file that the numbers in the header require.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::default);

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("model.bin", bytes);
    FOLDER.model("model.bin");
});
