//! A process that is told to stop in the middle of long work.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{command, files_and_folders, models};

/// Twenty times the half second in which a request to stop is answered: machines that test are busy.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn ctrl_c_ends_an_export_in_the_middle_of_its_one_long_pass() {
    let folder = tempfile::tempdir().unwrap();
    // Its pass over a long prompt takes a processor minutes by plain loops.
    models::zeros(folder.path(), [16, 512, 2048, 8, 300]);
    let place = tempfile::tempdir().unwrap();
    let ids: Vec<String> = (0..4000).map(|i| (i % 300).to_string()).collect();
    let ids_file = folder.path().join("ids.txt");
    fs::write(&ids_file, ids.join(" ")).unwrap();
    let mut child = command(["export", "--cpu-kernel", "portable", "--stages", "sampled", "--ids"])
        .arg(format!("@{}", ids_file.display()))
        .arg("--model")
        .arg(folder.path())
        .arg("--out")
        .arg(place.path().join("dump"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while files_and_folders(place.path()).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Into the pass.
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "the pass is not long enough for this test");
    let pid = child.id().to_string();
    let asked = Instant::now();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
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
    assert!(files_and_folders(place.path()).is_empty(), "something is left behind");
}
