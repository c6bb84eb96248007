//! Numbers that a view computes from recorded numbers. The tests compute each of them again, with the formula that the
//! view shows.

use llama_trace::trace::{Answer, Query, Region, Site, Source, Stage as TraceStage};
use llama_trace::tui::text::visible;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::KeyCode;
use ratatui::layout::Rect;

use crate::shown::{is, read, read_text, real};
use crate::stage::Stage;
use crate::synthetic::Synthetic;

/// The sampler's numbers, computed again from the logits. The tried settings follow only the rules in the view.
#[test]
fn every_number_of_the_sampler_follows_from_the_logits() {
    for (keys, temperature, top_k, top_p) in [
        ("", 0.8, 40, 0.9),
        ("→→→→→", 2.0, 40, 0.9),
        ("]]←←←←", 0.8, 40, 0.5),
        ("]←←←←]←←←←", 0.8, 3, 0.5),
        ("←←←←←←←←", 0.0, 40, 0.9),
    ] {
        for (width, height) in [(80, 24), (120, 40), (200, 60)] {
            let mut stage = Stage::new(Synthetic::new(), (width, height), Depth::None);
            stage.keys("/logits");
            stage.key(KeyCode::Enter);
            stage.choose("sampler");
            stage.keys(keys);
            let logits: Vec<f64> =
                (0..64).map(|id| real(stage.app.tensor().unwrap().get(&[11, id]).unwrap())).collect();
            let shares = |temperature: f64, top_k: usize, top_p: f64| {
                let softmax = |by: f64| {
                    let most = logits.iter().fold(f64::MIN, |a, &b| f64::max(a, b));
                    let sum: f64 = logits.iter().map(|logit| ((logit - most) / by).exp()).sum();
                    logits.iter().map(|logit| ((logit - most) / by).exp() / sum).collect::<Vec<f64>>()
                };
                let probs = softmax(if temperature == 0.0 { 1.0 } else { temperature });
                let mut order: Vec<usize> = (0..64).collect();
                order.sort_by(|a, b| probs[*b].total_cmp(&probs[*a]));
                let top_k = if temperature == 0.0 { 1 } else { top_k };
                let left: f64 = order[..top_k].iter().map(|&id| probs[id]).sum();
                let (mut sum, mut stay) = (0.0, 0);
                while stay < top_k && sum < top_p * left {
                    sum += probs[order[stay]];
                    stay += 1;
                }
                (probs, order, stay, sum, left)
            };
            let (probs, order, stay, sum, left) = shares(temperature, top_k, top_p);
            let (_, own_order, own_stay, own_sum, _) = shares(0.8, 40, 0.9);
            let layout = stage.app.layout().unwrap();
            let (buffer, screen) = (stage.buffer(), stage.screen());
            let words = |y: u16| -> String {
                (layout.area.x..layout.area.right()).map(|x| buffer[(x, y)].symbol()).collect()
            };
            let line = |y: u16| read_text(&words(y).replace(['‹', '›'], " "));
            // The view leaves the logits out only in a small window that also shows the tried settings.
            let has_logits = words(layout.area.y + layout.header - 1).contains("logit");
            assert!(has_logits || (!keys.is_empty() && width < 200), "{screen}");
            // The lines "run" and "tried": the setting, the number of tokens that stay, and their sum. The seed is in
            // between.
            let told = line(layout.area.y + 1);
            assert_eq!(&told[..4], ["0.8", "40", "0.9", "7"], "{screen}");
            assert!(told[4] == own_stay.to_string() && is(&told[5], own_sum, false), "{told:?}\n{screen}");
            if !keys.is_empty() {
                let told = line(layout.area.y + 2);
                let set = [temperature.to_string(), top_k.to_string(), top_p.to_string()];
                assert_eq!(&told[..3], &set, "{screen}");
                assert!(told[4] == stay.to_string() && is(&told[5], sum, false), "{told:?}\n{screen}");
            }
            let mut rank = 0;
            for (down, row) in layout.visible_rows(&stage.app).enumerate() {
                let y = layout.area.y + layout.header + u16::try_from(down).unwrap();
                let numbers = line(y);
                let Some(index) = stage.app.view().index(&stage.app, (row, 0)) else {
                    let stays = [stay as f64, top_k as f64];
                    let known =
                        [&[top_p, sum, left, sum / left, temperature, probs[order[0]]][..], &stays].concat();
                    let right =
                        numbers.iter().all(|number| known.iter().any(|value| is(number, *value, false)));
                    assert!(right, "{numbers:?} of {known:?}\n{screen}");
                    continue;
                };
                let id = order[rank];
                assert_eq!(index, [11, id], "the most likely token must be first\n{screen}");
                let in_run = own_order[..own_stay].contains(&id);
                let mut expected = vec![id as f64];
                expected.extend(has_logits.then_some(logits[id]));
                expected.push(probs[id]);
                expected.extend((rank < stay).then(|| probs[id] / sum));
                if !keys.is_empty() && in_run {
                    let (own, ..) = shares(0.8, 40, 0.9);
                    expected.push(own[id] / own_sum);
                }
                // A token's text may contain a number too.
                let right = numbers.len() == expected.len()
                    && numbers.iter().zip(&expected).all(|(number, value)| is(number, *value, false));
                assert!(right, "{numbers:?} of {expected:?}\n{screen}");
                rank += 1;
            }
            assert!(rank > 3, "{screen}");
        }
    }
}

/// A stage with the view of this name, at this size.
fn in_view(source: Synthetic, step: &str, view: &str, size: (u16, u16)) -> Stage {
    let mut stage = Stage::new(source, size, Depth::None);
    stage.keys("/").keys(step);
    stage.key(KeyCode::Enter);
    stage.choose(view);
    stage
}

/// The lines of the view.
fn body(stage: &Stage) -> Vec<Vec<String>> {
    let (buffer, layout) = (stage.buffer(), stage.app.layout().unwrap());
    let area = Rect { height: layout.lines(&stage.app) as u16, ..layout.area }.intersection(layout.area);
    let line = |y| (area.x..area.right()).map(|x| buffer[(x, y)].symbol().to_owned()).collect();
    (area.y..area.bottom()).map(line).collect()
}

/// All values of a stage.
fn values_of(stage: &mut Stage, site: Site) -> ndarray::ArrayD<f32> {
    let pass = stage.app.outline().passes[site.pass].dims;
    let shape = stage.app.outline().card.sizes().shape(site.stage.axes(), pass);
    let query = Query::Block(site, Region::whole(&shape));
    let std::task::Poll::Ready(Ok(Answer::Block(block))) = stage.source.ask(&query) else { panic!("{site}") };
    block.frame.floats().unwrap().to_owned()
}

const SOME_SIZES: [(u16, u16); 5] = [(60, 16), (75, 20), (80, 24), (120, 40), (200, 60)];

/// A diagram has only two kinds of numbers: the shape of a stage, in the box with its name, and the number of a layer.
#[test]
fn every_number_of_a_diagram_is_a_shape_in_its_own_box() {
    for size in SOME_SIZES {
        for (step, view) in [
            ("L2/xq", "flow"),
            ("L0/attn_norm", "flow"),
            ("L1/ffn_down", "flow"),
            ("L1/ffn_hidden_q8", "flow"),
            ("tokens", "pass"),
            ("L1/softmax", "pass"),
            ("sampled", "pass"),
        ] {
            let stage = in_view(Synthetic::with_switches(), step, view, size);
            let (layout, lines) = (stage.app.layout().unwrap(), body(&stage));
            let sizes = stage.app.outline().card.sizes();
            let (mut boxes, mut numbers) = (0, 0);
            layout.each_cell(&stage.app, |row, _, x, y| {
                let top = usize::from(y) + 1;
                let low = usize::from(y + layout.tall) - 1;
                // A box ends at its corner.
                let corner = |cell: &String| ["┐", "┓"].contains(&cell.as_str());
                let wide = lines.get(top).and_then(|line| line[x.into()..].iter().position(corner));
                let wide = wide.map_or(0, |at| at + 1);
                let part =
                    |y: u16| -> String { lines[usize::from(y)][x.into()..usize::from(x) + wide].concat() };
                if low >= lines.len() || !part(top as u16).starts_with(['┌', '┏']) {
                    return;
                }
                boxes += 1;
                let title = part(top as u16);
                let name = title.trim_matches(|c: char| !c.is_ascii_alphanumeric());
                let before = if stage.app.place().layer == Some(0) { "embedding" } else { "ffn_residual" };
                let (number, name) = match name.split_once([' ', '=']) {
                    Some(("layer", number)) => (read_text(number), "ffn_residual"),
                    _ if name == "x" || name.starts_with("x =") => (Vec::new(), before),
                    _ => (Vec::new(), name),
                };
                assert!(read_text(&title) == number, "{title}\n{}", stage.screen());
                let told = read_text(&part(low as u16));
                // A truncated name may be any name with this beginning.
                let meant = TraceStage::ALL.iter().filter(|stage| match title.contains('…') {
                    true => stage.name().starts_with(name),
                    false => stage.name() == name,
                });
                let shapes = meant.map(|stage_of| {
                    let shape = sizes.shape(stage_of.axes(), stage.app.dims());
                    shape.iter().map(ToString::to_string).collect::<Vec<_>>()
                });
                let shape = shapes.into_iter().find(|shape| told.ends_with(shape));
                let Some(shape) = shape else { panic!("{title}, row {row}: {told:?}\n{}", stage.screen()) };
                assert!(told == shape || ["tokens", "sampled"].contains(&name), "{name}\n{}", stage.screen());
                numbers += shape.len() + number.len();
            });
            assert!(boxes > 0, "{}", stage.screen());
            let all: usize = lines.iter().map(|line| read(line).len()).sum();
            assert!(all >= numbers, "{}", stage.screen());
            // Outside the boxes there are no numbers, except in the texts of tokens.
            let texts = lines.iter().flat_map(|line| read(line)).count() - numbers;
            assert!(texts == 0 || view == "pass", "{texts} more\n{}", stage.screen());
        }
    }
}

/// Norms, angles and shares are those of the recorded rows, by the formula below them.
#[test]
fn every_number_of_the_residual_stream_follows_from_the_recorded_rows() {
    for size in SOME_SIZES {
        for keys in ["", "hhhkk", "hhhhhhhhhhhhhjjjjjj"] {
            let mut stage = in_view(Synthetic::new(), "L1/attn_residual", "residual", size);
            stage.keys(keys);
            stage.shows("‖a‖ / ‖x‖ · angle = arccos(x·a");
            stage.shows("‖v‖ = √(Σ v²)");
            let layout = stage.app.layout().unwrap();
            let (lines, rows) = (body(&stage), layout.visible_rows(&stage.app));
            let tokens = layout.visible_columns(&stage.app);
            assert!(rows.len() > 2 && !tokens.is_empty(), "{}", stage.screen());
            let mut row_of = |layer: Option<usize>, what: TraceStage, token: usize| -> Vec<f64> {
                let array = values_of(&mut stage, Site { layer, ..Site::once(0, what) });
                array.index_axis(ndarray::Axis(0), token).iter().map(|&value| f64::from(value)).collect()
            };
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            // For each row: the norm after it, the norm of the added vector, the angle and the share.
            let mut told = |row: usize, token: usize| {
                let Some(at) = row.checked_sub(1) else {
                    return (norm(&row_of(None, TraceStage::Embedding, token)), None);
                };
                let here = Some(at / 2);
                let before = match at {
                    0 => row_of(None, TraceStage::Embedding, token),
                    at if at % 2 == 0 => row_of(Some(at / 2 - 1), TraceStage::FfnResidual, token),
                    _ => row_of(here, TraceStage::AttnResidual, token),
                };
                let (added, after) = match at % 2 {
                    0 => (TraceStage::AttnOutput, TraceStage::AttnResidual),
                    _ => (TraceStage::FfnDown, TraceStage::FfnResidual),
                };
                let (added, after) = (row_of(here, added, token), row_of(here, after, token));
                let dot: f64 = before.iter().zip(&added).map(|(x, a)| x * a).sum();
                let angle = (dot / norm(&before) / norm(&added)).acos().to_degrees();
                (norm(&after), Some([norm(&added), angle, 100.0 * norm(&added) / norm(&before)]))
            };
            let mut of_cursor = None;
            for (down, row) in rows.clone().enumerate() {
                let (after, rest) = told(row, layout.cursor.1);
                let mut expected = vec![after];
                if let Some([added, angle, _]) = rest {
                    expected.extend([added, angle]);
                    expected.extend(tokens.clone().map(|token| told(row, token).1.unwrap()[2]));
                }
                if row == layout.cursor.0 {
                    of_cursor = rest.map(|[added, _, share]| [added / share * 100.0, added, after]);
                }
                let numbers = read_text(&lines[down + usize::from(layout.header)].concat());
                let right = numbers.len() == expected.len()
                    && numbers.iter().zip(&expected).all(|(number, value)| is(number, *value, false));
                assert!(
                    right,
                    "row {row}: {numbers:?} of {expected:?}\n{}",
                    lines.iter().map(|line| line.concat() + "\n").collect::<String>()
                );
            }
            // Below the rows, the three norms of the row under the cursor appear again, and no other numbers.
            let below: Vec<String> = lines[usize::from(layout.header) + rows.len()..]
                .iter()
                .flat_map(|line| read_text(&line.concat()))
                .collect();
            let known = of_cursor.unwrap_or_default();
            let right = below.iter().zip(known).all(|(number, value)| is(number, value, false));
            assert!(right && [0, 3].contains(&below.len()), "{below:?} of {known:?}");
        }
    }
}

/// The units are sorted by |hidden|, and each has its recorded values.
#[test]
fn every_number_of_the_units_is_in_the_trace_and_the_strongest_come_first() {
    for size in SOME_SIZES {
        for (step, keys) in
            [("L1/ffn_hidden", ""), ("L2/ffn_gate", "jjj"), ("L0/ffn_up", "hhhhhjjjjjjjjjjjjjjjjjjjj")]
        {
            let mut stage = in_view(Synthetic::new(), step, "neurons", size);
            stage.keys(keys);
            let layout = stage.app.layout().unwrap();
            let (lines, rows, token) = (body(&stage), layout.visible_rows(&stage.app), layout.cursor.1);
            let layer = stage.app.place().layer;
            let [gate, silu, up, hidden] =
                [TraceStage::FfnGate, TraceStage::FfnSilu, TraceStage::FfnUp, TraceStage::FfnHidden]
                    .map(|what| values_of(&mut stage, Site { layer, ..Site::once(0, what) }));
            let count = hidden.shape()[1];
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| hidden[[token, *b]].abs().total_cmp(&hidden[[token, *a]].abs()));
            for (down, rank) in rows.clone().enumerate() {
                let unit = order[rank];
                let mut expected = vec![unit as f64];
                expected.extend([&gate, &silu, &up, &hidden].map(|all| f64::from(all[[token, unit]])));
                let line = lines[down + usize::from(layout.header)].concat();
                let numbers = read_text(&line);
                let right = numbers.len() == expected.len()
                    && numbers.iter().zip(&expected).all(|(number, value)| is(number, *value, false));
                assert!(right, "rank {rank}: {numbers:?} of {expected:?}\n{}", stage.screen());
            }
            let unit = order[layout.cursor.0];
            assert_eq!(stage.app.index(), [token, unit], "{}", stage.screen());
            stage.shows(&format!("unit {unit}, rank {} of {count} by |hidden|", layout.cursor.0 + 1));
            stage.shows("it has no weights");
            stage.shows("silu = gate / (1 + e^−gate) · hidden = silu · up");
        }
    }
}

/// Computes the log-probability and rank of each token again, from the logits at the previous position. Also checks the
/// marks on the strip.
#[test]
fn every_number_of_the_tokens_follows_from_the_logits_before_them() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::new(Synthetic::new(), size, Depth::None);
        stage.keys("t").wait().keys("t").wait().keys("/p0/logits");
        stage.key(KeyCode::Enter);
        let tensor = stage.app.tensor().unwrap();
        let row = |row: usize| (0..64).map(|id| real(tensor.get(&[row, id]).unwrap())).collect::<Vec<f64>>();
        let told = |logits: &[f64], id: usize| {
            let most = logits.iter().fold(f64::MIN, |a, &b| f64::max(a, b));
            let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
            let rank =
                (0..64).filter(|&o| logits[o] > logits[id] || logits[o] == logits[id] && o < id).count();
            (logits[id] - most - sum.ln(), rank + 1)
        };
        stage.keys("/p0/tokens");
        stage.key(KeyCode::Enter);
        stage.choose("tokens");
        stage.keys("T");
        let strip = |stage: &Stage| stage.screen().lines().nth(1).unwrap().to_owned();
        assert!(strip(&stage).contains("░≥1 ▒≥2 ▓≥4 █≥8"), "{}", stage.screen());
        let (layout, buffer, screen) = (stage.app.layout().unwrap(), stage.buffer(), stage.screen());
        let tokens = stage.app.outline().passes[0].tokens.clone();
        let mut seen = 0;
        for (down, at) in layout.visible_rows(&stage.app).enumerate() {
            let y = layout.area.y + layout.header + u16::try_from(down).unwrap();
            let line: String =
                (layout.area.x..layout.area.right()).map(|x| buffer[(x, y)].symbol()).collect();
            let id = tokens[at].id as usize;
            let bytes: Vec<String> = tokens[at].text.bytes().map(|byte| format!("{byte:02x}")).collect();
            assert!(line.contains(&bytes[0]), "{line}\n{screen}");
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[0], at.to_string(), "{screen}");
            assert!(words.contains(&id.to_string().as_str()), "{screen}");
            if at == 0 {
                assert!(line.contains("first"), "the first token has no logits before it\n{screen}");
                continue;
            }
            let (log, rank) = told(&row(at - 1), id);
            let found = words.iter().position(|word| word.starts_with("-") && word.parse::<f64>().is_ok());
            let found = found.unwrap_or_else(|| panic!("no log p in {line}"));
            assert!(is(words[found], log, false), "{} of {log}\n{screen}", words[found]);
            assert_eq!(words[found + 1], rank.to_string(), "{screen}");
            // The strip shows the mark for the same number.
            let mark = match -log {
                ..1.0 => "│",
                1.0..2.0 => "░",
                2.0..4.0 => "▒",
                4.0..8.0 => "▓",
                _ => "█",
            };
            let cut = visible(&tokens[at].text);
            let marked = format!("{cut}{mark}");
            assert!(!strip(&stage).contains(&cut) || strip(&stage).contains(&marked), "{marked}\n{screen}");
            seen += 1;
        }
        assert!(seen > 3, "{screen}");
        // The view lists the tokens that the model expected at the cursor's position. The most likely token is first.
        if size.1 > 24 {
            stage.keys("$kkk");
            let at = stage.app.index()[0];
            let shown = stage.screen();
            let (_, below) = shown.split_once("the model expected instead:").unwrap();
            let logits = row(at - 1);
            let mut ids: Vec<usize> = (0..64).collect();
            ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            for (rank, (&id, line)) in ids.iter().zip(below.lines().skip(1)).take(8).enumerate() {
                let words: Vec<&str> = line.split_whitespace().collect();
                let found = words.windows(2).find(|two| two[1] == (rank + 1).to_string());
                let log = found.unwrap_or_else(|| panic!("no rank {} in {line}\n{shown}", rank + 1))[0];
                assert!(is(log, told(&logits, id).0, false), "{log} of {id}\n{shown}");
                assert!(words.contains(&id.to_string().as_str()), "{id} in {line}\n{shown}");
                let read = tokens.iter().find(|token| token.id as usize == id);
                let text = read.map_or(format!("␣word{id}"), |read| visible(&read.text));
                assert!(line.contains(&text), "{text} in {line}\n{shown}");
            }
            stage.keys("0");
        }
        // The values of a sampled token come from the last logits of the previous pass.
        stage.keys(".");
        assert_eq!(stage.app.place().pass, 1);
        let (log, rank) = told(&row(11), 20);
        let shown = stage.screen();
        let line = shown.lines().find(|line| line.contains("12 ␣word20")).unwrap().to_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let found =
            words.iter().position(|word| word.starts_with('-') && word.parse::<f64>().is_ok()).unwrap();
        assert!(is(words[found], log, false) && words[found + 1] == rank.to_string(), "{shown}");
    }
}

#[test]
fn the_strip_carries_the_attention_of_the_head_in_view() {
    let mut stage = Stage::sized("softmax", (200, 60), Depth::None);
    stage.keys("TT");
    let strip = stage.screen().lines().nth(1).unwrap().to_owned();
    assert!(strip.contains("░≥0.05 ▒≥0.1 ▓≥0.25 █≥0.5"), "{strip}");
    let tensor = stage.app.tensor().unwrap();
    for (key, token) in stage.app.outline().passes[0].tokens.iter().enumerate() {
        let weight = real(tensor.get(&[2, 11, key]).unwrap());
        let mark = match weight {
            ..0.05 => "│",
            0.05..0.1 => "░",
            0.1..0.25 => "▒",
            0.25..0.5 => "▓",
            _ => "█",
        };
        let marked = format!("{}{mark}", visible(&token.text));
        // The last token is followed by an arrow if it has no mark.
        let last = mark == "│" && key == 11;
        assert!(last || strip.contains(&marked), "{marked} for {weight} in {strip}");
    }
    stage.keys("T");
    assert!(!stage.screen().lines().nth(1).unwrap().contains("attention"));
}

/// The screen explains the arrow next to an angle, and the last columns.
#[test]
fn the_residual_view_says_what_its_arrows_and_shares_are() {
    for (size, share, arrow) in [
        ((80, 24), " share", "x (→): the row above, a (arrow): added"),
        ((120, 40), " share", "x (→): the row above, a (arrow): added"),
        ((200, 60), "share: ‖a‖ / ‖x‖", "a: the added vector (the arrow next to the angle)"),
    ] {
        let stage = in_view(Synthetic::new(), "L1/attn_residual", "residual", size);
        stage.shows(arrow);
        let body = stage.body();
        assert!(body[0].contains(share) && body[1].contains("angle"), "{body:?}");
        let at = body[0].find("share").unwrap();
        assert!(body[3][at..].contains('%'), "the heading is not above the shares: {body:?}");
    }
}
