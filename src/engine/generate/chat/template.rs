//! A checkpoint's chat template: Jinja, with the settings of transformers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use chrono::NaiveDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use super::bounded::{self, Failure};
use super::{Message, now, python, source};
use llama_trace_core::error::{Error, Result, printable};

/// Llama 3's format, for a checkpoint that has Llama 3's special tokens but no template: a header with the role before
/// each message, and `<|eot_id|>` after it.
pub const LLAMA3: &str = "{{ '<|begin_of_text|>' }}{% for message in messages %}\
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}\
{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";

/// Llama 2's format: questions are in `[INST] … [/INST]`, with the system message inside the first question. Each
/// question with its answer is a separate text.
pub const LLAMA2: &str = "{% set rest = messages %}{% set system = '' %}\
{% if messages[0]['role'] == 'system' %}\
{% set system = '<<SYS>>\n' + messages[0]['content'] | trim + '\n<</SYS>>\n\n' %}{% set rest = messages[1:] %}\
{% endif %}{% for message in rest %}{% if message['role'] == 'user' %}\
{{ '<s>[INST] ' + (system if loop.first else '') + message['content'] | trim + ' [/INST]' }}\
{% else %}{{ ' ' + message['content'] | trim + ' </s>' }}{% endif %}{% endfor %}";

/// The maximum number of a template's characters that an error message quotes.
const SHOWN: usize = 300;

/// The template's name in its environment.
const NAME: &str = "chat_template";

/// A parsed template. The number of its steps and the length of its output are limited. The nesting depth of its steps
/// and the cost of a single step are not limited. So a template of unknown origin is parsed and rendered in a separate
/// process.
#[derive(Clone, Debug)]
pub struct Template {
    environment: Environment<'static>,
    /// The special tokens, by their names in the template: `bos_token` and so on.
    tokens: BTreeMap<String, String>,
    /// The place of the template, for error messages.
    place: String,
}

impl Template {
    /// Parses the template text that was found at `place`. `tokens` are the special tokens, by their names in
    /// templates: `bos_token`, `eos_token`.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the text is not a valid template.
    pub fn new(text: &str, place: &str, tokens: BTreeMap<String, String>) -> Result<Self> {
        let mut environment = Environment::new();
        let settings = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let settings = settings.map_err(|error| wrong(place, &error))?;
        environment.set_syntax(settings);
        python::extend(&mut environment);
        let source = source::rewrite(text).map_err(|found| refused(place, &found))?;
        environment.add_template_owned(NAME, source).map_err(|error| wrong(place, &error))?;
        let template = environment.get_template(NAME).map_err(|error| wrong(place, &error))?;
        let asked = template.undeclared_variables(false);
        if let Some(name) = python::UNKNOWN.iter().find(|name| asked.contains(**name)) {
            return Err(refused(place, &format!("`{name}`")));
        }
        Ok(Self { environment, tokens, place: place.into() }.at(now::now))
    }

    /// Returns the same template with another clock for `strftime_now`.
    #[must_use]
    pub fn at(mut self, now: impl Fn() -> NaiveDateTime + Send + Sync + 'static) -> Self {
        self.environment.add_function("strftime_now", move |format: &str| {
            let mut text = String::new();
            match write!(text, "{}", now().format(format)) {
                Ok(()) => Ok(text),
                Err(_) => {
                    let what = format!("strftime_now does not know the format {format:?}");
                    Err(minijinja::Error::new(ErrorKind::InvalidOperation, what))
                }
            }
        });
        self
    }

    /// Renders `messages` up to the beginning of the model's next answer.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if the template rejects the conversation, and [`Error::Model`] if it fails or does not
    /// end.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let mut context: BTreeMap<String, Value> =
            self.tokens.iter().map(|(name, token)| (name.clone(), Value::from(token))).collect();
        context.insert("messages".into(), Value::from(messages.iter().map(value).collect::<Vec<_>>()));
        context.insert("add_generation_prompt".into(), true.into());
        for absent in ["tools", "documents"] {
            context.insert(absent.into(), ().into());
        }
        let endless = |found: &str| {
            Error::model("the chat template does not end")
                .at(&self.place)
                .expected(
                    "a template that ends after a limited number of steps, with a text of limited length",
                )
                .found(shown(found))
                .next("fetch the file again, or put a working chat_template.jinja beside the model")
        };
        match bounded::render(self.environment.clone(), NAME, context, messages.len()) {
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| endless("an incomplete UTF-8 character")),
            Err(Failure::Endless(found)) => Err(endless(&found)),
            Err(Failure::Template(error)) => Err(self.failure(&error)),
        }
    }

    fn failure(&self, error: &minijinja::Error) -> Error {
        if let Some(python::Raised(message)) = cause(error) {
            return Error::prompt("the chat template refuses this conversation")
                .at(&self.place)
                .found(shown(message));
        }
        wrong(&self.place, error)
    }
}

/// Returns the error for a template that uses the unsupported feature `found`.
fn refused(place: &str, found: &str) -> Error {
    Error::model("the chat template uses an unsupported feature")
        .at(place)
        .expected("the features of Jinja and Python that published templates use")
        .found(shown(found))
        .next("put a template without this feature beside the model, as chat_template.jinja")
}

fn value(message: &Message) -> Value {
    Value::from_pairs([("role", message.role.name()), ("content", &message.content)])
}

/// Returns the cause of an error that is a `T`, if there is one.
fn cause<T: std::error::Error + 'static>(error: &minijinja::Error) -> Option<&T> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Makes a text printable and short, because errors may quote any length of a template.
fn shown(text: &str) -> String {
    let text = printable(text);
    let mut characters = text.chars();
    let mut shown: String = characters.by_ref().take(SHOWN).collect();
    shown.extend(characters.next().map(|_| '…'));
    shown
}

fn wrong(place: &str, error: &minijinja::Error) -> Error {
    let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
    Error::model("the chat template cannot be read")
        .at(format!("{place}{line}"))
        .expected("a Jinja template for chats, as transformers reads it")
        .found(shown(&error.to_string()))
        .next("fetch the file again, or put a working chat_template.jinja beside the model")
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    fn template(text: &str) -> Result<Template> {
        Template::new(text, "chat_template.jinja", BTreeMap::from([("bos_token".into(), "<s>".into())]))
    }

    fn messages() -> Vec<Message> {
        let message = |role, content: &str| Message { role, content: content.into() };
        vec![
            message(Role::System, "Be brief. "),
            message(Role::User, "Hi"),
            message(Role::Assistant, "Hello."),
            message(Role::User, "Why?"),
        ]
    }

    #[test]
    fn the_fallbacks_are_the_formats_of_the_papers_code() {
        assert_eq!(
            template(LLAMA2).unwrap().render(&messages()).unwrap(),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Why? [/INST]"
        );
        assert_eq!(
            template(LLAMA3).unwrap().render(&messages()[1..2]).unwrap(),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        );
    }

    #[test]
    fn a_hostile_template_is_an_error() {
        let render = |text: &str| template(text).and_then(|template| template.render(&messages()));
        let code = |text: &str| render(text).unwrap_err();
        for text in ["{% for", "{{ 1 + }}", "{% endif %}", "{{ nothing() }}", "{{ messages[0].a.b }}"] {
            assert_eq!(code(text).exit_code(), 3, "{text}");
        }
        let endless = [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% for a in range(9999) %}{{ 'x' * 1000000 }}{% endfor %}",
            "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        ];
        for text in endless {
            let error = code(text);
            assert_eq!(error.exit_code(), 3, "{text}: {error}");
        }
        for text in &endless[..2] {
            assert!(code(text).to_string().contains("does not end"), "{text}");
        }
        let refused = code("{{ raise_exception('no system here') }}");
        assert_eq!(refused.exit_code(), 4);
        assert!(refused.to_string().contains("no system here"), "{refused}");
        assert_eq!(code("{{ strftime_now('%Q') }}").exit_code(), 3);
        let nested = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
        assert_eq!(code(&nested).exit_code(), 3);
    }

    #[test]
    fn training_marks_are_passed_over() {
        let text = "{%- generation -%} {{ messages[1].content }}{% endgeneration %}{% if true %}{% endif %}.";
        assert_eq!(template(text).unwrap().render(&messages()).unwrap(), "Hi.");
    }
}
