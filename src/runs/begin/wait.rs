//! Waits for the answers of a source, and reads whole stages from it.

use std::task::Poll;

use llama_trace_core::error::Result;
use llama_trace_core::stop;
use llama_trace_core::trace::{Block, BlockAt, Probe, Question, Region, Site, Source, told};

/// Waits for the answer of `source`.
///
/// # Errors
/// The source's error, or [`Error::Interrupted`](llama_trace_core::error::Error::Interrupted) if the process was asked to stop.
pub fn wait<Q: Question>(source: &mut dyn Source, question: &Q) -> Result<Q::Answer> {
    loop {
        source.poll()?;
        if let Poll::Ready(answer) = told(source, question.clone()) {
            return answer;
        }
        stop::check()?;
        source.wait(stop::LOOK);
    }
}

/// Gives all values of `site` to `probe`, part by part and in order. The site's stage has `shape`.
///
/// # Errors
/// The errors of [`wait`].
pub fn show(source: &mut dyn Source, site: Site, shape: &[usize], probe: &mut dyn Probe) -> Result<()> {
    /// Maximum number of values in one request.
    const AT_ONCE: usize = 1 << 18;
    let count: usize = shape.iter().product();
    let Some(&width) = shape.last() else { return Ok(()) };
    if count <= AT_ONCE {
        let block = wait(source, &BlockAt(site, Region::whole(shape)))?;
        record(probe, &block, 0..count / width.max(1));
        return Ok(());
    }
    // The length of the axis before the last one. Rows whose indexes differ only on that axis are adjacent.
    let beside = if shape.len() > 1 { shape[shape.len() - 2] } else { 1 };
    let at_once = (AT_ONCE / width.max(1)).clamp(1, beside);
    for run in 0..count / (width * beside) {
        for first in (0..beside).step_by(at_once) {
            let rows = run * beside + first..run * beside + (first + at_once).min(beside);
            let region = region(shape, rows.clone());
            record(probe, &wait(source, &BlockAt(site, region))?, rows);
        }
    }
    Ok(())
}

/// Gives rows of a block to `probe`.
fn record(probe: &mut dyn Probe, block: &Block, rows: std::ops::Range<usize>) {
    let width = block.shape.last().copied().unwrap_or(1).max(1);
    let mut row = rows.start;
    while row < rows.end {
        let Some(run) = block.run(row * width) else { return };
        let count = (run.len() / width).clamp(1, rows.end - row);
        let values = block.frame.values().slice(run.start..run.start + count * width);
        probe.record(block.frame.site, row..row + count, values);
        row += count;
    }
}

/// Adjacent rows as a region of a stage of `shape`.
fn region(shape: &[usize], rows: std::ops::Range<usize>) -> Region {
    let (Some(&width), axes) = (shape.last(), shape.len()) else { return Region(Vec::new()) };
    let mut region = vec![0..width; axes];
    let mut at = rows.start;
    for axis in (0..axes.saturating_sub(1)).rev() {
        let index = at % shape[axis];
        at /= shape[axis];
        region[axis] = if axis + 2 == axes { index..index + rows.len() } else { index..index + 1 };
    }
    Region(region)
}
