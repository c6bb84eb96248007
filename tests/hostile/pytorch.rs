//! Files pytorch_model.bin that are truncated, changed, or declare a size that is too large.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::child;
use super::common::fixture;

/// A copy of a layout with `bytes` as its pytorch_model.bin.
fn model(bytes: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture("layouts/bin/config.json"), folder.path().join("config.json")).unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), bytes).unwrap();
    folder
}

/// Opens the folder with `info` and with a run, under limits on memory and time. Both must succeed, or both must refuse
/// the folder with the same message.
fn opened(path: &Path) -> (Option<i32>, String) {
    let text = path.to_str().unwrap();
    let info = child::run(&["info", "--model", text], &[path]);
    let log = child::run(&["log", "--ids", "1", "-n", "1", "--model", text], &[path]);
    assert_eq!((info.wrong(), log.wrong()), (None, None));
    assert_eq!(info.code, log.code, "{} {}", info.stderr, log.stderr);
    if info.code != Some(0) {
        assert_eq!((info.code, &info.stderr), (Some(3), &log.stderr));
    }
    (log.code, log.stderr)
}

fn whole() -> Vec<u8> {
    fs::read(fixture("layouts/bin/pytorch_model.bin")).unwrap()
}

#[test]
fn a_truncated_or_changed_pytorch_file_is_refused_or_runs() {
    let whole = whole();
    assert_eq!(opened(model(&whole).path()).0, Some(0));
    for length in (0..whole.len()).step_by(whole.len() / 8) {
        assert_eq!(opened(model(&whole[..length]).path()).0, Some(3), "{length} bytes");
    }
    // Changes bytes of the pickle and of the zip directory at the end, with a fixed random generator.
    let directory = whole.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let mut state = 1_u64;
    for _ in 0..24 {
        let mut changed = whole.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize;
            let at =
                if at.is_multiple_of(2) { at % 3000 } else { directory + at % (whole.len() - directory) };
            changed[at] = (state >> 24) as u8;
        }
        opened(model(&changed).path());
    }
}

#[test]
fn a_zip_bomb_is_refused() {
    let whole = whole();
    let rows: Vec<usize> = (0..whole.len()).filter(|&at| whole[at..].starts_with(b"PK\x01\x02")).collect();
    let refused = |change: &dyn Fn(&mut [u8]), text: &str| {
        let mut bytes = whole.clone();
        rows.iter().for_each(|&row| change(&mut bytes[row..]));
        let (code, message) = opened(model(&bytes).path());
        assert!(code == Some(3) && message.contains("zip bomb") && message.contains(text), "{message}");
    };
    // Every entry is compressed and has 4 GB according to the directory.
    let compressed = |row: &mut [u8]| {
        row[10] = 8;
        row[24..28].fill(0xfe);
    };
    refused(&compressed, "is compressed or encrypted");
    // According to the directory, every entry is at the place of the first entry.
    refused(&|row| row[42..46].fill(0), "overlaps another");
}
