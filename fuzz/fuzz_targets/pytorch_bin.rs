//! Fuzzes pytorch_model.bin beside a config.json: the archive; or, if the input is no archive, only the pickle, in a
//! valid archive.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::{Folder, zip};

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::default();
    folder.fixture("layouts/bin/config.json", "config.json");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("pytorch_model.bin", bytes);
    FOLDER.model("");
    if !bytes.starts_with(b"PK") {
        // Sizes that fit those of the fixtures' tensors, in bfloat16 and in float64.
        let storages: Vec<(String, Vec<u8>)> = (0..24)
            .map(|key| (format!("m/data/{key}"), vec![0; [32, 256, 512, 1024, 2048, 4096][key % 6]]))
            .collect();
        let entries = [("m/data.pkl", bytes)];
        let storages = storages.iter().map(|(name, values)| (name.as_str(), values.as_slice()));
        FOLDER.put("pytorch_model.bin", &zip(&entries.into_iter().chain(storages).collect::<Vec<_>>()));
        FOLDER.model("");
    }
});
