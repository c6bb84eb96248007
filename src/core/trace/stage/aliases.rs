//! The names of the stages in other code.

use super::{Aliases, Stage};
use crate::config::{Activation, ModelConfig, Placement};

impl Stage {
    /// Its names in other code, for a model with this configuration. The names of the table are those for Llama.
    pub fn aliases(self, config: &ModelConfig) -> Aliases {
        let mut names = self.info().aliases;
        match self {
            Self::FfnUp | Self::FfnAct | Self::FfnHidden => self.name_neurons(config, &mut names),
            _ => self.name_norms(config, &mut names),
        }
        names
    }

    /// The names inside the feed-forward network. llama.cpp (`build_ffn` in `llama-graph.cpp`) multiplies SiLU or GELU by
    /// the other branch in one operation, so the activation itself has no name there. TransformerLens names only the
    /// input of the activation and the input of the last projection.
    fn name_neurons(self, config: &ModelConfig, names: &mut Aliases) {
        use Activation::{Gelu, GeluTanh, Relu2, Silu, Xielu};
        match (self, config.ungated) {
            (Self::FfnUp, true) => names.transformer_lens = "mlp.hook_pre",
            (Self::FfnAct, false) => names.transformer_lens = "",
            (Self::FfnAct, true) => {
                names.llama_cpp = match config.activation {
                    Silu => "ffn_silu-L",
                    Gelu | GeluTanh => "ffn_gelu-L",
                    Relu2 => "ffn_sqr(relu)-L",
                    Xielu => "ffn_xielu-L",
                }
            }
            (Self::FfnHidden, _) => {
                names.llama_cpp = match config.activation {
                    Silu => "ffn_swiglu-L",
                    Gelu | GeluTanh => "ffn_geglu-L",
                    Relu2 | Xielu => "",
                }
            }
            _ => {}
        }
    }

    /// The modules of transformers around the second residual, which follow from the places of the norms.
    fn name_norms(self, config: &ModelConfig, names: &mut Aliases) {
        names.hugging_face = match (config.placement, self) {
            (Placement::After, Self::AttnResidual) => "input of mlp",
            (Placement::Parallel, Self::AttnResidual) => "",
            (Placement::Both, Self::AttnResidual) => {
                "input of pre_feedforward_layernorm, in GLM-4 of post_attention_layernorm"
            }
            (Placement::Both, Self::FfnNorm) => {
                "pre_feedforward_layernorm, in GLM-4 post_attention_layernorm"
            }
            (Placement::Both, Self::PostAttnNorm) => {
                "post_attention_layernorm, in GLM-4 post_self_attn_layernorm"
            }
            (Placement::Both, Self::PostFfnNorm) => "post_feedforward_layernorm, in GLM-4 post_mlp_layernorm",
            _ => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in a one-layer model that `change` adapts.
    fn names(stage: Stage, change: impl FnOnce(&mut ModelConfig)) -> Aliases {
        let mut config = ModelConfig::of_heads(2, 1, 4);
        change(&mut config);
        stage.aliases(&config)
    }

    #[test]
    fn llama_has_the_names_of_the_table() {
        for &stage in Stage::ALL.iter().filter(|stage| **stage != Stage::FfnAct) {
            assert_eq!(names(stage, |_| {}), stage.info().aliases, "{stage}");
        }
    }

    #[test]
    fn llama_cpp_names_the_hidden_values_by_their_activation() {
        let hidden = |activation| names(Stage::FfnHidden, |c| c.activation = activation).llama_cpp;
        assert_eq!(hidden(Activation::Silu), "ffn_swiglu-L");
        assert_eq!([Activation::Gelu, Activation::GeluTanh].map(hidden), ["ffn_geglu-L"; 2]);
        let act =
            |activation| names(Stage::FfnAct, |c| (c.activation, c.ungated) = (activation, true)).llama_cpp;
        assert_eq!([Activation::Relu2, Activation::Xielu].map(act), ["ffn_sqr(relu)-L", "ffn_xielu-L"]);
        assert_eq!(names(Stage::FfnAct, |c| c.activation = Activation::GeluTanh).llama_cpp, "");
    }

    #[test]
    fn transformer_lens_names_what_the_last_projection_reads() {
        let hook = |stage, ungated| {
            let of = |c: &mut ModelConfig| (c.activation, c.ungated) = (Activation::Relu2, ungated);
            names(stage, of).transformer_lens
        };
        assert_eq!(
            [Stage::FfnGate, Stage::FfnUp].map(|s| hook(s, false)),
            ["mlp.hook_pre", "mlp.hook_pre_linear"]
        );
        assert_eq!([Stage::FfnAct, Stage::FfnHidden].map(|s| hook(s, false)), ["", "mlp.hook_post"]);
        assert_eq!([Stage::FfnUp, Stage::FfnAct].map(|s| hook(s, true)), ["mlp.hook_pre", "mlp.hook_post"]);
    }

    #[test]
    fn the_norms_have_the_names_of_their_places() {
        let module = |stage, placement| names(stage, |c| c.placement = placement).hugging_face;
        assert_eq!(module(Stage::FfnNorm, Placement::Before), "post_attention_layernorm");
        assert!(module(Stage::FfnNorm, Placement::Both).starts_with("pre_feedforward_layernorm"));
        assert_eq!(module(Stage::AttnResidual, Placement::After), "input of mlp");
    }
}
