//! `check` on the device.

use super::*;
use llama_trace_judge::check::{self, Plan, Sample};

#[test]
fn check_holds_on_the_device() {
    for (i, checkpoint) in checkpoints().take(3).enumerate() {
        // Checks the first model in every precision, and the others in float32.
        for precision in PRECISIONS.into_iter().take(if i == 0 { 3 } else { 1 }) {
            let Some((cuda, _)) = both(&checkpoint, precision) else { return };
            let cpu = Model::load(&checkpoint, Cpu::default().with_precision(Precision::F32)).unwrap();
            let plan = Plan { ids: prompt(17), split: None, tokenizer: None, sample: Sample::Seeded(1) };
            let report = check::run(&cuda, Some(&cpu), &plan, &|_, _| {}).unwrap();
            let failed: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
            assert!(failed.is_empty(), "{precision:?}: {failed:?}");
            let kernel = format!("kernel:{}", cuda.backend.kernel_name());
            assert!(report.checks.iter().any(|check| check.name == kernel));
            assert!(report.checks.iter().all(|check| check.bound <= 1.0));
            let float32 = report.checks.iter().find(|check| check.name == "float32").unwrap();
            assert_eq!(float32.bound == 1e-5, precision == Precision::F32);
            assert!(float32.worst > 0.0 && float32.at.is_some(), "sums have other orders: {float32:?}");
        }
    }
}

#[test]
fn the_float32_line_of_check_tells_of_a_stage_that_parts_from_the_processors() {
    let checkpoint = random::of_config("random", small(0), Dtype::BF16);
    // Another epsilon in the norms, as from a wrong kernel. Every stage after the first norm differs.
    let mut other = random::of_config("random", small(0), Dtype::BF16);
    other.config.norm_eps *= 1.5;
    let Some((cuda, _)) = both(&checkpoint, Precision::F32) else { return };
    let cpu = Model::load(&other, Cpu::default()).unwrap();
    let plan = Plan { ids: prompt(5), split: None, tokenizer: None, sample: Sample::Seeded(1) };
    let report = check::run(&cuda, Some(&cpu), &plan, &|_, _| {}).unwrap();
    let failed: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
    let [float32] = failed[..] else { panic!("{failed:?}") };
    assert_eq!(float32.name, "float32");
    assert_eq!(float32.at.as_ref().unwrap().to_string().split('[').next(), Some("p0/L0/attn_norm"));
}
