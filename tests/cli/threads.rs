//! Numbers of threads that the environment states wrongly or that the system does not allow.

#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};

use super::{command, llama_trace, ok, stderr};

const RUN: [&str; 4] = ["--ids", "1", "-n", "1"];

#[test]
fn too_many_threads_in_the_environment_are_reduced_with_one_line() {
    let output = command(RUN).env("RAYON_NUM_THREADS", "100000").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "RAYON_NUM_THREADS=100000 is too many: computing on 1024 threads.\n");
}

#[test]
fn an_invalid_number_of_threads_in_the_environment_is_reported() {
    for (value, said) in
        [("abc", true), ("-1", true), ("99999999999999999999", true), ("", false), ("0", false)]
    {
        let output = command(RUN).env("RAYON_NUM_THREADS", value).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let line = format!(
            "RAYON_NUM_THREADS={value} is not a number from 1 to 1024: computing on one thread for each core.\n"
        );
        assert_eq!(stderr(&output), if said { line } else { String::new() });
    }
    let named =
        command([&RUN[..], &["--threads", "2"]].concat()).env("RAYON_NUM_THREADS", "abc").output().unwrap();
    assert_eq!(stderr(&named), "", "the option overrides the environment");
}

#[test]
fn a_trace_is_read_on_the_requested_threads_with_and_without_model() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, out) = (folder.path().join("run.trace"), folder.path().join("dump"));
    let (trace, out) = (trace.to_str().unwrap(), out.to_str().unwrap());
    let picture = folder.path().join("screen.txt");
    ok(&llama_trace(["record", "--prompt", "Once", "-n", "2", "--threads", "3", "--out", trace]));
    let commands: [&[&str]; 5] = [
        &["explain", "p0/L0/xq[t=0,h=0,c=0]"],
        &["lens"],
        &["log", "--layer", "0"],
        &["attribute"],
        &["export", "--stages", "xq,ffn_gate", "--force", "--out", out],
    ];
    let snapshot = ["snapshot", "--force", "--out", picture.to_str().unwrap()];
    for args in commands.into_iter().chain([&snapshot[..]]) {
        let run = |more: &[&str]| ok(&llama_trace([args, &["--trace", trace], more].concat()));
        let expected = run(&[]);
        for threads in ["1", "3"] {
            assert_eq!(run(&["--threads", threads]), expected, "{args:?}");
        }
    }
}

/// A copy of the program that every user may execute.
#[cfg(target_os = "linux")]
fn for_all() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("llama-trace");
    std::fs::copy(env!("CARGO_BIN_EXE_llama-trace"), &program).unwrap();
    (folder, program)
}

/// Runs `program` with this limit on processes and threads. Root has no limit, so the program then runs as a user that
/// has no other processes.
#[cfg(target_os = "linux")]
fn with_processes(program: &Path, limit: u32, args: &[&str]) -> (bool, std::process::Output) {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    static USERS: AtomicU32 = AtomicU32::new(0);

    let is_root = std::fs::metadata(program).unwrap().uid() == 0;
    let mut child = std::process::Command::new("sh");
    // Shells use different letters for this limit.
    let limited = format!("ulimit -u {limit} 2>/dev/null || ulimit -p {limit}; exec \"$0\" \"$@\"");
    child.args(["-c", &limited]).arg(program).args(args).current_dir("/");
    // With these variables, no server answers and there is no cache.
    child.env("HF_ENDPOINT", "http://127.0.0.1:1").env("HF_HOME", "/proc/none").env_remove("HTTPS_PROXY");
    child.stdin(std::process::Stdio::null());
    if is_root {
        // Each run has a separate user, because the limit counts all processes of a user.
        child.uid(100_000 + std::process::id() % 100_000 * 64 + USERS.fetch_add(1, Ordering::Relaxed));
    }
    (is_root, child.output().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn if_no_thread_can_start_one_message_says_so() {
    let (_folder, program) = for_all();
    let (_, output) = with_processes(&program, 1, &RUN);
    let said = stderr(&output);
    assert!(matches!(output.status.code(), Some(2 | 6)), "{:?}: {said}", output.status);
    assert!(said.starts_with("error: ") && said.contains("found: "), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn if_fewer_threads_can_start_these_are_used() {
    let (_folder, program) = for_all();
    let (is_root, output) = with_processes(&program, 30, &[&RUN[..], &["--threads", "100"]].concat());
    if !is_root {
        // The current user may already have more processes than the limit.
        super::common::skip("only root can be another user");
        return;
    }
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("The system refuses to start 100 threads: computing on "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn with_few_processes_allowed_no_command_panics() {
    let (folder, program) = for_all();
    let out = folder.path().join("dump");
    let commands: [&[&str]; 6] = [
        &["export", "--prompt", "a", "--stages", "tokens", "--out", out.to_str().unwrap()],
        &["log", "--prompt", "a", "--layers", "0"],
        &["chat", "-n", "1"],
        &["bench", "--gen", "1"],
        &["tokenize", "a"],
        // The download uses one thread, and the lookup of the host name another.
        &["--model", "org/name", "--prompt", "a", "-n", "1"],
    ];
    for args in commands {
        for limit in [1, 3, 4] {
            let (_, output) = with_processes(&program, limit, args);
            let said = stderr(&output);
            assert!(!said.contains("panicked"), "{limit} {args:?}: {said}");
            match output.status.code() {
                // This limit is sufficient for the command.
                Some(0) => assert_eq!(said.matches("error: ").count(), 0, "{limit} {args:?}: {said}"),
                Some(2..=6) => assert_eq!(said.matches("error: ").count(), 1, "{limit} {args:?}: {said}"),
                code => panic!("{limit} {args:?}: {code:?} {said}"),
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn if_no_file_can_be_opened_the_limit_on_files_is_named() {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -n 6; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_llama-trace")]);
    let output = shell.args(["--prompt", "a", "-n", "2"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("ulimit -n") && !said.contains("ulimit -u"), "{said}");
}
