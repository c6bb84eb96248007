//! `--device`: without a GPU, `cuda` is an error that says what was searched, and `auto` chooses the CPU.

use std::process::Output;

use super::{command, llama_trace, ok, stderr};

/// Runs without finding a GPU, even if the machine has one.
fn without_gpu<const N: usize>(args: [&str; N]) -> Output {
    command(args).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

#[test]
fn without_a_gpu_every_command_says_what_was_searched() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for (args, device) in [
        (&["--prompt", "Hello"][..], "cuda"),
        (&["--prompt", "Hello"], "cuda:3"),
        (&["log", "--prompt", "Hello"], "cuda"),
        (&["export", "--prompt", "Hello", "--out", out], "cuda"),
        (&["record", "--prompt", "Hello", "--out", out], "cuda"),
        (&["bench"], "cuda"),
        (&["check"], "cuda:0"),
        (&["lens", "--prompt", "Hello"], "cuda"),
        (&["explain", "p0/L0/xq[t=0]", "--prompt", "Hello"], "cuda"),
        (&["diff", "--prompt", "Hello", "--b", "precision=bf16"], "cuda"),
    ] {
        let args: Vec<&str> = args.iter().copied().chain(["--device", device]).collect();
        let output = command(&args).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("there is no CUDA dri") || said.contains("there is no CUDA dev"), "{said}");
        assert!(said.contains("expected: ") && said.contains("--device cpu"), "{said}");
        assert!(output.stdout.is_empty() && !said.contains("panicked"), "{said}");
    }
    assert!(!folder.path().join("out").exists(), "the output folder must not be created");
}

#[test]
fn without_a_driver_the_message_names_the_library() {
    let output = without_gpu(["--prompt", "Hello", "--device", "cuda"]);
    let said = stderr(&output);
    if !said.contains("there is no CUDA driver") {
        println!("skipped: there is a CUDA driver here");
        return;
    }
    assert!(said.contains("libcuda.so.1") || cfg!(windows), "{said}");
    assert!(said.contains("found: none of these"), "{said}");
}

#[test]
fn without_a_gpu_auto_chooses_the_cpu_silently() {
    let run = |device: &[&str]| {
        let args: Vec<&str> = ["--prompt", "Hello", "-n", "8"].iter().chain(device).copied().collect();
        let output = command(args).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        assert_eq!(stderr(&output), "");
        ok(&output)
    };
    let cpu = run(&["--device", "cpu"]);
    assert_eq!((run(&[]), run(&["--device", "auto"])), (cpu.clone(), cpu));
}

#[test]
fn an_invalid_device_is_a_usage_error() {
    for device in ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", ""] {
        let output = llama_trace(["--prompt", "Hello", "--device", device]);
        assert_eq!(output.status.code(), Some(2), "{device}");
        assert!(stderr(&output).contains("auto, cpu, cuda or cuda:N is expected"), "{}", stderr(&output));
    }
    let output = llama_trace(["diff", "--prompt", "Hello", "--b", "device=gpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there is no device `gpu`"), "{}", stderr(&output));
}
