//! Limits on memory, from too little to start up to enough. Whichever allocation fails, there is one message, the exit
//! code of messages about memory, and no leftover folder or screen.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::common::{fixture, models, stderr};
use llama_trace_core::testing::sampled;

/// Runs the binary with `args` and this many KiB of address space. It reads `long.txt` as a text, and `said.txt` as a
/// chat.
fn limited(kibibytes: u64, args: &[&str], folder: &Path) -> Output {
    let mut shell = Command::new("/bin/sh");
    let stdin = if args.contains(&"--stdin") {
        Some("long.txt")
    } else {
        args.contains(&"chat").then_some("said.txt")
    };
    shell.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", &kibibytes.to_string()]);
    shell.arg(env!("CARGO_BIN_EXE_llama-trace")).args(args).current_dir(folder);
    shell.env("RAYON_NUM_THREADS", "2").env("CUDA_VISIBLE_DEVICES", "").stdin(Stdio::null());
    if let Some(name) = stdin {
        shell.stdin(File::open(folder.join(name)).unwrap());
    }
    shell.output().unwrap()
}

/// The address space that the program needs to start, in KiB: for its file, its libraries, and the main thread's stack.
fn least(folder: &Path) -> u64 {
    let starts = |kibibytes: &u64| limited(*kibibytes, &["--version"], folder).status.success();
    (8..).map(|part| part * 4096).find(starts).unwrap()
}

/// Returns whether `output` is from a run that succeeded. If the run lacked memory, returns false. Any other end fails
/// the test.
fn ended(output: &Output, what: &str, folder: &Path) -> bool {
    // If the first allocation of a thread fails inside the C library, glibc prints a message of its own, which is
    // ignored.
    let told: String = stderr(output)
        .lines()
        .filter(|line| !line.starts_with("Fatal glibc"))
        .map(|line| format!("{line}\n"))
        .collect();
    // Looks for temporary files. The program creates them next to the output folder or inside it.
    let mut left = Vec::new();
    for within in [folder.to_owned(), folder.join("e"), folder.join("f"), folder.join("t")] {
        let entries = fs::read_dir(within).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        left.extend(names.filter(|name| name.starts_with('.')));
    }
    assert_eq!(left, Vec::<String>::new(), "{what}: {told}");
    match output.status.code() {
        Some(0) => true,
        Some(4) => {
            assert_eq!(told.matches("error: ").count(), 1, "{what}: {told}");
            assert!(told.contains("next: ") && told.contains("memory"), "{what}: {told}");
            false
        }
        code => panic!("{what} ends with {code:?}: {told}"),
    }
}

#[test]
fn any_failed_allocation_gives_one_message_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = models::golden("gqa", |_| {});
    let model = model.path().to_str().unwrap();
    let long = folder.path().join("long.txt");
    fs::write(&long, "Once upon a time there was a number. ".repeat(5_000)).unwrap();
    let builtin = fixture("builtin/tokenizer.json");
    let builtin = builtin.to_str().unwrap();
    let ids: Vec<String> = (0..60).map(|id| (id % 48).to_string()).collect();
    let ids = ids.join(",");
    let record = ["record", "--prompt", "Once upon", "--out", "recorded"];
    assert!(ended(&limited(2 << 20, &record, folder.path()), "record", folder.path()));
    let commands: [&[&str]; 10] = [
        &["log", "--model", model, "--ids", &ids, "--values"],
        &[
            "export", "--model", model, "--ids", &ids, "--format", "png", "--stage", "softmax", "--force",
            "--out", "e",
        ],
        &["export", "--prompt", "Once upon a time", "--force", "--out", "f"],
        &["record", "--prompt", "Once upon a time", "--force", "--out", "t"],
        &["snapshot", "--prompt", "Once upon", "--size", "300x100", "--force", "--out", "a.png"],
        &["tokenize", "--tokenizer", builtin, "--format", "json", "--stdin"],
        &["bench", "--model", model, "--prompt-tokens", "16", "--cached", "8", "--gen", "4"],
        &["check", "--model", model],
        // These commands start threads before they open a model.
        &["diff", "recorded", "recorded"],
        &["snapshot", "--trace", "recorded", "--force", "--out", "b.png"],
    ];
    let least = least(folder.path());
    let (mut lacked, mut succeeded) = (0, 0);
    // Small steps up to the first success, because a run once left a folder behind only within a range of a few KiB.
    let steps = sampled("steps of lacking memory", (0..2 << 20).step_by(211), 2000);
    let suffices = |more: &u64| {
        let what = format!("{:?} with {more} KiB more than it takes to start", commands[1]);
        ended(&limited(least + more, commands[1], folder.path()), &what, folder.path())
    };
    assert!(steps.iter().any(suffices), "no amount of memory is enough");
    let commands = sampled("commands without memory", commands, 4);
    for args in &commands {
        // Steps of growing size, because most allocations are at the beginning.
        let mut more = 0;
        let mut in_a_row = 0;
        while in_a_row < 2 {
            let output = limited(least + more, args, folder.path());
            let what = format!("{args:?} with {more} KiB more than it takes to start");
            if ended(&output, &what, folder.path()) {
                succeeded += 1;
                in_a_row += 1;
            } else {
                lacked += 1;
                in_a_row = 0;
            }
            more += 4096 + more / 3;
            assert!(more < 2 << 20, "{what}: no amount of memory is enough");
        }
    }
    assert!(
        lacked > 2 * commands.len() + commands.len() / 2 && succeeded >= 2 * commands.len(),
        "{lacked} {succeeded}"
    );
}

/// The process that renders the chat template needs memory too. If it does not get enough, there is one message, and
/// not one for each line.
#[test]
fn a_chat_without_memory_gives_one_message() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("said.txt"), "hi\nho\n").unwrap();
    let least = least(folder.path());
    let args = ["chat", "-n", "10"];
    let steps = (0..1 << 20).step_by(2048);
    let mut lacked = 0;
    let enough = steps.into_iter().find(|more| {
        let what = format!("chat with {more} KiB more than it takes to start");
        let ended = ended(&limited(least + more, &args, folder.path()), &what, folder.path());
        lacked += usize::from(!ended);
        ended
    });
    assert!(enough.is_some() && lacked > 5, "{enough:?} {lacked}");
}

/// Memory must not grow with the size of a picture or with the size of the CPU's cache.
#[test]
fn large_pictures_and_the_bench_of_a_small_model_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let model = models::golden("gqa", |_| {});
    let model = model.path().to_str().unwrap();
    let text = "Once upon a time there was a little girl. ".repeat(40);
    // Almost four MiB, with every kind of character at which texts are split.
    let long = "Once upon a time there was a girl of 5, and\n\n\t(she) said: \"It's\" …\n".repeat(60_000);
    fs::write(folder.path().join("long.txt"), long).unwrap();
    let builtin = fixture("builtin/tokenizer.json");
    let builtin = builtin.to_str().unwrap();
    // Two texts without a space, for a vocabulary with scores. The first text can be split at line ends, the second
    // nowhere.
    let vocabulary = folder.path().join("tokenizer.bin");
    fs::write(&vocabulary, scored(&["1", "a", "aa", "aaaa"])).unwrap();
    let vocabulary = vocabulary.to_str().unwrap();
    for (name, text) in [("lines", "\n1".repeat(2 << 20)), ("letters", "a".repeat(4 << 20))] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("long.txt"), text).unwrap();
    }
    // Texts of one word each. Their letters do not repeat, so few of them are merged.
    for (name, letters) in [("word", LETTERS), ("base64", BASE64)] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("long.txt"), varied(letters, 4 << 20)).unwrap();
    }
    let commands: [(u64, &[&str]); 5] = [
        (
            100,
            &[
                "snapshot",
                "--prompt",
                "Once upon",
                "--size",
                "500x200",
                "--at",
                "L1/softmax",
                "--out",
                "a.png",
            ],
        ),
        (
            130,
            &[
                "export", "--prompt", &text, "--layer", "1", "--stage", "softmax", "--format", "png",
                "--out", "e",
            ],
        ),
        (200, &["tokenize", "--tokenizer", builtin, "--stdin"]),
        (200, &["tokenize", "--tokenizer", builtin, "--stdin", "--format", "json"]),
        (300, &["bench", "--model", model, "--prompt-tokens", "4", "--cached", "2", "--gen", "1"]),
    ];
    let least = least(folder.path());
    for (mebibytes, args) in commands {
        let output = limited(least + mebibytes * 1024, args, folder.path());
        assert!(output.status.success(), "{} in {mebibytes} MiB: {}", args[0], stderr(&output));
    }
    for name in ["word", "base64"] {
        let args = ["tokenize", "--tokenizer", builtin, "--stdin", "--format", "json"];
        let output = limited(least + 200 * 1024, &args, &folder.path().join(name));
        assert!(output.status.success(), "{name} in 200 MiB: {}", stderr(&output));
    }
    // It needs less than 200 MiB of memory, and more address space for another thread's stack and arena.
    for (name, mebibytes) in [("lines", 200), ("letters", 250)] {
        let args = ["tokenize", "--tokenizer", vocabulary, "--stdin"];
        let output = limited(least + mebibytes * 1024, &args, &folder.path().join(name));
        assert!(output.status.success(), "{name} in {mebibytes} MiB: {}", stderr(&output));
    }
}

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns this many letters in an order without a pattern, always the same one.
fn varied(letters: &[u8], count: usize) -> Vec<u8> {
    let mut seed = 48_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        letters[(seed >> 33) as usize % letters.len()]
    };
    (0..count).map(|_| next()).collect()
}

/// A tokenizer.bin of llama2.c that has a token for each byte, and `tokens`. A later token has a higher score.
fn scored(tokens: &[&str]) -> Vec<u8> {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let names = ["<unk>", "\n<s>\n", "\n</s>\n"].map(str::to_owned).into_iter().chain(bytes);
    let names = names.chain(tokens.iter().map(|&token| token.to_owned()));
    let mut file = 27_i32.to_le_bytes().to_vec();
    for (number, name) in names.enumerate() {
        file.extend((number as f32).to_le_bytes());
        file.extend((name.len() as i32).to_le_bytes());
        file.extend(name.as_bytes());
    }
    file
}
