//! The settings of one of two live runs: `precision=bf16`, `threads=2`.

use clap::ValueEnum;
use llama_trace_core::edit::Edit;

use super::super::{CacheDtypeName, CpuArgs, DeviceName, DiffArgs, ModelArgs, PrecisionName};
use llama_trace_core::error::{Error, Result};

/// The keys, in the order in which messages name them.
const KEYS: [&str; 7] = ["model", "without", "precision", "device", "cpu-kernel", "cache-dtype", "threads"];

/// Maximum number of threads of a run.
const THREADS: usize = 1024;

/// The settings of a run.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) model: ModelArgs,
    pub(super) cpu: CpuArgs,
    /// The number of threads for this run alone.
    pub(super) threads: Option<usize>,
    /// Whether `--a` or `--b` names the model of this run.
    pub(super) own_model: bool,
    /// The name of the run in the report: its given settings.
    pub(super) name: String,
}

impl Setting {
    /// The options of `args`, overridden by the settings in `given`. These are the settings of `--a` or `--b`.
    ///
    /// # Errors
    /// [`Error::Usage`] if a key or a value is unknown.
    pub(super) fn read(option: &str, args: &DiffArgs, given: &[String]) -> Result<Self> {
        let (mut model, mut cpu) = (args.model.clone(), args.cpu.clone());
        let (mut threads, mut own_model) = (cpu.threads.take(), false);
        let mut without = Vec::new();
        for pair in given {
            let wrong = |what: String, expected: String| {
                Error::usage(what).at(format!("--{option} {pair}")).expected(expected)
            };
            let names = KEYS.join(", ");
            let Some((key, value)) = pair.split_once('=') else {
                return Err(wrong(
                    "a key and its value are expected".into(),
                    format!("KEY=VALUE, with one of the keys {names}"),
                ));
            };
            match key {
                "model" => (model.model, own_model) = (Some(value.into()), true),
                // The list was split at its commas, so `without=` comes once for each part.
                "without" => without.push(
                    Edit::without(value)
                        .map_err(|expected| wrong(format!("there is no part `{value}`"), expected))?,
                ),
                "precision" => model.precision = Some(named::<PrecisionName>(value, &wrong)?),
                "device" => {
                    cpu.device = DeviceName::parse(value)
                        .map_err(|expected| wrong(format!("there is no device `{value}`"), expected))?;
                }
                "cpu-kernel" => cpu.cpu_kernel = Some(value.into()),
                "cache-dtype" => cpu.cache_dtype = Some(named::<CacheDtypeName>(value, &wrong)?),
                "threads" => {
                    let count = value.parse().ok().filter(|count| (1..=THREADS).contains(count));
                    let expected = || format!("a number from 1 to {THREADS}");
                    threads =
                        Some(count.ok_or_else(|| {
                            wrong(format!("`{value}` is not a number of threads"), expected())
                        })?);
                }
                _ => return Err(wrong(format!("there is no key `{key}`"), names)),
            }
        }
        if !without.is_empty() {
            model.without = without;
        }
        let name = if given.is_empty() { "the usual setting".to_owned() } else { given.join(" ") };
        Ok(Self { model, cpu, threads, own_model, name })
    }
}

/// The value with this name.
fn named<T: ValueEnum>(value: &str, wrong: &impl Fn(String, String) -> Error) -> Result<T> {
    T::from_str(value, false).map_err(|_| {
        let possible = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<_> = possible.map(|value| value.get_name().to_owned()).collect();
        wrong(format!("there is no `{value}`"), names.join(", "))
    })
}
