//! Chat templates that would crash the process, and lines that no model could read.

use std::fs;
use std::path::Path;
use std::process::Output;

use super::common::{fixture, stderr, stdout};
use super::{SOFTMAX, answers, bare_model, chat, chat_with};

/// Templates that need unlimited stack, memory or time, and would end the process. They have a value that contains
/// itself, endless syntax, or a few bytes that make texts and lists of any size.
fn hostile() -> Vec<(&'static str, String)> {
    let nested =
        |open: &str, close: &str, count| format!("{{{{ {}1{} }}}}", open.repeat(count), close.repeat(count));
    let grown = |step: &str| {
        format!(
            "{{% set n = namespace(x='xy', l=[1]) %}}{{% for a in range(99) %}}{{% set {step} %}}{{% endfor %}}{{{{ n.x }}}}"
        )
    };
    let mut all = vec![
        ("a namespace that holds itself", "{% set n = namespace() %}{% set n.x = n %}{{ n }}".into()),
        ("tojson of a cycle", "{% set n = namespace() %}{% set n.x = [n] %}{{ n | tojson }}".into()),
        ("20,000 minus signs", nested("-", "", 20_000)),
        ("20,000 times not", nested("not ", "", 20_000)),
        ("20,000 brackets", nested("[", "]", 20_000)),
        ("20,000 blocks", "{% if 1 %}".repeat(20_000) + &"{% endif %}".repeat(20_000)),
        ("a chain of filters", format!("{{{{ 1{} }}}}", "|abs".repeat(100_000))),
        ("a sum of 200,000", format!("{{{{ 1{} }}}}", "+1".repeat(200_000))),
        ("a text that doubles", grown("n.x = n.x ~ n.x")),
        ("a list in a list", LISTS.into()),
        ("a name of 900,000", format!("{{{{ 1 | {} }}}}", "x".repeat(900_000))),
        ("a text in an error", format!("{{{{ '{}' + 1 }}}}", "x".repeat(900_000))),
        ("a macro in itself", "{% macro f(x) %}{{ f([x]) }}{{ f([x]) }}{% endmacro %}{{ f(1) }}".into()),
    ];
    for expression in [
        "'{:>1000000000000}'.format(1)",
        "'{:.1000000000000f}'.format(1.5)",
        "'{:>1000000000}'.format(1)",
        "'a\nb' | indent(60000000000)",
        "'%1099511627776d' | format(1)",
        "'%1099511627776d' % 1",
        "'x' * 1000000000000",
        "[1] * 1000000000000",
        "'x' | center(1000000000000)",
        "'x'.ljust(1000000000000)",
        "'x'.zfill(1000000000000)",
        "range(1000000000000) | list",
        "range(1000000000000) | join('xxxxxxxx')",
        "[1] | batch(1000000000000, 'x') | list",
        "[1] | slice(1000000000000, 'x') | list",
        "('x' * 9000000).replace('', 'y' * 9000000)",
        "('x' * 9000000) | replace('x', 'y' * 9000000)",
        "(['y' * 900000] * 900000) | join",
        "(('x' * 9000000) | list | tojson(indent=16) | list | tojson(indent=16)) * 99",
        "10 ** 10 ** 10 ** 10",
    ] {
        all.push((expression, format!("{{{{ {expression} }}}}")));
    }
    all
}

/// Lists nested 180,000 deep.
const LISTS: &str = "{% set n = namespace(l=[]) %}{% for a in range(9000) %}{% for b in range(20) %}\
{% set n.l = [n.l] %}{% endfor %}{% endfor %}{{ n.l }}";

/// Runs a chat of a model with this template on these lines.
fn with(folder: &Path, template: &str, lines: &str) -> Output {
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
    chat_with(folder, lines)
}

#[test]
fn no_template_ends_the_program_and_the_message_is_short() {
    let folder = bare_model();
    for (name, template) in hostile() {
        let output = with(folder.path(), &template, "x\n");
        let message = stderr(&output);
        assert!(message.len() < 2048, "{name}: {} bytes", message.len());
        if output.status.success() && ["20,000", "a chain"].iter().any(|long| name.starts_with(long)) {
            // This template succeeded: an even number of minus signs cancels out.
            continue;
        }
        assert_eq!(output.status.code(), Some(3), "{name}: {message}");
        for text in ["error: the chat template ", "chat_template.jinja", "next: "] {
            assert!(message.contains(text), "{name}: `{text}` is not in {message}");
        }
    }
}

#[test]
fn a_chat_goes_on_after_a_line_that_the_template_refuses() {
    let folder = bare_model();
    let own = fs::read_to_string(fixture("builtin/chat_template.jinja")).unwrap();
    for (expression, said) in [
        ("'{:>1000000000000}'.format(1)", "the chat template takes too much time or memory"),
        ("'x' | indent(60000000000, true)", "a width that is too large"),
        ("n", "type map written as text"),
    ] {
        let template = format!(
            "{{% if messages[-1].content == 'bad' %}}{{% set n = namespace() %}}{{% set n.x = n %}}{{{{ {expression} }}}}{{% endif %}}{own}"
        );
        let line = "What does softmax do?\n";
        let output = with(folder.path(), &template, &format!("{line}bad\n/reset\n{line}"));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(4), "{expression}: {message}");
        assert_eq!(stdout(&output), format!("{SOFTMAX}\n").repeat(2), "{expression}: {message}");
        assert!(message.contains(said), "{expression}: {message}");
        assert!(message.contains("1 of the lines") && message.len() < 2048, "{expression}: {message}");
    }
}

/// Before the template runs, the program marks the names of special tokens in the line. These marks make the line
/// longer.
#[test]
fn a_line_of_megabytes_of_special_tokens_is_too_long() {
    let line = "What does softmax do?\n";
    let eots = "<|eot_id|>".repeat((8 << 20) / 10);
    let longer = "x".repeat((8 << 20) + 10);
    for long in [&eots, &longer, "\u{fdd0}"] {
        let output = chat(&[], &format!("{line}{long}\n/reset\n{line}"));
        let message = stderr(&output);
        if long.len() > 9 {
            assert_eq!(output.status.code(), Some(4), "{message}");
            assert!(message.contains("longer than") && message.len() < 2048, "{message}");
            assert_eq!(
                stdout(&output),
                answers(&[], &format!("{line}/reset\n{line}")),
                "the other lines are answered"
            );
        }
    }
}

#[test]
fn the_rendering_process_is_not_in_the_help() {
    let help = super::common::llama_trace(["--help"]);
    assert!(!stdout(&help).contains("render"), "{}", stdout(&help));
    // Without a request on standard input, the process prints nothing.
    let output = super::common::llama_trace(["__render-chat-template"]);
    assert_eq!((stdout(&output), output.status.code()), (String::new(), Some(1)));
}
