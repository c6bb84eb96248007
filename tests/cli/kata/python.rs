//! The programs of the fixtures, run by Python.

use std::fs;
use std::path::Path;

use super::{kata, python_with_numpy};

fn run(python: &str, stage: &str, function: &str) -> super::End {
    let folder = tempfile::tempdir().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/kata/{stage}.py"));
    let command = format!("'{python}' -B '{}' {function}", path.display());
    kata(&[stage, "--run", &command, "--seed", "5"], folder.path())
}

#[test]
fn programs_in_python_are_judged_on_both_models() {
    let Some(python) = python_with_numpy() else { return };
    for (stage, function) in [
        ("rms_norm", "plain"),
        ("rope", "halves"),
        ("softmax", "plain"),
        ("logits", "matmul"),
        ("argmax", "plain"),
        ("attention", "plain"),
        ("quantize", "half_to_even"),
    ] {
        let end = run(&python, stage, function);
        assert_eq!(end.code, Some(0), "{stage}: {}{}", end.stdout, end.stderr);
        assert!(end.stdout.contains(&format!("{stage}: correct in")), "{}", end.stdout);
    }
    for (stage, function, sentence) in [
        ("rms_norm", "no_mean", "you divided by √Σx², not by √(Σx²/D)"),
        ("rope", "interleaved", "you paired other components for RoPE"),
        ("repeat_kv", "tile", "query head h reads another kv head"),
        ("softmax", "no_maximum", "∞ / ∞ is NaN"),
    ] {
        let end = run(&python, stage, function);
        assert_eq!(end.code, Some(1), "{stage}: {}", end.stdout);
        assert!(
            end.stdout.contains(sentence) && end.stderr.contains("where: "),
            "{}{}",
            end.stdout,
            end.stderr
        );
    }
}

#[test]
fn a_whole_pass_of_programs_writes_the_models_text() {
    let Some(python) = python_with_numpy() else { return };
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kata");
    let folder = tempfile::tempdir().unwrap();
    let finish = |stage: &str, function: &str| {
        let text = format!(
            "import sys\nsys.dont_write_bytecode = True\nsys.path.insert(0, {:?})\nsys.argv[1:] = [{function:?}, sys.argv[1]]\nimport {stage}\n",
            fixtures.to_str().unwrap()
        );
        // The name of a file is that of its stage, so the import needs another one.
        let text = text.replace(
            &format!("import {stage}\n"),
            &format!(
                "import runpy\nrunpy.run_path({:?}, run_name='__main__')\n",
                fixtures.join(format!("{stage}.py")).to_str().unwrap()
            ),
        );
        fs::write(folder.path().join(format!("{stage}.py")), text).unwrap();
    };
    finish("logits", "matmul");
    finish("argmax", "plain");
    let dir = folder.path().to_str().unwrap();
    let args = ["all", "--dir", dir, "--run-with", &python, "-n", "2"];
    let end = kata(&args, folder.path());
    assert_eq!(end.code, Some(0), "{}{}", end.stdout, end.stderr);
    assert!(end.stdout.contains("every stage of yours is right"), "{}", end.stdout);
    finish("logits", "by_root_of_d");
    finish("rms_norm", "gemma");
    let end = kata(&args, folder.path());
    assert_eq!(end.code, Some(1), "{}{}", end.stdout, end.stderr);
    assert!(end.stderr.contains("p0/L0/attn_norm") && end.stderr.contains("1 + weight"), "{}", end.stderr);
}
