//! Runs the program as users do, on the driver that driver.cpp emulates. The tests cover the driver calls, their order,
//! and devices that fail.
//!
//! The kernels are the program's embedded PTX. The driver recognises each PTX text by its hash, and compiles the
//! sources of this text for the CPU.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use llama_trace_emulator::compilation;
use llama_trace_kernels::ptx;

/// FNV-1a, as in driver.cpp.
fn hash(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Returns a folder with the driver and its data. If the driver cannot be built, prints this and returns `None`.
fn driver() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = FOLDER.get_or_init(|| {
        let compiler =
            std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".into());
        if !cfg!(target_os = "linux") || Command::new(&compiler).arg("--version").output().is_err() {
            println!("skipped: {compiler} is no C++ compiler that runs here, or this is not Linux");
            return None;
        }
        // The name of the folder depends on all sources, so code from other sources is in other folders.
        let folders = [super::beside(""), super::emulator()];
        let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let mut sources: Vec<_> =
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
        sources.sort();
        let all: Vec<u8> = sources.iter().flat_map(|path| fs::read(path).unwrap()).collect();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{:x}", hash(&all)));
        fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/driver.cpp");
        let mut command = Command::new(&compiler);
        command.args(["-std=c++17", "-O1", "-shared", "-fPIC"]).arg(source);
        let output = command.arg("-o").arg(folder.join("libcuda.so.1")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut table = String::new();
        for ((architecture, module), text) in ptx::carried() {
            if *architecture == (9, 0) {
                let (path, command) = compilation(&ptx::compact(module)).unwrap();
                let words = std::iter::once(command.get_program()).chain(command.get_args());
                let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
                writeln!(table, "{:x}\t{}\t{}", hash(text.as_bytes()), path.display(), words.join(" "))
                    .unwrap();
            }
        }
        fs::write(folder.join("modules.txt"), table).unwrap();
        Some(folder)
    });
    made.as_deref()
}

/// Runs the program with this driver. `environment` has additional variables for the driver.
fn run(words: &[&str], environment: &[(&str, &str)]) -> Output {
    let folder = driver().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_llama-trace"));
    command.args(words).env("LD_LIBRARY_PATH", folder);
    command
        .env("LLT_DRIVER_MODULES", folder.join("modules.txt"))
        .env("LLT_DRIVER_EMULATOR", super::emulator());
    command.env("LLT_DRIVER_BYTES", (4_u64 << 30).to_string()).env("XDG_CACHE_HOME", folder.join("cache"));
    command.env_remove("LLAMA_TRACE_NVRTC").envs(environment.iter().copied());
    command.output().unwrap()
}

/// Runs the program on the CPU.
fn on_cpu(words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_llama-trace"))
        .args(words)
        .args(["--device", "cpu"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

/// Runs the program on the device, and asserts that it succeeds.
fn on_device(words: &[&str], environment: &[(&str, &str)]) -> Output {
    let output = run(&[words, &["--device", "cuda"]].concat(), environment);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const PROMPT: [&str; 2] = ["--prompt", "Once upon a time"];

/// Returns the number with this name in the driver's log.
fn number(log: &Path, name: &str) -> usize {
    let log = fs::read_to_string(log).unwrap();
    let number =
        log.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {log}"));
    number.trim().parse().unwrap()
}

#[test]
fn the_text_is_that_of_the_cpu_and_tokens_need_no_copies() {
    if driver().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let to_log = [("LLT_DRIVER_LOG", log.to_str().unwrap())];
    let sampled = ["--temperature", "0.9", "--top-p", "0.9", "--seed", "7"];
    // The first run with a new cache copies the values of the self-test. Later runs find its result in the cache.
    on_device(&[&PROMPT[..], &["-n", "1"]].concat(), &[]);
    for more in [&[][..], &sampled] {
        let words = [&PROMPT, &["-n", "20"], more].concat();
        let expected = text(&on_cpu(&words).stdout);
        assert_eq!(text(&on_device(&words, &to_log).stdout), expected, "{words:?}");
        // The first two passes of a kind are launched kernel by kernel. The next one is captured as a graph, and all
        // later ones launch this graph.
        assert!(number(&log, "graphs") >= 15, "too few passes were repeated as graphs");
        // A further token needs no copy to the host, because the kernels write its id into host memory. Only random
        // numbers are copied to the device, if the sampler needs any.
        let copied = || ["brought", "written"].map(|name| number(&log, name));
        let of_20 = copied();
        let fewer = [&PROMPT, &["-n", "13"], more].concat();
        assert!(on_device(&fewer, &to_log).status.success());
        let of_13 = copied();
        assert_eq!(of_20[0] - of_13[0], 0);
        assert_eq!(of_20[1] - of_13[1], if more.is_empty() { 0 } else { (20 - 13) * 8 });
        // If a driver cannot capture kernels that start early, or cannot start kernels early at all, its passes are
        // still captured as graphs. If a driver cannot capture any kernel, the kernels are launched one by one.
        for (what, which, graphs) in
            [("CAPTURE", "early", 15..=20), ("CAPTURE", "all", 0..=0), ("EARLY", "any", 15..=20)]
        {
            let variable = format!("LLT_DRIVER_NO_{what}");
            let old = [to_log[0], (&*variable, which)];
            assert_eq!(text(&on_device(&words, &old).stdout), expected, "{words:?}");
            assert!(graphs.contains(&number(&log, "graphs")), "{which}");
        }
        // A user can switch off features that work badly with a driver, and switch on kernels that no GPU has run.
        let [without, with] = ["LLAMA_TRACE_CUDA_WITHOUT", "LLAMA_TRACE_CUDA_WITH"];
        for (variable, which, graphs) in [
            (without, "early", 15..=20),
            (without, "graphs, early", 0..=0),
            (without, "streams", 15..=20),
            (with, "coalesced, wide", 15..=20),
        ] {
            let changed = [to_log[0], (variable, which)];
            assert_eq!(text(&on_device(&words, &changed).stdout), expected, "{words:?}");
            assert!(graphs.contains(&number(&log, "graphs")), "{which}");
        }
    }
}

#[test]
fn exports_and_traces_have_the_values_of_the_cpu() {
    if driver().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (ours, cpus) = ([at("cuda"), at("cuda.trace")], [at("cpu"), at("cpu.trace")]);
    let all = |[export, record]: &[String; 2]| {
        let words = |rest: &[&str]| {
            [rest, &PROMPT, &["-n", "3"]].concat().into_iter().map(String::from).collect::<Vec<_>>()
        };
        [words(&["export", "--out", export]), words(&["record", "--out", record])]
    };
    for (on_the_device, words) in [(true, all(&ours)), (false, all(&cpus))] {
        for words in &words {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            if on_the_device {
                on_device(&words, &[])
            } else {
                on_cpu(&words)
            };
        }
    }
    for (ours, cpu) in ours.iter().zip(&cpus) {
        let output = run(&["diff", cpu, ours], &[]);
        let said = text(&output.stdout);
        assert!(output.status.success() && said.contains("0 missing"), "{said}{}", text(&output.stderr));
    }
    let said = text(&on_device(&["check", "--prompt", "Once"], &[]).stdout);
    assert!(said.contains("Every check"), "{said}");
}

#[test]
fn a_lost_device_ends_every_command_and_leaves_no_partial_file() {
    if driver().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let prompts = at("prompts.txt");
    fs::write(&prompts, "Once upon a time\nA fox\n").unwrap();
    let (dump, trace) = (at("dump"), at("run.trace"));
    let whole = text(&on_cpu(&[&PROMPT[..], &["-n", "20"]].concat()).stdout);
    let lost = |words: &[&str], after: &str| {
        let output = run(&[words, &["--device", "cuda"]].concat(), &[("LLT_DRIVER_LOST", after)]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{words:?} {after}: {said}");
        assert_eq!(said.matches("the CUDA device cannot").count(), 1, "{words:?} {after}: {said}");
        assert!(said.contains("CUDA_ERROR_LAUNCH_FAILED") && said.contains("--device cpu"), "{said}");
        text(&output.stdout)
    };
    let mut longest = 0;
    for after in ["0", "1", "100", "400"] {
        let said = lost(&[&PROMPT[..], &["-n", "20"]].concat(), after);
        assert!(whole.trim_end().starts_with(said.trim_end()), "{said}");
        longest = longest.max(said.len());
    }
    assert!(
        longest > PROMPT[1].len() + 10 && longest < whole.len(),
        "the text up to the loss of the device must stay"
    );
    for after in ["0", "30", "100"] {
        lost(&[&["export", "--out", &dump][..], &PROMPT, &["-n", "9"]].concat(), after);
        lost(&[&["record", "--out", &trace][..], &PROMPT, &["-n", "9"]].concat(), after);
        if after != "100" {
            lost(&[&["log"][..], &PROMPT].concat(), after);
        }
    }
    let batch = lost(&["--prompts", &prompts, "-n", "20"], "400");
    assert!(batch.contains("Once upon a time, ") && batch.contains("A fox"), "{batch}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["prompts.txt"], "incomplete files must be removed");
}

/// NVRTC makes machine code. The emulated driver refuses this code, like a driver that is too old for it.
#[test]
fn the_driver_compiles_ptx_if_it_refuses_machine_code() {
    let (Some(folder), Some(compiler)) = (driver(), std::env::var("LLAMA_TRACE_NVRTC").ok()) else {
        println!("skipped: LLAMA_TRACE_NVRTC names no folder of NVRTC, or there is no C++ compiler");
        return;
    };
    let cache = folder.join("cache-of-machine-code");
    let environment = [
        ("LLAMA_TRACE_NVRTC", compiler.as_str()),
        ("LLT_DRIVER_VERSION", "13020"),
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
    ];
    let words = [&PROMPT[..], &["-n", "3", "--precision", "bf16", "--device"]].concat();
    let output = run(&[&words[..], &["cuda"]].concat(), &environment);
    let expected = run(&[&words[..], &["cuda"]].concat(), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), text(&expected.stdout));
    assert!(fs::read_dir(cache.join("llama-trace/kernels")).unwrap().count() > 0, "NVRTC made some");
    let said = text(&output.stderr);
    let why = "The program's built-in kernels are used. For several tokens at once they are slower";
    assert!(said.contains(why) && said.contains("cannot load the kernel"), "{said}");
}

#[test]
fn a_device_is_chosen_by_number_and_missing_or_old_ones_are_refused() {
    if driver().is_none() {
        return;
    }
    let on = |device: &str, environment: &[(&str, &str)]| {
        run(&[&PROMPT[..], &["-n", "2", "--device", device]].concat(), environment)
    };
    let second = on("cuda:1", &[("LLT_DRIVER_DEVICES", "2")]);
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert_eq!(text(&second.stdout), text(&on("cuda", &[]).stdout));
    let devices = [("1", "only cuda:0"), ("2", "cuda:0 to cuda:1"), ("0", "none")];
    for (count, found) in devices {
        let refused = on("cuda:2", &[("LLT_DRIVER_DEVICES", count)]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("there is no CUDA device 2") && said.contains(found), "{said}");
    }
    let old = on("cuda", &[("LLT_DRIVER_CAPABILITY", "75")]);
    let said = text(&old.stderr);
    assert_eq!(old.status.code(), Some(2), "{said}");
    assert!(said.contains("too old for the kernels") && said.contains("7.5"), "{said}");
}

#[test]
fn a_device_without_room_for_the_model_is_refused_before_it_is_loaded() {
    if driver().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let environment = [("LLT_DRIVER_BYTES", "100000000"), ("LLT_DRIVER_LOG", log.to_str().unwrap())];
    let output = run(&[&PROMPT[..], &["--device", "cuda"]].concat(), &environment);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(
        said.contains("does not fit into the device's memory") && said.contains("100.0 MB are free"),
        "{said}"
    );
    let refused = number(&log, "written");
    let to_log = [("LLT_DRIVER_LOG", log.to_str().unwrap())];
    assert!(on_device(&[&PROMPT[..], &["-n", "1"]].concat(), &to_log).status.success());
    let ran = number(&log, "written");
    let file = fs::read("fixtures/builtin/model.safetensors").unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap());
    let weights = file.len() - header as usize;
    assert!(refused + weights < ran, "{refused} bytes, and {ran} with {weights} of weights");
    // With `--device auto` the GPU was not requested, so the program uses the CPU.
    let output = run(&[&PROMPT[..], &["-n", "3", "--device", "auto"]].concat(), &environment);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// With `--device auto`, if two models do not fit together, the second one runs on the CPU.
#[test]
fn if_two_models_do_not_fit_together_the_cpu_runs_the_second() {
    if driver().is_none() {
        return;
    }
    let words = [&["diff", "--a", "precision=f32", "--b", "precision=bf16", "--device", "auto"], &PROMPT[..]]
        .concat();
    let taken = |bytes: &str| {
        let output = run(&words, &[("LLT_DRIVER_BYTES", bytes)]);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        ["Computing on an emulated device", "Computing on the processor: the model does not fit"]
            .map(|words| said.matches(words).count())
    };
    assert_eq!(taken("4000000000"), [2, 0]);
    assert_eq!(taken("900000000"), [1, 1]);
}

/// If any allocation fails during a run, the text so far stays.
#[test]
fn memory_that_runs_out_ends_a_run_with_one_message_and_keeps_its_text() {
    if driver().is_none() {
        return;
    }
    let words = [&PROMPT[..], &["-n", "20"]].concat();
    let whole = text(&on_cpu(&words).stdout);
    let mut refused = 0;
    for given in (0..).step_by(9) {
        let given = given.to_string();
        let output = run(&[&words[..], &["--device", "cuda"]].concat(), &[("LLT_DRIVER_MEMORIES", &given)]);
        let (drawn, said) = (text(&output.stdout), text(&output.stderr));
        if output.status.success() {
            assert_eq!(drawn, whole);
            break;
        }
        assert_eq!(output.status.code(), Some(4), "{given}: {said}");
        assert_eq!(said.matches("not enough memory").count(), 1, "{given}: {said}");
        assert!(whole.trim_end().starts_with(drawn.trim_end()), "{given}: {drawn}");
        refused += 1;
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn a_driver_that_is_too_old_is_reported_with_cuda_and_with_auto() {
    if driver().is_none() {
        return;
    }
    let old = [("LLT_DRIVER_VERSION", "11080")];
    let words = [&PROMPT[..], &["-n", "3"]].concat();
    let output = run(&[&words[..], &["--device", "cuda"]].concat(), &old);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("driver is too old") && said.contains("for CUDA 11.8"), "{said}");
    let output = run(&[&words[..], &["--device", "auto"]].concat(), &old);
    let said = text(&output.stderr);
    assert!(said.contains("Computing on the processor: the GPU cannot be used"), "{said}");
    assert_eq!(text(&output.stdout), text(&on_cpu(&words).stdout));
}

/// A family that only the CPU computes is not tried on the GPU. With `--device auto`, the message does not blame the
/// kernels.
#[test]
fn a_model_of_another_family_is_run_by_the_cpu_or_refused() {
    if driver().is_none() {
        return;
    }
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/families/gemma2");
    let words = ["--model", model.to_str().unwrap(), "--ids", "1 2 3", "-n", "2"];
    let output = run(&[&words[..], &["--device", "cuda"]].concat(), &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot run this model") && said.contains("only the CPU computes it"), "{said}");
    let output = run(&[&words[..], &["--device", "auto"]].concat(), &[]);
    let said = text(&output.stderr);
    assert!(said.contains("cannot run this model (--device cuda says why)"), "{said}");
    assert_eq!(text(&output.stdout), text(&on_cpu(&words).stdout));
}

#[test]
fn the_self_test_detects_a_device_that_computes_wrongly() {
    if driver().is_none() {
        return;
    }
    for (idle, what) in [
        ("rms_norm", "normalise as the CPU does"),
        ("matvec", "multiply one row as the CPU does"),
        ("matmul", "multiply many rows as the CPU does"),
        ("attention_split", "compute attention for many tokens as the CPU does"),
        ("attention_decode", "compute attention for one token as the CPU does"),
        ("all", "add numbers"),
    ] {
        // Each run has its own cache, so it does not find that a self-test has passed before.
        let cache = tempfile::tempdir().unwrap();
        let idle = [("LLT_DRIVER_IDLE", idle), ("XDG_CACHE_HOME", cache.path().to_str().unwrap())];
        let output = run(&[&PROMPT[..], &["--device", "cuda"]].concat(), &idle);
        let said = text(&output.stderr);
        assert!(said.contains(&format!("the CUDA device cannot {what}")), "{said}");
        assert!(said.contains("--device cpu"), "{said}");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(4), String::new()));
    }
    let cache = tempfile::tempdir().unwrap();
    let idle = [("LLT_DRIVER_IDLE", "matvec"), ("XDG_CACHE_HOME", cache.path().to_str().unwrap())];
    let words = [&PROMPT[..], &["-n", "9"]].concat();
    let output = run(&[&words[..], &["--device", "auto"]].concat(), &idle);
    let said = text(&output.stderr);
    assert!(said.contains("Computing on the processor: the kernels cannot be prepared"), "{said}");
    assert_eq!(text(&output.stdout), text(&on_cpu(&words).stdout));
}
