//! The target of an export: existing files, other file systems, and the state of the folder after an error.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::common::{command, llama_trace, stderr};

const PROMPT: &str = "Once upon a time";

fn export(out: &Path, args: &[&str]) -> Output {
    let all = ["export", "--prompt", PROMPT, "--out", out.to_str().unwrap()];
    let layers: &[&str] = if args.contains(&"--layers") { &[] } else { &["--layers", "0"] };
    llama_trace(all.iter().chain(layers).chain(args))
}

fn ok(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
}

/// Returns every path below `folder`, with the content of each file or link.
fn tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            let holds = match () {
                () if kind.is_file() => fs::read(&path).unwrap(),
                () if kind.is_symlink() => {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                }
                () => Vec::new(),
            };
            found.push((path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned(), holds));
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Asserts that an export to `out` is refused before anything is computed, and that no file changes.
fn assert_refused(out: &Path, args: &[&str], found: &str) {
    let before = tree(out);
    let output = export(out, &[&["--force"], args].concat());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("in the way") && stderr(&output).contains(found), "{}", stderr(&output));
    assert!(tree(out) == before, "something changed: {}", stderr(&output));
}

#[test]
fn old_manifests_without_a_format_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    ok(&export(&out, &["--stages", "xq"]));
    let manifest =
        || -> Value { serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap() };
    assert_eq!((&manifest()["format"], &manifest()["version"]), (&json!("llama-trace export"), &json!(1)));
    let mut first = manifest();
    first.as_object_mut().unwrap().retain(|key, _| !matches!(&**key, "format" | "version"));
    fs::write(out.join("manifest.json"), first.to_string()).unwrap();
    ok(&export(&out, &["--stages", "xk", "--force"]));
    let names: Vec<_> = tree(&out).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["manifest.json", "pass_000", "pass_000/layer_00", "pass_000/layer_00/xk.npy"]);
}

#[test]
fn the_manifest_of_another_program_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    fs::create_dir_all(out.join("pass_000/layer_00")).unwrap();
    fs::write(out.join("pass_000/layer_00/xq.npy"), "mine").unwrap();
    for manifest in [
        json!({"name": "an app", "icons": []}),
        json!({"files": [{"file": "pass_000/layer_00/xq.npy"}]}),
        json!({"format": "another", "version": 1, "files": []}),
        json!({"format": "llama-trace export", "version": 99, "files": []}),
    ] {
        fs::write(out.join("manifest.json"), manifest.to_string()).unwrap();
        assert_refused(out, &["--stages", "xk"], "manifest");
    }
}

#[test]
fn a_file_that_the_manifest_does_not_list_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    ok(&export(&out, &["--stages", "xq"]));
    fs::write(out.join("pass_000/layer_00/xk.npy"), "mine").unwrap();
    assert_refused(&out, &["--stages", "xk,xv"], "no manifest");
    // This export writes no file of that name, so it succeeds.
    ok(&export(&out, &["--stages", "xv", "--force"]));
    assert_eq!(fs::read(out.join("pass_000/layer_00/xk.npy")).unwrap(), b"mine");
    assert!(!out.join("pass_000/layer_00/xq.npy").exists());

    // Forges a manifest of this program: it lists names that an export never writes.
    let text = fs::read_to_string(out.join("manifest.json")).unwrap();
    let names = r#""files": [{"file": "../victim.npy"}, {"file": "pass_000/../../victim.npy"}, {"file": "notes.npy"},"#;
    fs::write(out.join("manifest.json"), text.replace(r#""files": ["#, names)).unwrap();
    for mine in [folder.path().join("victim.npy"), out.join("notes.npy")] {
        fs::write(mine, "mine").unwrap();
    }
    ok(&export(&out, &["--stages", "xq", "--force"]));
    assert_eq!(fs::read(folder.path().join("victim.npy")).unwrap(), b"mine");
    assert_eq!(fs::read(out.join("notes.npy")).unwrap(), b"mine");
}

#[cfg(unix)]
#[test]
fn an_export_follows_no_links() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let (out, elsewhere) = (folder.path().join("dump"), folder.path().join("elsewhere"));
    ok(&export(&elsewhere, &["--stages", "xq,xk"]));
    let before = tree(&elsewhere);
    let fresh = || {
        if out.exists() {
            fs::remove_dir_all(&out).unwrap();
        }
        ok(&export(&out, &["--stages", "xq,xk"]));
    };

    fresh();
    fs::remove_dir_all(out.join("pass_000")).unwrap();
    symlink(elsewhere.join("pass_000"), out.join("pass_000")).unwrap();
    assert_refused(&out, &["--stages", "xv"], "a link");

    fresh();
    fs::remove_dir_all(out.join("pass_000/layer_00")).unwrap();
    symlink(elsewhere.join("pass_000/layer_00"), out.join("pass_000/layer_00")).unwrap();
    assert_refused(&out, &["--stages", "xv"], "a link");

    fresh();
    fs::remove_file(out.join("pass_000/layer_00/xq.npy")).unwrap();
    symlink(elsewhere.join("pass_000/layer_00/xq.npy"), out.join("pass_000/layer_00/xq.npy")).unwrap();
    assert_refused(&out, &["--stages", "xq"], "a link");
    // A link whose name this export does not write stays, although the manifest lists it.
    ok(&export(&out, &["--stages", "xk", "--force"]));
    assert!(out.join("pass_000/layer_00/xq.npy").is_symlink());

    fresh();
    fs::remove_file(out.join("manifest.json")).unwrap();
    symlink(elsewhere.join("manifest.json"), out.join("manifest.json")).unwrap();
    assert_refused(&out, &["--stages", "xq"], "a link");

    assert!(tree(&elsewhere) == before, "files outside the export folder were changed");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_way_of_an_export_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let pipe = |name: &str| {
        let path = out.join(name);
        let _ = fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    ok(&export(&out, &["--stages", "xq"]));
    pipe("pass_000/layer_00/xq.npy");
    assert_refused(&out, &["--stages", "xq"], "a pipe");
    pipe("manifest.json");
    assert_refused(&out, &["--stages", "xk"], "a pipe");
}

/// Runs [`export`] in separate namespaces, after the shell commands `before`. `None` if the system allows no
/// namespaces.
#[cfg(target_os = "linux")]
fn export_after(before: &str, out: &Path, args: &str, after: &str) -> Option<Output> {
    use std::process::Command;
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    let possible = shell.arg("mount -t tmpfs none /mnt").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        crate::common::skip("no mount namespaces here");
        return None;
    }
    let script = format!(
        "set -e\n{before}\n'{binary}' export --prompt '{PROMPT}' --out '{}' {args} && code=0 || code=$?\n{after}\nexit $code",
        out.display()
    );
    Some(
        Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
            .arg(script)
            .output()
            .unwrap(),
    )
}

#[cfg(target_os = "linux")]
#[test]
fn an_export_can_go_to_a_mount_point() {
    let folder = tempfile::tempdir().unwrap();
    let (out, copy) = (folder.path().join("mount"), folder.path().join("copy"));
    fs::create_dir(&out).unwrap();
    let mount = format!("mount -t tmpfs none '{}'", out.display());
    let keep = format!("cp -r '{}' '{}'", out.display(), copy.display());
    let Some(output) = export_after(&mount, &out, "--stages xq", &keep) else { return };
    ok(&output);
    let names = |folder: &Path| tree(folder).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&copy).len(), 1 + 1 + 2 * 4, "{:?}", names(&copy));

    // Replaces an earlier export of every stage of every layer.
    fs::remove_dir_all(&copy).unwrap();
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    let earlier = format!("{mount}\n'{binary}' export --prompt '{PROMPT}' --out '{}'", out.display());
    let output = export_after(&earlier, &out, "--force --stages xk", &keep).unwrap();
    ok(&output);
    let files: Vec<_> = names(&copy).into_iter().filter(|name| name.ends_with(".npy")).collect();
    assert!(files.len() == 4 && files.iter().all(|name| name.ends_with("xk.npy")), "{files:?}");
    assert!(!names(&copy).iter().any(|name| name.starts_with(".llama-trace")), "{:?}", names(&copy));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_changes_no_existing_file() {
    let folder = tempfile::tempdir().unwrap();
    let (out, copy) = (folder.path().join("mount"), folder.path().join("copy"));
    fs::create_dir(&out).unwrap();
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    let earlier = format!(
        "mount -t tmpfs -o size=300k none '{0}'\n'{binary}' export --prompt '{PROMPT}' --stages xq --out '{0}'\ncp -r '{0}' '{1}'",
        out.display(),
        copy.display()
    );
    let after = format!("cp -r '{}' '{}.after'", out.display(), copy.display());
    let Some(output) = export_after(&earlier, &out, "--force -n 50", &after) else { return };
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(tree(&copy) == tree(&folder.path().join("copy.after")), "{}", stderr(&output));
    assert_eq!(tree(&copy).iter().filter(|(name, _)| name.ends_with("xq.npy")).count(), 4);
}

#[cfg(unix)]
#[test]
fn a_file_size_limit_is_an_ordinary_error_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    let script = format!("ulimit -f 1; exec '{binary}' export --prompt '{PROMPT}' --out '{}'", out.display());
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot be written"), "{}", stderr(&output));
    assert!(tree(folder.path()).is_empty());
}

/// Exports into a read-only directory. The error comes before the computation, or halfway through the exchange of the
/// files.
#[cfg(target_os = "linux")]
#[test]
fn an_exchange_that_fails_halfway_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let (out, copy) = (folder.path().join("dump"), folder.path().join("copy"));
    ok(&export(&out, &["--stages", "xq", "--layers", "0-1"]));
    // The files of the second layer cannot be exchanged, because only its folder is read-only.
    let before = format!(
        "mount --bind '{0}/pass_000/layer_01' '{0}/pass_000/layer_01'\nmount -o remount,bind,ro '{0}/pass_000/layer_01'\ncp -r '{0}' '{1}'",
        out.display(),
        copy.display()
    );
    let Some(output) = export_after(&before, &out, "--force --stages xq,xk --layers 0-1", "") else { return };
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing was changed"), "{}", stderr(&output));
    assert!(tree(&copy) == tree(&out), "{}", stderr(&output));
}

/// The remains of a run that was killed while it exchanged the files.
#[test]
fn the_next_run_undoes_a_killed_exchange() {
    let folder = tempfile::tempdir().unwrap();
    let (out, new) = (folder.path().join("dump"), folder.path().join("new"));
    ok(&export(&out, &["--stages", "xq,xk"]));
    ok(&export(&new, &["--stages", "xq,xv"]));
    let before = tree(&out);
    let staging = out.join(".llama-trace-export-killed");
    let (old, files) = (staging.join("old/pass_000/layer_00"), staging.join("files"));
    fs::create_dir_all(&old).unwrap();
    fs::write(staging.join("lock"), "").unwrap();
    fs::rename(&new, &files).unwrap();
    // The old manifest and one old file have been moved away, and one new file is in place.
    fs::rename(out.join("manifest.json"), staging.join("old/manifest.json")).unwrap();
    fs::rename(out.join("pass_000/layer_00/xq.npy"), old.join("xq.npy")).unwrap();
    let new_file = "pass_000/layer_00/xv.npy";
    fs::hard_link(files.join(new_file), out.join(new_file)).unwrap();

    // Every export to this folder first restores the old files, even an export that is refused.
    let refused = export(&out, &[]);
    assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
    assert!(tree(&out) == before, "{:?}", tree(&out).iter().map(|(name, _)| name).collect::<Vec<_>>());
}

#[test]
fn the_next_run_removes_the_folder_of_a_killed_run() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join(".llama-trace-export-killed");
    fs::create_dir_all(left.join("files/pass_000")).unwrap();
    fs::write(left.join("lock"), "").unwrap();
    let mine = folder.path().join(".llama-trace-export-mine");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("notes"), "mine").unwrap();
    ok(&export(&folder.path().join("dump"), &["--stages", "xq"]));
    assert!(!left.exists());
    assert_eq!(fs::read(mine.join("notes")).unwrap(), b"mine");
}

#[test]
fn a_hyphen_is_not_a_path_of_an_output() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["export", "record", "snapshot"] {
        let mut command = command([name, "--prompt", PROMPT, "--out", "-"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot be written to standard output"), "{}", stderr(&output));
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "{name}");
    }
    let mut command = command(["record", "--prompt", PROMPT, "--out", "./-"]);
    ok(&command.current_dir(folder.path()).output().unwrap());
    assert!(folder.path().join("-").is_file());
}
