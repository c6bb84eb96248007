//! Error messages for the hub's refusals, with the next step for each.

use super::client::{Client, Failure};
use super::name::Name;
use super::settings::Settings;
use llama_trace_core::error::{Error, printable};
use llama_trace_core::stop;

/// The maximum number of characters of a server's message that are shown.
const SHOWN: usize = 300;

/// Returns the place of a failure for a message.
pub(super) fn place(client: &Client<'_>) -> String {
    let (settings, name) = client.asked();
    at(settings, name)
}

fn at(settings: &Settings, name: &Name) -> String {
    format!("{}/{name}", settings.endpoint)
}

/// Returns the error for a failed request or, after a stop request, the error for the interruption.
pub(super) fn report(failure: &Failure, client: &Client<'_>) -> Error {
    if let Err(interrupted) = stop::check() {
        return interrupted;
    }
    let (settings, name) = client.asked();
    let place = at(settings, name);
    let (status, code) = match failure {
        Failure::Unreachable(_) => {
            return Error::model("the hub cannot be reached")
                .at(place)
                .expected("an answer")
                .found(told(failure))
                .next("check the connection, HF_ENDPOINT and the proxy; a model in the cache opens with --offline");
        }
        Failure::Untrusted(_) => {
            return Error::model("the certificate of the hub, or of a server in its place, is not trusted")
                .at(place)
                .expected("a valid certificate for this server, of an authority that Mozilla or this machine trusts")
                .found(told(failure))
                .next("behind a proxy that inspects https, set SSL_CERT_FILE to the certificate (PEM) of the proxy's authority; otherwise check HF_ENDPOINT and the clock");
        }
        Failure::Strange(_) => {
            return Error::model("the answer is not in the hub's format")
                .at(place)
                .expected("an answer in the format of the Hugging Face hub")
                .found(told(failure))
                .next("check HF_ENDPOINT, or whether a proxy answers in the hub's place");
        }
        Failure::Refused { status, code, .. } => (*status, code.as_str()),
    };
    let log_in = "log in with `hf auth login` or set HF_TOKEN";
    let (what, expected, next) = match (status, code) {
        (_, "GatedRepo") => (
            "the repository is open only to accounts that its owners have approved".to_owned(),
            "an account with access".to_owned(),
            match settings.token {
                None => format!("accept its terms at {place}, then {log_in}"),
                Some(_) => {
                    format!("accept its terms at {place} with the account of this token, and wait for access")
                }
            },
        ),
        (_, "RevisionNotFound") => (
            format!("the repository has no revision `{}`", name.revision),
            "a branch, a tag or a commit".to_owned(),
            format!("leave out `@{}`, or look up the name at {place}/tree/main", name.revision),
        ),
        (401, _) if settings.token.is_some() => (
            "the hub does not accept the token, or has no such repository".to_owned(),
            "a token that is valid, and a repository that it may read".to_owned(),
            format!("check the name, or use another token: {log_in}"),
        ),
        (401 | 404, _) => (
            "there is no such path on this machine, and the hub has no such repository, or it is private"
                .to_owned(),
            "a path, or org/name[@revision]".to_owned(),
            format!("check the spelling; for a private repository, {log_in}"),
        ),
        (403, _) => (
            "access to the repository is denied".to_owned(),
            "an account with access".to_owned(),
            format!("request access at {place}, or use another account: {log_in}"),
        ),
        (429, _) => (
            "the hub received too many requests".to_owned(),
            "fewer requests".to_owned(),
            match settings.token {
                None => format!("wait some minutes; or {log_in}: the limit is then higher"),
                Some(_) => "wait some minutes".to_owned(),
            },
        ),
        _ => (
            "the hub failed".to_owned(),
            "the requested file".to_owned(),
            "try again later; a model in the cache opens with --offline".to_owned(),
        ),
    };
    Error::model(what).at(place).expected(expected).found(told(failure)).next(next)
}

/// Returns a description of the failure for the field `found` of an error.
pub(super) fn told(failure: &Failure) -> String {
    match failure {
        Failure::Unreachable(text) | Failure::Untrusted(text) | Failure::Strange(text) => shown(text),
        Failure::Refused { status, code, message } => {
            let words = [code, message].map(|text| shown(text));
            let words = words.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join(": ");
            if words.is_empty() { format!("status {status}") } else { format!("status {status}, {words}") }
        }
    }
}

/// Returns a server's text, printable and short.
fn shown(text: &str) -> String {
    let end = text.char_indices().nth(SHOWN).map_or(text.len(), |(end, _)| end);
    printable(&text[..end]).into_owned()
}
