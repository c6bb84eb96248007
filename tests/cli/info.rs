//! `info`: the description of a model.

use super::common::{fixture, llama_trace, stderr};
use super::ok;

#[test]
fn info_shows_the_configuration_and_every_tensor() {
    let text = ok(&llama_trace(["info"]));
    for expected in [
        "grouped-query attention",
        "halves (i, i + C/2)",
        "model.embed_tokens.weight",
        "BF16",
        "parameters",
        "KV cache",
        "full trace",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let tied = ok(&llama_trace(["info", "--model", fixture("golden/tied_llama3").to_str().unwrap()]));
    assert!(tied.contains("llama3, factor 5") && tied.contains("none: give prompts as --ids"), "{tied}");
}

/// One line names the kind of model at a path, in every command that can name one.
#[test]
fn a_named_model_is_recognised_in_one_line() {
    let directory = fixture("golden/gqa");
    let model = directory.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let ids = ["--ids", "1,2", "-n", "1", "--model", model, "--precision", "bf16"];
    for command in [&[][..], &["log"], &["export", "--out", out.to_str().unwrap()]] {
        let output = llama_trace([command, &ids].concat());
        ok(&output);
        let told = stderr(&output);
        let lines: Vec<_> = told.lines().filter(|line| line.contains("Hugging Face directory")).collect();
        let [line] = lines[..] else { panic!("{command:?}: {told}") };
        assert!(line.starts_with("gqa (") && line.ends_with("precision bf16"), "{line}");
    }
}

#[test]
fn info_lists_the_memory_of_the_tracer_and_sizes_are_checked() {
    let text = ok(&llama_trace(["info"]));
    for part in [
        "at most 1GiB of stage values (--memory)",
        "in addition to the weights, the KV cache and the buffers of a pass",
        "KV cache",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    for (size, why) in [("64", "KiB, MiB or GiB"), ("1MiB", "at least 16MiB"), ("1.5GiB", "a whole number")] {
        let output = llama_trace(["--memory", size, "--step"]);
        assert_eq!(output.status.code(), Some(2), "{size}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}
