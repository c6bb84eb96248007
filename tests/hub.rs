//! Models of the hub. The binary downloads them from a local server that behaves like the hub, or wrongly on purpose.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "hub/broken.rs"]
mod broken;
mod common;
#[cfg(target_os = "linux")]
#[path = "hub/hostile.rs"]
mod hostile;
#[cfg(unix)]
#[path = "common/pty.rs"]
#[allow(dead_code, reason = "one screen is looked at here")]
mod pty;
#[path = "hub/repo.rs"]
mod repo;
#[path = "hub/server.rs"]
mod server;
#[cfg(unix)]
#[path = "hub/stop.rs"]
mod stop;
#[path = "hub/tls.rs"]
mod tls;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use common::{fixture, llama_trace, models, stderr, stdout};
#[cfg(unix)]
use repo::etag;
use repo::{At, COMMIT, Files, Hub, files};
use server::{Answer, Request};

const WEIGHTS: &str = "model.safetensors";
const RUN: [&str; 6] = ["--model", "org/tiny", "--prompt", "Once upon", "-n", "2"];

/// The files of the built-in model, and other files of real repositories, which the program does not need.
fn tiny() -> Files {
    let mut all = files(&fixture("builtin"));
    for name in ["README.md", ".gitattributes", "pytorch_model.bin", "original/consolidated.00.pth"] {
        all.insert(name.into(), b"not needed".to_vec());
    }
    all
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

fn refused(output: &Output, code: i32, texts: &[&str]) {
    let told = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{told}");
    for text in texts.iter().chain(&["error: ", "next: "]) {
        assert!(told.contains(text), "`{text}` is not in\n{told}");
    }
}

fn lines(requests: &[Request]) -> Vec<String> {
    let mut lines: Vec<String> = requests.iter().map(Request::line).collect();
    lines.sort();
    lines
}

/// The output of the built-in model when it is opened from its folder.
fn expected() -> String {
    let folder = fixture("builtin");
    ok(&llama_trace(["--model", folder.to_str().unwrap(), "--prompt", "Once upon", "-n", "2"]))
}

#[test]
fn only_what_is_needed_is_fetched_and_only_once() {
    let hub = Hub::new(tiny());
    let first = hub.run(&RUN);
    assert_eq!(ok(&first), expected());
    let told = stderr(&first);
    assert!(told.starts_with("org/tiny at 0123456 from the hub: 7 files fetched, 1.9"), "{told}");
    assert_eq!(told.lines().count(), 2, "one line names the source, one the model: {told}");

    let small = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let mut asked = vec!["GET /api/models/org/tiny/revision/main".to_owned()];
    for method in ["GET", "HEAD"] {
        for file in small {
            asked.push(format!("{method} /org/tiny/resolve/{COMMIT}/{file}"));
            asked.push(format!("{method} /api/resolve-cache/{file}"));
        }
        asked.push(format!("{method} /org/tiny/resolve/{COMMIT}/{WEIGHTS}"));
    }
    asked.sort();
    assert_eq!(lines(&hub.hub.asked()), asked);
    assert_eq!(lines(&hub.store.asked()), [format!("GET /{WEIGHTS}?signature=x")]);

    // The layout of huggingface_hub's cache.
    assert_eq!(fs::read_to_string(hub.cached().join("refs/main")).unwrap(), COMMIT);
    for file in small.into_iter().chain([WEIGHTS]) {
        assert_eq!(hub.downloaded(file), hub.files[file]);
        #[cfg(unix)]
        {
            assert_eq!(fs::read(hub.blob(file)).unwrap(), hub.files[file]);
            let pointer = hub.cached().join("snapshots").join(COMMIT).join(file);
            let target = Path::new("../../blobs").join(etag(file, &hub.files[file]));
            assert_eq!(fs::read_link(&pointer).unwrap(), target);
        }
    }
    #[cfg(unix)]
    assert_eq!(fs::read_dir(hub.cached().join("blobs")).unwrap().count(), 7);

    let second = hub.run(&RUN);
    assert_eq!(ok(&second), expected());
    assert!(stderr(&second).contains("in the cache"), "{}", stderr(&second));
    assert_eq!(lines(&hub.hub.asked()), ["GET /api/models/org/tiny/revision/main"]);

    for args in [&["--offline"][..], &[]] {
        let mut command = hub.command(&[&RUN[..], args].concat());
        if args.is_empty() {
            command.env("HF_HUB_OFFLINE", "1");
        }
        assert_eq!(ok(&command.output().unwrap()), expected());
    }
    assert!(hub.hub.asked().is_empty() && hub.store.asked().is_empty());
}

/// Layouts with PyTorch's files, and with shards in subfolders. The index of the shards has `./` before the names.
#[test]
fn files_of_every_layout_are_fetched_and_read_from_the_cache() {
    for (name, index, shards) in [
        ("bin", None, &["pytorch_model.bin"][..]),
        (
            "bin-shards",
            Some("pytorch_model.bin.index.json"),
            &["part/pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"],
        ),
        ("shards", Some("model.safetensors.index.json"), &["sub/deep/a.safetensors", "z.safetensors"]),
    ] {
        let folder = fixture("layouts").join(name);
        let all = shards.iter().copied().chain(index).chain(["config.json"]);
        let hub = Hub::new(all.map(|file| (file.into(), fs::read(folder.join(file)).unwrap())).collect());
        let run = |model: &str| ["--model", model, "--ids", "1,17,5", "-n", "4"].map(str::to_owned);
        let expected = ok(&llama_trace(run(folder.to_str().unwrap())));
        let info = ok(&hub.run(&["info", "--model", "org/tiny"]));
        assert!(info.lines().skip(1).eq(info_of(&folder)), "{info}");
        for offline in [&[][..], &["--offline".to_owned()]] {
            let args = [&run("org/tiny")[..], offline].concat();
            assert_eq!(
                ok(&hub.run(&args.iter().map(String::as_str).collect::<Vec<_>>())),
                expected,
                "{name}"
            );
        }
        for shard in shards {
            let kept = hub.cached().join("snapshots").join(COMMIT).join(shard);
            assert_eq!(fs::read(kept).unwrap(), hub.files[*shard]);
        }
    }
}

#[test]
fn every_command_takes_a_name() {
    let hub = Hub::new(tiny());
    ok(&hub.run(&["log", "--model", "org/tiny", "--prompt", "x"]));
    let info = ok(&hub.run(&["info", "--model", "org/tiny", "--offline"]));
    assert!(info.starts_with("model       org/tiny (Hugging Face directory, 1 safetensors file"), "{info}");
    let out = hub.home.path().join("dump");
    ok(&hub.run(&[
        "export",
        "--model",
        "org/tiny",
        "--offline",
        "--prompt",
        "x",
        "--out",
        out.to_str().unwrap(),
    ]));
    assert!(out.join("manifest.json").exists());
    ok(&hub.run(&["chat", "--model", "org/tiny", "--offline", "-n", "1"]));
    let bench = ["bench", "--model", "org/tiny", "--offline", "--gen", "1", "--prompt-tokens", "1"];
    ok(&hub.run(&bench));
}

#[test]
fn tokens_are_shown_without_fetching_a_weight() {
    let hub = Hub::new(tiny());
    let args = ["tokenize", "--model", "org/tiny", "Once upon"];
    assert_eq!(ok(&hub.run(&args)), ok(&llama_trace(["tokenize", "Once upon"])));
    let asked = lines(&hub.hub.asked());
    assert!(
        asked.iter().all(|line| {
            let of_tokenizer = ["tokenizer", "special_tokens_map.json", "/config.json", "revision/main"];
            of_tokenizer.iter().any(|name| line.contains(name))
        }),
        "{asked:?}"
    );
    assert!(hub.store.asked().is_empty());
    assert_eq!(
        ok(&hub.run(&[&args[..], &["--offline"]].concat())),
        ok(&llama_trace(["tokenize", "Once upon"]))
    );
    refused(
        &hub.run(&[&RUN[..], &["--offline"]].concat()),
        3,
        &["no model.safetensors of commit 0123", "leave --offline out"],
    );
    assert!(hub.hub.asked().is_empty());
}

/// The output of `info` for a model on disk, without its name.
fn info_of(path: &Path) -> Vec<String> {
    let info = ok(&llama_trace(["info", "--model", path.to_str().unwrap()]));
    info.lines().skip(1).map(str::to_owned).collect()
}

/// The requests for weight files so far, each with the requested range.
fn ranges(hub: &Hub) -> Vec<String> {
    let asked = hub.store.asked();
    asked.iter().map(|request| format!("{} {}", request.line(), request.range().unwrap_or("all"))).collect()
}

#[test]
fn info_describes_a_model_without_downloading_its_values() {
    let gguf = fixture("formats/gguf");
    let split = ["split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"];
    let sharded = models::sharded();
    let cases: [(&Path, &str, &[&str]); 4] = [
        (&fixture("builtin"), "", &[WEIGHTS]),
        (sharded.path(), "", &["a.safetensors", "b.safetensors"]),
        // `info` shows the RoPE frequencies, which are values of the file.
        (&gguf, "scaled.gguf", &["scaled.gguf"]),
        (&gguf, split[1], &split),
    ];
    for (folder, file, weights) in cases {
        let hub = Hub::new(files(folder));
        let model = if file.is_empty() { "org/tiny".into() } else { format!("org/tiny:{file}") };
        for _ in 0..2 {
            let output = hub.run(&["info", "--model", &model]);
            let info = ok(&output);
            assert!(info.starts_with("model       org/tiny (") && info.contains("; not fetched)"), "{info}");
            assert!(info.lines().skip(1).eq(info_of(&folder.join(file))), "{info}");
            assert!(stderr(&output).contains("of weights were not fetched"), "{}", stderr(&output));
            let asked = ranges(&hub);
            let first = |name: &&str| {
                format!("GET /{name}?signature=x 0-{}", hub.files[*name].len().min(1 << 18) - 1)
            };
            assert_eq!(asked, weights.iter().map(first).collect::<Vec<_>>());
            assert!(weights.iter().all(|name| !hub.blob(name).exists() && !hub.partial(name).exists()));
        }
        // After a download, `info` reads the downloaded files.
        ok(&hub.run(&["--model", &model, "--ids", "1", "-n", "1"]));
        hub.store.asked();
        for args in [&["info", "--model", &model][..], &["info", "--model", &model, "--offline"]] {
            let info = ok(&hub.run(args));
            assert!(!info.contains("not fetched") && info.lines().skip(1).eq(info_of(&folder.join(file))));
        }
        assert!(hub.store.asked().is_empty());
    }
}

#[test]
fn info_works_with_servers_of_few_features() {
    let hub = Hub::new(tiny());
    let whole = hub.files[WEIGHTS].clone();
    hub.twist(move |at, _, answer| if at == At::Store { Answer::body(whole.clone()) } else { answer });
    let args = ["info", "--model", "org/tiny"];
    assert!(ok(&hub.run(&args)).lines().skip(1).eq(info_of(&fixture("builtin"))));
    hub.twist(|at, _, answer| if at == At::Store { Answer { cut: Some(100), ..answer } } else { answer });
    hub.store.asked();
    refused(&hub.run(&args), 3, &["the hub cannot be reached"]);
    assert_eq!(hub.store.asked().len(), 3);
    let mut first = true;
    hub.twist(move |at, _, answer| match at {
        At::Store if std::mem::take(&mut first) => Answer { cut: Some(100), ..answer },
        _ => answer,
    });
    assert!(ok(&hub.run(&args)).contains("not fetched"));
    hub.twist(|at, _, answer| if at == At::Store { Answer::status(403) } else { answer });
    refused(&hub.run(&args), 3, &["access to the repository is denied"]);
    refused(&hub.run(&[&args[..], &["--offline"]].concat()), 3, &["no model.safetensors of commit"]);
}

#[test]
fn a_cached_commit_is_not_requested() {
    let hub = Hub::new(tiny());
    let model = format!("org/tiny@{COMMIT}");
    let args = ["--model", &model, "--ids", "1", "-n", "1"];
    ok(&hub.run(&args));
    assert_eq!(
        lines(&hub.hub.asked())[0],
        "GET /api/models/org/tiny/revision/0123456789abcdef0123456789abcdef01234567"
    );
    assert!(!hub.cached().join("refs").exists());
    ok(&hub.run(&args));
    assert!(hub.hub.asked().is_empty());
    ok(&hub.run(&["--model", "org/tiny@refs/pr/1", "--ids", "1", "-n", "1"]));
    assert_eq!(lines(&hub.hub.asked()), ["GET /api/models/org/tiny/revision/refs%2Fpr%2F1"]);
    assert_eq!(fs::read_to_string(hub.cached().join("refs/refs/pr/1")).unwrap(), COMMIT);
}

/// Files that Python's client has downloaded are opened, and never changed.
#[cfg(unix)]
#[test]
fn a_cache_that_another_program_filled_is_used() {
    let hub = Hub::new(tiny());
    let (cached, cache) = (hub.cached(), hub.home.path().join("elsewhere"));
    let snapshot = cached.join("snapshots").join(COMMIT);
    for folder in [&snapshot, &cached.join("blobs"), &cached.join("refs")] {
        fs::create_dir_all(folder).unwrap();
    }
    for (file, bytes) in hub.files.iter().filter(|(file, _)| !file.contains('/')) {
        fs::write(hub.blob(file), bytes).unwrap();
        std::os::unix::fs::symlink(Path::new("../../blobs").join(etag(file, bytes)), snapshot.join(file))
            .unwrap();
    }
    fs::write(cached.join("refs/main"), COMMIT).unwrap();
    assert_eq!(ok(&hub.run(&[&RUN[..], &["--offline"]].concat())), expected());
    assert_eq!(ok(&hub.run(&RUN)), expected());
    assert_eq!(hub.hub.asked().len(), 1);
    // If a blob has no link, it is linked and not downloaded again. The cache may be in another folder.
    fs::remove_file(snapshot.join(WEIGHTS)).unwrap();
    fs::create_dir(&cache).unwrap();
    fs::rename(&cached, cache.join("models--org--tiny")).unwrap();
    let output = hub.command(&RUN).env("HF_HUB_CACHE", &cache).output().unwrap();
    assert_eq!(ok(&output), expected());
    assert!(hub.store.asked().is_empty());
}

#[test]
fn the_token_is_sent_only_to_the_hub() {
    let hub = Hub::new(tiny());
    let sent = |requests: Vec<Request>| -> Vec<Option<String>> {
        requests.into_iter().map(|request| request.headers.get("authorization").cloned()).collect()
    };
    ok(&hub.command(&RUN).env("HF_TOKEN", "hf_secret").output().unwrap());
    assert!(sent(hub.hub.asked()).iter().all(|token| token.as_deref() == Some("Bearer hf_secret")));
    assert_eq!(sent(hub.store.asked()), [None]);
    // The file that `huggingface-cli login` writes.
    fs::write(hub.home.path().join("token"), "hf_file\n").unwrap();
    ok(&hub.run(&RUN));
    assert_eq!(sent(hub.hub.asked()), [Some("Bearer hf_file".to_owned())]);
}

/// Only a terminal has a progress bar. The other tests run without a terminal, and check every byte of the output.
#[cfg(unix)]
#[test]
fn a_terminal_shows_the_progress() {
    let hub = Hub::new(tiny());
    hub.twist(|at, _, answer| match at {
        At::Store => Answer { cut: Some(500_000), stall: true, ..answer },
        At::Hub => answer,
    });
    let wanted = hub.command(&RUN);
    let mut command = portable_pty::CommandBuilder::new(wanted.get_program());
    command.args(wanted.get_args());
    command.env("TERM", "xterm");
    for (name, value) in wanted.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        }
    }
    let terminal = pty::Terminal::start((100, 10), command);
    terminal.shows(&["model.safetensors ", "500.00 kB/1.84 MB"]);
    terminal.signal("INT");
    let end = terminal.end();
    assert_eq!(end.code, 130);
    // The bar has disappeared, and the message is on a separate line.
    let alone = end.screen.lines().any(|line| line.starts_with("error: interrupted"));
    assert!(alone && !end.screen.contains("kB"), "{}", end.screen);
}

#[test]
fn two_processes_download_each_file_once() {
    let hub = Hub::new(tiny());
    let start = || hub.command(&RUN).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for child in [start(), start(), start()] {
        assert_eq!(ok(&child.wait_with_output().unwrap()), expected());
    }
    assert_eq!(hub.store.asked().len(), 1);
    assert_eq!(hub.downloaded(WEIGHTS), hub.files[WEIGHTS]);
}

#[test]
fn a_file_that_another_process_has_put_into_the_snapshot_is_not_downloaded_again() {
    let hub = Hub::new(tiny());
    let (snapshot, weights) = (hub.cached().join("snapshots").join(COMMIT), hub.files[WEIGHTS].clone());
    // Writes the file as a process without symbolic links does, after this process found that it is missing.
    hub.twist(move |at, request, answer| {
        if at == At::Hub && request.method == "HEAD" && request.path.ends_with(WEIGHTS) {
            fs::create_dir_all(&snapshot).unwrap();
            fs::write(snapshot.join(WEIGHTS), &weights).unwrap();
        }
        answer
    });
    assert_eq!(ok(&hub.run(&RUN)), expected());
    assert!(hub.store.asked().is_empty());
}

#[test]
fn the_error_of_a_refusal_has_reason_and_advice() {
    let gated = || {
        let answer = Answer::status(403).with("X-Error-Code", "GatedRepo");
        answer.with("X-Error-Message", "Access to model org/tiny is restricted.")
    };
    let cases: Vec<(Answer, Option<&str>, &[&str])> = vec![
        (
            gated(),
            None,
            &[
                "only to accounts that its owners have approved",
                "accept its terms at http",
                "hf auth login",
                "is restricted",
            ],
        ),
        (gated(), Some("hf_x"), &["with the account of this token"]),
        (
            Answer::status(401),
            None,
            &["no such path on this machine", "no such repository, or it is private", "HF_TOKEN"],
        ),
        (Answer::status(401), Some("hf_x"), &["does not accept the token"]),
        (Answer::status(403), None, &["access to the repository is denied", "status 403"]),
        (
            Answer::status(404).with("X-Error-Code", "RepoNotFound"),
            None,
            &["no such repository", "org/name[@revision]"],
        ),
        (
            Answer::status(429).with("Retry-After", "3600"),
            None,
            &["too many requests", "the limit is then higher"],
        ),
        (Answer::status(503).with("Retry-After", "0"), None, &["the hub failed", "status 503"]),
        (Answer::body("<html>log in to the hotel</html>"), None, &["not in the hub's format", "HF_ENDPOINT"]),
        (
            Answer::body("{\"sha\": \"../../x\", \"siblings\": []}"),
            None,
            &["`../../x` as the id of a commit"],
        ),
        (Answer::body(vec![b' '; (16 << 20) + 1]), None, &["more than 16777216 bytes"]),
        (
            Answer::status(302).with("Location", "file:///etc/passwd"),
            None,
            &["redirect to `file:///etc/passwd`"],
        ),
        (Answer::status(302).with("Location", "/api/models/org/tiny/revision/main"), None, &["redirects"]),
    ];
    let hub = Hub::new(tiny());
    for (answer, token, texts) in cases {
        hub.twist(move |_, _, _| answer.clone());
        let mut command = hub.command(&RUN);
        if let Some(token) = token {
            command.env("HF_TOKEN", token);
        }
        let output = command.output().unwrap();
        refused(&output, 3, texts);
        assert!(!stderr(&output).contains("hf_x"), "the token is not shown");
    }
    hub.twist(|_, _, answer| answer);
    let output = hub.run(&["--model", "org/tiny@nope", "--prompt", "x"]);
    refused(&output, 3, &["no revision `nope`", "Invalid rev id: nope"]);
    refused(&hub.run(&["--model", "org/other", "--prompt", "x"]), 3, &["no such repository", "RepoNotFound"]);
    let output = hub.command(&RUN).env("HF_TOKEN", "a\u{7f}b").output().unwrap();
    refused(&output, 2, &["HF_TOKEN"]);
    assert!(!hub.home.path().join("hub").exists(), "nothing may be stored in the cache");
}

#[test]
fn without_the_hub_the_cache_is_used() {
    let hub = Hub::new(tiny());
    let nowhere =
        |args: &[&str]| hub.command(args).env("HF_ENDPOINT", "http://127.0.0.1:1").output().unwrap();
    refused(&nowhere(&RUN), 3, &["the hub cannot be reached", "where: http://127.0.0.1:1/org/tiny"]);
    ok(&hub.run(&RUN));
    let output = nowhere(&RUN);
    assert_eq!(ok(&output), expected());
    assert!(
        stderr(&output).contains("in the cache (") && stderr(&output).contains("refused"),
        "{}",
        stderr(&output)
    );
    hub.twist(|_, _, _| Answer::status(401));
    assert_eq!(ok(&hub.run(&RUN)), expected());
    refused(&hub.run(&["--model", "org/tiny@dev", "--offline", "--prompt", "x"]), 3, &["no revision `dev`"]);
}

#[test]
fn shards_are_downloaded_by_their_index() {
    let model = models::sharded();
    let hub = Hub::new(files(model.path()));
    let run = ["--model", "org/tiny", "--ids", "1,5", "-n", "2"];
    let local = llama_trace(["--model", model.path().to_str().unwrap(), "--ids", "1,5", "-n", "2"]);
    assert_eq!(ok(&hub.run(&run)), ok(&local));
    assert_eq!(
        lines(&hub.store.asked()),
        ["GET /a.safetensors?signature=x", "GET /b.safetensors?signature=x"]
    );
    fs::remove_file(hub.cached().join("snapshots").join(COMMIT).join("b.safetensors")).unwrap();
    refused(&hub.run(&[&run[..], &["--offline"]].concat()), 3, &["no b.safetensors of commit"]);
    ok(&hub.run(&run));
    // A system without links has no blobs.
    #[cfg(unix)]
    assert!(hub.store.asked().is_empty(), "the blob was there");

    let mut less = hub.files.clone();
    less.remove("b.safetensors");
    refused(&Hub::new(less).run(&run), 3, &["the repository has no `b.safetensors`"]);
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    let model = models::sharded();
    let index = "model.safetensors.index.json";
    for name in ["../../../../evil.safetensors", "/tmp/evil.safetensors", "a/../../evil.safetensors"] {
        models::edit_json(&model.path().join(index), |index| {
            index["weight_map"]["lm_head.weight"] = name.into();
        });
        let mut all = files(model.path());
        all.insert(name.into(), b"evil".to_vec());
        let hub = Hub::new(all);
        refused(
            &hub.run(&["--model", "org/tiny", "--ids", "1"]),
            3,
            &["a shard outside the directory", name],
        );
        assert!(hub.store.asked().is_empty());
    }
    let hub = Hub::new(tiny());
    hub.twist(|_, request, mut answer| {
        if request.method == "HEAD" {
            answer.headers.retain(|(name, _)| *name != "X-Linked-Etag" && *name != "ETag");
            answer.headers.push(("X-Linked-Etag", "\"../../../evil\"".into()));
        }
        answer
    });
    refused(&hub.run(&RUN), 3, &["`../../../evil` as the ETag"]);
}

#[test]
fn a_model_that_cannot_be_opened_is_not_downloaded() {
    let mut other = tiny();
    other.insert("config.json".into(), br#"{"model_type": "gpt2"}"#.to_vec());
    let hub = Hub::new(other);
    refused(&hub.run(&RUN), 3, &["\"gpt2\"", "config.json"]);
    assert!(hub.store.asked().is_empty());

    let mut pickled = tiny();
    pickled.remove(WEIGHTS);
    pickled.remove("pytorch_model.bin");
    pickled.insert("model.ckpt".into(), b"not read".to_vec());
    let hub = Hub::new(pickled);
    refused(&hub.run(&RUN), 3, &["no model in Hugging Face's layout", "pytorch_model.bin", "model.ckpt"]);
    assert_eq!(hub.hub.asked().len(), 1);
}

#[test]
fn a_gguf_file_is_opened_by_its_name() {
    let file = "f16.gguf";
    let bytes = fs::read(fixture("formats/gguf").join(file)).unwrap();
    let named = |name: &str| (name.to_owned(), bytes.clone());
    let hub = Hub::new(Files::from([named(file), named("other.gguf"), ("README.md".into(), Vec::new())]));
    let texts = ["GGUF files: f16.gguf, other.gguf", "--model org/tiny:f16.gguf"];
    refused(&hub.run(&["info", "--model", "org/tiny"]), 3, &texts);
    refused(&hub.run(&["info", "--model", "org/tiny:x.gguf"]), 3, &["no file `x.gguf`", "f16.gguf"]);
    let run = ["--model", "org/tiny:f16.gguf", "--prompt", "ab", "-n", "1"];
    for args in [&run[..], &[&run[..], &["--offline"]].concat()] {
        let output = hub.run(args);
        ok(&output);
        assert!(stderr(&output).contains("org/tiny (GGUF v3"), "{}", stderr(&output));
    }
    assert_eq!(lines(&hub.store.asked()), ["GET /f16.gguf?signature=x"]);
}

#[test]
fn metas_layout_is_downloaded_too() {
    let hub = Hub::new(files(&fixture("formats/meta/by_vocab")));
    let info = ok(&hub.run(&["info", "--model", "org/tiny"]));
    assert!(info.contains("2 model-parallel .pth files"), "{info}");
    assert_eq!(hub.store.asked().len(), 2);
}

#[test]
fn a_path_has_priority_over_a_name() {
    let hub = Hub::new(tiny());
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("org/tiny")).unwrap();
    let output = hub.command(&RUN).current_dir(folder.path()).output().unwrap();
    refused(&output, 3, &["the directory holds no model", "where: org/tiny"]);
    for path in ["tiny", "./org/tiny", "models/tiny.gguf", "org/tiny/x", "org/tiny:Q4_K_M"] {
        refused(
            &hub.run(&["--model", path, "--prompt", "x"]),
            3,
            &["there is no model at this path", path, "org/name"],
        );
    }
    assert!(hub.hub.asked().is_empty());
}
