//! Shared code of the fuzz targets. The fuzzer's bytes are written to a folder, and the model or the tokenizer in the
//! folder is used as in the program.
//!
//! The targets read files, and call the functions that read a user's model. An error is a correct result. A panic, a
//! hang or too much memory is a finding.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint::{self, chat_template};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::tokenizer::{self, Tokenizer};
use llama_trace::trace::NoProbe;
use tempfile::TempDir;

/// A text with everything that vocabularies treat differently: spaces, digits, special tokens, characters of several
/// bytes.
const TEXT: &str = "Once  upon a time, é\u{1f999}\n\n 12345 <s></s><|eot_id|> it's\t";

/// The folder of one target.
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }
}

impl Folder {
    /// The path of a file in the folder; the path of the folder itself if `name` is empty.
    pub fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.0.path().into() } else { self.0.path().join(name) }
    }

    /// Writes `bytes` to the file of this name. If the name has a subfolder, creates the subfolder.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it lies in the folder")).expect("a folder can be made");
        fs::write(path, bytes).expect("a file can be written");
    }

    /// Copies a file of the project's fixtures into the folder.
    pub fn fixture(&self, from: &str, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(from);
        fs::copy(&from, self.path(name)).expect("a fixture can be copied");
    }

    /// Opens the model of this name, and uses it as `info`, `chat` and a run of two tokens do.
    pub fn model(&self, name: &str) {
        let Ok(checkpoint) = checkpoint::open(&self.path(name)) else { return };
        let _ = (checkpoint.format.to_string(), format!("{:?}", checkpoint.config), checkpoint.notes.lines());
        for (_, tensor) in checkpoint.tensors() {
            let _ = (tensor.count(), tensor.shape().len());
        }
        let _ = chat_template::read(&checkpoint);
        if let Ok(Some(tokenizer)) = tokenizer::find(&checkpoint.vocabulary(), &checkpoint.config, None) {
            use_up(&*tokenizer);
        }
        // `info` must not accept a model that a run refuses.
        let shown = checkpoint.check_weights().is_ok();
        let model = Model::load(&checkpoint, Cpu::default());
        assert!(!shown || model.is_ok(), "info opens what a run refuses");
        let Ok(model) = model else { return };
        let Ok(sampler) = Sampler::new(Sampling::default()) else { return };
        let mut session = Session::new(&model, sampler).unwrap();
        if session.check(&[0, 1]).is_ok() {
            let _ = session.run(&[0, 1], &mut NoProbe);
        }
    }

    /// Opens the tokenizer of this name, encodes a text and decodes tokens.
    pub fn tokenizer(&self, name: &str) {
        if let Ok(tokenizer) = tokenizer::open(&self.path(name)) {
            use_up(&*tokenizer);
        }
    }
}

fn use_up(tokenizer: &dyn Tokenizer) {
    let _ = (tokenizer.bos(), tokenizer.ends());
    let texts = [tokenizer.encode(TEXT), tokenizer.encode_marked(TEXT), tokenizer.encode_plain(TEXT)];
    let _ = (tokenizer.merges(TEXT, false), tokenizer.merges(TEXT, true), tokenizer.encode(""));
    let mut stream = tokenizer.stream();
    let first = 0..(tokenizer.vocab_size().min(300) as u32 + 1);
    for id in texts.into_iter().flatten().flatten().chain(first).chain([u32::MAX]) {
        let _ = (tokenizer.label(id), stream.push(id));
    }
    let _ = stream.finish();
}

/// A zip archive of uncompressed entries (name and content), as torch.save writes it.
pub fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = rawzip::ZipArchiveWriter::new(&mut file);
    for (name, bytes) in entries {
        let new = writer.new_file(name).compression_method(rawzip::CompressionMethod::STORE);
        let (mut entry, config) = new.start().expect("memory can be written to");
        let mut data = config.wrap(&mut entry);
        data.write_all(bytes).expect("memory can be written to");
        let (_, descriptor) = data.finish().expect("memory can be written to");
        entry.finish(descriptor).expect("memory can be written to");
    }
    writer.finish().expect("memory can be written to");
    file
}
