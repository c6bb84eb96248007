//! Memory that the system refuses: one message says what the memory was for, and no signal ends the program.

use std::process::{Command, Output};

use super::{models, stderr};

/// Address space of a run, in KiB.
const LIMIT: usize = 4 << 20;

/// Runs a small model with this much memory at most. The model's configuration has a context of 10^9 tokens.
fn limited(args: &[&str]) -> Output {
    let model = models::golden("gqa", |_| {});
    models::edit_json(&model.path().join("config.json"), |config| {
        config["max_position_embeddings"] = 1_000_000_000_u64.into();
    });
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {LIMIT}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_llama-trace")]);
    shell.args(args).arg("--model").arg(model.path()).env("RAYON_NUM_THREADS", "2").output().unwrap()
}

fn assert_refused(output: &Output, what: &str) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("error: there is not enough memory"), "{said}");
    assert!(said.contains(&format!("where: {what}")), "{said}");
    assert!(
        said.contains("expected: room for ") && said.contains(" bytes") && said.contains("next: "),
        "{said}"
    );
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
}

#[test]
fn a_cache_that_does_not_fit_is_refused_with_its_size() {
    let output = limited(&["--ids", "1,2", "-n", "900000000"]);
    assert_refused(&output, "the KV cache for 900000002 tokens");
}

#[test]
fn buffers_of_a_pass_that_do_not_fit_are_refused_with_their_size() {
    let output = limited(&["bench", "--prompt-tokens", "4000000", "--cached", "1", "--gen", "0"]);
    assert_refused(&output, "the buffers of a pass over 4000000 tokens");
}
