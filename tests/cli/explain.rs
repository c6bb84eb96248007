//! `explain`, `lens` and `attribute`: their output and their errors.

use serde_json::Value;

use crate::common::{fixture, llama_trace, stderr};
use crate::{PROMPT, ok};

fn json(args: &[&str]) -> Value {
    let all = [&args[..1], &["--prompt", PROMPT, "--format", "json"], &args[1..]].concat();
    serde_json::from_str(&ok(&llama_trace(all))).unwrap()
}

fn refused(args: &[&str], code: i32, texts: &[&str]) {
    let output = llama_trace(args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for text in texts {
        assert!(said.contains(text), "{args:?}: {text:?} is not in {said}");
    }
}

#[test]
fn heads_and_neurons_are_ranked_by_direct_and_by_total_effect() {
    let whole = json(&["attribute"]);
    let rank = |args: &[&str]| json(&[&["attribute", "--parts", "heads"], args].concat());
    for by in ["direct", "total"] {
        let found = rank(&["--by", by, "--top", "100"]);
        for name in ["token", "against", "difference"] {
            assert_eq!(found[name], whole[name]);
        }
        let parts = found["parts"].as_array().unwrap();
        let size = |part: &Value| part[by].as_f64().unwrap().abs();
        assert!(parts.is_sorted_by(|a, b| size(a) >= size(b)), "{found}");
        for part in parts {
            let shares = whole["parts"].as_array().unwrap();
            let share = shares.iter().find(|share| share["name"] == part["name"]).unwrap();
            let [direct, expected] = [&part["direct"], &share["value"]].map(|value| value.as_f64().unwrap());
            assert!((direct - expected).abs() < 1e-6, "{part} and {share}");
        }
    }
    let first = &rank(&["--by", "total", "--top", "1"])["parts"].as_array().unwrap()[0].clone();
    let ids = [&whole["token"], &whole["against"]].map(Value::to_string);
    let args = ["--token", &ids[0], "--against", &ids[1], "--without", first["name"].as_str().unwrap()];
    let less = json(&[&["attribute"], &args[..]].concat());
    let lost = whole["difference"].as_f64().unwrap() - less["difference"].as_f64().unwrap();
    assert!((first["total"].as_f64().unwrap() - lost).abs() < 1e-12, "{first} and {lost}");
    let neurons = json(&["attribute", "--parts", "neurons", "--top", "3"]);
    let names = neurons["parts"].as_array().unwrap().iter().map(|part| part["name"].as_str().unwrap());
    assert!(names.clone().count() == 3 && names.clone().all(|name| name.contains("/n")), "{neurons}");
    let text = ok(&llama_trace(["attribute", "--parts", "heads", "--prompt", PROMPT]));
    assert!(text.trim_end().ends_with(" forward passes over the prompt"), "{text}");
    refused(&["attribute", "--by", "total"], 2, &["--parts"]);
    refused(&["attribute", "--parts", "heads", "--prompt", PROMPT, "--t", "9"], 2, &["--t from 0 to 4"]);
}

#[test]
fn an_explanation_in_json_has_every_operand_with_its_address() {
    let found = json(&["explain", "L1/ffn_up[t=4,f=17]", "--terms", "5"]);
    assert_eq!(found["address"], "p0/L1/ffn_up[t=4,f=17]");
    assert_eq!((&found["value"], &found["difference"]), (&found["result"], &Value::from(0.0)));
    let terms = found["terms"].as_array().unwrap();
    assert_eq!((terms.len(), &found["rest"]["count"]), (5, &Value::from(123)));
    let mut sum = found["rest"]["sum"].as_f64().unwrap();
    for term in terms {
        let operands = term["operands"].as_array().unwrap();
        assert!(operands[0]["address"].as_str().unwrap().starts_with("p0/L1/ffn_norm[t=4,d="));
        assert!(operands[1]["weight"].as_str().unwrap().starts_with("L1/w3[o=17,i="));
        for operand in operands {
            let kinds = ["address", "weight", "constant"].iter().filter(|kind| operand.get(kind).is_some());
            assert_eq!(kinds.count(), 1, "{operand}");
        }
        let values = operands.iter().map(|operand| operand["value"].as_f64().unwrap());
        // The tolerance is not 0, because parsing a decimal number may change the last bit.
        assert!((term["product"].as_f64().unwrap() - values.product::<f64>()).abs() < 1e-12);
        sum += term["product"].as_f64().unwrap();
    }
    assert!((sum - found["value"].as_f64().unwrap()).abs() < 1e-5);
    let all = json(&["explain", "L1/ffn_up[t=4,f=17]", "--terms", "0"]);
    assert_eq!((all["terms"].as_array().unwrap().len(), &all["rest"]["count"]), (128, &Value::from(0)));
}

#[test]
fn a_number_of_a_view_names_the_number_of_its_stage() {
    let (asked, formula) = ("p0/L0/queries_t[h=1,t=2,c=3]", "queries_t[h, t, c] = xq_rope[t, h, c]");
    let found = json(&["explain", asked]);
    assert_eq!(found["address"], "p0/L0/xq_rope[t=2,h=1,c=3]");
    assert_eq!((&found["view"]["address"], &found["view"]["formula"]), (&asked.into(), &formula.into()));
    let of_stage = json(&["explain", "p0/L0/xq_rope[t=2,h=1,c=3]"]);
    assert_eq!((&of_stage["value"], &of_stage["view"]), (&found["value"], &Value::Null));
    let page = ok(&llama_trace(["explain", "--prompt", PROMPT, asked]));
    assert!(page.contains(&format!("  the same number as {asked}: {formula}\n")), "{page}");
    let page = ok(&llama_trace(["explain", "--prompt", PROMPT, "attn_merged[t=1,m=40]"]));
    assert!(page.starts_with("p0/L0/attn_heads[t=1,h=1,c=8]"), "{page}");
}

#[test]
fn from_a_logit_each_operand_leads_on_to_an_embedding() {
    let mut address = "p0/logits[t=4,v=270]".to_owned();
    for _ in 0..100 {
        let found = json(&["explain", &address, "--terms", "1"]);
        let operands = found["terms"][0]["operands"].as_array().unwrap();
        if address.contains("/embedding[") {
            let weight = operands.iter().find_map(|operand| operand["weight"].as_str());
            let rows = json(&["explain", &address, "--terms", "0"]).to_string();
            assert!(weight.is_some() || rows.contains("tok_embeddings[v="), "{rows}");
            return;
        }
        // If there are several operands, goes on with the one in the residual stream, else with the first one.
        let all = json(&["explain", &address, "--terms", "0"])["terms"].clone();
        let next = all.as_array().unwrap().iter().flat_map(|term| term["operands"].as_array().unwrap());
        let next: Vec<_> = next.filter_map(|operand| operand["address"].as_str()).collect();
        let stream = |to: &&&str| ["residual", "embedding"].iter().any(|name| to.contains(name));
        address = (*next.iter().find(stream).unwrap_or(next.first().unwrap())).to_string();
    }
    panic!("the walk did not reach an embedding: {address}");
}

#[test]
fn a_value_that_is_not_finite_is_a_word_in_json() {
    let found = json(&["explain", "masked_scores[h=0,t=1,k=3]"]);
    assert_eq!((&found["value"], &found["result"]), (&Value::from("-inf"), &Value::from("-inf")));
    assert_eq!(found["difference"], 0.0);
    assert!(found["notes"][0].as_str().unwrap().contains("comes after position"));
}

#[test]
fn views_later_passes_and_sampling_are_explained() {
    let view = json(&["explain", "L1/keys_t[h=3,c=5,k=2]"]);
    assert_eq!(view["address"], "p0/L1/keys[k=2,h=3,c=5]");
    assert!(view["notes"][0].as_str().unwrap().contains("Query head 3 reads kv head 1"));
    let cached = json(&["explain", "p2/L0/cache_k[k=1,g=0,c=3]"]);
    assert!(cached["notes"][0].as_str().unwrap().contains("Pass 0 wrote this row"), "{cached}");
    let drawn = json(&["explain", "p1/sampled[n=0]", "--temperature", "1.5", "--seed", "4"]);
    assert_eq!(drawn["terms"][1]["operands"][0]["constant"], "random number");
    assert!(drawn["notes"][0].as_str().unwrap().contains("is in this interval"), "{drawn}");
    let qk = json(&["explain", "L1/qk[h=2,t=4,k=1]"]);
    for split in qk["splits"].as_array().unwrap() {
        let parts = split["parts"].as_array().unwrap();
        let sum: f64 = parts.iter().map(|part| part["value"].as_f64().unwrap()).sum();
        assert!((sum - qk["value"].as_f64().unwrap()).abs() < 1e-4, "{split}");
    }
    assert_eq!(qk["splits"][1]["parts"].as_array().unwrap().len(), 16);
}

#[test]
fn the_explanation_names_tokens_and_the_result() {
    let page = ok(&llama_trace(["explain", "L1/softmax[h=2,t=4,k=1]", "--prompt", PROMPT]));
    for text in
        ["p0/L1/softmax[h=2,t=4,k=1] = ", "token 4 \" time\"", "key 1 \"Once\"", "sum of all exponentials"]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(page.contains("difference 0") && !page.lines().any(|line| line.ends_with(' ')), "{page}");
}

#[test]
fn a_rule_that_is_not_a_sum_keeps_all_operands() {
    let norm = json(&["explain", "final_norm[t=4,d=0]", "--terms", "1"]);
    let names =
        norm["terms"].as_array().unwrap().iter().flat_map(|term| term["operands"].as_array().unwrap());
    let names: Vec<_> = names
        .map(|one| ["address", "weight", "constant"].iter().find_map(|key| one[*key].as_str()))
        .collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert_eq!(names[2], Some("ε"));
    assert_eq!(norm["rest"]["count"], 0);
    // The explanation lists only `--terms` of the other keys.
    let softmax = json(&["explain", "L1/softmax[h=2,t=4,k=1]", "--terms", "1"]);
    assert_eq!((softmax["terms"].as_array().unwrap().len(), &softmax["rest"]["count"]), (4, &Value::from(4)));
}

#[test]
fn for_a_maximum_the_other_terms_have_a_maximum_and_no_sum() {
    let args = ["explain", "p0/L1/attn_norm_scale[t=1,j=1]", "--precision", "q8"];
    let all = json(&[&args[..], &["--terms", "0"]].concat());
    let products: Vec<_> =
        all["terms"].as_array().unwrap().iter().map(|term| term["product"].as_f64().unwrap()).collect();
    let some = json(&[&args[..], &["--terms", "2"]].concat());
    let rest = &some["rest"];
    assert_eq!((&rest["count"], rest.get("sum")), (&Value::from(products.len() - 2), None), "{rest}");
    assert_eq!(rest["largest"].as_f64(), Some(products[2]));
    let page = ok(&llama_trace([&args[..], &["--prompt", PROMPT, "--terms", "2"]].concat()));
    assert!(page.contains("the other ") && page.contains(" at most\n"), "{page}");
}

#[test]
fn at_temperature_0_the_winner_of_the_nucleus_is_named_once() {
    let winner = json(&["explain", "p0/sampled[n=0]"])["value"].as_f64().unwrap() as usize;
    for (id, count) in [(winner, 1), (winner - 1, 2)] {
        let found = json(&["explain", &format!("p0/nucleus[v={id}]")]);
        let terms = found["terms"].as_array().unwrap();
        let last = &terms[terms.len() - 1]["operands"][0]["address"];
        assert_eq!((terms.len(), last), (count, &format!("p0/logits[t=4,v={winner}]").into()), "{found}");
        assert_eq!(found["value"], if count == 1 { 1.0 } else { 0.0 });
    }
}

#[test]
fn a_token_outside_the_nucleus_is_explained_with_the_reason() {
    let notes = |args: &[&str], id: usize| {
        let address = format!("p0/nucleus[v={id}]");
        let found = json(&[&["explain", &address], args].concat());
        found["notes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|note| note.as_str().unwrap().to_owned() + "\n")
            .collect::<String>()
    };
    let cold = notes(&["--temperature", "0.05"], 12);
    assert!(cold.contains(" possible, because the probability of the other "), "{cold}");
    assert!(cold.contains("no top-k and top-p 1 keep all ") && !cold.contains("remove"), "{cold}");
    assert!(cold.contains("This token cannot be sampled: its probability is 0 in float32."), "{cold}");
    let least = notes(&["--temperature", "1", "--top-k", "3"], 12);
    assert!(least.contains("This token cannot be sampled: top-k removes it."), "{least}");
    let least = notes(&["--temperature", "1", "--top-p", "0.05"], 12);
    assert!(least.contains("This token cannot be sampled: top-p removes it."), "{least}");
}

#[test]
fn keys_that_a_token_does_not_see_are_not_counted_as_terms() {
    let found = json(&["explain", "L1/attn_heads[t=2,h=1,c=3]", "--terms", "0"]);
    assert_eq!(found["terms"].as_array().unwrap().len(), 3);
    assert!(found["formula"].as_str().unwrap().contains("each key that token t sees, 5 at most"), "{found}");
    let note = found["notes"][0].as_str().unwrap();
    assert!(note.contains("each key that the token at position 2 sees: 3 of the 5 keys. "), "{note}");
    let last = json(&["explain", "L1/attn_heads[t=4,h=1,c=3]"]);
    assert_eq!(last["notes"].as_array().unwrap().len(), 0, "the last token sees all keys");
}

#[test]
fn a_number_that_cannot_be_explained_is_an_error() {
    let explain = |address: &'static str| ["explain", address, "--prompt", PROMPT];
    let lacks = ["`t` (token of 5) and `k` (key of 5) are missing", "add t (0 to 4) and k (0 to 4)\n"];
    refused(&explain("L1/softmax[h=2]"), 2, &lacks);
    let lacks = ["`t` (token of 1) is missing", "add t=0\n"];
    refused(&explain("p1/L1/softmax[h=2,k=0]"), 2, &lacks);
    refused(&explain("softmax[h=2,t=9,k=0]"), 2, &["token 9 is past the last: 0 to 4"]);
    refused(&explain("L9/xq[t=0,h=0,c=0]"), 2, &["there is no layer 9", "layers 0 to 3", "from L0 to L3"]);
    refused(&explain("L1/foo"), 2, &["there is no stage `foo`; `llama-trace log` lists the stages"]);
    refused(&explain("L0/logits[t=0,v=0]"), 2, &["outside the layers"]);
    refused(&explain("L0/wq[o=1,i=2]"), 2, &["is a weight", "explain a number of xq"]);
    // A weight that this model lacks is not read by any of its stages.
    let lacks = ["q_norm is the name of a weight, and the model", "has no such weight", "`llama-trace log`"];
    let said = stderr(&llama_trace(explain("L1/q_norm[c=0]")));
    assert!(lacks.iter().all(|words| said.contains(words)) && !said.contains("xq_norm"), "{said}");
    let qwen3 = fixture("golden/qwen3");
    let in_qwen3 = ["explain", "L1/q_norm[c=0]", "--model", qwen3.to_str().unwrap(), "--ids", "1"];
    refused(&in_qwen3, 2, &["is a weight", "explain a number of xq_norm"]);
    refused(&explain("p0/L1"), 2, &["no stage is named"]);
    refused(&explain(""), 2, &["the address is empty"]);
    for (at, turns) in [
        ("rope_cos[t=0,i=3]", "(0.00 turns)"),
        ("rope_cos[t=4,i=15]", "(0.00011 turns)"),
        ("rope_cos[t=4,i=0]", "(0.64 turns)"),
    ] {
        let page = ok(&llama_trace(explain(at)));
        assert!(page.contains(turns), "{turns}: {page}");
    }
    refused(&explain("r4:softmax[h=0,t=0,k=0]"), 2, &["there is only one run"]);
    refused(&explain("xq_norm[t=0,h=0,c=0]"), 2, &["xq_norm"]);
    refused(&explain("softmaxx[h=0,t=0,k=0]"), 2, &["softmaxx"]);
    refused(
        &["explain", "p3/tokens[t=0]", "--prompt", PROMPT, "-n", "2"],
        2,
        &["there is no pass 3", "-n 4"],
    );
    refused(&["lens", "--prompt", "a", "--prompt", "b"], 2, &["one prompt"]);
    refused(&["lens", "--prompt", PROMPT, "--t", "7"], 2, &["there is no t 7"]);
    refused(&["attribute", "--prompt", PROMPT, "--t", "7"], 2, &["there is no token 7"]);
    refused(&["attribute", "--prompt", PROMPT, "--token", "5000"], 2, &["no token 5000"]);
    refused(&["attribute", "--prompt", PROMPT, "--token", "3", "--against", "3"], 2, &["two different ids"]);
}

#[test]
fn the_lens_lists_each_layer_of_each_position() {
    let found = json(&["lens", "--top", "2", "-n", "3"]);
    let rows = found.as_array().unwrap();
    // There is a row for each of 7 tokens (5 of the prompt, 2 sampled) in each of 4 layers.
    assert_eq!(rows.len(), 7 * 4);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!((&row["t"], &row["layer"]), (&Value::from(i / 4), &Value::from(i % 4)));
        let top = row["top"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["rank"], &top[1]["rank"]), (2, &Value::from(1), &Value::from(2)));
        assert!(top[0]["prob"].as_f64() >= top[1]["prob"].as_f64() && top[0]["text"].is_string());
        // The answer is the token that the last layer predicts. Its rank and probability are those in this layer.
        let (answer, last) = (&row["answer"], &rows[i / 4 * 4 + 3]["top"][0]);
        assert_eq!((&answer["id"], &answer["text"]), (&last["id"], &last["text"]));
        let known = top.iter().find(|one| one["id"] == answer["id"]);
        assert!(
            known.map_or(answer["rank"].as_u64() > Some(2), |one| one["rank"] == answer["rank"]),
            "{row}"
        );
    }
    // The last layer's answer for the last token of the prompt is the sampled token.
    let drawn = json(&["explain", "p0/sampled[n=0]"])["value"].as_f64().unwrap();
    assert_eq!(rows[4 * 4 + 3]["top"][0]["id"].as_f64().unwrap(), drawn);
    let page = ok(&llama_trace(["lens", "--prompt", PROMPT, "--t", "4"]));
    assert!(page.starts_with("t 4 \" time\": the answer is ") && page.lines().count() == 5, "{page}");
}

#[test]
fn attribution_names_every_head_and_sums_to_the_difference() {
    let found = json(&["attribute"]);
    let parts = found["parts"].as_array().unwrap();
    let names: Vec<_> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 4 * 5 + 2);
    for name in ["embedding", "L0/h0", "L1/h2", "L3/h3", "L3/ffn", "rounding"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let sum: f64 = parts.iter().map(|part| part["value"].as_f64().unwrap()).sum();
    assert!((sum - found["difference"].as_f64().unwrap()).abs() < 1e-6);
    assert!((sum - found["sum"].as_f64().unwrap()).abs() < 1e-9);
    let page = ok(&llama_trace(["attribute", "--prompt", PROMPT]));
    assert!(page.contains("logit of ") && page.contains("the other 6 parts together"), "{page}");
}
