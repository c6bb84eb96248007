//! Programs that misbehave: each gets one message, and leaves no process and no file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{End, kata};

/// Writes a shell script; it gets the folder of the cases as `$1`, and the test's own folder as `$OWN`.
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("program");
    fs::write(&path, format!("#!/bin/sh\nOWN='{}'\n{text}\n", folder.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs a script as the program of a kata.
fn run(name: &str, text: &str, more: &[&str]) -> (End, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let program = script(folder.path(), text);
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let end = kata(&[&[name, "--run", program.to_str().unwrap()], more].concat(), &temporary);
    let left: Vec<_> = fs::read_dir(&temporary).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(left.is_empty(), "temporary folders are removed: {left:?}");
    (end, folder)
}

/// A shell command that writes a `.npy` file of float32 zeros with this shape, and `count` values.
fn zeros(shape: &str, count: usize) -> String {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    format!(
        "for case in \"$1\"/*; do {{ printf '\\223NUMPY\\001\\000\\{:03o}\\000%s' \"{header}\"; head -c {} /dev/zero; }} > \"$case/out.npy\"; done",
        header.len(),
        4 * count
    )
}

/// Waits until the process has ended.
fn is_gone(pid: &str) -> bool {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie has ended, too.
        if state.is_empty() || state.contains(") Z") {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_program_that_writes_nothing_or_fails_or_is_not_there_gets_one_message() {
    let (end, _) = run("silu", "true", &[]);
    assert_eq!(end.code, Some(1));
    assert!(end.stderr.contains("the file does not exist"), "{}", end.stderr);
    let (end, _) =
        run("silu", "echo 'Traceback' >&2; echo \"NameError: name 'nq' is not defined\" >&2; exit 3", &[]);
    assert_eq!(end.code, Some(1));
    assert!(end.stderr.contains("found: NameError: name 'nq' is not defined"), "{}", end.stderr);
    let (end, _) = run("silu", "kill -SEGV $$", &[]);
    assert!(end.code == Some(1) && end.stderr.contains("the program failed: signal: 11"), "{}", end.stderr);
    let folder = tempfile::tempdir().unwrap();
    for command in ["/no/such/program", "", "'open"] {
        let end = kata(&["silu", "--run", command], folder.path());
        assert_eq!(end.code, Some(2), "{}", end.stderr);
    }
}

#[test]
fn outputs_of_another_shape_or_size_or_kind_are_refused_before_they_are_read() {
    for (text, expected) in [
        (zeros("(2, 2)", 4), "the shape is (2, 2);"),
        (zeros("(2, 2)", 3), "12 bytes of values; 4 values of float32"),
        (
            "for case in \"$1\"/*; do head -c 50000000 /dev/zero > \"$case/out.npy\"; done".into(),
            "an output ",
        ),
        ("for case in \"$1\"/*; do : > \"$case/out.npy\"; done".into(), "the file is empty"),
        ("for case in \"$1\"/*; do ln -s /dev/zero \"$case/out.npy\"; done".into(), "not a regular file"),
        ("for case in \"$1\"/*; do mkdir \"$case/out.npy\"; done".into(), "not a regular file"),
        ("for case in \"$1\"/*; do mkfifo \"$case/out.npy\"; done".into(), "not a regular file"),
        ("for case in \"$1\"/*; do cp \"$case/x.npy\" \"$case/out.npy\"; done".into(), "silu is wrong in"),
    ] {
        let (end, _) = run("silu", &text, &["--seed", "1"]);
        assert_eq!(end.code, Some(1), "{text}");
        assert!(end.stderr.contains(expected), "{text}: {}", end.stderr);
    }
}

#[test]
fn a_right_output_is_correct_and_a_wrong_one_is_named_without_python() {
    // The stream itself: the output of the sublayer is missing.
    let copy =
        |name: &str| format!("for case in \"$1\"/*; do cp \"$case/{name}.npy\" \"$case/out.npy\"; done");
    let (end, _) = run("residual", &copy("y"), &["--seed", "7"]);
    assert_eq!(end.code, Some(1));
    for expected in
        ["you left out a term of the residual sum", "[residual_missing]", "attn_residual[t=0,d=0]"]
    {
        assert!(end.stdout.contains(expected), "{expected}: {}", end.stdout);
    }
    assert!(end.stderr.contains("--seed 7"), "{}", end.stderr);
    assert!(!end.stderr.contains("you left out"), "the verdict is told once: {}", end.stderr);
    // The embedding of a table in the order of the ids would be right; a copy of the table has another shape.
    let (end, _) = run("embedding", &copy("table"), &[]);
    assert!(end.code == Some(1) && end.stderr.contains("which is (T, D)"), "{}", end.stderr);
}

#[test]
fn lines_that_a_program_prints_are_shown_and_control_characters_are_not() {
    let (end, _) = run("silu", "printf 'here \\033[31mred\\n'; yes | head -n 100000", &[]);
    assert!(end.stderr.contains("| y"), "{}", end.stderr);
    assert!(!end.stderr.contains('\x1b'), "{}", end.stderr);
    assert!(end.stderr.len() < 10_000, "{} bytes", end.stderr.len());
    let (end, _) = run("silu", "printf 'here \\033[31mred\\n'", &[]);
    assert!(end.stderr.contains("| here") && !end.stderr.contains('\x1b'), "{}", end.stderr);
}

#[test]
fn a_program_that_does_not_end_is_ended_with_the_processes_that_it_started() {
    let (end, folder) = run("silu", "sleep 600 & echo $! > \"$OWN/pid\"; yes", &["--timeout", "1"]);
    assert_eq!(end.code, Some(1));
    assert!(end.stderr.contains("did not end in time") && end.stderr.contains("--timeout"), "{}", end.stderr);
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(is_gone(pid.trim()), "the process {pid} is ended");
}

#[test]
fn a_process_that_a_program_leaves_behind_is_ended() {
    let (end, folder) = run("silu", "sleep 600 & echo $! > \"$OWN/pid\"", &[]);
    assert!(end.code == Some(1) && end.stderr.contains("does not exist"), "{}", end.stderr);
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(is_gone(pid.trim()), "the process {pid} is ended");
}

#[test]
fn a_file_that_grows_is_stopped() {
    let text = "for case in \"$1\"/*; do yes > \"$case/out.npy\"; done";
    let (end, _) = run("silu", text, &[]);
    assert!(end.code == Some(1) && end.stderr.contains("writes too much"), "{}", end.stderr);
}

#[test]
fn ctrl_c_ends_the_program_and_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let program = script(
        folder.path(),
        "sleep 600 & echo $! > \"$OWN/pid.new\"; mv \"$OWN/pid.new\" \"$OWN/pid\"; wait",
    );
    let child = Command::new(env!("CARGO_BIN_EXE_llama-trace"))
        .args(["kata", "silu", "--run", program.to_str().unwrap()])
        .env("TMPDIR", folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let path = folder.path().join("pid");
    let until = Instant::now() + Duration::from_secs(60);
    while !path.exists() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    let pid = fs::read_to_string(&path).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(is_gone(pid.trim()), "the process {pid} is ended");
}

#[test]
fn all_takes_only_a_folder_of_finished_stages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for (args, expected) in [
        (&["all"][..], "--dir DIR"),
        (&["all", "--dir", path], "no finished stage"),
        (&["all", "--dir", "/no/such/folder"], "cannot be read"),
        (&["silu", "--dir", path], "--dir is for all stages"),
    ] {
        let end = kata(args, folder.path());
        assert!(end.code == Some(2) && end.stderr.contains(expected), "{args:?}: {}", end.stderr);
    }
    // The stream without attention and the feed-forward network.
    let text = "#!/bin/sh\nfor case in \"$1\"/*; do cp \"$case/x.npy\" \"$case/out.npy\"; done\n";
    let program = folder.path().join("residual");
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let end = kata(&["all", "--dir", path, "-n", "2"], folder.path());
    assert_eq!(end.code, Some(1), "{}", end.stderr);
    assert!(end.stdout.contains("yours: residual") && end.stdout.contains("← differs"), "{}", end.stdout);
    for expected in ["p0/L0/attn_residual[t=0,d=0] by residual", "you left out a term of the residual sum"] {
        assert!(end.stderr.contains(expected), "{expected}: {}", end.stderr);
    }
}
