//! Fuzzes parsing a chat template, and rendering it within its limits.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use llama_trace::generate::chat::{Message, Role, Template};

fuzz_target!(|text: &str| {
    let tokens = BTreeMap::from([("bos_token".into(), "<s>".into()), ("eos_token".into(), "</s>".into())]);
    let Ok(template) = Template::new(text, "chat_template.jinja", tokens) else { return };
    let message = |role, content: &str| Message { role, content: content.into() };
    let _ = template.render(&[
        message(Role::System, "Be brief."),
        message(Role::User, " Hi <|eot_id|>\n"),
        message(Role::Assistant, "Hello."),
        message(Role::User, "Why?"),
    ]);
});
