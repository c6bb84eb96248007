//! The parts of known architectures that this program does not compute, for messages.

/// Parts of `model_type`, and the part of the model that is not supported. The first that occurs counts.
const PARTS: &[(&str, &str)] = &[
    ("mamba", "Mamba layers"),
    ("falcon_h1", "Mamba layers"),
    ("zamba", "Mamba layers"),
    ("jamba", "Mamba layers and experts"),
    ("bamba", "Mamba layers"),
    ("hybrid", "Mamba layers"),
    ("nemotron_h", "Mamba layers"),
    ("qwen3_next", "gated DeltaNet layers and experts"),
    ("qwen3_5", "gated DeltaNet layers"),
    ("kimi_linear", "gated DeltaNet layers and experts"),
    ("olmo_hybrid", "gated DeltaNet layers"),
    ("deepseek", "multi-head latent attention (MLA)"),
    ("kimi", "multi-head latent attention (MLA)"),
    ("minicpm3", "multi-head latent attention (MLA)"),
    ("glm4_moe_lite", "multi-head latent attention (MLA)"),
    ("mistral4", "multi-head latent attention (MLA)"),
    ("gemma3n", "keys and values shared by layers"),
    ("gemma4", "keys and values shared by layers"),
    ("moe", "experts"),
    ("mixtral", "experts"),
    ("gpt_oss", "experts"),
    ("llama4", "experts"),
    ("dbrx", "experts"),
    ("grok", "experts"),
    ("rwkv", "a recurrent network"),
    ("recurrent_gemma", "a recurrent network"),
];

/// The unsupported part of models with this `model_type`, if it is known.
pub(super) fn part(model_type: &str) -> Option<&'static str> {
    PARTS.iter().find(|(name, _)| model_type.contains(name)).map(|(_, part)| *part)
}
