//! The architectures of GGUF files, each in one row: its family, the components that RoPE rotates together, the keys that
//! only some architectures have, and the tensors that are stored together.
//!
//! Files store norms as 1 + w where the family adds 1, and permuted rows of queries and keys in some architectures.

use super::{
    Family, LayerWeight as L, Pairing, Renames, Stored, cohere, gemma, glm, llama, mistral, olmo, others,
    qwen,
};
use Pairing::{Halves, Neighbours};

/// An architecture.
#[derive(Debug)]
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// The family of its models.
    pub family: &'static Family,
    /// The pairing of the query and key rows in its files.
    pub pairing: Pairing,
    /// The keys that it reads and others do not, without the architecture's name.
    pub keys: &'static [&'static str],
    /// The tensors that are stored together.
    pub stored: &'static [Stored],
    /// The names of tensors that differ from those of most architectures.
    pub names: Renames,
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const fn row(
    name: &'static str,
    family: &'static Family,
    pairing: Pairing,
    keys: &'static [&'static str],
    stored: &'static [Stored],
) -> Architecture {
    Architecture { name, family, pairing, keys, stored, names: &[] }
}

/// Keys of architectures with a window.
const WINDOW: [&str; 3] =
    ["attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"];
const GATE_UP: Stored = Stored::Fused("ffn_up.weight", &[L::W1, L::W3]);

/// All architectures. Where several families share one, the family is the one with a window.
#[rustfmt::skip]
pub const ARCHITECTURES: &[Architecture] = &[
    row("llama", &llama::LLAMA, Neighbours, &[], &[]),
    row("qwen2", &qwen::QWEN2, Halves, &[], &[]),
    row("qwen3", &qwen::QWEN3, Halves, &[], &[]),
    row("gemma", &gemma::GEMMA, Halves, &[], &[]),
    row("gemma2", &gemma::GEMMA2, Halves,
        &[WINDOW[0], WINDOW[1], WINDOW[2], "attn_logit_softcapping", "final_logit_softcapping"], &[]),
    row("gemma3", &gemma::GEMMA3, Halves, &[WINDOW[0], WINDOW[1], WINDOW[2], "final_logit_softcapping"], &[]),
    row("smollm3", &llama::SMOLLM3, Neighbours, &[], &[]),
    row("olmo2", &olmo::OLMO3, Halves, &WINDOW, &[]),
    row("phi3", &others::PHI3, Halves, &[WINDOW[0]],
        &[Stored::Fused("attn_qkv.weight", &[L::Wq, L::Wk, L::Wv]), GATE_UP]),
    row("granite", &llama::GRANITE, Neighbours,
        &["logit_scale", "residual_scale", "embedding_scale", "attention.scale"], &[]),
    row("mistral3", &mistral::MINISTRAL3, Neighbours, &["attention.temperature_scale",
        "rope.scaling.yarn_log_multiplier"], &[]),
    row("chatglm", &glm::GLM, Neighbours, &[], &[GATE_UP, Stored::Fused("attn_qkv.weight", &[L::Wq, L::Wk, L::Wv]),
        Stored::Fused("attn_qkv.bias", &[L::Bq, L::Bk, L::Bv])]),
    row("glm4", &glm::GLM4, Neighbours, &[], &[GATE_UP]),
    row("command-r", &cohere::COHERE, Neighbours, &["logit_scale", "attention.layer_norm_epsilon"], &[]),
    row("cohere2", &cohere::COHERE2, Neighbours, &[WINDOW[0], WINDOW[1], "logit_scale", "attention.layer_norm_epsilon"], &[]),
    row("ernie4_5", &llama::ERNIE4_5, Neighbours, &[], &[]),
    row("exaone4", &others::EXAONE4, Halves, &[WINDOW[0], WINDOW[1]], &[]),
    Architecture { names: &[(L::FfnNorm, "post_attention_norm.weight")],
        ..row("seed_oss", &llama::SEED_OSS, Halves, &[], &[]) },
    row("hunyuan-dense", &qwen::HUNYUAN, Halves, &[], &[]),
    row("apertus", &others::APERTUS, Halves, &[], &[]),
    row("arcee", &llama::ARCEE, Neighbours, &[], &[]),
    row("stablelm", &others::STABLELM, Halves, &["use_parallel_residual", "attention.layer_norm_epsilon"], &[]),
];
