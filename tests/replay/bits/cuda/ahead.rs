//! Passes that are queued before the host knows the token of the previous pass. The texts are the same as if each pass
//! began only after the previous one, whatever ends a text.

use super::*;
use llama_trace_core::error::Error;
use llama_trace_engine::generate::{Chat, Ended};
use llama_trace_engine::model::buffer_bytes;

/// Random weights whose texts repeat only late.
fn model() -> Option<(Model, Model)> {
    both(&random::of_config("random", small(0), Dtype::BF16), Precision::F32)
}

fn drawing(temperature: f32) -> Sampler {
    Sampler::new(Sampling { temperature, top_k: 0, top_p: 0.98, seed: 4, ..Sampling::default() }).unwrap()
}

/// The texts, and the reason for the end of each.
fn texts(model: &Model, prompts: Prompts, temperature: f32) -> Vec<(Vec<u32>, Option<Ended>)> {
    let mut texts = vec![(Vec::new(), None); prompts.ids.len()];
    let mut batch = Batch::new(model, drawing(temperature), prompts, |_| None).unwrap();
    while batch.ready().unwrap() {
        for drawn in batch.pass(&mut NoProbe).unwrap() {
            texts[drawn.sequence].0.push(drawn.id);
            texts[drawn.sequence].1 = drawn.ended;
        }
    }
    texts
}

#[test]
fn texts_that_end_by_themselves_leave_the_others_as_they_are() {
    let Some((cuda, cpu)) = model() else { return };
    let cases = [0.0, 1.2].into_iter().flat_map(|temperature| [0, 1, 4, 9].map(|at| (temperature, at)));
    for (temperature, at) in sampled("texts that end by themselves", cases, 2) {
        let prompts = |ends: &[u32], memory| Prompts {
            ids: (1..6).map(prompt).collect(),
            ends: ends.to_vec(),
            draws: 12,
            context: None,
            chunk: None,
            memory,
        };
        let whole = texts(&cpu, prompts(&[], None), temperature);
        assert!(whole.iter().all(|(ids, ended)| ids.len() == 12 && *ended == Some(Ended::Limit)));
        let ends = [whole[2].0[at], whole[4].0[at + 1]];
        let expected = texts(&cpu, prompts(&ends, None), temperature);
        let ended_early = expected.iter().filter(|(_, ended)| *ended == Some(Ended::Text)).count();
        assert!(ended_early > 0, "texts end at their end tokens: {ends:?}");
        assert_eq!(texts(&cuda, prompts(&ends, None), temperature), expected, "{ends:?}");
        // Some texts wait for others to end.
        let some = Some(2 * buffer_bytes(&cuda.config, 6, 2) + (48 << 10));
        assert_eq!(texts(&cuda, prompts(&ends, some), temperature), expected, "{ends:?}");
    }
}

#[test]
fn an_answer_that_ends_leaves_nothing_behind_for_the_next() {
    let Some((cuda, cpu)) = model() else { return };
    fn answers(model: &Model, ends: &[u32]) -> Vec<Vec<u32>> {
        let mut chat = Chat::new(Session::with_capacity(model, drawing(1.2), 60).unwrap());
        let mut text = prompt(4);
        let mut answers = Vec::new();
        for round in 0..6 {
            let mut answer = Vec::new();
            let draw = |id| {
                answer.push(id);
                Ok::<_, Error>(())
            };
            chat.answer(&text, ends, 6, draw).unwrap();
            text.extend(&answer);
            // The next pass reads one token, like the pass that was queued ahead. It may read the same token as that
            // pass, another token, or a token after a part of the answer was removed.
            match round % 3 {
                0 => text.push(ends.first().copied().unwrap_or(5)),
                1 => text.push(11),
                _ => text.truncate(text.len() - 1),
            }
            answers.push(answer);
        }
        answers
    }
    let whole = answers(&cpu, &[]);
    for ends in [vec![], vec![whole[0][2]], vec![whole[0][5], whole[1][1]]] {
        let expected = answers(&cpu, &ends);
        assert_eq!(answers(&cuda, &ends), expected, "{ends:?}");
        assert!(ends.is_empty() || expected.iter().any(|answer| answer.len() < 6), "an answer ends early");
    }
}
