//! Fuzzes only the pickle of a PyTorch file, in a valid archive.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::{Folder, zip};

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::default();
    folder.fixture("formats/meta/single/params.json", "params.json");
    folder
});

fuzz_target!(|pickle: &[u8]| {
    let values = [0; 4096];
    let entries: [(&str, &[u8]); 4] =
        [("m/data.pkl", pickle), ("m/data/0", &values), ("m/data/1", &values[..64]), ("m/data/2", &[])];
    FOLDER.put("consolidated.00.pth", &zip(&entries));
    FOLDER.model("");
});
