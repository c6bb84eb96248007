//! llama2.c's checkpoints: the header, and how much of the file its numbers ask for.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::default);

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("model.bin", bytes);
    FOLDER.model("model.bin");
});
