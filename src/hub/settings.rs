//! Settings from the environment, by the names and rules of Python's huggingface_hub.

use std::path::{Path, PathBuf};
use std::time::Duration;

use llama_trace_core::error::{Error, Result};
use llama_trace_formats::files::printable;
use llama_trace_formats::files::read_text;

/// The hub's address, the cache folder, the token, and other settings.
pub struct Settings {
    /// The hub's address, without a `/` at its end.
    pub(super) endpoint: String,
    /// The folder with a folder for each repository.
    pub(super) cache: PathBuf,
    pub(super) token: Option<String>,
    /// Whether requests to the hub are forbidden.
    pub(super) offline: bool,
    /// How long a server may send nothing, or next to nothing.
    pub(super) patience: Duration,
    /// Fields of the configuration to ignore; only from the command line.
    pub ignore_config: Vec<String>,
}

/// The time limit for a silent server. HF_HUB_DOWNLOAD_TIMEOUT sets another number of seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The maximum size of a token's file in bytes.
const MAX_TOKEN: u64 = 1 << 16;

impl Settings {
    /// Reads the environment. `offline` is the command line's option; the environment can set it too.
    ///
    /// # Errors
    /// [`Error::Usage`] if a variable has an invalid value.
    pub fn from_env(offline: bool) -> Result<Self> {
        Self::read(offline, std::env::home_dir().as_deref(), |name| std::env::var(name).ok())
    }

    fn read(offline: bool, user: Option<&Path>, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|text| !text.is_empty());
        let folder = |name: &str| variable(name).map(|text| expand(&text, user));
        let is_on = |name: &str| {
            variable(name)
                .is_some_and(|text| ["1", "ON", "YES", "TRUE"].contains(&text.to_ascii_uppercase().as_str()))
        };

        let home = folder("HF_HOME")
            .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| user.map(|user| user.join(".cache/huggingface")))
            .ok_or_else(|| {
                Error::usage("there is no folder for the cache of models")
                    .expected("a home directory, or HF_HOME")
                    .found("neither")
                    .next("set HF_HOME to a folder")
            })?;
        let cache = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));

        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if super::address::origin(&endpoint).is_none() {
            return Err(Error::usage("the hub's address is not valid")
                .at("HF_ENDPOINT")
                .expected("https://…")
                .found(format!("`{}`", printable(&endpoint)))
                .next("correct it, or unset it"));
        }

        let seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse().ok());
        let patience =
            seconds.filter(|seconds| (1..=3600).contains(seconds)).map_or(PATIENCE, Duration::from_secs);

        let token_file = folder("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
        let token = token
            .or_else(|| if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { read_token(&token_file) });
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            // A message never contains the token itself.
            return Err(Error::usage("the hub's token is not valid")
                .at(format!("HF_TOKEN, or {}", token_file.display()))
                .expected("letters and digits, as in hf_…")
                .found("other characters")
                .next("correct it, or log in again with `hf auth login`"));
        }
        Ok(Self {
            endpoint,
            cache: cache.unwrap_or_else(|| home.join("hub")),
            token,
            patience,
            offline: offline || is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
            ignore_config: Vec::new(),
        })
    }
}

/// Expands `~` to the user's home directory.
fn expand(text: &str, user: Option<&Path>) -> PathBuf {
    match (text.strip_prefix('~'), user) {
        (Some(""), Some(user)) => user.into(),
        (Some(rest), Some(user)) if rest.starts_with('/') => user.join(rest.trim_start_matches('/')),
        _ => text.into(),
    }
}

/// Reads the token of a login. An unreadable token counts as none: public models need none.
fn read_token(path: &Path) -> Option<String> {
    read_text(path, MAX_TOKEN).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, text)| (*text).to_owned());
        Settings::read(false, Some(Path::new("/home/me")), get)
    }

    #[test]
    fn the_cache_is_where_pythons_is() {
        let cache = |variables: &[(&str, &str)]| read(variables).unwrap().cache;
        assert_eq!(cache(&[]), Path::new("/home/me/.cache/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/c")]), Path::new("/c/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "~/hf")]), Path::new("/home/me/hf/hub"));
        assert_eq!(cache(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/models")]), Path::new("/models"));
        assert_eq!(cache(&[("HF_HOME", "")]), Path::new("/home/me/.cache/huggingface/hub"));
    }

    #[test]
    fn the_token_is_the_variables_or_the_files() {
        let home = tempfile::tempdir().unwrap();
        let home_text = home.path().to_str().unwrap();
        assert_eq!(read(&[("HF_HOME", home_text)]).unwrap().token, None);
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let token =
            |more: &[(&str, &str)]| read(&[&[("HF_HOME", home_text)], more].concat()).map(|s| s.token);
        assert_eq!(token(&[]).unwrap().as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_TOKEN", " hf_mine ")]).unwrap().as_deref(), Some("hf_mine"));
        assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).unwrap(), None);
        let text = token(&[("HF_TOKEN", "secret\nmore")]).unwrap_err().to_string();
        assert!(text.contains("HF_TOKEN") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn an_endpoint_is_an_address() {
        assert_eq!(read(&[]).unwrap().endpoint, "https://huggingface.co");
        assert_eq!(read(&[("HF_ENDPOINT", "http://localhost:1/")]).unwrap().endpoint, "http://localhost:1");
        assert!(read(&[("HF_ENDPOINT", "ftp://x")]).err().unwrap().to_string().contains("`ftp://x`"));
        assert!(!read(&[]).unwrap().offline && read(&[("HF_HUB_OFFLINE", "true")]).unwrap().offline);
    }
}
