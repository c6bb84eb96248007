//! A link to a place: the part of the page's address after `#`.
//!
//! ```text
//! #prompt=Once%20upon%20a%20time&at=p0/L1/softmax[h=0]&view=heatmap
//! #lesson=16&scene=3
//! #prompt=A%20fox&passes=8&temperature=0.8&seed=7&precision=q8
//! #prompt=A%20fox&at=p0/logits&view=patch&clean=A%20dog
//! #trace=run.trace&at=p2/logits
//! ```
//!
//! A link comes from a stranger. Its contents are text of bounded length, and never markup. It names no file outside the
//! page's own folder.

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::sampler_options::OPTIONS;
use llama_trace_core::trace::{Address, Sampling};
use llama_trace_tui::screen_option::ScreenOption;

/// Maximum number of characters of a prompt.
pub const MOST_CHARACTERS: usize = 2000;
/// Maximum number of passes.
pub const MOST_PASSES: usize = 64;
/// Maximum number of bytes of a link.
const MOST_BYTES: usize = 32 << 10;
/// Maximum number of characters of every other value.
const MOST_VALUE: usize = 200;

/// A place that a link names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The text that the model reads.
    pub prompt: Option<String>,
    /// The clean prompt of the map of patching.
    pub clean: Option<String>,
    /// Number of passes that run at once.
    pub passes: Option<usize>,
    /// The options of the sampler.
    pub sampling: Sampling,
    /// The precision of the model: f32, bf16 or q8.
    pub precision: Option<String>,
    /// The address.
    pub at: Option<Address>,
    /// Settings of the screen, with their values.
    pub screen: Vec<(ScreenOption, String)>,
    /// The lesson: a chapter's number or name, or a file beside the page whose name ends with `.md`.
    pub lesson: Option<String>,
    /// The scene of the lesson, from 1.
    pub scene: Option<usize>,
    /// A file with a trace beside the page.
    pub trace: Option<String>,
}

fn wrong(what: &str, expected: &str, found: &str) -> Error {
    Error::usage(what).at("the part of the address after #").expected(expected).found(format!("`{found}`"))
}

impl Link {
    /// Reads a link, without or with its `#`.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the part that cannot be read.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.strip_prefix('#').unwrap_or(text);
        if text.len() > MOST_BYTES {
            return Err(Error::usage("the link is too long")
                .expected(format!("at most {MOST_BYTES} bytes after #"))
                .found(format!("{} bytes", text.len())));
        }
        let mut link = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| {
                wrong("a part of the link has no value", "key=value, as in at=p0/L1/softmax", part)
            })?;
            if seen.contains(&key) {
                return Err(wrong("the link has a key twice", "each key once", key));
            }
            seen.push(key);
            link.set(key, &decoded(value)?)?;
        }
        if link.trace.is_some() && (link.prompt.is_some() || link.lesson.is_some())
            || link.prompt.is_some() && link.lesson.is_some()
        {
            return Err(Error::usage("the link names more than one run")
                .expected("one of prompt, lesson and trace")
                .found(seen.join(", ")));
        }
        if (link.trace.is_some() || link.lesson.is_some())
            && let Some(key) =
                seen.iter().find(|key| ["precision", "clean"].contains(key) || OPTIONS.contains(key))
        {
            return Err(wrong(
                "a trace and a lesson have runs of their own",
                "sampling, precision and a clean prompt with a prompt only",
                key,
            ));
        }
        Ok(link)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let most = if ["prompt", "clean"].contains(&key) { MOST_CHARACTERS } else { MOST_VALUE };
        let count = value.chars().count();
        if count > most {
            return Err(Error::usage(format!("the value of `{key}` is too long"))
                .at("the part of the address after #")
                .expected(format!("at most {most} characters"))
                .found(format!("{count} characters")));
        }
        let number = |most: usize| match value.parse::<usize>() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(wrong(
                &format!("the value of `{key}` is not such a number"),
                &format!("a number from 1 to {most}"),
                value,
            )),
        };
        match key {
            "prompt" => self.prompt = Some(value.to_owned()),
            "clean" => self.clean = Some(value.to_owned()),
            "passes" => self.passes = Some(number(MOST_PASSES)?),
            "at" => {
                let address = Address::parse(value);
                let address = address
                    .map_err(|why| Error::usage(why).at("at= in the link").found(format!("`{value}`")))?;
                if let Some(pass) = address.pass.filter(|&pass| pass >= MOST_PASSES) {
                    return Err(wrong(
                        "the link names a pass that is too far",
                        &format!("pass 0 to {}", MOST_PASSES - 1),
                        &format!("p{pass}"),
                    ));
                }
                self.at = Some(address);
            }
            "precision" if ["f32", "bf16", "q8"].contains(&value) => self.precision = Some(value.to_owned()),
            "precision" => return Err(wrong("there is no such precision", "f32, bf16 or q8", value)),
            _ if OPTIONS.contains(&key) => {
                let sampling = match value.contains(char::is_whitespace) {
                    true => Err(format!("{key} is one number, not `{value}`")),
                    false => self.sampling.changed(&format!("{key} {value}")),
                };
                self.sampling =
                    sampling.map_err(|why| Error::usage(why).at("the part of the address after #"))?;
            }
            "lesson" => self.lesson = Some(name(key, value)?),
            "scene" => self.scene = Some(number(1000)?),
            "trace" => self.trace = Some(name(key, value)?),
            _ => {
                let option = ScreenOption::ALL.into_iter().find(|option| option.name() == key);
                let option = option.ok_or_else(|| {
                    let screen = ScreenOption::ALL.map(ScreenOption::name).join(", ");
                    wrong(
                        "the link has an unknown key",
                        &format!(
                            "prompt, clean, passes, at, lesson, scene, trace, precision, {}, {screen}",
                            OPTIONS.join(", ")
                        ),
                        key,
                    )
                })?;
                self.screen.push((option, value.to_owned()));
            }
        }
        Ok(())
    }

    /// The link as text, without `#`.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        let mut add = |key: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{key}={}", encoded(&value))));
        };
        add("prompt", self.prompt.clone());
        add("trace", self.trace.clone());
        add("lesson", self.lesson.clone());
        add("scene", self.scene.map(|scene| scene.to_string()));
        add("passes", self.passes.map(|passes| passes.to_string()));
        add("precision", self.precision.clone());
        for option in self.sampling.options().chunks(2) {
            if let [name, value] = option {
                add(name.trim_start_matches('-'), Some(value.clone()));
            }
        }
        add("at", self.at.as_ref().map(ToString::to_string));
        for (option, value) in &self.screen {
            add(option.name(), Some(value.clone()));
        }
        add("clean", self.clean.clone());
        parts.join("&")
    }

    /// Number of passes that run at once: those that are named, and those up to the address.
    pub fn passes(&self) -> usize {
        let of_address = self.at.as_ref().and_then(|at| at.pass).map_or(1, |pass| pass + 1);
        self.passes.unwrap_or(1).max(of_address)
    }
}

/// A name of a single file, or of a chapter: without folders, schemes and escapes.
fn name(key: &str, value: &str) -> Result<String> {
    let bad = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '%' | '?' | '#');
    if value.is_empty() || value.starts_with('.') || value.contains(bad) {
        return Err(wrong(
            &format!("the value of `{key}` is not the name of a file beside this page"),
            "a name without folder, scheme and %",
            value,
        ));
    }
    Ok(value.to_owned())
}

/// Resolves the escapes `%20`.
fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return Err(wrong("an escape in the link is cut off", "% and two hexadecimal digits", text)),
        }
    }
    String::from_utf8(bytes).map_err(|_| wrong("the link is not text", "UTF-8, escaped with %", text))
}

/// Escapes everything except the characters that are plain in every program that finds links in a text.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' | b'=' | b',' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read_and_written() {
        let link = Link::parse("#prompt=A%20fox%26%3D%C3%A9&at=p0/L1/softmax[h=0]&view=heatmap").unwrap();
        assert_eq!(link.prompt.as_deref(), Some("A fox&=é"));
        assert_eq!(link.screen, [(ScreenOption::View, "heatmap".to_owned())]);
        assert_eq!(link.at.as_ref().unwrap().to_string(), "p0/L1/softmax[h=0]");
        assert_eq!(Link::parse(&link.text()).unwrap(), link);
        let lesson = Link::parse("lesson=16&scene=3").unwrap();
        assert_eq!((lesson.lesson.as_deref(), lesson.scene), (Some("16"), Some(3)));
        assert_eq!(Link::parse("").unwrap(), Link::default());
        let drawn = Link::parse("prompt=A&temperature=0.8&top-k=40&seed=7&precision=q8").unwrap();
        let expected = Sampling { temperature: 0.8, top_k: 40, seed: 7, ..Sampling::GREEDY };
        assert_eq!((drawn.sampling, drawn.precision.as_deref()), (expected, Some("q8")));
        assert_eq!(Link::parse(&drawn.text()).unwrap(), drawn);
        let patched = Link::parse("prompt=A%20fox&at=p0/logits&view=patch&clean=A%20dog").unwrap();
        assert_eq!(patched.clean.as_deref(), Some("A dog"));
        assert_eq!(Link::parse(&patched.text()).unwrap(), patched);
        let trace = Link::parse("trace=my%20run.trace&at=p3/logits").unwrap();
        assert_eq!((trace.trace.as_deref(), trace.passes()), (Some("my run.trace"), 4));
    }

    #[test]
    fn a_hostile_link_is_refused_with_one_message() {
        let long = format!("prompt={}", "a".repeat(MOST_CHARACTERS + 1));
        let huge = "a".repeat(MOST_BYTES + 1);
        for link in [
            "trace=../secret.trace",
            "trace=https%3A//example.org/x",
            "trace=a%2525",
            "trace=",
            "trace=.hidden",
            "trace=a%5Cb",
            "lesson=a/b.md",
            "scene=0",
            "scene=x",
            "passes=65",
            "at=nowhere",
            "at=p64/logits",
            "edit=L0/xq%3D0",
            "temperature=hot",
            "temperature=-1",
            "temperature=1%20seed%207",
            "top-p=0",
            "seed=99999999999999999999999",
            "precision=f64",
            "trace=a.trace&seed=1",
            "lesson=1&precision=q8",
            "lesson=1&clean=A",
            "trace=a.trace&clean=A",
            "greedy=1",
            "prompt=a&prompt=b",
            "prompt=a&trace=b",
            "prompt",
            "prompt=%",
            "prompt=%f",
            "prompt=%ff",
            &long,
            &huge,
        ] {
            let error = Link::parse(link).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{link}: {error}");
        }
        // Markup stays text.
        let link = Link::parse("prompt=%3Cscript%3Ealert(1)%3C/script%3E").unwrap();
        assert_eq!(link.prompt.unwrap(), "<script>alert(1)</script>");
    }
}
