//! Mistakes in the order of rows as whole tensors: the embedding, the split into heads, the cache, repeat-KV, the merged
//! heads.

use ndarray::{Axis, Dimension, IxDyn};

use super::whole::{Array, Of, Operands, Row, last, product, reduced, reshaped, reversed};
use llama_trace_core::trace::{Op, Stage};

const EMBEDDING: Of = Of::Op(Op::Lookup);
const SPLIT: Of = Of::Stages(&[Stage::Xq, Stage::Xk, Stage::Xv]);
const CACHE: Of = Of::Op(Op::Cache);
const REPEAT: Of = Of::Op(Op::RepeatKv);
const MERGE: Of = Of::Stages(&[Stage::AttnOutput]);

/// The row of the table for each token, with the id and the position changed.
fn looked_up(o: &Operands, row: impl Fn(usize, usize, usize) -> usize) -> Option<Array> {
    let (ids, table) = (o.x()?, o.w()?);
    let count = table.shape()[0];
    let ids: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
    let rows: Vec<usize> = ids.iter().enumerate().map(|(t, id)| row(*id, t, count)).collect();
    rows.iter().all(|row| *row < count).then(|| o.cells(|at| table[IxDyn(&[rows[at[0]], at[1]])]))
}

/// The right embedding.
fn embedding(o: &Operands) -> Option<Array> {
    looked_up(o, |id, _, _| id)
}

/// The product (T, N·C), and T, N and C.
fn projected(o: &Operands) -> Option<(Array, [usize; 3])> {
    let [tokens, heads, c] = *o.shape else { return None };
    Some((product(o.x()?, o.w()?)?, [tokens, heads, c]))
}

/// The rows of earlier passes, and the new ones.
fn cached(o: &Operands) -> Option<(Array, Array)> {
    let (new, before) = o.inputs.split_last()?;
    let shape = [0].into_iter().chain(new.shape()[1..].iter().copied()).collect::<Vec<_>>();
    let parts: Vec<_> = before.iter().map(|rows| rows.view()).collect();
    let before = match parts.is_empty() {
        true => Array::zeros(IxDyn(&shape)),
        false => ndarray::concatenate(Axis(0), &parts).ok()?,
    };
    Some((before, new.clone()))
}

/// The concatenation of two parts along the first axis.
fn joined(a: &Array, b: &Array) -> Option<Array> {
    ndarray::concatenate(Axis(0), &[a.view(), b.view()]).ok()
}

/// The right cache, with a function of each new row's number.
fn placed(o: &Operands, place: impl Fn(usize, usize, usize) -> Option<usize>) -> Option<Array> {
    let (before, new) = cached(o)?;
    let (start, tokens) = (before.shape()[0], new.shape()[0]);
    let mut all = Array::zeros(IxDyn(&o.shape));
    for t in 0..start {
        all.index_axis_mut(Axis(0), t).assign(&before.index_axis(Axis(0), t));
    }
    for t in 0..tokens {
        let Some(at) = place(t, start, tokens) else { continue };
        if at >= start + tokens {
            return None;
        }
        all.index_axis_mut(Axis(0), at).assign(&new.index_axis(Axis(0), t));
    }
    Some(all)
}

/// The cell that a query head's row reads from the cache: key, kv head and component.
fn shared(o: &Operands, from: impl Fn([usize; 3], [usize; 3]) -> [usize; 3]) -> Option<Array> {
    let cache = o.x()?;
    let [keys, kv_heads, c] = *cache.shape() else { return None };
    let is_there = |[k, g, i]: [usize; 3]| k < keys && g < kv_heads && i < c;
    let sizes = [keys, kv_heads, o.sizes.heads / kv_heads];
    let at = |at: &[usize]| from([at[0], at[1], at[2]], sizes);
    let valid = ndarray::indices(IxDyn(&o.shape)).into_iter().all(|cell| is_there(at(cell.slice())));
    valid.then(|| o.cells(|cell| cache[IxDyn(&at(cell))]))
}

pub(super) const ROWS: &[Row] = &[
    Row("embedding_row", "id + 1", EMBEDDING, |o| looked_up(o, |id, _, count| (id + 1).min(count - 1))),
    Row("embedding_row", "id − 1", EMBEDDING, |o| {
        looked_up(o, |id, _, count| if id == 0 { count - 1 } else { id - 1 })
    }),
    Row("embedding_row", "the token's position", EMBEDDING, |o| looked_up(o, |_, t, _| t)),
    Row("embedding_row", "the token's place in the text", EMBEDDING, |o| {
        looked_up(o, |_, t, _| o.dims.start + t)
    }),
    Row("embedding_row", "the first id for every token", EMBEDDING, |o| {
        let first = *o.x()?.first()? as usize;
        looked_up(o, |_, _, _| first)
    }),
    Row("embedding_row", "the ids in reverse", EMBEDDING, |o| embedding(o).map(|x| reversed(&x, 0))),
    Row("embedding_row", "the ids in sorted order", EMBEDDING, |o| {
        let mut ids: Vec<usize> = o.x()?.iter().map(|id| *id as usize).collect();
        ids.sort_unstable();
        looked_up(o, |_, t, _| ids[t])
    }),
    Row("embedding_row", "the table's rows counted from the end", EMBEDDING, |o| {
        looked_up(o, |id, _, count| count - 1 - id)
    }),
    Row("embedding_row", "a table of shape (D, V)", EMBEDDING, |o| {
        let table = o.w()?;
        let turned = reshaped(table, &[table.shape()[1], table.shape()[0]])?;
        let ids = o.x()?;
        Some(o.cells(|at| turned[IxDyn(&[at[1], ids[at[0]] as usize])]))
    }),
    Row("embedding_extra", "the length of each row was set to 1", EMBEDDING, |o| {
        let x = embedding(o)?;
        Some(&x / &reduced(&x, Some(1), |row| row.dot(&row).sqrt()))
    }),
    Row("embedding_extra", "the mean of each row was subtracted", EMBEDDING, |o| {
        let x = embedding(o)?;
        Some(&x - &reduced(&x, Some(1), |row| row.sum() / row.len() as f64))
    }),
    Row("embedding_extra", "the position was added", EMBEDDING, |o| {
        let x = embedding(o)?;
        Some(o.cells(|at| x[IxDyn(at)] + (o.dims.start + at[0]) as f64))
    }),
    Row("embedding_extra", "sines and cosines of the position were added", EMBEDDING, |o| {
        let (x, dim) = (embedding(o)?, o.sizes.dim as f64);
        Some(o.cells(|at| {
            let angle = (o.dims.start + at[0]) as f64 / 1e4_f64.powf((at[1] / 2 * 2) as f64 / dim);
            x[IxDyn(at)] + if at[1] % 2 == 0 { angle.sin() } else { angle.cos() }
        }))
    }),
    Row("embedding_extra", "the rows before were added (a running sum)", EMBEDDING, |o| {
        let mut x = embedding(o)?;
        x.accumulate_axis_inplace(Axis(0), |before, x| *x += before);
        Some(x)
    }),
    Row("product_scaled", "divided by √C", SPLIT, |o| {
        let (flat, [_, _, c]) = projected(o)?;
        o.shaped(&(flat / (c as f64).sqrt()))
    }),
    Row("heads_split", "(T, N·C) was reshaped to (N, T, C)", SPLIT, |o| {
        let (flat, [tokens, heads, c]) = projected(o)?;
        Some(reshaped(&flat, &[heads, tokens, c])?.permuted_axes(IxDyn(&[1, 0, 2])))
    }),
    Row("heads_split", "(T, N·C) was reshaped to (T, C, N)", SPLIT, |o| {
        let (flat, [tokens, heads, c]) = projected(o)?;
        Some(reshaped(&flat, &[tokens, c, heads])?.permuted_axes(IxDyn(&[0, 2, 1])))
    }),
    Row("heads_split", "the transposed product (N·C, T) was reshaped", SPLIT, |o| {
        let (flat, [tokens, heads, c]) = projected(o)?;
        reshaped(&flat.t().to_owned(), &[tokens, heads, c])
    }),
    Row("heads_split", "the heads are in reverse", SPLIT, |o| {
        let (flat, _) = projected(o)?;
        Some(reversed(&o.shaped(&flat)?, 1))
    }),
    Row("heads_split", "the components are in reverse", SPLIT, |o| {
        let (flat, _) = projected(o)?;
        Some(reversed(&o.shaped(&flat)?, 2))
    }),
    Row("heads_split", "every head has the values of the first", SPLIT, |o| {
        let (flat, _) = projected(o)?;
        let whole = o.shaped(&flat)?;
        Some(o.cells(|at| whole[IxDyn(&[at[0], 0, at[2]])]))
    }),
    Row("heads_split", "every head has the mean of all heads", SPLIT, |o| {
        let (flat, _) = projected(o)?;
        let whole = o.shaped(&flat)?;
        let mean = whole.mean_axis(Axis(1))?;
        Some(o.cells(|at| mean[IxDyn(&[at[0], at[2]])]))
    }),
    Row("cache_place", "before the old ones", CACHE, |o| {
        let (before, new) = cached(o)?;
        joined(&new, &before)
    }),
    Row("cache_place", "over the first rows", CACHE, |o| placed(o, |t, _, _| Some(t))),
    Row("cache_place", "one row too early", CACHE, |o| {
        placed(o, |t, start, _| Some((start + t).saturating_sub(1)))
    }),
    Row("cache_place", "in reverse", CACHE, |o| placed(o, |t, start, tokens| Some(start + tokens - 1 - t))),
    Row("cache_place", "all into the last row", CACHE, |o| {
        placed(o, |_, start, tokens| Some(start + tokens - 1))
    }),
    Row("cache_place", "all into the first free row", CACHE, |o| placed(o, |_, start, _| Some(start))),
    Row("cache_place", "only the first of them", CACHE, |o| {
        placed(o, |t, start, _| (t == 0).then_some(start))
    }),
    Row("cache_place", "only the last of them", CACHE, |o| {
        placed(o, |t, start, tokens| (t + 1 == tokens).then_some(start + t))
    }),
    Row("cache_place", "nowhere: they are 0", CACHE, |o| placed(o, |_, _, _| None)),
    Row("cache_place", "as the first of them, repeated", CACHE, |o| {
        let (before, new) = cached(o)?;
        let (start, mut all) = (before.shape()[0], joined(&before, &new)?);
        let first = new.index_axis(Axis(0), 0).to_owned();
        (start..all.shape()[0]).for_each(|t| all.index_axis_mut(Axis(0), t).assign(&first));
        Some(all)
    }),
    Row("cache_place", "in the right rows, but the old ones became 0", CACHE, |o| {
        let (before, new) = cached(o)?;
        joined(&Array::zeros(before.raw_dim()), &new)
    }),
    Row("cache_place", "with all rows in reverse", CACHE, |o| {
        let (before, new) = cached(o)?;
        joined(&before, &new).map(|all| reversed(&all, 0))
    }),
    Row("cache_place", "added to the first rows", CACHE, |o| {
        let (before, new) = cached(o)?;
        let (start, tokens) = (before.shape()[0], new.shape()[0]);
        let mut all = joined(&before, &Array::zeros(new.raw_dim()))?;
        for t in 0..tokens.min(start + tokens) {
            let mut row = all.index_axis_mut(Axis(0), t);
            row += &new.index_axis(Axis(0), t);
        }
        Some(all)
    }),
    Row("cache_place", "with the kv heads in reverse", CACHE, |o| {
        let (before, new) = cached(o)?;
        joined(&before, &reversed(&new, 1))
    }),
    Row("kv_head_order", "h mod H/G", REPEAT, |o| {
        shared(o, |[k, h, c], [_, heads, group]| [k, (h % group).min(heads - 1), c])
    }),
    Row("kv_head_order", "the last one for every h", REPEAT, |o| {
        shared(o, |[k, _, c], [_, heads, _]| [k, heads - 1, c])
    }),
    Row("kv_head_order", "(h + 1) / (H/G)", REPEAT, |o| {
        shared(o, |[k, h, c], [_, heads, group]| [k, ((h + 1) / group).min(heads - 1), c])
    }),
    Row("kv_head_order", "h, up to the last", REPEAT, |o| {
        shared(o, |[k, h, c], [_, heads, _]| [k, h.min(heads - 1), c])
    }),
    Row("repeat_axis", "the keys", REPEAT, |o| {
        // (K, G, C) repeated along the keys, then read as (K, H, C).
        let cache = o.x()?;
        let [keys, kv_heads, c] = *cache.shape() else { return None };
        let group = o.sizes.heads / kv_heads;
        let repeated = Array::from_shape_fn(IxDyn(&[keys * group, kv_heads, c]), |at| {
            cache[IxDyn(&[at[0] / group, at[1], at[2]])]
        });
        o.shaped(&repeated)
    }),
    Row("repeat_axis", "the components", REPEAT, |o| {
        let cache = o.x()?;
        let [keys, kv_heads, c] = *cache.shape() else { return None };
        let group = o.sizes.heads / kv_heads;
        let repeated = Array::from_shape_fn(IxDyn(&[keys, kv_heads, c * group]), |at| {
            cache[IxDyn(&[at[0], at[1], at[2] / group])]
        });
        o.shaped(&repeated)
    }),
    Row("repeat_axis", "the whole cache, one copy after the other", REPEAT, |o| {
        let cache = o.x()?;
        let [keys, kv_heads, c] = *cache.shape() else { return None };
        let group = o.sizes.heads / kv_heads;
        let tiled = Array::from_shape_fn(IxDyn(&[keys * group, kv_heads, c]), |at| {
            cache[IxDyn(&[at[0] % keys, at[1], at[2]])]
        });
        o.shaped(&tiled)
    }),
    Row("repeat_axis", "the keys, with the kv heads as the outer axis", REPEAT, |o| {
        let cache = o.x()?;
        let [keys, kv_heads, c] = *cache.shape() else { return None };
        let group = o.sizes.heads / kv_heads;
        // (G, K, C) repeated and read as (K, H, C).
        let repeated = Array::from_shape_fn(IxDyn(&[kv_heads * group, keys, c]), |at| {
            cache[IxDyn(&[at[1], at[0] / group, at[2]])]
        });
        o.shaped(&repeated)
    }),
    Row("repeat_scaled", "divided by H/G", REPEAT, |o| {
        let group = (o.sizes.heads / o.x()?.shape()[1]) as f64;
        shared(o, |[k, h, c], [_, _, group]| [k, h / group, c]).map(|keys| keys / group)
    }),
    Row("repeat_scaled", "only for the first query head of each group; the others are 0", REPEAT, |o| {
        let group = o.sizes.heads / o.x()?.shape()[1];
        let whole = shared(o, |[k, h, c], [_, _, group]| [k, h / group, c])?;
        Some(o.cells(|at| if at[1] % group == 0 { whole[IxDyn(at)] } else { 0.0 }))
    }),
    Row("repeat_scaled", "as the mean of all kv heads", REPEAT, |o| {
        let mean = o.x()?.mean_axis(Axis(1))?;
        Some(o.cells(|at| mean[IxDyn(&[at[0], at[2]])]))
    }),
    Row("heads_merged", "as (T, C, H)", MERGE, |o| {
        let heads = o.x()?.clone().permuted_axes(IxDyn(&[0, 2, 1]));
        product(&heads.as_standard_layout().into_owned(), o.w()?)
    }),
    Row("heads_merged", "with the heads in reverse", MERGE, |o| product(&reversed(o.x()?, 1), o.w()?)),
    Row("heads_merged", "as (C, H, T), read as (T, H·C)", MERGE, |o| {
        let heads = o.x()?.clone().reversed_axes();
        product(&heads.as_standard_layout().into_owned(), o.w()?)
    }),
    Row("heads_merged", "as the mean of all heads in each", MERGE, |o| {
        let x = o.x()?;
        let mean = reduced(x, Some(1), |row| row.sum() / row.len() as f64);
        product(&mean.broadcast(x.raw_dim())?.to_owned(), o.w()?)
    }),
    Row("heads_merged", "from the first head alone", MERGE, |o| {
        let mut x = o.x()?.clone();
        debug_assert_eq!(last(&x), 2, "tokens, heads, components");
        (1..x.shape()[1]).for_each(|h| x.index_axis_mut(Axis(1), h).fill(0.0));
        product(&x, o.w()?)
    }),
];
