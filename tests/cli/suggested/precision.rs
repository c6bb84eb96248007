//! The precision in a suggested map.

use super::*;

#[test]
fn a_coarser_precision_is_proposed_where_the_values_show_it() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    for precision in ["bf16", "q8"] {
        let own = folder.path().join(precision);
        let args = ["export", "--ids", IDS, "--precision", precision, "--out", own.to_str().unwrap()];
        ok(&llama_trace(args));
        fs::remove_file(own.join("manifest.json")).unwrap();
        let proposed =
            || ok(&llama_trace(["diff".as_ref(), a.as_os_str(), own.as_os_str(), "--suggest-map".as_ref()]));
        let map = proposed();
        assert!(map.contains(&format!("precision = \"{precision}\"  # ")), "{map}");
        assert!(!map.contains("precision = \"q8\"  # not sure"), "{map}");
        if precision == "q8" {
            // Without the int8 values, no file shows the int8 precision.
            for layer in 0..4 {
                for stage in ["attn_norm", "attn_heads", "ffn_norm", "ffn_hidden"] {
                    fs::remove_file(own.join(format!("pass_000/layer_{layer:02}/{stage}_q8.npy"))).unwrap();
                }
            }
            fs::remove_file(own.join("pass_000/final_norm_q8.npy")).unwrap();
            assert!(proposed().contains("precision = \"f32\"  # not sure"), "{}", proposed());
        }
    }
}

/// All files are rounded to float16, which is finer than bfloat16. So the map must not say that only the residual
/// stream is rounded.
#[test]
fn a_float16_run_with_float32_logits_is_recognised() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let own = folder.path().join("own");
    renamed(&b, &own, 4, OPAQUE);
    for entry in fs::read_dir(&own).unwrap().map(Result::unwrap) {
        if entry.file_name() != "z.npy" {
            let mut bytes = fs::read(entry.path()).unwrap();
            for value in bytes[128..].chunks_exact_mut(4) {
                let rounded = half::f16::from_f32(f32::from_le_bytes(value.try_into().unwrap())).to_f32();
                value.copy_from_slice(&rounded.to_le_bytes());
            }
            fs::write(entry.path(), bytes).unwrap();
        }
    }
    let map = propose(&a, &own);
    assert!(
        map.contains("precision = \"f16\"  # not sure: every value has this precision except the logits"),
        "{map}"
    );
    fs::write(own.join("capture.toml"), &map).unwrap();
    assert_eq!(first(&[a, own], &fixture("builtin")).0, 0, "{map}");
}

/// Correct runs in bfloat16 with float32 logits. Their other files have only stages that some bfloat16 runs round and
/// others do not.
#[test]
fn a_bfloat16_run_with_few_files_passes() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    let sixteen = folder.path().join("sixteen");
    let args = ["export", "--model", model.to_str().unwrap(), "--precision", "bf16", "--ids", ids, "--out"];
    ok(&llama_trace(args.into_iter().chain([sixteen.to_str().unwrap()])));
    let schemes: [(&str, Scheme); 5] = [
        ("embedding", &[("embedding", "emb"), ("logits", "logits")]),
        ("softmax", &[("softmax", "p{l}"), ("logits", "logits")]),
        ("rope", &[("rope_cos", "cos"), ("rope_sin", "sin"), ("logits", "logits")]),
        ("all", &[("embedding", "e"), ("softmax", "p{l}"), ("rope_cos", "cos"), ("logits", "logits")]),
        ("none", &[("embedding", "e"), ("softmax", "p{l}")]),
    ];
    for (name, scheme) in schemes {
        let own = folder.path().join(name);
        renamed(&sixteen, &own, 3, scheme);
        // Simulates a runtime that stores cos, sin, attention weights and the embedding in the number type of the
        // model.
        let files = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|file| !file.ends_with("logits.npy")).for_each(|file| round(&file));
        if let Ok(mut bytes) = fs::read(own.join("logits.npy")) {
            bytes[128..].chunks_exact_mut(4).for_each(|value| value[0] ^= 1);
            fs::write(own.join("logits.npy"), bytes).unwrap();
        }
        let map = propose(&a, &own);
        assert!(map.contains("precision = \"bf16\"  # not sure: "), "{name}: {map}");
        fs::write(own.join("capture.toml"), &map).unwrap();
        for model in [&["--model", model.to_str().unwrap()][..], &[]] {
            let (code, report) = diff(&[a.clone(), own.clone()], model);
            assert_eq!((code, &*address(&report)), (0, "same"), "{name}: {report}\n{map}");
        }
    }
    // The folder also has a stage that every bfloat16 run rounds. It is not rounded here, so the run was in float32,
    // and only its angles were rounded.
    let own = folder.path().join("exact");
    let some: Scheme =
        &[("embedding", "e"), ("attn_norm", "n{l}"), ("rope_cos", "cos"), ("logits", "logits")];
    renamed(&a, &own, 3, some);
    round(&own.join("cos.npy"));
    let map = propose(&a, &own);
    assert!(map.contains("precision = \"f32\""), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, names) = first(&[a.clone(), own], &model);
    assert_eq!((code, &*address), (1, "p0/rope_cos"), "{map}");
    assert!(names.contains("bf16_rounding"), "{names}");
    // The embedding has 16 bits in the reference too, so it does not show the precision of the run.
    let own = folder.path().join("table");
    renamed(&a, &own, 3, &[("embedding", "e"), ("logits", "logits")]);
    round(&own.join("e.npy"));
    let b = exported(&model, ids, folder.path().join("b"));
    fs::copy(own.join("e.npy"), b.join("pass_000/embedding.npy")).unwrap();
    skew(&own.join("logits.npy"));
    assert!(propose(&b, &own).contains("precision = \"f32\""));
}

/// Rounds a file's values to bfloat16.
fn round(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    for value in bytes[128..].chunks_exact_mut(4) {
        let rounded = half::bf16::from_f32(f32::from_le_bytes(value.try_into().unwrap())).to_f32();
        value.copy_from_slice(&rounded.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_16_bit_residual_stream_in_a_float32_run_does_not_pass() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let own = folder.path().join("own");
    renamed(&b, &own, 4, &[("ffn_residual", "h{l}"), ("logits", "logits")]);
    (0..4).for_each(|layer| round(&own.join(format!("h{layer}.npy"))));
    let map = propose(&a, &own);
    assert!(map.contains("precision = \"f32\"  # the residual stream is rounded to bf16"), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    for model in [&["--model", fixture("builtin").to_str().unwrap()][..], &[]] {
        let (code, report) = diff(&[a.clone(), own.clone()], model);
        let address = report["first"]["address"].as_str().unwrap_or("same");
        assert!(code == 1 && address.starts_with("p0/L0/ffn_residual["), "{report}\n{map}");
    }
    // A run that rounds every result except logits, attention weights and angles is a 16-bit run.
    let sixteen = folder.path().join("sixteen");
    ok(&llama_trace(["export", "--ids", IDS, "--precision", "bf16", "--out", sixteen.to_str().unwrap()]));
    for (name, scheme) in [
        ("two", &[("ffn_residual", "h{l}"), ("logits", "logits")][..]),
        (
            "more",
            &[
                ("ffn_residual", "h{l}"),
                ("attn_norm", "n{l}"),
                ("softmax", "p{l}"),
                ("rope_cos", "cos"),
                ("logits", "logits"),
            ],
        ),
    ] {
        let own = folder.path().join(name);
        let scheme: Scheme = scheme;
        renamed(&sixteen, &own, 4, scheme);
        for file in ["logits", "p0", "p1", "p2", "p3"].map(|file| own.join(format!("{file}.npy"))) {
            if let Ok(mut bytes) = fs::read(&file) {
                bytes[128..].chunks_exact_mut(4).for_each(|value| value[0] ^= 1);
                fs::write(file, bytes).unwrap();
            }
        }
        let map = propose(&a, &own);
        assert!(
            map.contains(
                "precision = \"bf16\"  # not sure: every value has this precision except the logits"
            ),
            "{map}"
        );
        fs::write(own.join("capture.toml"), &map).unwrap();
        assert_eq!(first(&[a.clone(), own], &fixture("builtin")).0, 0, "{map}");
    }
}
