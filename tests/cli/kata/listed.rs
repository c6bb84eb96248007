//! The list of stages and the skeletons.

use std::fs;
use std::process::Command;

use super::{kata, python_with_numpy};
use llama_trace::kata::{KATAS, Language, skeleton};

#[test]
fn the_list_has_every_stage_with_its_shapes_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let end = kata(&[], folder.path());
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    let mut rest = &end.stdout[..];
    for kata in KATAS {
        let (_, after) =
            rest.split_once(&format!("  {} ", kata.name)).unwrap_or_else(|| panic!("{}", kata.name));
        let mut lines = after.lines();
        assert!(lines.next().unwrap().contains(kata.about), "{}", kata.name);
        assert!(lines.next().unwrap().ends_with(&format!("→ {}", kata.output)), "{}", kata.name);
        rest = after;
    }
    assert!(rest.contains("It does not use "), "{rest}");
    assert!(end.stdout.lines().all(|line| line.chars().count() <= 80), "{}", end.stdout);
    let end = kata(&["softmx"], folder.path());
    assert_eq!(end.code, Some(2));
    assert!(end.stderr.contains("`softmx`") && end.stderr.contains("llama-trace kata"), "{}", end.stderr);
    // A stage of the pass is the kata that computes it.
    assert_eq!(kata(&["attn_norm"], folder.path()).stdout, kata(&["rms_norm"], folder.path()).stdout);
}

#[test]
fn each_skeleton_has_its_inputs_numbers_and_formula() {
    for kata in KATAS {
        for language in [Language::Python, Language::Rust] {
            let text = skeleton(kata, language);
            for port in kata.inputs {
                assert!(text.contains(&format!("{}.npy", port.name)) && text.contains(port.shape), "{text}");
            }
            assert!(
                kata.numbers.iter().all(|number| text.contains(&format!("\"{}\"", number.name()))),
                "{text}"
            );
            assert!(text.contains("out.npy") && text.contains(kata.output), "{text}");
        }
    }
}

#[test]
fn the_skeletons_in_rust_compile_and_those_in_python_run_up_to_the_part_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let python = python_with_numpy();
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    for (number, one) in KATAS.iter().enumerate() {
        let path = folder.path().join(format!("{}.py", one.name));
        fs::write(&path, skeleton(one, Language::Python)).unwrap();
        // A few show what all have in common.
        if let Some(python) = python.as_ref().filter(|_| number % 8 == 1) {
            let run = format!("{python} '{}'", path.display());
            let end = kata(&[one.name, "--run", &run], folder.path());
            assert_eq!(end.code, Some(1), "{}", end.stderr);
            let expected = format!("NotImplementedError: write {} here", one.name);
            assert!(end.stderr.contains(&expected), "{}", end.stderr);
        }
        if number % 6 == 0 {
            let path = folder.path().join(format!("{}.rs", one.name));
            fs::write(&path, skeleton(one, Language::Rust)).unwrap();
            let args = ["--edition", "2021", "--emit", "metadata", "--out-dir"];
            let output = Command::new(&rustc).args(args).arg(folder.path()).arg(&path).output();
            let Ok(output) = output else {
                println!("skipped: there is no {rustc}");
                return;
            };
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
