//! Broken connections, and incomplete files.

use std::fs;

use super::repo::{At, Hub};
use super::server::{Answer, Request};
use super::{RUN, WEIGHTS, expected, lines, ok, refused, tiny};

/// Truncates the answer to the first request for the weights after `bytes` bytes.
fn cut_first(hub: &Hub, bytes: usize) {
    let mut first = true;
    hub.twist(move |at, _, answer| match at == At::Store && std::mem::take(&mut first) {
        true => Answer { cut: Some(bytes), ..answer },
        false => answer,
    });
}

#[test]
fn a_broken_download_continues_where_it_stopped() {
    let hub = Hub::new(tiny());
    cut_first(&hub, 700_000);
    assert_eq!(ok(&hub.run(&RUN)), expected());
    let from: Vec<_> = hub.store.asked().iter().map(Request::from).collect();
    assert_eq!(from, [None, Some(700_000)]);
    assert_eq!(hub.downloaded(WEIGHTS), hub.files[WEIGHTS]);
    assert!(!hub.partial(WEIGHTS).exists());
}

#[test]
fn a_download_starts_again_if_the_server_cannot_continue() {
    for status in [200, 416] {
        let hub = Hub::new(tiny());
        let whole = hub.files[WEIGHTS].clone();
        let mut first = true;
        hub.twist(move |at, request, answer| match at {
            At::Store if std::mem::take(&mut first) => Answer { cut: Some(1000), ..answer },
            At::Store if request.from().is_some() && status == 200 => Answer::body(whole.clone()),
            At::Store if request.from().is_some() => Answer::status(status),
            _ => answer,
        });
        assert_eq!(ok(&hub.run(&RUN)), expected());
        assert_eq!(hub.downloaded(WEIGHTS), hub.files[WEIGHTS]);
    }
}

#[test]
fn an_incomplete_file_is_refused_and_its_part_is_kept() {
    let hub = Hub::new(tiny());
    hub.twist(|at, request, answer| match at {
        At::Store if request.from().is_some() => Answer { cut: Some(0), ..answer },
        At::Store => Answer { cut: Some(1000), ..answer },
        At::Hub => answer,
    });
    let texts = [
        "`model.safetensors` was not received completely",
        "1841368 bytes",
        "found: 1000 bytes",
        "it goes on from there",
    ];
    refused(&hub.run(&RUN), 3, &texts);
    assert_eq!(fs::read(hub.partial(WEIGHTS)).unwrap(), &hub.files[WEIGHTS][..1000]);
    assert!(!hub.blob(WEIGHTS).exists() && !hub.cached().join("refs").exists());
    hub.twist(|_, _, answer| answer);
    hub.store.asked();
    assert_eq!(ok(&hub.run(&RUN)), expected());
    assert_eq!(hub.store.asked()[0].from(), Some(1000));
}

#[test]
fn wrong_content_never_gets_the_files_name() {
    for (file, name) in [(WEIGHTS, "SHA-256"), ("config.json", "git id")] {
        let hub = Hub::new(tiny());
        hub.twist(move |_, request, mut answer| {
            if request.method == "GET" && request.path.contains(file) && answer.status == 200 {
                answer.body[100] ^= 1;
            }
            answer
        });
        refused(
            &hub.run(&RUN),
            3,
            &[&format!("the bytes received for `{file}` have a wrong checksum"), name],
        );
        assert!(!hub.blob(file).exists() && !hub.partial(file).exists());
    }
    // The answer is longer than it should be.
    let hub = Hub::new(tiny());
    hub.twist(|at, _, mut answer| {
        answer.body.extend(if at == At::Store { &b"more"[..] } else { b"" });
        answer
    });
    refused(&hub.run(&RUN), 3, &["more than the 1841368 bytes of model.safetensors"]);
    assert!(!hub.blob(WEIGHTS).exists());
}

#[test]
fn a_damaged_part_of_an_earlier_run_is_downloaded_again() {
    for damaged in [vec![7; 5000], vec![7; 2_000_000]] {
        let hub = Hub::new(tiny());
        fs::create_dir_all(hub.cached().join("blobs")).unwrap();
        fs::write(hub.partial(WEIGHTS), &damaged).unwrap();
        assert_eq!(ok(&hub.run(&RUN)), expected());
        assert_eq!(hub.downloaded(WEIGHTS), hub.files[WEIGHTS]);
        let last = hub.store.asked().last().unwrap().from();
        assert_eq!(last, None, "the file must be requested from its beginning");
    }
}

#[test]
fn a_busy_hub_is_asked_again() {
    let hub = Hub::new(tiny());
    // The hub is busy twice, and so is the server that stores the weights.
    let mut left = [2, 2];
    hub.twist(move |at, request, answer| {
        let left = &mut left[usize::from(at == At::Store)];
        if *left > 0 && (at == At::Store || request.path.ends_with("/main")) {
            *left -= 1;
            return Answer::status(if *left == 0 { 503 } else { 429 }).with("Retry-After", "0");
        }
        answer
    });
    assert_eq!(ok(&hub.run(&RUN)), expected());
    let asked = lines(&hub.hub.asked());
    assert_eq!(asked.iter().filter(|line| line.ends_with("/main")).count(), 3);
    assert_eq!(hub.store.asked().len(), 3);
}
