//! Checks which file of src/ imports which, and that no two files import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, UseTree};

/// Names of a path from the crate's root to a module or an item.
type Names = Vec<String>;

/// The imports and paths in a file of src/.
#[derive(Default)]
struct File {
    /// Path of the file below src/.
    path: String,
    /// The imports: from the local name to the path as it is written.
    uses: BTreeMap<String, Names>,
    /// Every path in the code as it is written, and the inline modules around it.
    paths: Vec<(Names, Names)>,
    /// The inline modules around the code that is being read.
    inside: Names,
}

/// Returns whether an item with these attributes exists only in tests.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let of_test = |list: &syn::MetaList| {
        let words = list.tokens.to_string();
        words == "test" || words.starts_with("any (test")
    };
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(of_test))
}

impl File {
    fn path(&mut self, names: Names) {
        // `pub(super)` imports nothing.
        if names.iter().any(|name| !matches!(name.as_str(), "self" | "super" | "crate")) {
            self.paths.push((self.inside.clone(), names));
        }
    }

    fn tree(&mut self, before: &Names, tree: &UseTree) {
        let with = |name: &syn::Ident| match name == "self" {
            true => before.clone(),
            false => [&before[..], &[name.to_string()]].concat(),
        };
        match tree {
            UseTree::Path(path) => self.tree(&with_name(before, &path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
            UseTree::Name(name) => self.used(with(&name.ident), None),
            UseTree::Rename(rename) => self.used(with(&rename.ident), Some(rename.rename.to_string())),
            UseTree::Glob(_) => self.path(before.clone()),
        }
    }

    fn used(&mut self, names: Names, rename: Option<String>) {
        let Some(last) = names.last() else { return };
        if self.inside.is_empty() {
            self.uses.insert(rename.unwrap_or_else(|| last.clone()), names.clone());
        }
        self.path(names);
    }

    /// Macros have their own syntax, so every path among their tokens counts.
    fn words(&mut self, words: TokenStream) {
        let (mut names, mut goes_on) = (Names::new(), false);
        for word in words {
            let colon = matches!(&word, TokenTree::Punct(mark) if mark.as_char() == ':');
            if !colon && !goes_on {
                self.path(std::mem::take(&mut names));
            }
            match word {
                TokenTree::Ident(ident) => names.push(ident.to_string()),
                TokenTree::Group(group) => self.words(group.stream()),
                _ => {}
            }
            goes_on = colon;
        }
        self.path(names);
    }
}

fn with_name(before: &Names, name: &syn::Ident) -> Names {
    [&before[..], &[name.to_string()]].concat()
}

impl Visit<'_> for File {
    fn visit_item_use(&mut self, item: &ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.tree(&Names::new(), &item.tree);
        }
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.inside.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.inside.pop();
        }
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        self.path(path.segments.iter().map(|part| part.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &syn::Visibility) {}

    fn visit_macro(&mut self, item: &syn::Macro) {
        self.words(item.tokens.clone());
    }
}

/// The files of a crate, by their modules.
pub(crate) struct Sources {
    files: BTreeMap<Names, File>,
}

impl Sources {
    /// Files with these paths below src/ and these texts.
    pub(crate) fn new(texts: impl IntoIterator<Item = (String, String)>) -> Self {
        let files = texts.into_iter().map(|(path, text)| {
            let mut module: Names = Path::new(&path)
                .with_extension("")
                .components()
                .map(|part| part.as_os_str().to_string_lossy().into_owned())
                .collect();
            if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
                module.pop();
            }
            let mut file = File { path, ..File::default() };
            file.visit_file(&syn::parse_file(&text).unwrap());
            (module, file)
        });
        Self { files: files.collect() }
    }

    /// Returns the module of the file that defines `names`, as used inside the module `at`. `None` if another crate
    /// defines it. A re-export is followed to the file of its definition.
    fn file_of(&self, at: &[String], names: &[String], hops: usize) -> Option<Names> {
        let ups = names.iter().take_while(|name| *name == "super").count();
        let (mut here, names) = match names.first()?.as_str() {
            "crate" | "$crate" => (Names::new(), &names[1..]),
            "self" => (at.to_vec(), &names[1..]),
            "super" => (at[..at.len().checked_sub(ups)?].to_vec(), &names[ups..]),
            name => {
                let known = self.files.contains_key(&with(at, name))
                    || self.files.get(at).is_some_and(|file| file.uses.contains_key(name));
                (known.then(|| at.to_vec())?, names)
            }
        };
        for (i, name) in names.iter().enumerate() {
            let child = with(&here, name);
            if self.files.contains_key(&child) {
                here = child;
                continue;
            }
            let import = self.files.get(&here).and_then(|file| file.uses.get(name));
            let Some(import) = import.filter(|_| hops > 0) else { break };
            return self.file_of(&here, &[&import[..], &names[i + 1..]].concat(), hops - 1);
        }
        while !self.files.contains_key(&here) {
            here.pop()?;
        }
        Some(here)
    }

    /// Returns for each file the paths of the other files that it imports. Imports from the enclosing modules do not
    /// count, because the `mod.rs` of a folder may contain what its files share. They count if the enclosing module is
    /// one of `strict`.
    fn needs(&self, strict: &[&str]) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut needs = BTreeMap::<&str, BTreeSet<&str>>::new();
        for (module, file) in &self.files {
            let needed = needs.entry(&file.path).or_default();
            for (inside, names) in &file.paths {
                let at = [&module[..], inside].concat();
                // The imports of an inline module are resolved in its file.
                let found = self.file_of(&at, names, 16).or_else(|| self.file_of(module, names, 16));
                let Some(found) = found.filter(|found| found != module) else { continue };
                let other = self.files[&found].path.as_str();
                let around = module.starts_with(&found);
                if !found.is_empty() && (!around || strict.contains(&other)) {
                    needed.insert(other);
                }
            }
        }
        needs
    }

    /// Circles of files that import each other, one per line.
    pub(crate) fn circles(&self, strict: &[&str]) -> Vec<String> {
        let mut needs = self.needs(strict);
        let mut circles = Vec::new();
        loop {
            // A file that imports no remaining file is in no circle.
            loop {
                let left: BTreeSet<&str> = needs.keys().copied().collect();
                needs.values_mut().for_each(|needed| needed.retain(|file| left.contains(file)));
                needs.retain(|_, needed| !needed.is_empty());
                if needs.len() == left.len() {
                    break;
                }
            }
            let Some(first) = needs.keys().next() else { return circles };
            let mut way = vec![*first];
            let circle = loop {
                let next = *needs[way[way.len() - 1]].iter().next().unwrap();
                if let Some(start) = way.iter().position(|file| *file == next) {
                    break way.split_off(start);
                }
                way.push(next);
            };
            circles.push(format!("{} → {}", circle.join(" → "), circle[0]));
            // Removes the last edge of this circle, and searches for the next one.
            needs.get_mut(circle[circle.len() - 1]).unwrap().remove(circle[0]);
        }
    }
}

fn with(at: &[String], name: &str) -> Names {
    [at, &[name.to_owned()]].concat()
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let circles = |files: &[(&str, &str)], strict: &[&str]| {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Sources::new(files).circles(strict).join("; ")
    };
    let folder = ("x/mod.rs", "mod a; mod b; pub use b::B;");
    let b = ("x/b.rs", "use super::a; pub struct B(a::A);");
    let found = "x/a.rs → x/b.rs → x/a.rs";
    for a in [
        "use super::b::B;",
        "use crate::x::{b};",
        "use super::B;",
        "use crate::x::B as Other;",
        "fn f() { super::b::g() }",
        "fn f() -> crate::x::B { m!(0) }",
        "fn f() { m!(super::b::g()) }",
        "use crate::x; fn f() { x::b::g() }",
        "mod inner { use super::super::b::B; }",
    ] {
        assert_eq!(circles(&[folder, ("x/a.rs", a), b], &[]), found, "{a}");
    }
    for a in [
        "fn f(x: B) {} use half::b;",
        "#[cfg(test)] mod tests { use super::super::b::B; }",
        "#[cfg(test)] use super::b::B;",
        "/// [`super::b`]\nfn f() {}",
        "pub(in crate::x) fn f() {}",
    ] {
        assert_eq!(circles(&[folder, ("x/a.rs", a), b], &[]), "", "{a}");
    }
    let shared = [("x/mod.rs", "mod a; use a::A; pub struct X;"), ("x/a.rs", "use super::X; pub struct A;")];
    assert_eq!(circles(&shared, &[]), "", "a folder's own file may hold what its files share");
    assert_eq!(circles(&shared, &["x/mod.rs"]), "x/a.rs → x/mod.rs → x/a.rs");
    let pair = [("x/a.rs", "use super::b::B;"), ("x/b.rs", "use super::a::A;")];
    assert_eq!(circles(&pair, &[]), "x/a.rs → x/b.rs → x/a.rs");
}
