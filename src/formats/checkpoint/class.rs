//! The class of transformers under which a model was saved.

use std::fmt;

use serde_json::Value;

use crate::files::printable;

/// A class that is not a language model: one with another head on the same layers, or without a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    name: String,
    /// A description of the class.
    kind: &'static str,
    /// The name of its head's weight. `None` if it has no head or an unknown one.
    head: Option<&'static str>,
}

impl Class {
    /// The class in a configuration's `architectures`. `None` if it is a language model or not given.
    pub(super) fn of(architectures: Option<&Value>) -> Option<Self> {
        let names: Vec<&str> = architectures?.as_array()?.iter().filter_map(Value::as_str).collect();
        if names.iter().any(|name| name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel")) {
            return None;
        }
        let name = *names.first()?;
        let (kind, head) = match name.split_once("For") {
            None if name.ends_with("Model") => ("a model without a head", None),
            Some((_, "SequenceClassification")) => ("a classifier of texts", Some("score.weight")),
            Some((_, "TokenClassification")) => ("a classifier of tokens", Some("score.weight")),
            Some((_, "QuestionAnswering")) => {
                ("a model that marks answers in a text", Some("qa_outputs.weight"))
            }
            _ => ("a model with another head", None),
        };
        Some(Self { name: name.into(), kind, head })
    }

    /// The name of its head's weight, if it is known.
    pub(super) fn head(&self) -> Option<&'static str> {
        self.head
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, {}", printable(&self.name), self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_class_is_told_from_language_models() {
        let told = |architectures: Value| Class::of(Some(&architectures)).map(|class| class.to_string());
        for none in [json!(null), json!([]), json!(["LlamaForCausalLM"]), json!("LlamaModel"), json!([3])] {
            assert_eq!(told(none.clone()), None, "{none}");
        }
        assert_eq!(told(json!(["A", "MistralForCausalLM"])), None);
        for (name, kind) in [
            ("LlamaForSequenceClassification", "a classifier of texts"),
            ("Qwen3ForTokenClassification", "a classifier of tokens"),
            ("LlamaForQuestionAnswering", "a model that marks answers in a text"),
            ("MistralModel", "a model without a head"),
            ("MistralForReward", "a model with another head"),
            ("Eagle", "a model with another head"),
        ] {
            assert_eq!(told(json!([name])).unwrap(), format!("`{name}`, {kind}"));
        }
    }
}
