//! The CUDA emulation of the kernel tests must detect each fault that a kernel can have.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The command that compiles kernels for the CPU.
const OPTIONS: &str = include_str!("../../src/emulator/emulate.options");

const SANITIZED: &str =
    "an address that does not suit its type, a shift by a whole word, or a conversion beyond its type";

/// Returns a program with one kernel for each fault. Without a C++ compiler, prints this and returns `None`.
fn faults(folder: &Path) -> Option<PathBuf> {
    let compiler = std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".into());
    if !cfg!(unix) || Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: {compiler} is no C++ compiler that runs here");
        return None;
    }
    let (tests, program) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda"), folder.join("faults"));
    let mut command = Command::new(compiler);
    command.args(OPTIONS.split_whitespace()).arg("-DKERNELS=\"faults.cu\"");
    command.arg("-I").arg(super::emulator()).arg("-I").arg(super::beside("")).arg("-I").arg(&tests);
    let output = command.arg(tests.join("faults.cpp")).arg("-o").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

#[test]
fn each_fault_of_a_kernel_ends_the_process_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = faults(folder.path()) else { return };
    let run = |words: &[&str]| {
        let output = Command::new(&program).args(words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run(&["nothing_wrong"]), (Some(0), String::new()));
    assert_eq!(run(&["products", "256"]), (Some(0), String::new()));
    assert_eq!(run(&["not_there"]), (Some(1), String::new()));
    for (words, expected) in [
        (&["no_wait"][..], "a thread ends that has not called WAIT_FOR_INPUT"),
        (&["half_a_barrier"], "a barrier that not all threads of the block come to"),
        (&["two_barriers"], "threads of a block wait at different barriers"),
        (&["half_a_warp"], "an operation of a warp that not all of its lanes come to"),
        (&["outside_its_mask"], "a shuffle reads a lane outside its mask"),
        (&["beyond_its_array"], "a write beyond shared memory"),
        (&["beyond_what_the_launch_gave"], "a write beyond shared memory"),
        (&["copies_left"], "copies are under way at the end of a thread"),
        (&["missing_barrier"], "shared memory is read before it is written"),
        (&["address_inside_a_word"], SANITIZED),
        (&["shift_by_a_word"], SANITIZED),
        (&["beyond_an_integer"], SANITIZED),
        (&["memory_that_was_not_given"], "memory is read or written that was not given"),
        (&["nothing_wrong", "40"], "a block that is not whole warps"),
        (&["half_of_four_warps", "256"], "an operation of four warps that not all of them come to"),
        (&["product_without_a_fence", "256"], "a product before wgmma.fence"),
        (&["copies_not_shown", "256"], "copies that tensor cores may not see"),
        (&["operands_that_differ", "256"], "threads name different operands"),
        (&["operand_outside", "256"], "an operand outside shared memory"),
        (&["copied_over", "256"], "a copy into shared memory that is multiplied"),
        (&["written_over", "256"], "shared memory is changed while it is multiplied"),
        (&["products_left", "256"], "products are under way at the end of a thread"),
    ] {
        let (code, said) = run(words);
        // A signal ends the process, so it has no exit code.
        assert_eq!(code, None, "{words:?}: {said}");
        assert!(said.starts_with(&format!("emulated kernel: {expected} (")), "{words:?}: {said}");
    }
}
