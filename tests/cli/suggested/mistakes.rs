//! Suggested maps for ports with a mistake: the stage with the mistake must be in the map, and `diff` must find the
//! mistake.

use super::*;

/// A change of a model's tensors, which simulates a mistake in reading them.
type Mistake = (&'static str, fn(&mut crate::models::Tensors));

/// Mistakes in the golden GQA model that show first in a single stage.
const MISTAKES: [Mistake; 7] = [
    ("values' weights are read transposed", |tensors| transpose(tensors, "v_proj")),
    ("queries' weights are read transposed", |tensors| transpose(tensors, "q_proj")),
    ("gate and up stand for each other", |tensors| swap(tensors, "gate_proj", "up_proj")),
    ("keys and values stand for each other", |tensors| swap(tensors, "k_proj", "v_proj")),
    ("the first norm has no weight", |tensors| scale(tensors, "input_layernorm", |_| 1.0)),
    ("the second norm is one too large", |tensors| scale(tensors, "post_attention_layernorm", |x| x + 1.0)),
    ("attention's output is off in the second layer", |tensors| {
        scale(tensors, "layers.1.self_attn.o_proj", |x| -x);
    }),
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn scale(tensors: &mut crate::models::Tensors, part: &str, change: fn(f32) -> f32) {
    for (_, (_, bytes)) in tensors.iter_mut().filter(|(name, _)| name.contains(part)) {
        *bytes = floats(bytes).into_iter().flat_map(|x| change(x).to_le_bytes()).collect();
    }
}

fn transpose(tensors: &mut crate::models::Tensors, part: &str) {
    for (_, (shape, bytes)) in tensors.iter_mut().filter(|(name, _)| name.contains(part)) {
        let (values, [rows, columns]) = (floats(bytes), [shape[0], shape[1]]);
        let at = |i: usize| values[i % columns * rows + i / columns];
        *bytes = (0..values.len()).flat_map(|i| at(i).to_le_bytes()).collect();
    }
}

fn swap(tensors: &mut crate::models::Tensors, one: &str, other: &str) {
    let names: Vec<String> = tensors.keys().filter(|name| name.contains(one)).cloned().collect();
    for name in names {
        let [a, b] = [&name, &name.replace(one, other)].map(|name| tensors[name].clone());
        tensors.insert(name.replace(one, other), a);
        tensors.insert(name, b);
    }
}

#[test]
fn the_proposed_map_gives_the_same_first_stage_as_the_correct_map() {
    let ids = "1,5,9,13,17,21";
    let model = fixture("golden/gqa");
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    for (number, (mistake, change)) in MISTAKES.into_iter().enumerate() {
        let wrong = crate::models::golden("gqa", change);
        for (at, scheme) in [OUTPUTS, FROM_ONE, STATES, PARTS, OPAQUE, NORMS].into_iter().enumerate() {
            let b = exported(wrong.path(), ids, folder.path().join(format!("b{number}{at}")));
            let own = folder.path().join(format!("own{number}{at}"));
            renamed(&b, &own, 3, scheme);
            few(&b, ids, scheme);
            let map = propose(&a, &own);
            fs::write(own.join("capture.toml"), &map).unwrap();
            let right = first(&[a.clone(), b], &model);
            let (code, report) = diff(&[a.clone(), own], &["--model", model.to_str().unwrap()]);
            let found = address(&report);
            assert_eq!((right.0, code), (1, 1), "{mistake}");
            // If the names of the files say nothing, a neighbouring stage may be as likely as the wrong stage. Then the
            // note names both stages.
            let stage = right.1.rsplit('/').next().unwrap();
            let names_both = |note: &serde_json::Value| {
                let note = note.as_str().unwrap();
                note.starts_with("unsure between ") && note.contains(stage)
            };
            let is_told = [OPAQUE, NORMS].contains(&scheme)
                && report["notes"].as_array().unwrap().iter().any(names_both);
            assert!(found == right.1 || is_told, "{mistake}, {}: {report}\n{map}", scheme[0].1);
        }
    }
}

/// Asserts that `diff` finds the mistake of a port at `expected`, with the correct map and with the suggested map. The
/// port's files have the names in `scheme`.
fn held(change: fn(&mut crate::models::Tensors), scheme: Scheme, expected: &str) {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    let wrong = crate::models::golden("gqa", change);
    let b = exported(wrong.path(), ids, folder.path().join("b"));
    let own = folder.path().join("own");
    renamed(&b, &own, 3, scheme);
    few(&b, ids, scheme);
    assert_eq!(first(&[a.clone(), b], &model).1, expected);
    let map = propose(&a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, _) = first(&[a, own], &model);
    assert_eq!((code, &*address), (1, expected), "{map}");
}

/// Asserts that `diff` finds the mistake of a port at `expected` with the correct map. With the suggested map, it finds
/// the mistake there too, or says that it is unsure about this stage. The port's files have the names in `scheme`.
fn told(a: &Path, b: &Path, model: &Path, scheme: Scheme, expected: &str) {
    let folder = TempDir::new().unwrap();
    let own = folder.path().join("own");
    renamed(b, &own, 3, scheme);
    let right = folder.path().join("right");
    (0..3).for_each(|layer| fs::create_dir_all(right.join(format!("pass_000/layer_{layer:02}"))).unwrap());
    for (stage, name) in scheme {
        let layer = if name.contains("{l}") { "layer_0{l}/" } else { "" };
        renamed(b, &right, 3, &[(stage, &format!("pass_000/{layer}{stage}"))]);
    }
    let map = "format = \"llama-trace capture\"\nversion = 1\nprecision = \"f32\"\n";
    let map = format!("{map}passes = [{{ start = 0, tokens = [1,5,9,13,17,21] }}]\n");
    fs::write(right.join("capture.toml"), map).unwrap();
    let (code, address, names) = first(&[a.to_owned(), right], model);
    assert_eq!((code, &*address), (1, expected), "the right map: {names}");
    let map = propose(a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, report) = diff(&[a.to_owned(), own], &["--model", model.to_str().unwrap()]);
    let stage = expected.rsplit('/').next().unwrap();
    let is_named = |note: &serde_json::Value| {
        let between = note.as_str().unwrap().strip_prefix("unsure between ");
        between.is_some_and(|note| note.split([' ', ',', ':']).any(|word| word == stage))
    };
    let is_unsure = report["notes"].as_array().unwrap().iter().any(is_named);
    assert_eq!(code, 1, "{report}\n{map}");
    assert!(self::address(&report) == expected || is_unsure, "{expected}: {report}\n{map}");
}

/// Tests mistakes that give a stage the values of another stage. The values alone would assign its file to the other
/// stage, and `diff` would blame a later stage. So the map must name both stages.
#[test]
fn a_file_with_the_values_of_another_stage_is_unsure() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    // Simulates a port without RoPE: all angles are close to 0.
    let still = crate::models::golden("gqa", |_| {});
    crate::models::edit_json(&still.path().join("config.json"), |config| {
        config["rope_parameters"] = json!({"rope_type": "linear", "factor": 1e9, "rope_theta": 2000.0});
    });
    let still = exported(still.path(), ids, folder.path().join("still"));
    told(&a, &still, &model, OPAQUE, "p0/L0/xq_rope");
    told(
        &a,
        &still,
        &model,
        &[("xq_rope", "ja{l}"), ("attn_output", "jb{l}"), ("logits", "jc")],
        "p0/L0/xq_rope",
    );
    let keys: Scheme = &[("xk", "ja{l}"), ("xk_rope", "jb{l}"), ("ffn_norm", "jc{l}"), ("logits", "jd")];
    told(&a, &still, &model, keys, "p0/L0/xk_rope");
    // Exchanges keys and values, and later gate and up.
    let swapped = |one: &'static str, other: &'static str| {
        let wrong = crate::models::golden("gqa", |tensors| swap(tensors, one, other));
        exported(wrong.path(), ids, folder.path().join(one))
    };
    let kv = swapped("k_proj", "v_proj");
    let both: Scheme = &[("xk", "ja{l}"), ("xv", "jb{l}"), ("xk_rope", "jc{l}"), ("logits", "jd")];
    told(&a, &kv, &model, both, "p0/L0/xk");
    let named: Scheme = &[("xk", "L{l}K"), ("xv", "L{l}V"), ("xk_rope", "L{l}KRope"), ("logits", "jd")];
    told(&a, &kv, &model, named, "p0/L0/xk");
    let gates: Scheme =
        &[("ffn_gate", "ja{l}"), ("ffn_silu", "jd{l}"), ("ffn_up", "jb{l}"), ("ffn_hidden", "jc{l}")];
    told(&a, &swapped("gate_proj", "up_proj"), &model, gates, "p0/L0/ffn_gate");
    // Leaves the activation out: its file has the values of the gate, and all later stages are wrong.
    let wrong = crate::models::golden("gqa", |tensors| scale(tensors, "down_proj", |x| x * -3.0));
    let silent = exported(wrong.path(), ids, folder.path().join("silent"));
    for layer in 0..3 {
        let at = |stage: &str| silent.join(format!("pass_000/layer_0{layer}/{stage}.npy"));
        fs::copy(at("ffn_gate"), at("ffn_silu")).unwrap();
        skew(&at("ffn_hidden"));
    }
    told(&a, &silent, &model, gates, "p0/L0/ffn_silu");
    let alone: Scheme = &[("ffn_silu", "jd{l}"), ("ffn_hidden", "jc{l}"), ("logits", "je")];
    told(&a, &silent, &model, alone, "p0/L0/ffn_silu");
    // Does not add the output of the second layer's feed-forward network to the residual stream.
    let bare = exported(wrong.path(), ids, folder.path().join("bare"));
    for entry in fs::read_dir(a.join("pass_000/layer_00")).unwrap().map(Result::unwrap) {
        for layer in ["layer_00", "layer_01"] {
            let name = PathBuf::from("pass_000").join(layer).join(entry.file_name());
            fs::copy(a.join(&name), bare.join(&name)).unwrap();
        }
    }
    let [given, sum] =
        ["ffn_down", "ffn_residual"].map(|stage| bare.join(format!("pass_000/layer_01/{stage}.npy")));
    fs::copy(given, sum).unwrap();
    let sums: Scheme =
        &[("attn_residual", "ja{l}"), ("ffn_norm", "jb{l}"), ("ffn_residual", "jc{l}"), ("logits", "jd")];
    told(&a, &bare, &model, sums, "p0/L1/ffn_residual");
}

/// Queries and keys that are both shifted by one position have the same scores, so the stages after them do not show
/// the mistake.
#[test]
fn queries_and_keys_rotated_by_the_same_wrong_angle_keep_their_stages() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| exported(&model, ids, folder.path().join(name)));
    let files =
        (0..3).flat_map(|layer| ["xq_rope", "xk_rope"].map(|stage| format!("layer_0{layer}/{stage}.npy")));
    for file in files.map(|file| b.join("pass_000").join(file)) {
        let bytes = fs::read(&file).unwrap();
        let mut values = floats(&bytes[128..]);
        for head in values.chunks_exact_mut(8) {
            for i in 0..4 {
                let (sin, cos) = 2000_f32.powf(-(i as f32) / 4.0).sin_cos();
                (head[i], head[i + 4]) =
                    (head[i] * cos - head[i + 4] * sin, head[i] * sin + head[i + 4] * cos);
            }
        }
        let values = values.into_iter().flat_map(f32::to_le_bytes);
        fs::write(file, bytes[..128].iter().copied().chain(values).collect::<Vec<u8>>()).unwrap();
    }
    let named: Scheme =
        &[("xq_rope", "q_rot{l}"), ("xk_rope", "k_rot{l}"), ("scores", "qk{l}"), ("logits", "logits")];
    told(&a, &b, &model, named, "p0/L0/xq_rope");
    let opaque: Scheme = &[("xq", "ja{l}"), ("xq_rope", "jb{l}"), ("xk_rope", "jc{l}"), ("logits", "jd")];
    told(&a, &b, &model, opaque, "p0/L0/xq_rope");
}

/// After some mistakes, no file is similar to a stage. Then all lines of the map are comments, and no file is left out.
#[test]
fn families_without_similar_values_are_listed_as_comments() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    let wrong = crate::models::golden("gqa", |tensors| swap(tensors, "k_proj", "v_proj"));
    let b = exported(wrong.path(), ids, folder.path().join("b"));
    let own = folder.path().join("own");
    let some: Scheme = &[
        ("attn_heads", "ja{l}"),
        ("ffn_hidden", "jb{l}"),
        ("attn_residual", "jc{l}"),
        ("ffn_residual", "jd{l}"),
    ];
    renamed(&b, &own, 3, some);
    let map = propose(&a, &own);
    for file in ["ja{layer}.npy", "jb{layer}.npy", "jc{layer}.npy", "jd{layer}.npy"] {
        assert!(map.lines().any(|line| line.starts_with("# ") && line.contains(file)), "{map}");
    }
    fs::write(own.join("capture.toml"), &map).unwrap();
    let output = llama_trace(["diff".as_ref(), a.as_os_str(), own.as_os_str()]);
    assert_eq!(output.status.code(), Some(2), "{map}");
}

/// Files whose names join several words, with or without capitals.
#[test]
fn joined_words_in_a_name_decide_the_stage_after_a_mistake() {
    let camel: Scheme = &[
        ("attn_residual", "layer{l}AfterAttn"),
        ("ffn_norm", "ffnNorm{l}"),
        ("ffn_down", "ffnDown{l}"),
        ("ffn_residual", "blockOut{l}"),
        ("logits", "lmHead"),
    ];
    let capitals: Scheme = &[
        ("attn_norm", "L{l}_ATTNNORM"),
        ("attn_residual", "L{l}_RESID1"),
        ("ffn_up", "L{l}_FFNUP"),
        ("ffn_down", "L{l}_FFNDOWN"),
        ("logits", "LOGITS"),
    ];
    let joined: Scheme = &[("ffn_down", "ffndown_{l}"), ("attn_output", "attnout_{l}"), ("logits", "logits")];
    let down = |tensors: &mut crate::models::Tensors| scale(tensors, "down_proj", |x| x * -3.0);
    for scheme in [camel, capitals, joined] {
        held(down, scheme, "p0/L0/ffn_down");
    }
    held(|tensors| swap(tensors, "gate_proj", "up_proj"), capitals, "p0/L0/ffn_up");
}

/// A norm does not depend on the length of its input. So a correct norm does not show that the input's length is
/// correct.
#[test]
fn a_file_with_the_direction_of_a_stage_is_this_stage_at_any_length() {
    let scheme =
        &[("embedding", "vocab.output_0"), ("attn_norm", "in.{l}.output_0"), ("logits", "lm.output_0")];
    held(|tensors| scale(tensors, "embed_tokens", |x| x * 5.0), scheme, "p0/embedding");
}

/// One family of files has the embedding and the output of each layer. A family that begins with the embedding is not
/// the output of a sublayer.
#[test]
fn a_family_that_begins_with_the_embedding_is_the_residual_stream() {
    let scheme = &[("embedding", "state_0"), ("ffn_residual", "state_{m}")];
    let loud = |tensors: &mut crate::models::Tensors| scale(tensors, "up_proj", |x| x * -40.0);
    held(loud, scheme, "p0/L0/ffn_residual");
}

/// Each name has two numbers. The number with which most files fit is the layer's.
#[test]
fn the_layers_number_has_the_same_place_in_all_names_of_a_family() {
    let scheme =
        &[("attn_output", "branch1_{l}"), ("ffn_down", "branch2_{l}"), ("ffn_residual", "stream_{l}")];
    let last = |tensors: &mut crate::models::Tensors| scale(tensors, "layers.2.self_attn.o_proj", |x| -x);
    held(last, scheme, "p0/L2/attn_output");
}

/// With a wrong θ, a stage after RoPE is correct only at the first token. So a file with one correct row is assigned to
/// a stage after RoPE.
#[test]
fn a_file_that_is_correct_only_at_the_first_token_is_after_rope() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    let b = with_setting(&folder, "rope_theta", 500_000.0, &[]);
    let own = folder.path().join("own");
    renamed(
        &b,
        &own,
        4,
        &[("xq_rope", "a{l}"), ("xk_rope", "b{l}"), ("attn_output", "e{l}"), ("logits", "z")],
    );
    let map = propose(&a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, _) = first(&[a, own], &fixture("builtin"));
    assert_eq!((code, &*address), (1, "p0/L0/xq_rope"), "{map}");
}

/// The final norm was left out. Its file has the output of the last layer, and no later stage shows the mistake.
#[test]
fn a_final_norm_that_is_left_out_does_not_pass() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let states: Scheme = &[("embedding", "hidden_states.0"), ("ffn_residual", "hidden_states.{m}")];
    let norms: Scheme = &[("attn_norm", "blockA.{l}"), ("ffn_norm", "blockB.{l}")];
    let named: Scheme = &[("attn_norm", "n1.{l}"), ("ffn_norm", "n2.{l}")];
    for (name, scheme, last) in
        [("states", states, None), ("norms", norms, Some("blockC")), ("named", named, Some("model_norm_out"))]
    {
        let own = folder.path().join(name);
        renamed(&b, &own, 4, scheme);
        if let Some(last) = last {
            fs::copy(b.join("pass_000/layer_03/ffn_residual.npy"), own.join(format!("{last}.npy"))).unwrap();
        }
        let map = propose(&a, &own);
        fs::write(own.join("capture.toml"), &map).unwrap();
        let (code, report) = diff(&[a.clone(), own], &["--model", fixture("builtin").to_str().unwrap()]);
        assert_eq!((code, &*address(&report)), (1, "p0/final_norm"), "{report}\n{map}");
        assert!(report["diagnosis"].to_string().contains("norm_missing"), "{report}");
        let is_unsure = report["notes"].to_string().contains("unsure between final_norm and ffn_residual");
        assert_eq!(is_unsure, name != "named", "{report}\n{map}");
    }
    // The wrong logits follow from this file, so the map does not call it an embedding, whatever its name is.
    for name in ["last_hidden_state", "z"] {
        let own = folder.path().join(format!("logits of {name}"));
        renamed(&b, &own, 4, &[("logits", "logits")]);
        skew(&own.join("logits.npy"));
        fs::copy(b.join("pass_000/layer_03/ffn_residual.npy"), own.join(format!("{name}.npy"))).unwrap();
        let map = propose(&a, &own);
        fs::write(own.join("capture.toml"), &map).unwrap();
        let (code, report) = diff(&[a.clone(), own], &["--model", fixture("builtin").to_str().unwrap()]);
        assert_eq!((code, &*address(&report)), (1, "p0/final_norm"), "{report}\n{map}");
    }
    // These names do not say whether the last state is normalised. The map takes it as the output of the last layer,
    // and says what is wrong if it should be the output of the final norm.
    let own = folder.path().join("others");
    renamed(&b, &own, 4, &[("embedding", "state_0"), ("ffn_residual", "state_{m}")]);
    let map = propose(&a, &own);
    assert!(map.contains("leaves that norm out"), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    // All compared stages are equal, so there is no difference. The report names the stages in which a mistake would
    // not show.
    let folders = [a.clone(), own];
    let beyond = "a mistake in these stages would not show, because they are not compared, and no compared stage depends on them: p0/final_norm, p0/logits";
    for model in [&["--model", fixture("builtin").to_str().unwrap()][..], &[]] {
        let (code, report) = diff(&folders, model);
        assert_eq!((code, &*address(&report)), (0, "same"), "{map}");
        assert!(report["notes"].to_string().contains(beyond), "{report}");
    }
    let text = ok(&llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]));
    assert!(text.contains(beyond), "{text}");
    // If the logits are present and correct, all stages before them are correct.
    let own = folder.path().join("whole");
    renamed(&b, &own, 4, &[("embedding", "state_0"), ("logits", "logits")]);
    fs::write(own.join("capture.toml"), propose(&a, &own)).unwrap();
    let (code, report) = diff(&[a, own], &[]);
    assert_eq!((code, &report["notes"]), (0, &json!([])), "{report}");
}

/// A wrong θ in a port that writes only the outputs of layers.
#[test]
fn a_mistake_in_every_layer_is_named_from_layer_outputs_alone() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    for (theta, setting) in [(500_000.0, OUTPUTS), (100.0, FROM_ONE), (1e6, STATES)] {
        let b = with_setting(&folder, "rope_theta", theta, &[]);
        let own = folder.path().join(format!("own{theta}"));
        renamed(&b, &own, 4, setting);
        fs::remove_dir_all(&b).unwrap();
        fs::remove_dir_all(folder.path().join("model-rope_theta")).unwrap();
        let map = propose(&a, &own);
        fs::write(own.join("capture.toml"), &map).unwrap();
        let (code, address, names) = first(&[a.clone(), own], &fixture("builtin"));
        assert_eq!((code, &*address), (1, "p0/L0/ffn_residual"), "{map}");
        assert!(names.contains("rope_theta"), "{names}\n{map}");
    }
}
