//! Checks that each module imports only the modules that it may import. The imports are read from the sources.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "architecture/circles.rs"]
mod circles;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use circles::Sources;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, UseName, UseRename, UseTree};

/// Modules, and the modules that each may import.
type Modules = &'static [(&'static str, &'static [&'static str])];

/// The crates with several modules. For each module, the modules of the same crate that it may import. The dependencies
/// between crates are in `Cargo.toml`.
const EDGES: &[(&str, Modules)] = &[
    (
        "core",
        &[
            ("error", &[]),
            ("stop", &["error"]),
            ("testing", &[]),
            ("threads", &[]),
            ("time", &[]),
            ("memory", &["error"]),
            ("config", &["error"]),
            ("tensor", &["error", "stop"]),
            ("ops", &["config"]),
            ("trace", &["config", "error", "memory", "time"]),
            ("edit", &["config", "error", "ops", "trace"]),
            ("explain", &["config", "edit", "error", "ops", "trace"]),
            ("chapters", &["trace"]),
            ("lesson", &["edit", "trace"]),
        ],
    ),
    (
        "formats",
        &[
            ("files", &["error", "stop", "tensor"]),
            ("checkpoint", &["config", "error", "files", "stop", "tensor"]),
            ("tokenizer", &["config", "error", "files", "stop", "threads"]),
        ],
    ),
    (
        "engine",
        &[
            // `testing` is only for the tests: without this feature, the module does not exist.
            (
                "backend",
                &["config", "error", "memory", "ops", "stop", "tensor", "testing", "threads", "time"],
            ),
            ("model", &["backend", "checkpoint", "config", "edit", "error", "files", "ops", "trace"]),
            (
                "generate",
                &["backend", "config", "error", "model", "ops", "stop", "time", "tokenizer", "trace"],
            ),
            ("patch", &["backend", "config", "error", "generate", "model", "trace"]),
        ],
    ),
    (
        "kernels",
        &[
            ("libraries", &[]),
            ("nvrtc", &["error", "libraries"]),
            ("sources", &["config", "nvrtc", "tensor"]),
            ("ptx", &["nvrtc", "sources"]),
            ("driver", &["error", "sources"]),
        ],
    ),
    (
        "runs",
        &[
            (
                "begin",
                &["edit", "error", "generate", "lesson", "model", "replay", "stop", "tokenizer", "trace"],
            ),
            ("record", &["config", "error", "files", "stop", "tensor", "threads", "trace"]),
            (
                "replay",
                &[
                    "backend",
                    "config",
                    "edit",
                    "error",
                    "explain",
                    "generate",
                    "model",
                    "ops",
                    "patch",
                    "record",
                    "stop",
                    "tokenizer",
                    "trace",
                ],
            ),
        ],
    ),
    (
        "judge",
        &[
            (
                "check",
                &[
                    "backend",
                    "config",
                    "edit",
                    "error",
                    "explain",
                    "generate",
                    "model",
                    "ops",
                    "replay",
                    "stop",
                    "tokenizer",
                    "trace",
                ],
            ),
            ("diff", &["check", "config", "error", "explain", "model", "ops", "stop", "trace"]),
            ("kata", &["backend", "check", "config", "diff", "error", "explain", "stop", "trace"]),
            ("capture", &["config", "diff", "error", "files", "record", "trace"]),
            ("recorded", &["capture", "diff", "error", "record", "replay", "stop", "trace"]),
            ("suggest", &["capture", "diff", "error", "stop", "trace"]),
        ],
    ),
];

/// The crates that consist of one module, and the modules of [`EDGES`] that they may import.
const OTHERS: &[(&str, &[&str])] = &[
    ("ending", &["error", "memory", "stop"]),
    ("picture", &["error", "memory"]),
    ("hub", &["checkpoint", "error", "files", "stop"]),
    ("emulator", &["FOLDER", "driver", "error", "memory", "nvrtc", "ptx", "sources"]),
    // `testing` is only for the tests, as for `backend` above. So are `generate`, `model` and `trace`.
    (
        "cuda",
        &[
            "backend",
            "checkpoint",
            "config",
            "driver",
            "error",
            "generate",
            "libraries",
            "memory",
            "model",
            "nvrtc",
            "ops",
            "ptx",
            "sources",
            "stop",
            "tensor",
            "testing",
            "trace",
        ],
    ),
    ("tui", &["chapters", "edit", "error", "lesson", "time", "trace"]),
    (
        "page",
        &[
            "backend",
            "begin",
            "chapters",
            "checkpoint",
            "config",
            "error",
            "files",
            "generate",
            "lesson",
            "model",
            "record",
            "replay",
            "tensor",
            "time",
            "tokenizer",
            "trace",
        ],
    ),
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The source files of a crate, or of a module `crate/module`.
fn files(place: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![src().join(place)];
    let single = src().join(format!("{place}.rs"));
    found.extend(single.exists().then_some(single));
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// The modules that a file names by a path, in its own crate and in the program's other crates.
#[derive(Default)]
struct Imports {
    /// Depth of the current code below the crate's root. `None` if the crate's own modules do not count.
    depth: Option<usize>,
    modules: BTreeSet<String>,
}

impl Imports {
    /// Reads the module from a path in a `use`, an expression or a type. The first parts of the path name the module.
    fn path(&mut self, parts: &[String]) {
        let ups = parts.iter().take_while(|part| *part == "super").count();
        let other = |name: &str| {
            name.strip_prefix("llama_trace_")
                .is_some_and(|name| EDGES.iter().any(|(other, _)| *other == name))
        };
        let below = match parts.first().map(String::as_str) {
            Some("crate") if self.depth.is_some() => &parts[1..],
            Some(name) if other(name) => &parts[1..],
            // If there are at least as many `super` as modules around the code, the path starts at the root.
            _ if ups > 0 && self.depth.is_some_and(|depth| ups >= depth) => &parts[ups..],
            _ => return,
        };
        // An import of the root itself, by another name or with `*`, counts as every module.
        self.modules.insert(below.first().map_or_else(|| "*".into(), Clone::clone));
    }

    fn tree(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
            // `crate::{self as x}` is the root.
            UseTree::Name(UseName { ident }) | UseTree::Rename(UseRename { ident, .. })
                if ident == "self" =>
            {
                self.path(before);
            }
            UseTree::Name(UseName { ident }) | UseTree::Rename(UseRename { ident, .. }) => {
                let path = [&before[..], &[ident.to_string()]].concat();
                self.path(&path);
            }
            UseTree::Glob(_) => {
                let path = [&before[..], &["*".into()]].concat();
                self.path(&path);
            }
        }
    }

    /// Macros and attributes have their own syntax, so every path among their tokens counts.
    fn words(&mut self, words: TokenStream) {
        let (mut path, mut goes_on) = (Vec::new(), false);
        for word in words {
            let colon = matches!(&word, TokenTree::Punct(mark) if mark.as_char() == ':');
            if !colon && !goes_on {
                self.path(&std::mem::take(&mut path));
            }
            match word {
                TokenTree::Ident(ident) => path.push(ident.to_string()),
                TokenTree::Group(group) => self.words(group.stream()),
                _ => {}
            }
            goes_on = colon;
        }
        self.path(&path);
    }
}

impl Visit<'_> for Imports {
    fn visit_item_use(&mut self, item: &ItemUse) {
        self.tree(&mut Vec::new(), &item.tree);
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        let depth = self.depth;
        self.depth = depth.map(|depth| depth + 1);
        visit::visit_item_mod(self, item);
        self.depth = depth;
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.path(&parts);
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &syn::Visibility) {
        // `pub(super)` and `pub(in crate::x)` import nothing.
    }

    fn visit_macro(&mut self, item: &syn::Macro) {
        self.words(item.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &syn::MetaList) {
        self.words(list.tokens.clone());
    }
}

/// Returns the modules that the source `text` names, in its own crate and in others. The text is `depth` modules below
/// its crate's root. `*` stands for all modules of a crate.
fn imports(text: &str, depth: Option<usize>) -> BTreeSet<String> {
    let mut imports = Imports { depth, ..Imports::default() };
    imports.visit_file(&syn::parse_file(text).unwrap());
    imports.modules
}

/// Returns how many modules a file is below its crate's root: 1 for `cli/mod.rs` and `cli.rs`, 2 for `cli/log.rs`.
fn depth(file: &Path, root: &Path) -> usize {
    let parts = file.strip_prefix(root).unwrap().components().count();
    if file.ends_with("mod.rs") || file.ends_with("lib.rs") { parts - 1 } else { parts }
}

/// Fails if one of `files` imports a module that is not `allowed`, or if an allowed module is imported by none of them.
/// `own` has the module's name and the folder of its crate. It is `None` if the crate has no other modules.
fn holds(what: &str, own: Option<(&str, &Path)>, files: &[PathBuf], allowed: &[&str]) {
    assert!(!files.is_empty(), "there is no {what}");
    let mut used = BTreeSet::new();
    for file in files {
        let depth = own.map(|(_, root)| depth(file, root));
        let found = imports(&std::fs::read_to_string(file).unwrap(), depth);
        for import in found.into_iter().filter(|import| own.is_none_or(|(own, _)| import != own)) {
            let place = file.display();
            assert!(allowed.contains(&import.as_str()), "{place} imports {import}, which {what} may not");
            used.insert(import);
        }
    }
    let unused: Vec<_> = allowed.iter().filter(|other| !used.contains(**other)).collect();
    assert!(unused.is_empty(), "{what} may import {unused:?}, but does not: remove them from the table");
}

#[test]
fn modules_import_only_what_they_may() {
    for (name, modules) in EDGES {
        for (module, allowed) in *modules {
            let place = format!("{name}/{module}");
            holds(&place, Some((module, &src().join(name))), &files(&place), allowed);
        }
    }
    for (name, allowed) in OTHERS {
        holds(name, None, &files(name), allowed);
    }
}

#[test]
fn an_import_is_found_however_it_is_written() {
    let found = |text: &str| imports(text, Some(2)).into_iter().collect::<Vec<_>>().join(" ");
    for (text, expected) in [
        ("use crate::{backend, error::Result};", "backend error"),
        ("use crate::{backend};", "backend"),
        ("use llama_trace_core::{ops::rope, trace}; use llama_trace_hub::Name;", "ops trace"),
        ("use crate::{self as root};", "*"),
        ("use crate as root;", "*"),
        ("use crate::*;", "*"),
        ("use crate::{trace::{Site, Stage}, ops::{self}};", "ops trace"),
        ("use super::super::backend::Cpu;", "backend"),
        ("use super::super::{backend::Cpu, ops};", "backend ops"),
        ("use super::{super::backend, near};", "backend"),
        ("use super::near::Thing; use self::here; pub(in crate::tui) fn f() {}", ""),
        ("mod inner { use super::super::near; use super::super::super::model; }", "model"),
        (
            "fn f() -> crate::model::Model { super::super::replay::go::<crate::tui::App>() }",
            "model replay tui",
        ),
        ("fn f() { println!(\"{}\", crate::cli::name(super::super::ops::x())); }", "cli ops"),
        ("fn f() { m!(return crate::ops::x, 1) } #[a(b = crate::cli::c)] fn g() {}", "cli ops"),
        ("macro_rules! m { () => { $crate::generate::run() }; }", "generate"),
        ("// crate::backend\n/// [`crate::backend`]\nfn f() {}", ""),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
    // One module below the root, one `super` leads to the root.
    assert_eq!(imports("use super::backend::Cpu;", Some(1)).into_iter().collect::<Vec<_>>(), ["backend"]);
}

/// Commands, and all code below them, are generic over the backend.
#[test]
fn only_the_backend_and_the_device_choice_name_device_types() {
    let chooses = src().join("cli/device.rs");
    let names = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap();
        ["backend::cpu", "llama_trace_cuda"].iter().any(|device| text.contains(device))
    };
    assert!(names(&chooses));
    let places = ["cli", "core", "formats", "engine/model", "engine/generate", "runs", "judge", "tui", "hub"];
    for place in places {
        // This test of the library runs on a device.
        let is_test = |file: &Path| file.ends_with("cli/bench/tests.rs");
        let is_choice = |file: &Path| file == chooses || file.starts_with(src().join("cli/device"));
        for file in files(place).iter().filter(|file| !is_choice(file) && !is_test(file)) {
            assert!(!names(file), "{} names a device", file.display());
        }
    }
}

#[test]
fn every_module_is_in_the_table() {
    for (name, modules) in EDGES {
        let lib = std::fs::read_to_string(src().join(name).join("lib.rs")).unwrap();
        let there: BTreeSet<&str> =
            lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
        assert_eq!(there, modules.iter().map(|(module, _)| *module).collect(), "the modules of {name}");
    }
    let members = std::fs::read_dir(src()).unwrap().map(|entry| entry.unwrap().path());
    for member in members.filter(|member| member.join("Cargo.toml").exists()) {
        let name = member.file_name().unwrap().to_str().unwrap();
        let has = EDGES.iter().map(|(name, _)| *name).chain(OTHERS.iter().map(|(name, _)| *name));
        assert!(has.into_iter().any(|other| other == name), "the crate {name} has no row");
    }
}

/// Only `update` changes the viewer after an input. The event loop and the effects name no field of the viewer, and
/// report messages.
#[test]
fn effects_change_the_viewer_by_reports() {
    for file in ["tui/events.rs", "tui/effects.rs"] {
        let text = std::fs::read_to_string(src().join(file)).unwrap();
        for use_of_app in text.split("app.").skip(1) {
            let name: String = use_of_app.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_method = use_of_app[name.len()..].starts_with('(');
            assert!(is_method && name != "say", "{file} uses app.{name}");
        }
    }
}

/// Modules that may not import even the files below them.
const STRICT: &[&str] = &["backend/cpu/kernel/mod.rs"];

#[test]
fn no_two_files_import_each_other() {
    let crates = EDGES.iter().map(|(name, _)| *name).chain(OTHERS.iter().map(|(name, _)| *name));
    for name in crates.chain(["cli"]) {
        // The program's own modules are below `cli`.
        let root = if name == "cli" { src() } else { src().join(name) };
        let texts = files(name).into_iter().filter(|file| !file.ends_with("tests.rs"));
        let texts = texts.map(|file| {
            let path = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            (path, std::fs::read_to_string(&file).unwrap())
        });
        let circles = Sources::new(texts).circles(STRICT);
        assert!(circles.is_empty(), "{name}: {}", circles.join("\n"));
    }
}

/// Returns the paths that a text has in backticks. For a path with a placeholder (`<view>`), returns the folder.
fn named_paths(text: &str) -> Vec<String> {
    let is_path = |word: &&str| {
        word.contains('/') && word.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-<>".contains(c))
    };
    let words = text.split('`').skip(1).step_by(2).filter(is_path);
    words.map(|word| word.split('<').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn every_path_in_the_module_map_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let lib = read("src/lib.rs");
    let doc: Vec<&str> = lib.lines().filter_map(|line| line.strip_prefix("//!")).collect();
    let paths = [named_paths(&doc.join("\n")), named_paths(&read("CONTRIBUTING.md"))].concat();
    for path in &paths {
        let of_root = ["tests/", "fixtures/", "chapters/", "fuzz/", ".ci/", ".github/", "src/"];
        let folder = if of_root.iter().any(|part| path.starts_with(part)) { root } else { &root.join("src") };
        assert!(folder.join(path).exists(), "the text names {path}, which does not exist");
    }
    for named in [
        "tui/view/views.rs",
        "formats/checkpoint/mod.rs",
        "core/trace/stage/table.rs",
        "engine/model/forward.rs",
        "kernels/sources.rs",
    ] {
        assert!(paths.iter().any(|path| path == named), "the module map does not mention {named}");
    }
    assert_eq!(named_paths("| `a/b.rs`, [`c`] | `d/<e>/f.rs`: `g()` |"), ["a/b.rs", "d/"]);
}

/// Names of libc that the sources use. Before you add one, check that libc's modules for Linux and for Apple both have
/// it (`src/unix/bsd/apple`, `src/unix/bsd`, `src/unix`), because nothing here builds for Apple.
const LIBC: &[&str] = &[
    "EMFILE",
    "ENFILE",
    "MAP_ANON",
    "MAP_FAILED",
    "MAP_PRIVATE",
    "PROT_NONE",
    "SA_ONSTACK",
    "SA_SIGINFO",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGILL",
    "SIGSEGV",
    "SIG_DFL",
    "SIG_IGN",
    "STDERR_FILENO",
    "_exit",
    "c_int",
    "c_void",
    "mmap",
    "mprotect",
    "munmap",
    "pause",
    "sigaction",
    "sigemptyset",
    "siginfo_t",
    "signal",
    "usleep",
    "write",
];

/// Names that only Linux has. The code that uses them is compiled only there.
const LIBC_OF_LINUX: &[&str] = &["M_ARENA_MAX", "mallopt"];

#[test]
fn every_libc_name_exists_on_apple() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in files("") {
        // This file reads registers from the context of a signal. Each line is compiled only for one processor and one
        // system.
        if file.ends_with("by_hand.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let place = file.strip_prefix(&src).unwrap().display();
        for (at, _) in text.match_indices("libc::") {
            // An import that is not compiled for Apple has this attribute in the lines before it.
            let before: Vec<&str> = text[..at].lines().rev().take(4).collect();
            if before.iter().any(|line| line.contains("cfg(not(target_vendor = \"apple\"))")) {
                continue;
            }
            let rest = &text[at + "libc::".len()..];
            let end =
                |rest: &str| rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let names = match rest.strip_prefix('{') {
                Some(list) => list[..list.find('}').unwrap()].split(',').map(str::trim).collect(),
                None => vec![&rest[..end(rest)]],
            };
            for name in names {
                let of_linux = before.iter().any(|line| line.contains("target_os = \"linux\""));
                assert!(
                    LIBC.contains(&name) || of_linux && LIBC_OF_LINUX.contains(&name),
                    "{place}: libc::{name}: is it there on Apple?"
                );
            }
        }
    }
}
