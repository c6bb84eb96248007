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

/// The logits of the kernel for WebAssembly have these bits on every platform. A web page gives them too.
#[test]
fn the_kernel_for_webassembly_has_its_own_bits_and_its_name_is_shown() {
    let wasm = ["--cpu-kernel", "wasm"];
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, options: &[&str]| {
        let out = folder.path().join(name);
        let args = ["export", "--prompt", PROMPT, "-n", "2", "--stage", "logits", "--out"];
        ok(&llama_trace(args.iter().chain(&[out.to_str().unwrap()]).chain(options)));
        let read = |pass: &str| {
            let file = fs::File::open(out.join(pass).join("logits.npy")).unwrap();
            ArrayD::<f32>::read_npy(file).unwrap().into_iter().collect::<Vec<_>>()
        };
        let manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
        (["pass_000", "pass_001"].map(read).concat(), manifest)
    };
    let (ours, manifest) = run("one", &[&wasm[..], &["--threads", "1"]].concat());
    assert_eq!(
        (&manifest["backend"], &manifest["card"]["arithmetic"]),
        (&"cpu-wasm".into(), &"separate".into())
    );
    let hash = |values: &[f32]| {
        let fold = |hash: u64, x: &f32| (hash ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3);
        values.iter().fold(0xcbf2_9ce4_8422_2325, fold)
    };
    assert_eq!(hash(&ours), 0, "{:#x}", hash(&ours));
    assert_eq!(run("three", &[&wasm[..], &["--threads", "3"]].concat()).0, ours);
    let (portable, manifest) = run("portable", &["--cpu-kernel", "portable"]);
    assert_eq!((&manifest["backend"], manifest["card"].get("arithmetic")), (&"cpu".into(), None));
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let apart = square(&mut ours.iter().zip(&portable).map(|(a, b)| a - b));
    let distance = (apart / square(&mut portable.iter().copied())).sqrt();
    assert!(distance > 0.0 && distance <= 1e-5, "{distance:e}");

    let check = ok(&llama_trace(["check", "--format", "json"].iter().chain(&wasm)));
    let check: serde_json::Value = serde_json::from_str(&check).unwrap();
    let of_kernel = check["checks"].as_array().unwrap().iter().find(|check| check["name"] == "kernel:wasm");
    assert_eq!((&check["backend"], &of_kernel.unwrap()["bound"]), (&"cpu-wasm".into(), &0.0.into()));
    let screen = folder.path().join("screen.txt");
    let args = ["snapshot", "--prompt", PROMPT, "--size", "200x60", "--out", screen.to_str().unwrap()];
    ok(&llama_trace(args.iter().chain(&wasm)));
    let screen = fs::read_to_string(screen).unwrap();
    assert!(screen.lines().next().unwrap().contains("cpu-wasm · f32"), "{screen}");
    let log = |options: &[&str]| {
        stderr(&llama_trace(["log", "--prompt", "a", "--stage", "logits"].iter().chain(options)))
    };
    assert!(log(&wasm).contains("kernel wasm: it rounds each product") && log(&[]).is_empty());
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
