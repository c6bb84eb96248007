//! A process that receives a request to stop in the middle of long work.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::export::{files_and_folders, soon_empty};
use super::{PROMPT, command, models, stderr};

/// Sixty times the half second within which the program answers a request to stop, because test machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts an export into `place` that computes for minutes, and waits until its pass has begun.
fn slow_export(folder: &Path, place: &Path) -> Child {
    // With the portable kernel, the pass over a long prompt takes minutes.
    models::zeros(folder, [16, 512, 2048, 8, 300]);
    let ids: Vec<String> = (0..4000).map(|i| (i % 300).to_string()).collect();
    let ids_file = folder.join("ids.txt");
    fs::write(&ids_file, ids.join(" ")).unwrap();
    let mut child = command(["export", "--cpu-kernel", "portable", "--stages", "sampled", "--ids"])
        .arg(format!("@{}", ids_file.display()))
        .arg("--model")
        .arg(folder)
        .arg("--out")
        .arg(place.join("dump"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while files_and_folders(place).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Waits until the pass has begun.
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "the pass is not long enough for this test");
    child
}

pub(crate) fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

/// Waits for the end after Ctrl-C, and returns standard error.
pub(crate) fn end(mut child: Child) -> String {
    let asked = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if asked.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("the program still ran {PATIENCE:?} after Ctrl-C");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(status.code(), Some(130));
    stderr(&child.wait_with_output().unwrap())
}

#[test]
fn ctrl_c_ends_an_export_in_the_middle_of_a_long_pass() {
    let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let child = slow_export(folder.path(), place.path());
    // Simulates a large file, as in an export of many tokens. It must not delay the end.
    let [staging] = &files_and_folders(place.path())[..] else { panic!("one temporary folder") };
    fs::File::create(staging.join("files/large.npy")).unwrap().set_len(64 << 20).unwrap();
    interrupt(&child);
    end(child);
    assert_eq!(
        files_and_folders(place.path()),
        Vec::<PathBuf>::new(),
        "files remain after the process has ended"
    );
}

#[test]
fn an_interrupted_export_removes_very_many_files_or_says_that_this_goes_on() {
    let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let child = slow_export(folder.path(), place.path());
    let [staging] = &files_and_folders(place.path())[..] else { panic!("one temporary folder") };
    // Simulates the files of earlier passes. Hard links are created faster than files.
    let files = staging.join("files");
    for pass in 0..6 {
        let folder = files.join(format!("pass_{pass:03}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("0.npy"), "").unwrap();
        for number in 1..25_000 {
            fs::hard_link(folder.join("0.npy"), folder.join(format!("{number}.npy"))).unwrap();
        }
    }
    interrupt(&child);
    interrupt(&child);
    let said = end(child);
    let name = staging.file_name().unwrap().to_str().unwrap();
    if files_and_folders(place.path()).is_empty() {
        return;
    }
    assert!(said.contains(name) && said.contains("is being removed"), "{said}");
    soon_empty(place.path());
}

#[test]
fn ctrl_c_during_the_exchange_of_files_restores_the_old_files() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path();
    // An earlier export with very many files.
    let mut names = Vec::new();
    for pass in 0..6 {
        let folder = format!("pass_{pass:03}");
        fs::create_dir(out.join(&folder)).unwrap();
        let first = format!("{folder}/x0.npy");
        fs::write(out.join(&first), "").unwrap();
        for number in 1..25_000 {
            let name = format!("{folder}/x{number}.npy");
            fs::hard_link(out.join(&first), out.join(&name)).unwrap();
            names.push(name);
        }
        names.push(first);
    }
    let files: Vec<_> = names.iter().map(|name| serde_json::json!({"file": name})).collect();
    let manifest = serde_json::json!({"format": "llama-trace export", "version": 1, "files": files});
    fs::write(out.join("manifest.json"), manifest.to_string()).unwrap();
    let all = || -> BTreeSet<_> {
        let (folders, files): (Vec<_>, _) =
            files_and_folders(out).into_iter().partition(|path| path.is_dir());
        folders.iter().flat_map(|folder| files_and_folders(folder)).chain(files).collect()
    };
    let before = all();

    let mut child = command(["export", "--prompt", PROMPT, "--stages", "tokens", "--force", "--out"])
        .arg(out)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Waits for the middle of the exchange: the first old files have been moved away.
    let aside = || {
        let entries = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| path.join("old/pass_000")).find(|path| path.is_dir())
    };
    while aside().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(Duration::from_millis(1));
    }
    interrupt(&child);
    let said = end(child);
    assert!(said.contains("nothing was written") || said.contains("put back"), "{said}");
    let asked = Instant::now();
    while fs::read_dir(out).unwrap().count() != 7 {
        assert!(asked.elapsed() < 4 * PATIENCE, "the old files were not moved back: {said}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(all() == before, "{said}");
    assert_eq!(fs::read_to_string(out.join("manifest.json")).unwrap(), manifest.to_string());
}

/// The process that removes the temporary folder of another process checks the folder's name, so it never removes a
/// user's folder.
#[test]
fn only_a_folder_with_a_temporary_name_is_removed_for_another_process() {
    let place = tempfile::tempdir().unwrap();
    for (name, stays) in [("mine", true), (".llama-trace-export-abcdef", false)] {
        let folder = place.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("photo"), "").unwrap();
        let lock = fs::File::create(folder.join("lock")).unwrap();
        // No process has the number 0.
        let mut child = command(["__remove-temporary-folder", folder.to_str().unwrap(), "0"]);
        assert!(child.stdin(lock).status().unwrap().success());
        assert_eq!(folder.join("photo").exists(), stays, "{name}");
    }
}
