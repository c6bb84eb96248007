//! Names of models on the hub, as users write them: `org/name`, `org/name@revision`, `org/name:file.gguf`.

use std::fmt;

/// Suffixes of model files. `models/llama.gguf` is a misspelt path, not a repository.
const FILES: [&str; 7] = [".gguf", ".bin", ".pth", ".pt", ".safetensors", ".json", ".model"];

/// A repository, a revision, and optionally one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// `org/name`.
    pub(super) repo: String,
    /// A branch, a tag, or a commit.
    pub(super) revision: String,
    /// A GGUF file in it. Its path is safe ([`is_safe`]).
    pub(super) file: Option<String>,
}

impl Name {
    /// Parses `text` by the hub's own rules for names; `None` if it cannot be a name of the hub.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, file) = match text.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (text, None),
        };
        let (repo, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let (organisation, name) = repo.split_once('/')?;
        let plain = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
                && !part.starts_with(['-', '.'])
                && !part.ends_with(['-', '.'])
                && !part.contains("--")
                && !part.contains("..")
        };
        let lower = name.to_ascii_lowercase();
        let right = plain(organisation)
            && plain(name)
            && repo.len() <= 96
            && !lower.ends_with(".git")
            && !FILES.iter().any(|ending| lower.ends_with(ending))
            && is_safe(revision)
            && revision.bytes().all(|byte| byte.is_ascii_graphic() && !b"~^:?*[\"".contains(&byte))
            && file.is_none_or(|file| is_safe(file) && file.to_ascii_lowercase().ends_with(".gguf"));
        right.then(|| Self { repo: repo.into(), revision: revision.into(), file: file.map(Into::into) })
    }

    /// Returns whether the revision is a commit's full id, whose files never change.
    pub(super) fn is_pinned(&self) -> bool {
        is_commit(&self.revision)
    }
}

impl fmt::Display for Name {
    /// Only the repository, which is shown as a model's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)
    }
}

/// Returns whether `text` is the full id of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Returns whether `path`, joined to a folder, stays in it on every system: names separated by `/`, none of them
/// special.
pub(super) fn is_safe(path: &str) -> bool {
    path.len() <= 255
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && !path.contains(['\\', ':'])
        && !path.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        let name = |repo: &str, revision: &str, file: Option<&str>| {
            Some(Name { repo: repo.into(), revision: revision.into(), file: file.map(Into::into) })
        };
        assert_eq!(Name::parse("org/name"), name("org/name", "main", None));
        assert_eq!(
            Name::parse("meta-llama/Llama-3.2-1B@v1.0"),
            name("meta-llama/Llama-3.2-1B", "v1.0", None)
        );
        assert_eq!(Name::parse("a/b@refs/pr/1"), name("a/b", "refs/pr/1", None));
        assert_eq!(Name::parse("a/b-GGUF:q/m.Q4_0.gguf"), name("a/b-GGUF", "main", Some("q/m.Q4_0.gguf")));
        assert_eq!(Name::parse("a/b@c:m.gguf"), name("a/b", "c", Some("m.gguf")));
        for path in [
            "",
            "name",
            "/org/name",
            "./org",
            "../org",
            "org/",
            "a/b/c",
            "org/..",
            "org/na me",
            "~/model",
            "a//b",
            "models/llama.gguf",
            "out/stories15M.bin",
            "org/x--y",
            "-a/b",
            "C:/models",
            "a/b@",
            "a/b@../x",
            "a/b@/x",
            "a/b@x\\y",
            "a/b:",
            "a/b:Q4_K_M",
            "a/b:../m.gguf",
            "a/b:/m.gguf",
            "org/név",
        ] {
            assert_eq!(Name::parse(path), None, "{path}");
        }
    }
}
