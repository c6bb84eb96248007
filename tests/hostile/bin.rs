//! llama2.c files.

#[cfg(target_os = "linux")]
use super::child;
use super::common::{llama_trace, models, stderr};
use super::{file, refused, run};

#[test]
fn a_bin_file_whose_size_contradicts_its_header_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = models::bin();
    let good = file(&folder, "good.bin", &whole);
    assert!(llama_trace(run(&good)).status.success(), "the file is right before it is damaged");
    let size = whole.len();
    for length in [28, 100, size / 2, size - 4, size - 1] {
        let path = file(&folder, "m.bin", &whole[..length]);
        refused(
            &run(&path),
            3,
            &["m.bin", &format!("{size} bytes for dim 8"), &format!("found: {length} bytes")],
        );
    }
    for more in [1, 4, 100_000] {
        let path = file(&folder, "m.bin", [&whole[..], &vec![0; more]].concat());
        refused(&run(&path), 3, &[&format!("{size} bytes for"), &format!("found: {} bytes", size + more)]);
    }
    refused(&run(&file(&folder, "m.bin", &whole[..27])), 3, &["found: 27 bytes, less than a header"]);
}

#[test]
fn a_bin_file_with_absurd_numbers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for field in 0..7 {
        for number in [0, -1, i32::MIN, i32::MAX, 1 << 20, 1 << 30] {
            let mut bytes = models::bin();
            bytes[4 * field..4 * field + 4].copy_from_slice(&i32::to_le_bytes(number));
            refused(&run(&file(&folder, "m.bin", &bytes)), 3, &["where: ", "m.bin", "found: "]);
        }
    }
}

/// A llama2.c file of version 2 with groups of `group` values: dim 8, hidden 12, 1 layer, 2 heads, 1 kv head, a
/// tied vocabulary of 40.
fn version_2(group: usize) -> Vec<u8> {
    let numbers = [8, 12, 1, 2, 1, 40, 16].iter().flat_map(|number: &i32| number.to_le_bytes());
    let mut bytes: Vec<u8> = b"24ka\x02\0\0\0".iter().copied().chain(numbers).chain([1]).collect();
    bytes.extend((group as i32).to_le_bytes());
    bytes.resize(256, 0);
    bytes.extend(1.0_f32.to_le_bytes().repeat(3 * 8));
    for count in [40_usize * 8, 8 * 8, 4 * 8, 4 * 8, 8 * 8, 12 * 8, 8 * 12, 12 * 8] {
        bytes.extend((0..count).map(|i| (i * 37 % 251) as u8));
        bytes.extend(0.01_f32.to_le_bytes().repeat(count.div_ceil(group)));
    }
    bytes
}

#[test]
fn a_version_2_file_with_impossible_groups_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = version_2(5);
    for group in [0_i32, -1, -32, i32::MIN] {
        let mut bytes = whole.clone();
        bytes[37..41].copy_from_slice(&group.to_le_bytes());
        refused(
            &run(&file(&folder, "m.bin", &bytes)),
            3,
            &["m.bin", &format!("a group size of {group} values")],
        );
    }
    // Groups of another size need another number of scales.
    for group in [1_i32, 4, 6, 1000, i32::MAX] {
        let mut bytes = whole.clone();
        bytes[37..41].copy_from_slice(&group.to_le_bytes());
        let found = format!("found: {} bytes", whole.len());
        refused(&run(&file(&folder, "m.bin", &bytes)), 3, &[&format!("groups of {group}"), &found]);
    }
    for length in [8, 40, 255, 256, 300, whole.len() / 2, whole.len() - 1] {
        refused(&run(&file(&folder, "m.bin", &whole[..length])), 3, &["m.bin", &format!("{length} bytes")]);
    }
    refused(&run(&file(&folder, "m.bin", [&whole[..], &[0]].concat())), 3, &["m.bin", "found: "]);
}

/// One group for a whole matrix is unusual but allowed. It takes no more memory than any other size.
#[cfg(target_os = "linux")]
#[test]
fn a_version_2_file_with_the_smallest_and_the_largest_groups_runs() {
    let folder = tempfile::tempdir().unwrap();
    for group in [1, 5, 7, 320, 1 << 20, i32::MAX as usize] {
        let path = file(&folder, "m.bin", version_2(group));
        for precision in ["q8", "f32", "bf16"] {
            let args = [&run(&path)[..], &["--values", "-n", "3", "--precision", precision]].concat();
            let end = child::run(&args, &[folder.path()]);
            assert_eq!((end.wrong(), end.code), (None, Some(0)), "{group} {precision}");
        }
    }
}

/// Scales that are NaN run like weights that are NaN.
#[test]
fn scales_that_are_nan_run_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        let mut bytes = version_2(4096);
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
        let output = llama_trace(run(&file(&folder, "m.bin", &bytes)).iter().chain(&["--values"]));
        assert!(output.status.success(), "{value}: {}", stderr(&output));
        assert!(stderr(&output).contains("not a number (NaN)"), "{value}: {}", stderr(&output));
    }
}
