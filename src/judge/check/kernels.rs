//! Every kernel of the device against the plain functions, on the inputs of a recorded run.

use std::sync::Arc;

use super::cells::number;
use super::distance::{FUSED, Sums, unequal};
use super::plain::{self, Products};
use super::sample::Sample;
use super::stages::Frames;
use super::{Check, Judge};
use llama_trace_core::config::{Arithmetic, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::explain::{Cell, Exact, Place, Rules};
use llama_trace_core::ops;
use llama_trace_core::trace::stage::Op;
use llama_trace_core::trace::{Frame, PassDims, Site, Stage};
use llama_trace_engine::backend::{
    AttentionShape, Backend, Buffer, Input, NoSink, Operation, Pass, PassRows, REORDER_TOLERANCE, Span,
    Vector,
};
use llama_trace_engine::model::Model;
use llama_trace_runs::replay::derive::{derive, values};

/// One kernel and its check.
struct One {
    backend: Box<dyn Backend>,
    check: Check,
    /// For bfloat16 products summed in another order: the number of values, and the number of values that differ.
    rounded: (usize, usize),
    /// The first value that differs.
    first: Option<Cell>,
}

/// All kernels.
pub(super) struct Kernels<'m> {
    model: &'m Model,
    sample: Sample,
    all: Vec<One>,
}

impl<'m> Kernels<'m> {
    pub(super) fn new(model: &'m Model, sample: Sample) -> Self {
        let one = |backend: Box<dyn Backend>| {
            let check = Check::new(format!("kernel:{}", backend.kernel_name()), 0.0);
            One { backend, check, rounded: (0, 0), first: None }
        };
        Self { model, sample, all: model.backend.kernels().into_iter().map(one).collect() }
    }

    /// Checks the operations of a layer, or those after the layers, whose frames are in memory.
    pub(super) fn see(
        &mut self,
        rules: &Rules,
        dims: PassDims,
        sites: &[Site],
        frames: &Frames,
    ) -> Result<()> {
        for &site in sites {
            self.model.backend.stop().check()?;
            let Some(of) = rules.of(site) else { continue };
            match (site.stage, of.matrix()) {
                (Stage::Embedding, ..) => {}
                (_, Some(matrix)) => self.products(rules, dims, site, matrix, frames)?,
                (stage, None) if stage.info().op == Op::RmsNorm => self.norm(rules, site, frames)?,
                (Stage::AttnHeads, ..) => self.attention(rules, dims, site, frames)?,
                (Stage::FfnSilu, ..) => self.silu(rules, site, frames)?,
                (stage, ..) if stage.is_int8() || stage.is_scale() => self.int8(rules, dims, site, frames)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks a product with a matrix.
    fn products(
        &mut self,
        rules: &Rules,
        dims: PassDims,
        site: Site,
        matrix: Place,
        frames: &Frames,
    ) -> Result<()> {
        let (Some(of), Place::Weight(layer, weight)) = (rules.of(site), matrix) else { return Ok(()) };
        let (Some(whole), Some(x)) = (self.model.matrix(layer, weight), activations(rules, site, frames))
        else {
            return Ok(());
        };
        let (outputs, inputs) = of.shape();
        let x = values(&x);
        for run in self.sample.of(number(site), outputs) {
            let mut plain = References::new(|arithmetic| {
                plain::products(arithmetic, self.model, matrix, run.clone(), x, inputs)
            });
            for one in &mut self.all {
                let backend = &*one.backend;
                backend.stop().check()?;
                let cut = backend.cut(whole, run.clone())?;
                let mut out = backend.buffer(dims.tokens * run.len())?;
                backend.matmul(&prepared(backend, dims, x, inputs)?, &cut, None, &mut out)?;
                let found = read(backend, &out, dims.tokens * run.len())?;
                let keeps = backend.product_bit_exact(&cut, dims.tokens);
                one.see(rules, site, outputs, plain.of(backend.arithmetic())?, &found, keeps);
            }
        }
        Ok(())
    }

    /// Checks a norm over the model's width, over a head's or over that of all heads.
    fn norm(&mut self, rules: &Rules, site: Site, frames: &Frames) -> Result<()> {
        let (Some(norm), Some(x)) = (self.model.norm(site), input(rules, site, frames)) else {
            return Ok(());
        };
        let (x, precision) = (values(x), self.model.backend.precision());
        let numbers = |vector: &Vector| {
            let mut numbers = Vec::new();
            self.model.backend.read_vector(vector, &mut |values| {
                numbers.extend_from_slice(values);
                Ok(())
            })?;
            Result::Ok(numbers)
        };
        let (weights, bias) = (numbers(&norm.weight)?, norm.bias.as_ref().map(numbers).transpose()?);
        let (form, width) = (norm.form(), norm.width());
        let plain = |arithmetic: Arithmetic| {
            let mut plain = vec![0.0; x.len()];
            let rows = x.chunks_exact(width).zip(plain.chunks_exact_mut(width));
            for ((x, out), weight) in rows.zip(weights.chunks_exact(width).cycle()) {
                let rms_norm = |x: &[f32], weight: &[f32], eps, precision, out: &mut [f32]| {
                    arithmetic.rms_norm(x, weight, eps, precision, out);
                };
                ops::norm::norm(form, rms_norm, x, (weight, bias.as_deref()), precision, out);
            }
            Ok(plain)
        };
        self.each(rules, site, plain, |backend| {
            let mut out = backend.buffer(x.len())?;
            norm.apply(backend, &written(backend, x)?, (x.len() / width, width), &mut out)?;
            read(backend, &out, x.len())
        })
    }

    /// Checks attention, from the queries and the cache to the outputs of the heads.
    fn attention(&mut self, rules: &Rules, dims: PassDims, site: Site, frames: &Frames) -> Result<()> {
        let queries = rules.sizes().attended(site.layer.unwrap_or(0))[0];
        let [q, keys, cached] =
            [queries, Stage::CacheK, Stage::CacheV].map(|stage| frames.get(&site.other(stage)));
        let (Some(q), Some(keys), Some(cached)) = (q, keys, cached) else { return Ok(()) };
        let (sizes, stop) = (*rules.sizes(), self.model.backend.stop().clone());
        let precision = self.model.backend.precision();
        // The functions of ops/ compute the reference from the queries and the cache, not from the pass's intermediate
        // stages.
        let plain = |arithmetic: Arithmetic| {
            let mut made: Frames = [q, keys, cached].map(|frame| (frame.site, Arc::clone(frame))).into();
            let stages = [Stage::Qk, Stage::Scores, Stage::CappedScores, Stage::Softmax, Stage::AttnHeads];
            for stage in stages.into_iter().filter(|stage| stage.present(&sizes, dims)) {
                let mut input = |site: Site| {
                    let frame = made.get(&site).map(Arc::clone);
                    Ok(frame.unwrap_or_else(|| {
                        unreachable!("{site} is not derived from the inputs of attention")
                    }))
                };
                let site = site.other(stage);
                let frame = derive(site, &sizes, (precision, arithmetic), dims, &stop, &mut input)?;
                made.insert(frame.site, Arc::new(frame));
            }
            Ok(values(&made[&site]).to_vec())
        };
        let shape = AttentionShape::of(&self.model.config, site.layer.unwrap_or(0));
        let (q, row) = (values(q), sizes.kv_heads * sizes.head_dim);
        let keeps = |backend: &dyn Backend| backend.bit_exact(Operation::Attention);
        self.each_in_order(rules, site, plain, keeps, |backend| {
            let all =
                pass(backend, PassDims { pass: 0, start: 0, tokens: dims.keys(), ..PassDims::default() })?;
            let cache = |x: &[f32]| {
                let mut cache = backend.new_cache(x.len())?;
                backend.cache(&written(backend, x)?, row, &all, 0, &mut cache)?;
                Result::Ok(cache)
            };
            let (keys, cached) = (cache(values(keys))?, cache(values(cached))?);
            let mut out = backend.buffer(q.len())?;
            let (q_buffer, pass) = (written(backend, q)?, pass(backend, dims)?);
            backend.attention(shape, &q_buffer, &pass, 0, &keys, &cached, &mut out, &mut NoSink)?;
            read(backend, &out, q.len())
        })
    }

    fn silu(&mut self, rules: &Rules, site: Site, frames: &Frames) -> Result<()> {
        let Some(gate) = input(rules, site, frames) else { return Ok(()) };
        let gate = values(gate);
        let precision = self.model.backend.precision();
        let plain = |arithmetic: Arithmetic| {
            let mut plain = vec![0.0; gate.len()];
            arithmetic.silu_all(gate, &mut plain);
            ops::round::row(precision, &mut plain);
            Ok(plain)
        };
        self.each(rules, site, plain, |backend| {
            let mut out = backend.buffer(gate.len())?;
            backend.silu(&written(backend, gate)?, gate.len(), &mut out)?;
            read(backend, &out, gate.len())
        })
    }

    /// Checks the int8 values of a product's input, or their scales.
    fn int8(&mut self, rules: &Rules, dims: PassDims, site: Site, frames: &Frames) -> Result<()> {
        let (Some(x), Precision::Q8 { group }) = (input(rules, site, frames), self.model.backend.precision())
        else {
            return Ok(());
        };
        let x = values(x);
        let width = x.len() / dims.tokens;
        let shown = |steps: &[i8], scales: &[f32]| match site.stage.is_int8() {
            true => steps.iter().map(|x| f32::from(*x)).collect::<Vec<_>>(),
            false => scales.to_vec(),
        };
        let (steps, scales) = plain::quantized(x, width, group);
        self.each(
            rules,
            site,
            |_| Ok(shown(&steps, &scales)),
            |backend| {
                let (input, mut found) = (prepared(backend, dims, x, width)?, Vec::new());
                backend.read_quantized(&input, 0..dims.tokens, &mut |steps, scales| {
                    found = shown(steps, scales);
                    Ok(())
                })?;
                Ok(found)
            },
        )
    }

    /// Compares the results of each kernel with `plain` in its arithmetic, bit by bit.
    fn each(
        &mut self,
        rules: &Rules,
        site: Site,
        plain: impl Fn(Arithmetic) -> Result<Vec<f32>>,
        run: impl Fn(&dyn Backend) -> Result<Vec<f32>>,
    ) -> Result<()> {
        self.each_in_order(rules, site, plain, |_| true, run)
    }

    /// [`Self::each`], with a tolerance for kernels that sum in another order than `plain`.
    fn each_in_order(
        &mut self,
        rules: &Rules,
        site: Site,
        plain: impl Fn(Arithmetic) -> Result<Vec<f32>>,
        keeps: impl Fn(&dyn Backend) -> bool,
        run: impl Fn(&dyn Backend) -> Result<Vec<f32>>,
    ) -> Result<()> {
        let mut plain = References::new(plain);
        for one in &mut self.all {
            one.backend.stop().check()?;
            let plain = plain.of(one.backend.arithmetic())?;
            let found = run(&*one.backend)?;
            if !keeps(&*one.backend) {
                let mut sums = Sums::default();
                for (i, (found, plain)) in found.iter().zip(plain).enumerate() {
                    let value = f64::from(*plain);
                    sums.add(i, f64::from(*found), &Exact { value, other: value, largest: value.abs() });
                }
                let (distance, at) = sums.distance();
                let bf16 = one.backend.precision() == Precision::Bf16;
                let (bound, allowed) =
                    if bf16 { (Judge::Units.bound(), FUSED) } else { (REORDER_TOLERANCE, 1.0) };
                one.check.bound = bound;
                one.check.see(distance / allowed, || rules.address(Cell { place: Place::Stage(site), at }));
                continue;
            }
            let differs = |at: &usize| found.get(*at).map(|x| x.to_bits()) != Some(plain[*at].to_bits());
            let different = (0..plain.len()).filter(differs);
            let first = different.clone().next().unwrap_or(0);
            let cell = Cell { place: Place::Stage(site), at: first };
            one.check.differ(different.count(), || rules.address(cell));
        }
        Ok(())
    }

    /// The check of each kernel.
    pub(super) fn finish(self, rules: &Rules) -> Vec<Check> {
        self.all.into_iter().map(|one| one.finish(rules)).collect()
    }
}

/// The results of the plain functions in each arithmetic that a kernel has.
struct References<T, F> {
    compute: F,
    fused: Option<T>,
    separate: Option<T>,
}

impl<T, F: Fn(Arithmetic) -> Result<T>> References<T, F> {
    fn new(compute: F) -> Self {
        Self { compute, fused: None, separate: None }
    }

    /// The results in `arithmetic`, computed at the first call.
    fn of(&mut self, arithmetic: Arithmetic) -> Result<&T> {
        let kept = match arithmetic {
            Arithmetic::Fused => &mut self.fused,
            Arithmetic::Separate => &mut self.separate,
        };
        let result = match kept.take() {
            Some(result) => result,
            None => (self.compute)(arithmetic)?,
        };
        Ok(kept.insert(result))
    }
}

impl One {
    /// Adds the products (tokens, rows) of some rows of a matrix with `outputs` rows.
    fn see(
        &mut self,
        rules: &Rules,
        site: Site,
        outputs: usize,
        plain: &Products,
        found: &[f32],
        bit_exact: bool,
    ) {
        let count = plain.rows.len();
        let tokens = found.len() / count;
        let cells = (0..found.len()).map(|i| {
            let (token, row) = (i / count, i % count);
            let (at, of_plain) = (token * outputs + plain.rows.start + row, row * tokens + token);
            (at, found[i], plain.values[of_plain], plain.largest[of_plain])
        });
        let address = |at| rules.address(Cell { place: Place::Stage(site), at });
        if bit_exact {
            let different = cells.filter(|(_, found, plain, _)| found.to_bits() != plain.to_bits());
            let first = different.clone().next().map_or(0, |(at, ..)| at);
            return self.check.differ(different.count(), || address(first));
        }
        let mut sums = Sums::default();
        for (at, found, plain, largest) in cells {
            let value = f64::from(plain);
            sums.add(at, f64::from(found), &Exact { value, other: value, largest });
        }
        if self.backend.precision() == Precision::Bf16 {
            self.check.bound = Judge::Units.bound();
            let (units, at) = sums.in_units();
            self.check.see(units, || address(at));
            self.rounded = (self.rounded.0 + found.len(), self.rounded.1 + sums.different().0);
            let first = Cell { place: Place::Stage(site), at: sums.different().1 };
            self.first = self.first.or((sums.different().0 > 0).then_some(first));
        } else {
            self.check.bound = REORDER_TOLERANCE;
            let (distance, at) = sums.distance();
            self.check.see(distance, || address(at));
        }
    }
}

impl One {
    fn finish(mut self, rules: &Rules) -> Check {
        if let (Some(first), (count, others)) = (self.first, self.rounded) {
            let share = others as f64 / count as f64;
            self.check.see(share / unequal(self.backend.truncates_sums()), || rules.address(first));
        }
        self.check
    }
}

/// The first input of a stage.
fn input<'a>(rules: &Rules, site: Site, frames: &'a Frames) -> Option<&'a Frame> {
    frames.get(rules.sources(site).first()?).map(|frame| &**frame)
}

/// The input of a product before it is quantised.
fn activations(rules: &Rules, site: Site, frames: &Frames) -> Option<Arc<Frame>> {
    let first = *rules.sources(site).first()?;
    let input = if first.stage.is_int8() { *rules.sources(first).first()? } else { first };
    frames.get(&input).map(Arc::clone)
}

/// A buffer with these values.
fn written(backend: &dyn Backend, x: &[f32]) -> Result<Buffer> {
    let mut buffer = backend.buffer(x.len())?;
    backend.write(x, 0, &mut buffer)?;
    Ok(buffer)
}

/// The first `count` values of a buffer.
fn read(backend: &dyn Backend, buffer: &Buffer, count: usize) -> Result<Vec<f32>> {
    let mut values = Vec::with_capacity(count);
    backend.read(buffer, 0..count, &mut |seen| {
        values.extend_from_slice(seen);
        Ok(())
    })?;
    Ok(values)
}

/// A pass over one sequence with dummy ids.
fn pass(backend: &dyn Backend, dims: PassDims) -> Result<Pass> {
    let mut pass = backend.new_pass()?;
    let span = Span { sequence: 0, start: dims.start, tokens: dims.tokens };
    backend.begin_pass(&vec![0; dims.tokens], &[span], &[], &mut pass)?;
    Ok(pass)
}

/// `x` (tokens, width), prepared for products.
fn prepared(backend: &dyn Backend, dims: PassDims, x: &[f32], width: usize) -> Result<Input> {
    let mut input = backend.input();
    backend.prepare(&written(backend, x)?, width, &pass(backend, dims)?, &PassRows::All, &mut input)?;
    Ok(input)
}
