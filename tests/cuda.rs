//! Compiles every CUDA kernel with a real NVRTC for every supported architecture. No GPU is needed.
//!
//! The tests search for NVRTC in the same places as the program, which include the folders in LLAMA_TRACE_NVRTC
//! (`.ci/nvrtc.sh` downloads NVRTC from PyPI). Without NVRTC, the tests are skipped and print this.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "cuda/emulation.rs"]
mod emulation;

#[path = "cuda/driver.rs"]
mod driver;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use llama_trace_core::testing::sampled;
use llama_trace_kernels::nvrtc::Nvrtc;
use llama_trace_kernels::ptx;
use llama_trace_kernels::sources::{self, Module};
use lzma_rust2::{LzmaOptions, LzmaWriter};
use rayon::prelude::*;

/// The architectures: Ampere, Hopper, Blackwell.
const ARCHITECTURES: [(u32, u32); 3] = [(8, 0), (9, 0), (12, 0)];

/// A driver version newer than any NVRTC, so every NVRTC is accepted. No driver loads the code in these tests.
const ANY: (u32, u32) = (99, 0);

/// Returns NVRTC. If there is none, prints this and returns `None`.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::find(ANY) {
        Ok(nvrtc) => {
            println!("NVRTC {:?} in {}", nvrtc.version(), nvrtc.place().display());
            Some(nvrtc)
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Returns whether this compiler supports the architecture. Blackwell needs 12.8.
fn knows(nvrtc: &Nvrtc, architecture: (u32, u32)) -> bool {
    architecture < (12, 0) || nvrtc.version() >= (12, 8)
}

/// The resources of each kernel in the output of ptxas: from the kernel's name to its registers, spills and shared
/// memory.
fn resources(log: &str) -> BTreeMap<String, String> {
    let (mut found, mut name, mut spills) = (BTreeMap::new(), None, String::new());
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            name = rest.split('\'').next().map(str::to_owned);
        } else if line.contains("bytes spill stores") {
            spills = line.trim().to_owned();
        } else if let Some((_, used)) = line.split_once("Used ")
            && let Some(name) = name.take()
        {
            let number = |what: &str| {
                let before = used.split(',').find(|part| part.contains(what));
                let digits = before.map(|part| part.chars().filter(char::is_ascii_digit).collect::<String>());
                digits.filter(|digits| !digits.is_empty()).unwrap_or_else(|| "0".into())
            };
            let spilled = |what: &str| {
                let part = spills.split(',').find(|part| part.contains(what)).unwrap_or("0");
                part.trim().split(' ').next().unwrap_or("0").to_owned()
            };
            let (stores, loads) = (spilled("spill stores"), spilled("spill loads"));
            let text =
                format!("{:>4} {stores:>6} {loads:>6} {:>7}", number("registers"), number("bytes smem"));
            found.insert(name, text);
        }
    }
    found
}

/// Path of a file in the folder of the kernels.
fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels").join(name)
}

/// The folder of `emulate.cpp`.
fn emulator() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/emulator")
}

/// The list of the resources that each kernel uses on a multiprocessor.
fn listed() -> PathBuf {
    beside("registers.txt")
}

/// Returns the resource lines of a module's kernels. NVRTC is not fully deterministic: in a few of a hundred
/// compilations it orders instructions differently, and sometimes uses another number of registers. So this function
/// compiles the module up to eight times. If some compilation gives the line that the list has for a kernel, this line
/// is returned. Otherwise, the line of the first compilation is returned.
fn as_listed(list: &str, compiled: impl Fn() -> Vec<String>) -> Vec<String> {
    let is_listed = |line: &String| list.lines().any(|listed| listed == line);
    let mut lines = compiled();
    for _ in 0..7 {
        if lines.iter().all(is_listed) {
            break;
        }
        for (line, again) in lines.iter_mut().zip(compiled()) {
            if !is_listed(line) && is_listed(&again) {
                *line = again;
            }
        }
    }
    lines
}

/// Returns the new lines for the list. If a line has changed, the module is compiled three times, and each line is the
/// one that most compilations give.
fn usual(list: &str, compiled: impl Fn() -> Vec<String>) -> Vec<String> {
    let first = compiled();
    if first.iter().all(|line| list.lines().any(|listed| listed == line)) {
        return first;
    }
    let (second, third) = (compiled(), compiled());
    let of_two = |i: usize| if second[i] == third[i] { &second[i] } else { &first[i] };
    (0..first.len()).map(|i| of_two(i).clone()).collect()
}

#[test]
fn rare_other_register_counts_are_ignored_and_constant_ones_are_not() {
    let giving = |texts: &'static [&'static str]| {
        let next = std::cell::Cell::new(0);
        move || -> Vec<String> {
            let text = texts[next.replace(next.get() + 1) % texts.len()];
            text.split(',').map(str::to_owned).collect()
        }
    };
    let list = "86 a\n40 b\n";
    assert_eq!(as_listed(list, giving(&["86 a,40 b"])), ["86 a", "40 b"]);
    assert_eq!(as_listed(list, giving(&["80 a,40 b", "86 a,41 b"])), ["86 a", "40 b"]);
    assert_eq!(as_listed(list, giving(&["80 a,40 b", "82 a,41 b"])), ["80 a", "40 b"]);
    assert_eq!(usual(list, giving(&["80 a,40 b", "86 a,40 b", "86 a,40 b"])), ["86 a", "40 b"]);
    assert_eq!(usual(list, giving(&["80 a,40 b", "86 a,41 b", "80 a,41 b"])), ["80 a", "41 b"]);
}

fn blesses() -> bool {
    std::env::var_os("LLAMA_TRACE_BLESS").is_some()
}

/// The list has the digest of the sources, so a test without a compiler finds a list that is out of date.
#[test]
fn every_kernel_compiles_and_uses_the_listed_resources() {
    let expected = std::fs::read_to_string(listed()).unwrap();
    let digest = format!("SHA-256 of the sources: {}", sources::digest());
    let current = expected.lines().any(|line| line == digest);
    assert!(
        current || blesses(),
        "{} is out of date: LLAMA_TRACE_NVRTC=$(.ci/nvrtc.sh) LLAMA_TRACE_BLESS=1 cargo test --test cuda",
        listed().display()
    );
    let Some(nvrtc) = nvrtc() else { return };
    let (major, minor) = nvrtc.version();
    let head = format!(
        "What each kernel takes, compiled by NVRTC {major}.{minor}: architecture, registers of a thread, bytes of spilled stores and loads, bytes\n\
         of shared memory that its source names, name and defines. LLAMA_TRACE_BLESS=1 cargo test --test cuda writes it.\n\
         {digest}\n\n"
    );
    let same_compiler = expected.starts_with(&head[..head.find(':').unwrap()]);
    let compiled = |(architecture, module): ((u32, u32), &Module)| {
        let (code, log) = nvrtc.compile(module.source(), architecture, &["--ptxas-options=-v"]).unwrap();
        assert!(code.starts_with(b"\x7fELF"), "{module:?} for {architecture:?}");
        // "Serialized" is a warning that warpgroup products, which should run asynchronously, wait for each other.
        let slow = log.contains("warning") || log.contains("serialized");
        assert!(!slow, "{module:?} for {architecture:?}: {log}");
        let kernels = resources(&log);
        let (mut names, found) = (module.kernels(), kernels.keys().collect::<Vec<_>>());
        names.sort_unstable();
        assert_eq!(found, names, "{module:?} for {architecture:?}");
        let defines = module.defines.join(" ");
        let line = |(name, used): (&String, &String)| {
            format!("sm_{}{:<2} {used}  {name} {defines}", architecture.0, architecture.1)
                .trim_end()
                .to_owned()
        };
        kernels.iter().map(line).collect::<Vec<_>>()
    };
    let settled = |(architecture, module)| {
        let once = || compiled((architecture, module));
        match (blesses(), same_compiler) {
            (true, _) => usual(&expected, once),
            (false, true) => as_listed(&expected, once),
            (false, false) => once(),
        }
    };
    let modules = Module::all();
    // The list and the digest are written together, after all modules compiled for all architectures. If the list is only
    // checked, the first module of each file and every third other module is compiled for one architecture; the
    // architectures take turns.
    let is_looked_at = |architecture: (u32, u32), i: usize| {
        let for_it: Vec<_> = ARCHITECTURES
            .into_iter()
            .filter(|architecture| knows(&nvrtc, *architecture) && modules[i].is_for(*architecture))
            .collect();
        let is_first = modules[..i].iter().all(|module: &Module| module.file != modules[i].file);
        blesses() || ((is_first || i.is_multiple_of(3)) && for_it[i % for_it.len()] == architecture)
    };
    let all: Vec<_> = ARCHITECTURES
        .into_iter()
        .filter(|architecture| knows(&nvrtc, *architecture))
        .flat_map(|architecture| modules.iter().enumerate().map(move |(i, module)| (architecture, i, module)))
        .filter(|(architecture, i, module)| module.is_for(*architecture) && is_looked_at(*architecture, *i))
        .map(|(architecture, _, module)| (architecture, module))
        .collect();
    let all = if blesses() { all } else { sampled("modules of kernels", all, 12) };
    let lines: Vec<Vec<String>> = all.into_par_iter().map(settled).collect();
    let lines = lines.concat();
    if blesses() {
        std::fs::write(listed(), head + &lines.join("\n") + "\n").unwrap();
        return;
    }
    if !same_compiler {
        println!("skipped: the list was made by another NVRTC, which may choose other registers");
        return;
    }
    let other = lines.iter().find(|line| !expected.lines().any(|listed| listed == *line));
    assert_eq!(other, None, "{} is out of date", listed().display());
}

#[test]
fn the_embedded_ptx_has_the_kernels_of_the_sources() {
    let (major, minor) = ptx::COMPILER;
    let found = Nvrtc::find(ptx::COMPILER).ok().filter(|nvrtc| nvrtc.version() == ptx::COMPILER);
    let Some(nvrtc) = found else {
        println!("skipped: there is no NVRTC {major}.{minor}, which the PTX is made by");
        return;
    };
    let mut modules = ptx::modules();
    if !blesses() {
        // Only one module of each file is compiled. The digest shows that the PTX of all other modules is up to date.
        modules.dedup_by_key(|module| module.file);
    }
    // Without BLESS, the architectures take turns, as above.
    let all: Vec<_> = ptx::ARCHITECTURES
        .into_iter()
        .enumerate()
        .flat_map(|(turn, architecture)| {
            let modules = modules.iter().enumerate();
            let looked_at = modules.filter(move |(i, _)| blesses() || i % ptx::ARCHITECTURES.len() == turn);
            looked_at.map(move |(_, module)| (architecture, module))
        })
        .collect();
    // Modules for a single architecture are not embedded as PTX. The oldest compiler must compile them too.
    let carried = ptx::modules();
    let others = Module::all().into_iter().filter(|module| !carried.contains(module));
    sampled("modules that are not carried", others, 6).par_iter().for_each(|module| {
        let architecture =
            ARCHITECTURES.into_iter().find(|architecture| module.is_for(*architecture)).unwrap();
        let (code, log) = nvrtc.compile(module.source(), architecture, &["--ptxas-options=-v"]).unwrap();
        assert!(code.starts_with(b"\x7fELF") && !log.contains("serialized"), "{module:?}: {log}");
    });
    if !blesses() {
        let all = sampled("modules as PTX", all, 16);
        // NVRTC's own assembler must accept the PTX, because the driver must accept it. The embedded PTX must have the
        // same kernels. NVRTC does not always give the same text, so the texts are not compared; the digest of the
        // sources checks the rest.
        all.into_par_iter().for_each(|(architecture, module)| {
            let source = ptx::compact(module);
            let (code, log) = nvrtc.compile(source.source(), architecture, &["--ptxas-options=-v"]).unwrap();
            assert!(code.starts_with(b"\x7fELF"), "{module:?} for {architecture:?}: {log}");
            let made: Vec<_> = resources(&log).into_keys().collect();
            let entry = |line: &str| line.split_once(".entry ")?.1.split('(').next().map(str::to_owned);
            let carried = &ptx::carried()[&(architecture, module.clone())];
            let mut carried: Vec<_> = carried.lines().filter_map(entry).collect();
            carried.sort_unstable();
            assert_eq!(made, carried, "the PTX is out of date: {module:?} for {architecture:?}");
        });
        return;
    }
    let made = all.into_par_iter().map(|(architecture, module)| {
        let text = nvrtc.ptx(ptx::compact(module).source(), architecture, false).unwrap();
        ((architecture, module.clone()), text)
    });
    let made: ptx::Texts = made.collect();
    let all = ptx::pack(&made);
    let mut options = LzmaOptions::with_preset(6);
    options.dict_size = 16 << 20;
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(all.len() as u64)).unwrap();
    writer.write_all(&all).unwrap();
    let packed = writer.finish().unwrap();
    assert!(ptx::unpack(&packed).unwrap() == made);
    let text = format!(
        "{}\n{}\n\nThe first SHA-256 above is that of the sources without their comments and of how they are compiled, the second that of\n\
         ptx.lzma, the PTX that NVRTC {major}.{minor} made of them. LLAMA_TRACE_BLESS=1 cargo test --test cuda writes both files.\n",
        sources::digest(),
        ptx::digest(&packed)
    );
    std::fs::write(beside("ptx.lzma"), packed).unwrap();
    std::fs::write(beside("ptx.txt"), text).unwrap();
}

#[test]
fn a_compiler_newer_than_the_driver_is_not_loaded() {
    let Some(nvrtc) = nvrtc() else { return };
    let (major, minor) = nvrtc.version();
    // A compiler of the driver's version is accepted.
    assert_eq!(Nvrtc::find((major, minor)).unwrap().version(), (major, minor));
    let older = Nvrtc::find((major - 1, 99)).map(|older| older.version());
    assert!(older.is_err() || older.unwrap() < (major, minor));
}

#[test]
fn the_output_of_ptxas_is_parsed() {
    let log = "ptxas info    : Compiling entry function 'argmax' for 'sm_90'\n\
               ptxas info    : Function properties for argmax\n\
               \u{20}   0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
               ptxas info    : Used 24 registers, used 1 barriers, 72 bytes smem, 400 bytes cmem[0]\n";
    let mut text = String::new();
    for (name, found) in resources(log) {
        writeln!(text, "{name}{found}").unwrap();
    }
    assert_eq!(text, "argmax  24      8      4      72\n");
}
