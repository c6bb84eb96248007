//! Servers with endless answers, and a cache that an attacker prepared.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::repo::{At, COMMIT, Hub};
use super::server::Answer;
use super::{RUN, WEIGHTS, expected, ok, refused, stderr, tiny};

/// Runs the program. It must end by itself within two minutes.
fn ended(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("the program does not end: {}", stderr(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Like [`ended`], with limits on memory and CPU time.
fn limited(hub: &Hub, args: &[&str]) -> Output {
    let inner = hub.command(args);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -v 1000000 && ulimit -t 10 && exec \"$0\" \"$@\""]);
    command.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("RAYON_NUM_THREADS", "2");
    ended(command)
}

#[test]
fn a_server_that_truncates_every_answer_is_asked_a_few_times() {
    // Each answer is truncated at another place, so each attempt gets a different number of bytes.
    for step in [0, 7] {
        let hub = Hub::new(tiny());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        hub.twist(move |at, request, answer| match at {
            At::Hub => answer,
            At::Store => match count.fetch_add(1, Ordering::Relaxed) {
                // After a hundred requests the answer changes, so that a program that never gives up ends too.
                100.. => Answer::status(404),
                _ if request.from().is_some() => Answer::status(416),
                times => Answer { cut: Some(1000 + step * times), ..answer },
            },
        });
        refused(&ended(hub.command(&RUN)), 3, &["was not received completely", "1841368 bytes"]);
        assert!(asked.load(Ordering::Relaxed) <= 8, "asked {} times", asked.load(Ordering::Relaxed));
    }
}

#[test]
fn a_server_that_sends_a_few_bytes_each_time_is_asked_a_few_times() {
    let hub = Hub::new(tiny());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    hub.twist(move |at, _, answer| match at {
        At::Hub => answer,
        At::Store if count.fetch_add(1, Ordering::Relaxed) < 100 => Answer { cut: Some(10), ..answer },
        At::Store => Answer::status(404),
    });
    refused(&ended(hub.command(&RUN)), 3, &["was not received completely", "it goes on from there"]);
    assert!(asked.load(Ordering::Relaxed) <= 8, "asked {} times", asked.load(Ordering::Relaxed));
}

#[test]
fn a_very_slow_server_is_given_up() {
    for at_fault in [At::Store, At::Hub] {
        let hub = Hub::new(tiny());
        hub.twist(move |at, _, answer| Answer { drip: at == at_fault, ..answer });
        let mut command = hub.command(&RUN);
        command.env("HF_HUB_DOWNLOAD_TIMEOUT", "1");
        let output = ended(command);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.contains("bytes in 1 seconds"), "{told}");
    }
}

#[test]
fn very_many_file_names_take_little_time() {
    let mut files = tiny();
    files.remove(WEIGHTS);
    let shards: Vec<String> = (0..60_000).map(|number| format!("{number:05}.safetensors")).collect();
    for (count, texts) in
        [(60_000, ["more files than", "at most 1024"]), (1000, ["the repository has no", "00999"])]
    {
        let map: serde_json::Map<_, _> =
            shards[..count].iter().map(|name| (format!("t{name}"), name.as_str().into())).collect();
        let index = serde_json::json!({"weight_map": map}).to_string();
        files.insert("model.safetensors.index.json".into(), index.into());
        let hub = Hub::new(files.clone());
        let all: Vec<String> = files.keys().chain(&shards[..999]).cloned().collect();
        hub.twist(move |_, request, answer| match request.path.contains("/revision/") {
            true => {
                let siblings = all.iter().chain((0..230_000).map(|_| &all[0]));
                let siblings: Vec<_> = siblings.map(|name| serde_json::json!({"rfilename": name})).collect();
                Answer::body(serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string())
            }
            false => answer,
        });
        refused(&limited(&hub, &RUN), 3, &texts);
    }
    // The name of a GGUF file may state the number of its parts.
    let hub = Hub::new(tiny());
    refused(&limited(&hub, &["info", "--model", "org/tiny:m-00001-of-99999.gguf"]), 3, &["has no file"]);
}

fn pipe(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn the_target_of_a_link_is_not_written() {
    for hard in [false, true] {
        let hub = Hub::new(tiny());
        let precious = hub.home.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        fs::create_dir_all(hub.cached().join("blobs")).unwrap();
        match hard {
            false => std::os::unix::fs::symlink(&precious, hub.partial(WEIGHTS)).unwrap(),
            true => fs::hard_link(&precious, hub.partial(WEIGHTS)).unwrap(),
        }
        assert_eq!(ok(&ended(hub.command(&RUN))), expected());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(fs::symlink_metadata(hub.blob(WEIGHTS)).unwrap().is_file());
        assert_eq!(fs::read(hub.blob(WEIGHTS)).unwrap(), hub.files[WEIGHTS]);
    }
}

#[test]
fn a_partial_file_that_is_a_pipe_is_replaced() {
    let hub = Hub::new(tiny());
    pipe(&hub.partial(WEIGHTS));
    assert_eq!(ok(&limited(&hub, &RUN)), expected());
}

#[test]
fn an_endless_revision_file_is_ignored() {
    let hub = Hub::new(tiny());
    let revision = hub.cached().join("refs/main");
    fs::create_dir_all(revision.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &revision).unwrap();
    let offline = [&RUN[..], &["--offline"]].concat();
    refused(&limited(&hub, &offline), 3, &["not in the cache"]);
    fs::remove_file(&revision).unwrap();
    pipe(&revision);
    refused(&limited(&hub, &offline), 3, &["not in the cache"]);
    // The download replaces the pipe by a regular file.
    assert_eq!(ok(&limited(&hub, &RUN)), expected());
    assert_eq!(fs::read_to_string(&revision).unwrap(), COMMIT);
}

#[test]
fn the_program_does_not_wait_for_pipes_instead_of_files() {
    let hub = Hub::new(tiny());
    pipe(&hub.home.path().join("token"));
    assert_eq!(ok(&limited(&hub, &RUN)), expected(), "a token that cannot be read is none");
    let snapshot = hub.cached().join("snapshots").join(COMMIT);
    let offline = [&RUN[..], &["--offline"]].concat();
    for file in ["config.json", "tokenizer.json", WEIGHTS, "generation_config.json"] {
        let kept = fs::read_link(snapshot.join(file)).unwrap();
        fs::remove_file(snapshot.join(file)).unwrap();
        pipe(&snapshot.join(file));
        for args in [&offline[..], &RUN, &["info", "--model", "org/tiny"]] {
            let output = limited(&hub, args);
            // With an unreadable tokenizer only text prompts fail, and `info` reports this.
            let says = file == "tokenizer.json" && args[0] == "info";
            let text =
                if says { String::from_utf8_lossy(&output.stdout).into_owned() } else { stderr(&output) };
            assert_eq!(output.status.code(), Some(if says { 0 } else { 3 }), "{file}: {}", stderr(&output));
            assert!(text.contains("not a regular file"), "{file}: {text}");
        }
        fs::remove_file(snapshot.join(file)).unwrap();
        std::os::unix::fs::symlink(kept, snapshot.join(file)).unwrap();
    }
    // Puts a pipe in the place of a blob's lock.
    let hub = Hub::new(tiny());
    let name = hub.blob(WEIGHTS).file_name().unwrap().to_str().unwrap().to_owned();
    pipe(&hub.home.path().join("hub/.locks/models--org--tiny").join(format!("{name}.lock")));
    refused(&limited(&hub, &RUN), 5, &["cannot be written to the cache", ".lock"]);
}
