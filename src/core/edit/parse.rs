//! The text of an edit.

use super::place::{Place, Selection};
use super::{Edit, Operand, Operator, Origin, Part, Source, has_tokens};
use crate::trace::select::near;
use crate::trace::stage::Section;
use crate::trace::{Address, Axis, Stage, Step, Subject};

/// Parses an edit.
pub(super) fn edit(text: &str) -> Result<Edit, String> {
    let text = text.trim();
    if text.chars().any(char::is_control) {
        return Err("an edit is one line of text, without control characters".into());
    }
    if let Some(part) = text.strip_suffix("off").filter(|part| part.ends_with(char::is_whitespace)) {
        return off(part.trim(), format!("{} off", part.trim()));
    }
    let Some((left, operator, right)) = operator(text) else {
        return Err(format!(
            "`{text}` has no operation: write PLACE = VALUE, PLACE *= NUMBER, PLACE += VALUE or PART off, as in `L0/attn_heads[h=2] = 0`"
        ));
    };
    let place = place(left)?;
    let operand = operand(right, &place)?;
    Ok(Edit { text: text.to_owned(), parts: vec![Part { place, operator, operand }] })
}

/// Splits an edit at its operator, which is outside brackets and quotes.
fn operator(text: &str) -> Option<(&str, Operator, &str)> {
    let at = outside(text).find(|&(_, c)| c == '=')?.0;
    let (left, right) = (text[..at].trim_end(), text[at + 1..].trim());
    let (left, operator) = match left.chars().last() {
        Some('*') => (&left[..left.len() - 1], Operator::Multiply),
        Some('+') => (&left[..left.len() - 1], Operator::Add),
        _ => (left, Operator::Set),
    };
    Some((left.trim(), operator, right))
}

/// The characters of `text` outside brackets and quotes, with their offsets.
fn outside(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut depth, mut quoted) = (0_usize, false);
    text.char_indices().filter(move |&(_, c)| {
        match c {
            '"' => quoted = !quoted,
            '[' if !quoted => depth += 1,
            ']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && !quoted
    })
}

/// The selections at the beginning of a path, and the rest of it.
struct Path<'a> {
    place: Place,
    has_layer: bool,
    rest: Vec<&'a str>,
}

/// Parses the sequence, pass and layer of a path.
fn path(text: &str) -> Result<Path<'_>, String> {
    let mut parts = text.split('/').map(str::trim).filter(|part| !part.is_empty()).peekable();
    let mut place = Place::of(Stage::Embedding);
    let mut next = |letters: [char; 2]| {
        let selected = |part: &&str| {
            part.strip_prefix(letters)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '*'))
        };
        parts.next_if(selected).map(|part| Selection::parse(&part[1..])).transpose()
    };
    place.sequences = next(['s', 'S'])?.unwrap_or_default();
    place.passes = next(['p', 'P'])?.unwrap_or_default();
    let layers = next(['L', 'l'])?;
    let has_layer = layers.is_some();
    place.layers = layers.unwrap_or_default();
    Ok(Path { place, has_layer, rest: parts.collect() })
}

/// Parses the place of an edit.
fn place(text: &str) -> Result<Place, String> {
    let (before, index) = match text.split_once('[') {
        Some((before, rest)) => {
            let index = rest.trim_end().strip_suffix(']');
            (before, Some(index.ok_or_else(|| format!("`[{rest}` has no `]` at its end"))?))
        }
        None => (text, None),
    };
    let Path { mut place, has_layer, rest } = path(before)?;
    let [name] = rest[..] else {
        return Err(format!(
            "`{text}` is not a place: write the sequence, the pass, the layer and a stage, as in s0/p0/L1/softmax[h=0]; only the stage is needed"
        ));
    };
    place.stage = stage(name)?;
    let in_layers = || Stage::ALL.iter().copied().find(|it| it.in_layer() && it.name() == place.stage.name());
    if let Some(stage) = in_layers().filter(|_| has_layer) {
        place.stage = stage; // Gemma 3 has `rope_cos` in its layers
    }
    if has_layer && !place.stage.in_layer() {
        return Err(format!("{name} is not in a layer: leave out the layer, as in `{name} = 0`"));
    }
    for (letter, selected) in index.map(indices).transpose()?.unwrap_or_default() {
        let selected = Selection::parse(&selected)?;
        let axes = place.stage.axes();
        if letter == "pos" {
            if !has_tokens(place.stage) {
                return Err(format!("{name} has no token axis, so it has no `pos`"));
            }
            place.positions = Some(selected);
            continue;
        }
        let fits = |axis: &Axis| letter == axis.index().to_string() || letter == "q" && *axis == Axis::Token;
        let Some(at) = axes.iter().position(fits) else {
            let letters = axes.iter().map(|axis| format!("{} ({})", axis.index(), axis.name()));
            let letters = letters.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "{name} has no axis `{letter}`: its letters are {letters}, and pos (position of a token)"
            ));
        };
        if place.index.iter().any(|(other, _)| *other == at) {
            return Err(format!("`{letter}` has an index already"));
        }
        place.index.push((at, selected));
    }
    Ok(place)
}

/// Splits the text between brackets into letters and selections. An item without a letter continues the list before it.
fn indices(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut all: Vec<(String, String)> = Vec::new();
    for part in text.split(',') {
        match (part.split_once('='), all.last_mut()) {
            (Some((letter, selected)), _) => all.push((letter.trim().to_owned(), selected.trim().to_owned())),
            (None, Some((_, selected))) => *selected = format!("{selected},{}", part.trim()),
            (None, None) => {
                return Err(format!(
                    "`{part}` is not an index: write a letter, `=` and numbers, as in h=0,2"
                ));
            }
        }
    }
    Ok(all)
}

/// The stage of this name, if its values can be edited.
fn stage(name: &str) -> Result<Stage, String> {
    let stage = match Subject::from_name(&name.to_ascii_lowercase()) {
        Some(Subject::Step(Step::Stage(stage))) => stage,
        Some(Subject::Step(Step::View(view))) => {
            let of = Step::View(view).stage();
            return Err(format!("{name} is another shape of {of}, with the same values: edit {of}"));
        }
        Some(Subject::Weight(_)) => {
            return Err(format!("{name} is a weight: edits change stages; edit the stage that reads it"));
        }
        None => {
            let names: Vec<_> = Stage::names().collect();
            return Err(match &near(name, &names)[..] {
                [] => format!("there is no stage `{name}`"),
                near => format!("there is no stage `{name}`; did you mean {}?", near.join(" or ")),
            });
        }
    };
    match stage {
        Stage::Tokens => Err("tokens are ids, not values: give other tokens with --ids or --prompt".into()),
        Stage::Sampled => {
            Err("sampled is an id, not a value: edit logits, or force tokens with --ids".into())
        }
        _ if stage.info().section == Section::Sampler => {
            Err(format!("{name} is computed from the logits when a token is drawn: edit logits"))
        }
        Stage::Mask => {
            Err("the pass does not store the mask: edit masked_scores, or write `mask off`".into())
        }
        _ if stage.is_int8() || stage.is_scale() => {
            let of = stage.info().instead.unwrap_or(stage);
            Err(format!("{name} is an int8 form of {of}: edit {of}"))
        }
        stage => Ok(stage),
    }
}

/// Parses the right side.
fn operand(text: &str, place: &Place) -> Result<Operand, String> {
    let stage = place.stage;
    if text.is_empty() {
        return Err(
            "there is nothing after the operation: write a number, mean, an address or a .npy file".into()
        );
    }
    if text == "mean" {
        if !has_tokens(stage) {
            return Err(format!(
                "{stage} has no token axis, so it has no mean over tokens: edit the stage before it"
            ));
        }
        return Ok(Operand::Mean);
    }
    if let Some(file) = text.strip_prefix("mean(").and_then(|rest| rest.strip_suffix(')')) {
        if !has_tokens(stage) || stage.axes().contains(&Axis::Key) {
            return Err(format!(
                "{stage} has no mean over the tokens of other prompts: its size depends on the text"
            ));
        }
        return Ok(Operand::MeanOver(file.trim().into()));
    }
    if let Some(number) = value(text)? {
        return Ok(Operand::Number(number));
    }
    if text.ends_with(".npy") {
        return Ok(Operand::Array(text.into()));
    }
    let (factor, rest) = match text.split_once('*').map(|(factor, rest)| Ok((value(factor.trim())?, rest))) {
        Some(Ok((Some(factor), rest))) => (factor, rest.trim()),
        Some(Err(wrong)) => return Err(wrong),
        _ => (1.0, text),
    };
    let two = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let Some(two) = two else {
        return Ok(Operand::Cells { factor, first: source(rest, place)?, second: None });
    };
    let sign = outside(two).find(|&(at, c)| {
        (c == '-' || c == '+') && two[..at].ends_with(' ') && two[at + 1..].starts_with(' ')
    });
    let Some((at, sign)) = sign else {
        return Err(format!(
            "`({two})` is not a difference: write (ADDRESS - ADDRESS), with spaces around the sign"
        ));
    };
    let sign = if sign == '-' { -1.0 } else { 1.0 };
    let second = Some(Box::new((sign, source(two[at + 1..].trim(), place)?)));
    Ok(Operand::Cells { factor, first: source(two[..at].trim(), place)?, second })
}

/// A number, if the text is one.
fn value(text: &str) -> Result<Option<f32>, String> {
    let Ok(exact) = text.parse::<f64>() else { return Ok(None) };
    let number = exact as f32;
    if number.is_nan() {
        return Err("NaN is not a value that an edit can write: use a number, inf or -inf".into());
    }
    match number.is_finite() == exact.is_finite() {
        true => Ok(Some(number)),
        false => Err(format!("`{text}` is larger than the largest float32, {:e}", f32::MAX)),
    }
}

/// Parses the address of other cells, and their run.
fn source(text: &str, place: &Place) -> Result<Source, String> {
    let (run, address) = match text.strip_prefix('"') {
        Some(rest) => {
            let Some((prompt, rest)) = rest.split_once('"') else {
                return Err(format!("`{text}` has no second quote after the prompt"));
            };
            let Some(address) = rest.trim_start().strip_prefix(':') else {
                return Err(format!(
                    "a colon and an address must follow the prompt, as in \"{prompt}\":L1/attn_heads[t=3]"
                ));
            };
            (Origin::Prompt(prompt.to_owned()), address)
        }
        None => match text.split_once('[').map_or(text, |(path, _)| path).rsplit_once(':') {
            Some((run, _)) if run.strip_prefix('r').is_some_and(|number| number.parse::<u16>().is_ok()) => {
                return Err(format!(
                    "`{run}:` is a run of the tracer; here, name a prompt in quotes or the file of a trace"
                ));
            }
            Some((file, _)) => (Origin::Trace(file.into()), &text[file.len() + 1..]),
            None => (Origin::Plain, text),
        },
    };
    let address = Address::parse(address.trim()).map_err(|wrong| match run {
        Origin::Plain => {
            format!("`{text}` is not a value: write a number, mean, an address or a .npy file ({wrong})")
        }
        _ => wrong,
    })?;
    if address == Address::default() && run == Origin::Plain {
        return Err(format!("`{text}` is not a value: write a number, mean, an address or a .npy file"));
    }
    let from = match address.subject {
        None => place.stage,
        Some(Subject::Step(Step::Stage(stage))) if stage.is_ids() || stage.is_int8() => {
            return Err(format!("{stage} holds integers: read a stage of float values"));
        }
        Some(Subject::Step(Step::Stage(stage))) => stage,
        Some(other) => return Err(format!("{other} is not a stage: read a stage of a run")),
    };
    address.axes(Subject::Step(Step::Stage(from)))?;
    for axis in from.axes() {
        let named = address
            .index
            .iter()
            .any(|(letter, _)| *letter == axis.index() || *letter == 'q' && *axis == Axis::Token);
        if !named && !place.stage.axes().contains(axis) {
            return Err(format!(
                "{from} has the axis {} ({}), which {} does not have: name its index, as in {from}[{}=0]",
                axis.name(),
                axis.index(),
                place.stage,
                axis.index()
            ));
        }
    }
    Ok(Source { run, address })
}

/// The changes that switch a part off.
pub(super) fn off(part: &str, text: String) -> Result<Edit, String> {
    let Path { place, has_layer, rest } = path(part)?;
    let zero = |stage: Stage, index: Vec<(usize, Selection)>| Part {
        place: Place { stage, index, ..place.clone() },
        operator: Operator::Set,
        operand: Operand::Number(0.0),
    };
    let skip = |stage: Stage| Part { operand: Operand::Input, ..zero(stage, Vec::new()) };
    let numbers = |part: &str, letter: char| Selection::parse(part.strip_prefix(letter)?).ok();
    let parts = match rest[..] {
        [] if has_layer => Some(vec![skip(Stage::FfnResidual)]),
        ["attn"] if has_layer => Some(vec![zero(Stage::AttnOutput, Vec::new())]),
        ["ffn"] if has_layer => Some(vec![zero(Stage::FfnDown, Vec::new())]),
        ["rope"] => Some(vec![skip(Stage::XqRope), skip(Stage::XkRope)]),
        ["mask"] => Some(vec![skip(Stage::MaskedScores)]),
        ["final_norm"] if !has_layer => Some(vec![skip(Stage::FinalNorm)]),
        [name @ ("attn_norm" | "ffn_norm" | "xq_norm" | "xk_norm")] => {
            Stage::from_name(name).map(|stage| vec![skip(stage)])
        }
        [one] if has_layer => {
            let head = numbers(one, 'h').map(|heads| vec![zero(Stage::AttnHeads, vec![(1, heads)])]);
            head.or_else(|| Some(vec![zero(Stage::FfnHidden, vec![(1, numbers(one, 'n')?)])]))
        }
        _ => None,
    };
    let parts = parts.ok_or_else(|| {
        format!(
            "`{part}` is not a part that can be switched off: write a head (L0/h2), a neuron (L0/n17), L0/attn, L0/ffn, a layer (L0), rope, mask or a norm (L0/attn_norm)"
        )
    })?;
    Ok(Edit { text, parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        edit(text).unwrap_err()
    }

    #[test]
    fn a_place_has_optional_parts_ranges_lists_and_stars() {
        let part = |text: &str| edit(text).unwrap().parts.remove(0);
        let Part { place, operator, operand } = part("p*/L0-2,5/softmax[h=0,3,q=2-4] *= 0.5");
        assert_eq!(
            (place.stage, operator, operand),
            (Stage::Softmax, Operator::Multiply, Operand::Number(0.5))
        );
        assert!(place.passes.is_all() && place.layers.contains(5) && !place.layers.contains(3));
        assert_eq!(
            place.index,
            [(0, Selection::parse("0,3").unwrap()), (1, Selection::parse("2-4").unwrap())]
        );
        let Part { place, operand, .. } = part("embedding[pos=7] += -1e-3");
        assert_eq!((place.positions, operand), (Some(Selection::one(7)), Operand::Number(-1e-3)));
    }

    #[test]
    fn a_value_is_a_number_a_mean_a_file_or_other_cells() {
        let operand = |text: &str| edit(text).unwrap().parts.remove(0).operand;
        assert_eq!(operand("scores = -inf"), Operand::Number(f32::NEG_INFINITY));
        assert_eq!(operand("L1/xq = mean"), Operand::Mean);
        assert_eq!(operand("xq = mean( a b.txt )"), Operand::MeanOver("a b.txt".into()));
        assert_eq!(operand("xq = x/y.npy"), Operand::Array("x/y.npy".into()));
        let Operand::Cells { factor, first, second: Some(second) } =
            operand("ffn_residual += 4 * (\"a = (b - c)\":[t=3] - run.trace:p1/L0/ffn_residual[t=0])")
        else {
            panic!()
        };
        let (sign, second) = *second;
        assert_eq!((factor, sign), (4.0, -1.0));
        assert_eq!(
            (first.run, second.run),
            (Origin::Prompt("a = (b - c)".into()), Origin::Trace("run.trace".into()))
        );
        assert_eq!((first.address.index, second.address.pass), (vec![('t', 3)], Some(1)));
        let Operand::Cells { factor: 1.0, first, second: None } = operand("L1/attn_heads = L0/attn_heads")
        else {
            panic!()
        };
        assert_eq!((first.run, first.address.layer), (Origin::Plain, Some(0)));
    }

    #[test]
    fn a_part_is_switched_off_where_it_enters_the_pass() {
        let parts = |text: &str| -> Vec<_> {
            let edit = edit(text).unwrap();
            edit.parts.iter().map(|part| (part.place.stage, part.operand == Operand::Input)).collect()
        };
        assert_eq!(parts("L0/h0-2 off"), [(Stage::AttnHeads, false)]);
        assert_eq!(parts("L*/n17 off"), [(Stage::FfnHidden, false)]);
        assert_eq!(parts("p0/L1/attn  off"), [(Stage::AttnOutput, false)]);
        assert_eq!(parts("L1 off"), [(Stage::FfnResidual, true)]);
        assert_eq!(parts("rope off"), [(Stage::XqRope, true), (Stage::XkRope, true)]);
        assert_eq!(parts("L3/mask off"), [(Stage::MaskedScores, true)]);
        assert_eq!(parts("final_norm off"), [(Stage::FinalNorm, true)]);
        for text in
            ["off", "h2 off", "L0/ off x", "L0/h off", "L0/final_norm off", "softmax off", "L0/h-1 off"]
        {
            assert!(edit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_edited_is_refused_with_the_alternative() {
        for (text, expected) in [
            ("xq_heads = 0", "edit xq"),
            ("tokens = 3", "--ids"),
            ("sampled = 3", "edit logits"),
            ("probs *= 2", "edit logits"),
            ("penalized_logits = 0", "edit logits"),
            ("min_p = 0", "edit logits"),
            ("mask = 0", "mask off"),
            ("attn_norm_q8 = 0", "edit attn_norm"),
            ("wq = 0", "is a weight"),
            ("cache_k = mean", "no token axis"),
            ("softmax = mean(x.txt)", "depends on the text"),
            ("xq = nan", "NaN"),
            ("xq = 1e39", "largest float32"),
            ("xq = r1:xq", "tracer"),
            ("xq = \"a", "second quote"),
            ("xq = \"a\"xq", "colon"),
            ("xq[k=1] = 0", "its letters are t (token), h (head), c (head_dim), and pos"),
            ("scores[h=1,h=2] = 0", "an index already"),
            ("cache_k[pos=1] = 0", "no token axis"),
            ("sofmax = 0", "did you mean softmax"),
            ("L0/logits = 0", "not in a layer"),
            ("L0/p0/xq = 0", "is not a place"),
            ("xq", "no operation"),
            ("xq =", "nothing after"),
            ("xq = wq", "is not a stage"),
            ("xq = tokens", "integers"),
            ("xq = softmax", "name its index"),
            ("xq = (xq-xk)", "not a difference"),
            ("xq\n= 0", "one line"),
        ] {
            let wrong = wrong(text);
            assert!(wrong.contains(expected), "{text}: {wrong}");
        }
    }
}
