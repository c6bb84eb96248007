//! Fuzzes model.safetensors.index.json and pytorch_model.bin.index.json beside shards. Some shards are in a subfolder,
//! and one is behind a link that leads out of the model's folder.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;

static FOLDERS: LazyLock<[Folder; 3]> = LazyLock::new(|| {
    let [safe, pickled, outside] = std::array::from_fn(|_| Folder::default());
    outside.put("secret.safetensors", b"not to be read");
    for (folder, from, file) in
        [(&safe, "golden/gqa", "model.safetensors"), (&pickled, "layouts/bin", "pytorch_model.bin")]
    {
        folder.fixture(&format!("{from}/config.json"), "config.json");
        folder.fixture(&format!("{from}/{file}"), "a.safetensors");
        folder.fixture(&format!("{from}/{file}"), "a.bin");
        folder.put("sub/none", b"");
        folder.fixture(&format!("{from}/{file}"), "sub/a.safetensors");
        folder.fixture(&format!("{from}/{file}"), "sub/a.bin");
        #[cfg(unix)]
        std::os::unix::fs::symlink(outside.path(""), folder.path("out")).expect("a link can be made");
    }
    [safe, pickled, outside]
});

fuzz_target!(|bytes: &[u8]| {
    let [safe, pickled, _] = &*FOLDERS;
    safe.put("model.safetensors.index.json", bytes);
    safe.model("");
    pickled.put("pytorch_model.bin.index.json", bytes);
    pickled.model("");
});
