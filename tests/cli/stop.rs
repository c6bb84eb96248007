//! A process that is told to stop in the middle of long work.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::{command, files_and_folders, models, soon_empty, stderr};

/// Twenty times the half second in which a request to stop is answered: machines that test are busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// An export into `place` that computes for minutes, some way into its pass.
fn slow_export(folder: &Path, place: &Path) -> Child {
    // Its pass over a long prompt takes a processor minutes by plain loops.
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
    // Into the pass.
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "the pass is not long enough for this test");
    child
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

/// Waits for the end after Ctrl-C, and answers what was said.
fn end(mut child: Child) -> String {
    let asked = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if asked.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("it went on for {PATIENCE:?} after Ctrl-C");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(status.code(), Some(130));
    stderr(&child.wait_with_output().unwrap())
}

#[test]
fn ctrl_c_ends_an_export_in_the_middle_of_its_one_long_pass() {
    let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let child = slow_export(folder.path(), place.path());
    interrupt(&child);
    end(child);
    soon_empty(place.path());
}

#[test]
fn an_export_of_very_many_files_ends_before_they_are_removed_and_says_what_is_going_on() {
    let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let child = slow_export(folder.path(), place.path());
    let [staging] = &files_and_folders(place.path())[..] else { panic!("one temporary folder") };
    // As if there had been passes before. Second names are made faster than files.
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
    assert!(said.contains(name) && said.contains("is being removed"), "{said}");
    soon_empty(place.path());
}
