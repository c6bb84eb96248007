//! Checks that the pictures under `chapters/pictures/` are the output of the commands next to them.
//! `LLAMA_TRACE_BLESS=1` draws them again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{note, shell};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns each picture in `text`, shown or linked, and the command before it that draws a file of this name.
fn pictures(text: &str) -> Vec<(String, Option<Vec<String>>)> {
    let mut commands: Vec<Vec<String>> = Vec::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ llama-trace snapshot ") {
            commands.push(note::split(&format!("llama-trace snapshot {command}")).unwrap());
        }
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let Some((folder, name)) = link.rsplit_once('/') else { continue };
            if folder.ends_with("pictures") {
                let draws = |words: &&Vec<String>| shell::option(words, &["--out"]) == Some(name);
                found.push((name.to_owned(), commands.iter().rev().find(draws).cloned()));
            }
        }
    }
    found
}

fn texts() -> Vec<(PathBuf, String)> {
    let folders = ["chapters", "chapters/reference"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let chapters = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let all = chapters.filter(|path| path.is_file()).chain([root().join("README.md")]);
    all.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_picture_is_the_output_of_its_command() {
    let (mut drawn, mut wrong) = (BTreeSet::new(), Vec::new());
    let bless = std::env::var_os("LLAMA_TRACE_BLESS").is_some_and(|value| value == "1");
    for (path, text) in texts() {
        for (name, words) in pictures(&text) {
            let Some(words) = words else {
                wrong.push(format!("{}: no command draws {name}", path.display()));
                continue;
            };
            let folder = tempfile::tempdir().unwrap();
            let (code, _) = shell::print(&words, folder.path());
            let (new, kept) =
                (fs::read(folder.path().join(&name)), root().join("chapters/pictures").join(&name));
            match (code, new) {
                (0, Ok(new)) if bless => fs::write(&kept, new).unwrap(),
                (0, Ok(new)) if fs::read(&kept).is_ok_and(|old| old == new) => {}
                (0, Ok(_)) => wrong.push(format!("pictures/{name} is another one now")),
                _ => wrong.push(format!("{} exits with {code}", words.join(" "))),
            }
            drawn.insert(name);
        }
    }
    assert!(drawn.len() >= 2, "only these pictures were found: {drawn:?}");
    let there = fs::read_dir(root().join("chapters/pictures")).unwrap();
    let there: BTreeSet<_> = there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(there, drawn, "every picture is shown in a chapter or in README");
    crate::assert_none(&wrong);
}

#[test]
fn a_picture_without_its_command_is_found() {
    let text = "```console\n$ llama-trace snapshot --at x --out a.svg\n```\n![a](pictures/a.svg) [b](../pictures/b.svg)";
    let found = pictures(text);
    assert_eq!(found[0].1.as_ref().unwrap().len(), 6);
    assert_eq!(found[1], ("b.svg".to_owned(), None));
}
