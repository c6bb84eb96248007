//! Fuzzes a PyTorch file: the zip archive, the pickle in the archive, and the tensors that the pickle describes.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::default();
    folder.fixture("formats/meta/single/params.json", "params.json");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("consolidated.00.pth", bytes);
    FOLDER.model("");
    // The same file as a second part: the slices of a tensor in both parts are joined.
    FOLDER.put("consolidated.01.pth", bytes);
    FOLDER.model("");
    let _ = std::fs::remove_file(FOLDER.path("consolidated.01.pth"));
});
