//! Every kernel gives the same text, with any number of threads and any size of pages.

use std::fs;
use std::path::Path;

use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;

#[cfg(target_os = "linux")]
use super::common::stdout;
use super::common::{command, llama_trace, stderr};
use super::{PROMPT, ok};

#[test]
fn every_kernel_and_any_number_of_threads_give_the_same_bits() {
    let dump = |options: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("dump");
        let args =
            ["export", "--prompt", PROMPT, "-n", "2", "--stages", "softmax,ffn_residual,logits", "--out"];
        ok(&command(args.iter().chain(&[out.to_str().unwrap()]).chain(options)).output().unwrap());
        ["pass_000/logits.npy", "pass_001/logits.npy", "pass_000/layer_02/softmax.npy"]
            .map(|file| fs::read(out.join(file)).unwrap())
    };
    let expected = dump(&["--cpu-kernel", "portable", "--threads", "1"]);
    for kernel in llama_trace::backend::cpu::Kernel::available() {
        for threads in ["1", "2", "3"] {
            let same = dump(&["--cpu-kernel", kernel.name(), "--threads", threads]) == expected;
            assert!(same, "{} kernel, {threads} threads", kernel.name());
        }
    }
    let refused = llama_trace(["--prompt", "x", "--cpu-kernel", "abacus"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("portable"), "{}", stderr(&refused));
}

#[test]
#[cfg(target_os = "linux")]
fn weights_in_huge_pages_give_the_same_text_and_a_line_of_their_size() {
    let run = |options: &[&str]| {
        let output = llama_trace(["--prompt", PROMPT, "-n", "5"].iter().chain(options));
        ok(&output);
        output
    };
    let (plain, huge) = (run(&[]), run(&["--huge-pages", "--threads", "2"]));
    assert_eq!(stdout(&huge), stdout(&plain));
    let said = stderr(&huge);
    assert!(said.contains("--huge-pages: ") && said.contains("MiB of weights were copied into"), "{said}");
    assert!(said.contains("reserved huge pages") || said.contains("nr_hugepages"), "{said}");
    assert!(!stderr(&plain).contains("huge"));
}

/// The number that the manual shows has the same bits with every kernel.
#[test]
fn the_number_in_the_manual_is_the_same_with_every_kernel() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("chapters/reference/explain.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, shown) = page.split_once("p0/L1/softmax[h=0,t=17,k=14] = ").unwrap();
    let shown: f32 = shown.split_whitespace().next().unwrap().parse().unwrap();
    let prompt = "Once upon a time, there was a fox named Mara. Mara";
    for kernel in llama_trace::backend::cpu::Kernel::available() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("dump");
        let args = [
            "export",
            "--prompt",
            prompt,
            "--layer",
            "1",
            "--stage",
            "softmax",
            "--cpu-kernel",
            kernel.name(),
        ];
        ok(&llama_trace(args.into_iter().chain(["--out", out.to_str().unwrap()])));
        let file = fs::File::open(out.join("pass_000/layer_01/softmax.npy")).unwrap();
        let value = ArrayD::<f32>::read_npy(file).unwrap()[[0, 17, 14]];
        assert_eq!(value.to_bits(), shown.to_bits(), "{}: {value}", kernel.name());
    }
}
