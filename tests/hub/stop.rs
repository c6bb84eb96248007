//! Ctrl-C during a download, and after it.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use super::repo::{At, Hub};
use super::server::Answer;
use super::{RUN, WEIGHTS, expected, ok, refused, tiny};

#[test]
fn ctrl_c_keeps_the_downloaded_part() {
    let hub = Hub::new(tiny());
    hub.twist(|at, _, answer| match at {
        At::Store => Answer { cut: Some(300_000), stall: true, ..answer },
        At::Hub => answer,
    });
    let child = hub.command(&RUN).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while fs::metadata(hub.partial(WEIGHTS)).map_or(0, |partial| partial.len()) < 300_000 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    refused(&child.wait_with_output().unwrap(), 130, &["interrupted", "it goes on from there"]);
    hub.twist(|_, _, answer| answer);
    hub.store.asked();
    assert_eq!(ok(&hub.run(&RUN)), expected());
    assert_eq!(hub.store.asked()[0].from(), Some(300_000));
}

/// Each answer has only a part of the file, so there is always another request.
#[test]
fn after_ctrl_c_no_request_is_sent() {
    let hub = Hub::new(tiny());
    hub.twist(|at, _, answer| match at {
        At::Store => Answer { cut: Some(70_000), ..answer },
        At::Hub => answer,
    });
    let child = hub.command(&RUN).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut asked = 0;
    while asked < 2 {
        asked += hub.store.asked().len();
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    refused(&child.wait_with_output().unwrap(), 130, &["interrupted", "it goes on from there"]);
    // The 1.84 MB take 27 requests, with a pause before each.
    let after = hub.store.asked().len();
    assert!(after <= 2, "asked {after} times more");
}

/// After a download, Ctrl-C ends the run as usual.
#[test]
fn ctrl_c_after_a_download_ends_the_run() {
    let hub = Hub::new(tiny());
    let args = ["log", "--model", "org/tiny", "--prompt", "x", "-n", "400", "--values", "--temperature", "1"];
    let mut child = hub.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The output is not read, so the program cannot end by itself.
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
}
