//! Fuzzes Meta's params.json beside weights.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::default();
    folder.fixture("formats/meta/single/consolidated.00.pth", "consolidated.00.pth");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("params.json", bytes);
    FOLDER.model("");
});
