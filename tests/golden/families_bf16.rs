//! Compares every stage of transformers' bfloat16 run of each family with its rule, whose inputs are transformers'
//! stages. So a difference belongs to one stage, and the places of the rounding are those of transformers.

use std::collections::BTreeMap;

use llama_trace::backend::cpu::Cpu;
use llama_trace::check::{Cells, Nothing, Sample, rows};
use llama_trace::config::{CacheDtype, Precision};
use llama_trace::model::Model;
use llama_trace::trace::stage::Rounded;
use llama_trace::trace::{PassDims, Sampling, Site, Stage};
use llama_trace_core::explain::{Exact, Held, Numbers, Place, Rules};

use super::bf16::{SHARE, difference};
use super::common::fixture;
use super::families::{add_copies, ids, open};
use super::reference;

/// Compares the stages of the prompt's pass of the family `name`. As in `bf16.rs`, no value is further away than a unit
/// in the last place, and nearly all have the same bits.
pub(super) fn stages(name: &str) {
    let checkpoint = open(name);
    let model = Model::load(&checkpoint, Cpu::default().with_precision(Precision::Bf16)).unwrap();
    let prompt = ids(name, "prompt_ids");
    let dims = PassDims { pass: 0, start: 0, tokens: prompt.len(), ..PassDims::default() };
    let mut rules = Rules::new(model.card(), CacheDtype::Bf16, Sampling::GREEDY);
    rules.push(dims, None);
    rules.read(prompt);
    let golden = reference::read(&fixture(&format!("families/{name}/bf16.safetensors")));
    let mut golden = golden.into_iter().map(|(name, tensor)| (format!("pass_000/{name}"), tensor)).collect();
    add_copies(&mut golden, &model.config, 1);
    let frames: BTreeMap<Site, (Vec<f32>, Vec<i64>)> = Site::all(&model.sizes(), dims)
        .into_iter()
        .filter_map(|site| {
            let (shape, values) = golden.remove(&reference::name(site))?;
            assert_eq!(shape, model.sizes().shape(site.stage.axes(), dims), "{name} {site}");
            let floats = values.iter().map(|&value| value as f32).collect();
            Some((site, (floats, values.iter().map(|&value| value as i64).collect())))
        })
        .collect();
    assert!(golden.is_empty(), "{name}: {:?} are no stages", golden.keys());
    let mut shares = BTreeMap::<Stage, (f64, usize)>::new();
    let mut found = String::new();
    for (&site, (theirs, _)) in &frames {
        // The reference leaves out the mask.
        let Some(of) = rules.of(site).filter(|_| site.stage != Stage::Tokens) else { continue };
        let mut held = Held::default();
        for input in rules.sources(site) {
            let Some((floats, integers)) = frames.get(&input) else { continue };
            let numbers = if input.stage.is_ids() { Numbers::I64(integers) } else { Numbers::F32(floats) };
            held.add(Place::Stage(input), 0, numbers);
        }
        let cells = Cells::new(&model, &rules, site, held, &Nothing).unwrap();
        let see = |seen: &mut Vec<(usize, Exact)>, at: usize, exact: &Exact| seen.push((at, *exact));
        let merge = |a: Vec<(usize, Exact)>, b: Vec<(usize, Exact)>| [a, b].concat();
        let all = cells.fold(&rows(site, &of, Sample::All), &see, merge).unwrap().unwrap();
        assert_eq!(all.len(), theirs.len(), "{name} {site}");
        let mut ours = vec![0.0; theirs.len()];
        for (at, exact) in all {
            // Arithmetic in float32 may round to either number.
            let is_other = exact.other as f32 == theirs[at];
            ours[at] = if is_other { exact.other as f32 } else { exact.value as f32 };
        }
        if rules.card().config.rounded(site.stage) == Rounded::Never
            && site.stage.info().rounded != Rounded::Never
        {
            // Tables of RoPE in float32.
            let tensors = [&ours, theirs]
                .map(|values| (vec![values.len()], values.iter().map(|&x| x.into()).collect()));
            let difference = reference::stage_difference(&tensors[0], &tensors[1]);
            difference.iter().for_each(|what| found += &format!("{site}: {what}\n"));
            continue;
        }
        let width = model.sizes().axis(*site.stage.axes().last().unwrap(), dims);
        let (share, worst) = difference(&ours, theirs, width);
        if worst > 1.0 {
            found += &format!("{site}: {worst} units away, {share} the same\n");
        }
        let (same, count) = shares.entry(site.stage).or_default();
        *same += share * ours.len() as f64;
        *count += ours.len();
    }
    for (stage, (same, count)) in shares {
        let share = same / count as f64;
        if share < SHARE {
            found += &format!("{stage}: {share} of {count} the same\n");
        }
    }
    assert!(found.is_empty(), "{name}:\n{found}");
}
