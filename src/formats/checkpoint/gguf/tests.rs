mod families;

use proptest::prelude::*;

use super::*;
use crate::checkpoint::Weight;
use crate::checkpoint::names::LayerWeight as L;
use crate::files::gguf::build::{Build, LIST, TEXT, U32};
use llama_trace_core::config::{Pairing, RopeScaling};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::Tensor;

/// The keys of a model with one layer, width 4, two query heads and one kv head.
fn keys() -> Build {
    Build::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", 4)
        .u32("llama.feed_forward_length", 6)
        .u32("llama.attention.head_count", 2)
        .u32("llama.attention.head_count_kv", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
}

/// The tensors of this model, with a vocabulary of three tokens.
fn tensors(keys: Build) -> Build {
    keys.tensor("token_embd.weight", &[3, 4], 1.0)
        .tensor("blk.0.attn_norm.weight", &[4], 2.0)
        .tensor("blk.0.attn_q.weight", &[4, 4], 3.0)
        .tensor("blk.0.attn_k.weight", &[2, 4], 4.0)
        .tensor("blk.0.attn_v.weight", &[2, 4], 5.0)
        .tensor("blk.0.attn_output.weight", &[4, 4], 6.0)
        .tensor("blk.0.ffn_norm.weight", &[4], 7.0)
        .tensor("blk.0.ffn_gate.weight", &[6, 4], 8.0)
        .tensor("blk.0.ffn_down.weight", &[4, 6], 9.0)
        .tensor("blk.0.ffn_up.weight", &[6, 4], 10.0)
        .tensor("output_norm.weight", &[4], 11.0)
}

fn parse_bytes(bytes: &[u8]) -> Result<Checkpoint> {
    // Leaked, because `Bytes` needs a static lifetime; a few kilobytes in a test.
    parse(&Bytes::Static(Box::leak(bytes.to_vec().into_boxed_slice())), "test.gguf")
}

fn model(build: &Build) -> Checkpoint {
    parse_bytes(&build.bytes()).unwrap()
}

/// Checks that the file is rejected with a message that contains `part`.
fn refused(build: &Build, part: &str) {
    let text = parse_bytes(&build.bytes()).unwrap_err().to_string();
    assert!(text.contains(part), "`{part}` is not in\n{text}");
}

#[test]
fn a_model_is_opened_where_it_lies() {
    let model = model(&tensors(keys()));
    let config = &model.config;
    assert_eq!((config.head_dim, config.kv_heads, config.vocab, config.tied), (2, 1, 3, true));
    assert_eq!((config.pairing, config.rope_theta), (Pairing::Neighbours, 10000.0));
    assert_eq!(model.format.to_string(), "GGUF v3, F32");
    let first = |weight, shape: &[usize]| {
        f32::from_le_bytes(*model.tensor(weight, shape).unwrap().bytes().first_chunk().unwrap())
    };
    assert_eq!(first(Weight::Embedding, &[3, 4]), 1.0);
    assert_eq!(first(Weight::Head, &[3, 4]), 1.0);
    assert_eq!(first(Weight::Layer(0, L::W2), &[4, 6]), 9.0);
}

#[test]
fn version_2_has_the_same_layout() {
    let build = Build { version: 2, ..tensors(keys()) };
    assert_eq!(model(&build).format.to_string(), "GGUF v2, F32");
    for (version, part) in [(1, "version 1"), (4, "version 4"), (3_u32.swap_bytes(), "big-endian")] {
        refused(&Build { version, ..tensors(keys()) }, part);
    }
}

#[test]
fn keys_say_what_differs() {
    let build = tensors(keys())
        .tensor("output.weight", &[3, 4], 1.0)
        .tensor("blk.0.attn_q.bias", &[4], 1.0)
        .u32("llama.attention.key_length", 2)
        .u32("llama.rope.dimension_count", 2)
        .f32("llama.rope.freq_base", 5e5)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.eot_token_id", 1)
        .u32("tokenizer.ggml.eom_token_id", u32::MAX);
    let model = model(&build);
    assert_eq!(model.eos, [2, 1]);
    let config = &model.config;
    assert_eq!((config.tied, config.qkv_bias, config.mlp_bias, config.rope_theta), (false, true, false, 5e5));
    let text = model.tensor(Weight::Layer(0, L::Bk), &[2]).unwrap_err().to_string();
    assert!(text.contains("`blk.0.attn_k.bias`"), "{text}");
}

#[test]
fn a_vocabulary_gives_the_model_its_size() {
    let build = tensors(keys()).texts("tokenizer.ggml.tokens", &["a", "b"]);
    assert_eq!(model(&build).config.vocab, 2);
    assert_eq!(model(&build.u32("llama.vocab_size", 3)).config.vocab, 3);
}

#[test]
fn frequencies_are_divided() {
    let scaling = |build: Build| model(&build).config.rope_scaling;
    let linear =
        |build: Build| build.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 2.0);
    assert_eq!(scaling(tensors(keys())), RopeScaling::None);
    assert_eq!(scaling(linear(tensors(keys()))), RopeScaling::Linear { factor: 2.0 });
    let divided = || tensors(keys()).tensor("rope_freqs.weight", &[1], 8.0);
    assert_eq!(scaling(divided()), RopeScaling::Divisors([8.0].into()));
    assert_eq!(scaling(linear(divided())), RopeScaling::Divisors([16.0].into()));
    assert!(!model(&divided()).tensors().any(|(name, _)| name == "rope_freqs.weight"));

    refused(&tensors(keys()).tensor("rope_freqs.weight", &[2], 8.0), "F32 [1]");
    refused(&tensors(keys()).row("rope_freqs.weight", &[1], 26, 0), "I32");
    refused(&tensors(keys()).tensor("rope_freqs.weight", &[1], 0.0), "positive");
    refused(&tensors(keys()).text("llama.rope.scaling.type", "spiral"), "spiral");
    refused(&tensors(keys()).text("llama.rope.scaling.type", "longrope"), "rope_factors_long.weight");
    let yarn =
        |build: Build| build.text("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4.0);
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 16,
        attention_factor: (2.0 * (0.1 * 4_f64.ln() + 1.0)) as f32,
        truncate: true,
    };
    let yarned = yarn(tensors(keys())).u32("llama.rope.scaling.original_context_length", 16);
    assert_eq!(scaling(yarned.f32("llama.rope.scaling.attn_factor", 2.0)), expected);
    refused(&yarn(divided()), "divisors");
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    refused(&tensors(Build::new().text("general.architecture", "gpt2")), "`gpt2`");
    refused(&tensors(Build::new()), "architecture ``");
    refused(&tensors(keys()).text("general.type", "adapter"), "adapter");
    refused(&tensors(keys()).u32("llama.expert_count", 8), "mixtures of experts");
    refused(&tensors(keys()).u32("llama.rope.dimension_count", 4), "rope.dimension_count");
    refused(&tensors(keys()).u32("llama.attention.value_length", 4), "value_length");
    refused(&tensors(keys()).tensor("blk.0.attn_q_norm.weight", &[2], 1.0), "`blk.0.attn_q_norm.weight`");
    refused(&tensors(keys()).tensor("blk.1.attn_q.weight", &[4, 4], 1.0), "`blk.1.attn_q.weight`");
    refused(&keys(), "only a vocabulary");
    let model = model(&tensors(keys()).row("output.weight", &[256, 3], 16, 0));
    let text = model.tensor(Weight::Head, &[3, 256]).unwrap_err().to_string();
    assert!(text.contains("found: IQ2_XXS") && text.contains("Q4_K") && text.contains("MXFP4"), "{text}");
}

/// [`keys`] for another architecture.
fn keys_of(architecture: &str) -> Build {
    let mut build = Build::new().text("general.architecture", architecture);
    for (name, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 4),
        ("feed_forward_length", 6),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        build = build.u32(&format!("{architecture}.{name}"), value);
    }
    build.f32(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-6)
}

#[test]
fn a_qwen2_has_its_own_keys_and_pairing() {
    let config = model(&tensors(keys_of("qwen2"))).config;
    assert_eq!((config.pairing, config.qk_norm), (Pairing::Halves, false));
    refused(&tensors(keys_of("qwen2")).tensor("blk.0.attn_q_norm.weight", &[2], 1.0), "attn_q_norm");
}

#[test]
fn a_qwen3_has_norms_on_queries_and_keys() {
    let with = |build: Build, name: &str| build.tensor(&format!("blk.0.{name}.weight"), &[2], 1.0);
    let whole = with(with(tensors(keys_of("qwen3")), "attn_q_norm"), "attn_k_norm");
    let qwen3 = model(&whole);
    assert_eq!((qwen3.config.pairing, qwen3.config.qk_norm), (Pairing::Halves, true));
    assert_eq!(qwen3.tensor(Weight::Layer(0, L::KNorm), &[2]).unwrap().count(), 2);
    // The architecture decides, not the tensors: a missing tensor is an error.
    let half = model(&with(tensors(keys_of("qwen3")), "attn_q_norm"));
    let text = half.tensor(Weight::Layer(0, L::KNorm), &[2]).unwrap_err().to_string();
    assert!(half.config.qk_norm && text.contains("`blk.0.attn_k_norm.weight`"), "{text}");
}

#[test]
fn every_truncation_is_an_error() {
    let build = tensors(keys()).texts("tokenizer.ggml.tokens", &["a", "b", "c"]);
    let bytes = build.bytes();
    for length in 0..bytes.len() {
        parse_bytes(&bytes[..length]).unwrap_err();
    }
    parse_bytes(&bytes).unwrap();
}

#[test]
fn absurd_metadata_is_an_error() {
    let all = |build: Build, part: &str| refused(&tensors(build), part);
    for count in [u64::MAX, 1 << 63, 1 << 61, 1 << 40, 1 << 20] {
        all(keys().list("x", U32, count, &[0; 8]), "past the end");
        all(keys().list("x", TEXT, count, &[0; 8]), "past the end");
        all(keys().list("x", 7, count, &[0; 8]), "past the end");
        all(keys().raw("x", TEXT, &count.to_le_bytes()), "cut off");
        refused(&Build { claimed_keys: Some(count), ..tensors(keys()) }, "at most 65536 keys");
        refused(&Build { claimed_tensors: Some(count), ..tensors(keys()) }, "at most 65536 tensors");
    }
    refused(&Build { claimed_keys: Some(1 << 16), ..tensors(keys()) }, "");
    refused(&Build { claimed_tensors: Some(1 << 16), ..tensors(keys()) }, "");
    all(keys().list("x", LIST, 1, &[0; 12]), "array of arrays");
    all(keys().list("x", 13, 1, &[0; 12]), "unknown type");
    all(keys().raw("x", 13, &[0; 12]), "unknown type");
    all(keys().u32("llama.block_count", 1), "a key twice");
    all(keys().u32(&"x".repeat(70_000), 1), "at most 65535");
    for alignment in [0, 3, 33] {
        all(keys().u32("general.alignment", alignment), "a power of two");
    }
    all(keys().u32("general.alignment", 1 << 30), "past the end");
    all(keys().u32("general.alignment", 1 << 31), "below 2147483648");
    for (key, value) in
        [("llama.vocab_size", u32::MAX), ("llama.vocab_size", 1 << 30), ("llama.rope.freq_base", 0)]
    {
        all(keys().u32(key, value), "");
    }
    all(keys().text("llama.rope.freq_base", "10000"), "a number");
}

#[test]
fn absurd_tensors_are_errors() {
    let with = |name: &str, shape: &[u64], kind: u32, offset: u64, part: &str| {
        refused(&tensors(keys()).row(name, shape, kind, offset), part);
    };
    let head = "output.weight";
    for size in [u64::MAX, 1 << 63, 1 << 62, 1 << 40] {
        with(head, &[size], 0, 0, "");
        with(head, &[256, size], 14, 0, "");
        with(head, &[size, size, size, size], 1, 0, "");
    }
    with(head, &[4, 0], 0, 0, "at least 1");
    with(head, &[1, 1, 1, 1, 1], 0, 0, "at most 4 axes");
    with(head, &[4, 3], 0, u64::MAX - 31, "");
    with(head, &[4, 3], 0, 1 << 63, "");
    with(head, &[4, 3], 0, 1 << 40, "past the end");
    with(head, &[4, 3], 0, 16, "a multiple of 32");
    with(head, &[4, 3], 0, 0, "overlap");
    with(head, &[40, 3], 2, 0, "a multiple of 32");
    with(head, &[128, 3], 12, 0, "a multiple of 256");
    with("output_norm.weight", &[4], 0, 0, "is in the file twice");
    with("output_norm.weight", &[4], 16, 0, "is in the file twice");
}

/// Reads everything that a model and a tokenizer read from a file.
fn use_up(bytes: &[u8]) {
    let Ok(model) = parse_bytes(bytes) else { return };
    let (dim, vocab) = (model.config.dim, model.config.vocab);
    for weight in L::ALL {
        let _ = model.tensor(Weight::Layer(0, weight), &[dim, dim]).map(Tensor::count);
    }
    let _ = model.tensor(Weight::Head, &[vocab, dim]).map(Tensor::count);
    let _ = format!("{} {:?}", model.format, model.config);
}

#[test]
fn no_single_wrong_byte_is_a_panic() {
    let bytes = tensors(keys()).texts("tokenizer.ggml.tokens", &["a", "b", "c"]).bytes();
    let table = bytes.len() - 1000;
    for at in 0..table {
        for byte in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(1)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            use_up(&bytes);
        }
    }
}

proptest! {
    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut: prop::sample::Index,
    ) {
        let mut bytes = tensors(keys()).texts("tokenizer.ggml.tokens", &["a", "b", "c"]).bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len() - 800);
            bytes[at] = byte;
        }
        use_up(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        use_up(&bytes);
    }
}

#[test]
fn every_key_under_the_architectures_name_is_obeyed_harmless_or_refused() {
    use crate::checkpoint::fields::{Neutral, Rule, Source, TABLE};
    let plain = model(&tensors(keys()));
    for row in TABLE.iter().filter(|row| row.source == Source::Gguf) {
        for name in row.names {
            let key = format!("llama.{name}");
            let same = |build: Build| {
                let model = model(&tensors(build));
                assert_eq!((&model.config, &model.notes), (&plain.config, &plain.notes), "{key}");
            };
            match row.rule {
                Rule::Obeyed | Rule::Storage => {}
                Rule::Harmless => same(keys().f32(&key, 7.0)),
                Rule::Refused(neutral) => {
                    refused(&tensors(keys().f32(&key, 0.25)), &format!("`{key}`"));
                    refused(&tensors(keys().text(&key, "some")), &format!("--ignore-config {key}"));
                    refused(&tensors(keys().wholes(&key, &[0, 3])), "found: [0, 3]");
                    same(keys().flag(&key, neutral.contains(&Neutral::True)));
                    for neutral in neutral {
                        match neutral {
                            Neutral::Number(number) => same(keys().f32(&key, *number as f32)),
                            Neutral::Text(text) => same(keys().text(&key, text)),
                            Neutral::True => refused(&tensors(keys().flag(&key, false)), &format!("`{key}`")),
                        }
                    }
                }
            }
        }
    }
    refused(&tensors(keys().f32("llama.rope.another", 2.0)), "`llama.rope.another`");
    let model = model(&tensors(keys().text("llama.author", "x").text("other.rope.kind", "y").u32("rope", 3)));
    assert_eq!((model.notes.unknown, model.config), (vec!["llama.author".to_owned()], plain.config));
}

#[test]
fn a_key_can_be_ignored() {
    let bytes = tensors(keys().flag("llama.attention.causal", false)).bytes();
    let file = Bytes::Static(Box::leak(bytes.into_boxed_slice()));
    let open = |ignore: &str| {
        let mut header = header(&file, "test.gguf")?;
        let contents = tensors::read(&file, &header, "test.gguf")?;
        assemble("test".into(), &mut header, contents, 1, "test.gguf", &[ignore.to_owned()])
    };
    assert_eq!(open("llama.attention.causal").unwrap().notes.ignored, ["llama.attention.causal"]);
    for wrong in ["attention.causal", "llama.attention.causality", "general.architecture"] {
        assert_eq!(open(wrong).unwrap_err().exit_code(), 2, "{wrong}");
    }
}
