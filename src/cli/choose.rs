//! The device of a command: the device that the options name, or with `--device auto` the GPU if the model fits on it.

use super::device::{Cpu, Cuda, Device, built, needs, suits};
use super::input::{open_quietly, precision};
use super::{CpuArgs, DeviceName, ModelArgs, RunArgs, TraceArgs, threads};
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_formats::checkpoint::{Checkpoint, random};

/// The parts of a command's run that the choice of a device depends on.
#[derive(Clone, Copy)]
pub(super) struct Asks<'a> {
    pub(super) cpu: &'a CpuArgs,
    pub(super) model: &'a ModelArgs,
    /// Shape and number types of random weights, if the command runs random weights instead of a model.
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

    /// A run, or a trace together with the model that may be given for it.
    pub(super) fn of(args: &'a RunArgs, trace: &TraceArgs) -> Self {
        Self { runs: trace.trace.is_none() || args.model.model.is_some(), ..Self::run(args) }
    }
}

impl Asks<'_> {
    /// Opens the checkpoint for its sizes. Returns it with the precision.
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
    /// The parts of the run that the choice of the device depends on.
    fn asks(&self) -> Asks<'_>;

    /// Runs the command.
    ///
    /// # Errors
    /// The errors of the command.
    fn run<D: Device>(self) -> Result<()>;
}

/// Runs `command` on the device that the options name.
///
/// # Errors
/// The errors of the command, and [`Error::Usage`] if there is no such device.
pub(super) fn run(command: impl Command) -> Result<()> {
    // Reading a trace or a vocabulary uses the compute threads before a model does, so they are started here. Rayon
    // would start them by itself, but it would panic if it cannot.
    threads::start(command.asks().cpu.threads)?;
    if is_cuda(command.asks(), 0)? { command.run::<Cuda>() } else { command.run::<Cpu>() }
}

/// A command that runs on two devices at once.
pub(super) trait Two {
    /// Runs the command.
    ///
    /// # Errors
    /// The errors of the command.
    fn run<A: Device, B: Device>(self) -> Result<()>;
}

/// Runs `command` on the devices that the options name.
///
/// # Errors
/// As for [`run`].
pub(super) fn run_two(command: impl Two, a: Asks<'_>, b: Asks<'_>) -> Result<()> {
    let a_is_cuda = is_cuda(a, 0)?;
    // Both models are in memory at the same time.
    let first = a_is_cuda && !matches!(a.cpu.device, DeviceName::Cuda(1..));
    let beside = if first && b.cpu.device == DeviceName::Auto { a.bytes()? } else { 0 };
    match (a_is_cuda, is_cuda(b, beside)?) {
        (false, false) => command.run::<Cpu, Cpu>(),
        (false, true) => command.run::<Cpu, Cuda>(),
        (true, false) => command.run::<Cuda, Cpu>(),
        (true, true) => command.run::<Cuda, Cuda>(),
    }
}

/// Returns whether a GPU runs the command. Another model takes `beside` bytes of the GPU's memory. With `--device
/// auto`, reports the choice if there was one.
fn is_cuda(asks: Asks<'_>, beside: usize) -> Result<bool> {
    match asks.cpu.device {
        DeviceName::Cpu => Ok(false),
        DeviceName::Cuda(_) => built().map(|()| true),
        DeviceName::Auto if !asks.runs || asks.cpu.wants_processor() => Ok(false),
        DeviceName::Auto => suits(asks.cpu, asks.context, beside, || asks.open()),
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
