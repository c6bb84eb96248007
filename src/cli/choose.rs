//! The device of a command: the one asked for, or with `--device auto` the GPU if the model fits on it.

use super::device::{Cpu, Cuda, Device, arranged, keep_chosen, needs};
use super::input::{open_quietly, precision};
use super::{CpuArgs, DeviceName, ModelArgs, RunArgs, TraceArgs, ready, tell, threads};
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_formats::checkpoint::{Checkpoint, random};

/// The parts of a command's run that the choice of a device depends on.
#[derive(Clone, Copy)]
pub(super) struct Asks<'a> {
    pub(super) cpu: &'a CpuArgs,
    pub(super) model: &'a ModelArgs,
    /// Shape and number types of random weights, if these run instead of a model.
    pub(super) shape: Option<(&'a str, random::Weights)>,
    /// Capacity of the KV cache in tokens, if given.
    pub(super) context: Option<usize>,
    /// Whether the command runs this model at all.
    pub(super) runs: bool,
}

impl<'a> Asks<'a> {
    /// A run.
    pub(super) fn run(args: &'a RunArgs) -> Self {
        Self { cpu: &args.cpu, model: &args.model, shape: None, context: args.context, runs: true }
    }

    /// A run, or a trace with the model that may be given beside it.
    pub(super) fn of(args: &'a RunArgs, trace: &TraceArgs) -> Self {
        Self { runs: trace.trace.is_none() || args.model.model.is_some(), ..Self::run(args) }
    }
}

impl Asks<'_> {
    /// The checkpoint, for its sizes, and the precision.
    fn open(&self) -> Result<(Checkpoint, Precision)> {
        match self.shape {
            None => open_quietly(self.model),
            Some((name, weights)) => {
                let checkpoint = random::checkpoint(name, weights)?;
                let precision = precision(self.model, &checkpoint);
                Ok((checkpoint, precision))
            }
        }
    }

    /// The GPU memory that the run takes, in bytes.
    fn bytes(&self) -> Result<usize> {
        let (checkpoint, precision) = self.open()?;
        Ok(needs(&checkpoint, precision, self.context).total())
    }
}

/// A command that runs on any device.
pub(super) trait Command {
    /// The run that the device is chosen for.
    fn asks(&self) -> Asks<'_>;

    /// Runs it.
    ///
    /// # Errors
    /// The command's own.
    fn run<D: Device>(self) -> Result<()>;
}

/// Runs `command` on the device that was asked for.
///
/// # Errors
/// The command's own, and [`Error::Usage`] where there is no such device.
pub(super) fn run(command: impl Command) -> Result<()> {
    // Reading a trace or a vocabulary uses the threads before a model does, so they are started here. Rayon would start
    // them by itself, and panic if it cannot.
    threads::start(command.asks().cpu.threads)?;
    if is_cuda(command.asks(), 0)? { command.run::<Cuda>() } else { command.run::<Cpu>() }
}

/// A command that runs on two devices at once.
pub(super) trait Two {
    /// Runs it.
    ///
    /// # Errors
    /// The command's own.
    fn run<A: Device, B: Device>(self) -> Result<()>;
}

/// Runs `command` on the devices that were asked for.
///
/// # Errors
/// As [`run`].
pub(super) fn run_two(command: impl Two, a: Asks<'_>, b: Asks<'_>) -> Result<()> {
    let a_is_cuda = is_cuda(a, 0)?;
    // Both models are in memory together.
    let first = a_is_cuda && !matches!(a.cpu.device, DeviceName::Cuda(1..));
    let beside = if first && b.cpu.device == DeviceName::Auto { a.bytes()? } else { 0 };
    match (a_is_cuda, is_cuda(b, beside)?) {
        (false, false) => command.run::<Cpu, Cpu>(),
        (false, true) => command.run::<Cpu, Cuda>(),
        (true, false) => command.run::<Cuda, Cpu>(),
        (true, true) => command.run::<Cuda, Cuda>(),
    }
}

/// Whether a GPU runs it; `beside` bytes of its memory are taken by another model. With `--device auto`, reports the
/// choice if there was one.
fn is_cuda(asks: Asks<'_>, beside: usize) -> Result<bool> {
    match asks.cpu.device {
        DeviceName::Cpu => Ok(false),
        DeviceName::Cuda(_) => Ok(true),
        DeviceName::Auto if !asks.runs || asks.cpu.wants_processor() => Ok(false),
        DeviceName::Auto => {
            let Ok(cuda) = Cuda::open(0) else {
                if Cuda::is_there() {
                    tell(format_args!(
                        "Computing on the processor: the GPU cannot be used (--device cuda says why)."
                    ));
                }
                return Ok(false);
            };
            let (checkpoint, precision) = asks.open()?;
            let cuda = arranged(cuda, asks.cpu, precision);
            let fits = cuda.check_room(&checkpoint, asks.context, beside).is_ok();
            let takes = fits && ready::make(&cuda, &checkpoint).is_ok();
            let name = cuda.device_name();
            match (takes, fits) {
                (true, _) => tell(format_args!(
                    "Computing on {name} (--device cuda); --device cpu takes the processor."
                )),
                (false, true) => tell(format_args!(
                    "Computing on the processor: the kernels cannot be prepared on {name} (--device cuda says why)."
                )),
                (false, false) => tell(format_args!(
                    "Computing on the processor: the model does not fit on {name} (--device cuda says what would fit)."
                )),
            }
            if takes {
                keep_chosen(cuda);
            }
            Ok(takes)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::BenchArgs;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn a_device_is_chosen_by_the_shape_that_is_asked_for() {
        let bytes = |args: &[&str]| {
            let line = Line::try_parse_from(["bench"].iter().chain(args)).unwrap();
            let (checkpoint, precision) = Command::asks(&&line.bench).open().unwrap();
            needs(&checkpoint, precision, None).weights
        };
        assert!(bytes(&[]) < 10 << 20, "the built-in model");
        let of_8b = bytes(&["--shape", "llama-3.1-8b"]);
        assert!((16_000_000_000..16_200_000_000).contains(&of_8b), "{of_8b}");
        let in_int8 = bytes(&["--shape", "llama-3.1-8b", "--weights", "q8", "--precision", "q8"]);
        assert!((of_8b / 2..of_8b * 2 / 3).contains(&in_int8), "{in_int8}");
        let mixture = bytes(&["--shape", "llama-3.1-8b", "--weights", "q4_k_m"]);
        assert!((4_800_000_000..5_000_000_000).contains(&mixture), "{mixture}");
    }
}
