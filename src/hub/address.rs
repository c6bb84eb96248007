//! Web addresses: their server, the target of a redirect, and percent-encoding.

use std::fmt::Write;

use ureq::http::Uri;

/// Scheme, host and port. Two addresses have the same server if all three are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) secure: bool,
    host: String,
    port: u16,
}

/// Returns the server of an address; `None` if it is not a web address.
pub(super) fn origin(url: &str) -> Option<Origin> {
    let uri: Uri = url.parse().ok()?;
    let secure = match uri.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
    Some(Origin { secure, host, port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }) })
}

/// Returns the target of a redirect from `url` to `location`. `None` for a redirect from https to http.
pub(super) fn follow(url: &str, location: &str) -> Option<String> {
    let from = origin(url)?;
    let scheme = if from.secure { "https" } else { "http" };
    let next = if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        let authority = url.parse::<Uri>().ok()?.authority()?.to_string();
        format!("{scheme}://{authority}{location}")
    } else {
        location.to_owned()
    };
    (origin(&next)?.secure || !from.secure).then_some(next)
}

/// Percent-encodes `text` as a part of an address; keeps `/`.
pub(super) fn path(text: &str) -> String {
    text.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Percent-encodes `text` as one part of an address, between two `/`.
pub(super) fn part(text: &str) -> String {
    text.bytes().fold(String::new(), |mut part, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            part.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(part, "%{byte:02X}");
        }
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_is_not_another() {
        let same = |a: &str, b: &str| origin(a).unwrap() == origin(b).unwrap();
        assert!(same("https://huggingface.co/a", "https://HuggingFace.co:443/b?c"));
        for other in
            ["http://huggingface.co", "https://huggingface.co:8443", "https://huggingface.co.evil.org"]
        {
            assert!(!same("https://huggingface.co", other), "{other}");
        }
        assert!(same("https://evil.org/", "https://huggingface.co@evil.org/"));
        assert!(origin("file:///etc/passwd").is_none() && origin("huggingface.co").is_none());
    }

    #[test]
    fn redirects_lead_where_they_say() {
        let from = "https://a.org:1/x/y?z";
        assert_eq!(follow(from, "/b?c").as_deref(), Some("https://a.org:1/b?c"));
        assert_eq!(follow(from, "//b.org/c").as_deref(), Some("https://b.org/c"));
        assert_eq!(follow(from, "https://b.org/c").as_deref(), Some("https://b.org/c"));
        assert_eq!(follow("http://a.org", "http://b.org/c").as_deref(), Some("http://b.org/c"));
        for wrong in ["http://a.org:1/x", "file:///etc/passwd", "y", ""] {
            assert_eq!(follow(from, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(path("a b/ü.gguf"), "a%20b/%C3%BC.gguf");
        assert_eq!(part("refs/pr/1"), "refs%2Fpr%2F1");
    }
}
