//! Differences before any computation: the model, the text, its tokens.

use serde_json::{Map, Value, json};

use super::report::{Diagnosis, First, Kind};
use super::traced::{About, Pass};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Address, Site, Stage, Step};

/// A difference, and a diagnosis of it.
pub(super) struct Cause {
    pub(super) first: First,
    pub(super) diagnosis: Vec<Diagnosis>,
    /// The first pass with different tokens; the passes before it are compared first. 0 for other causes.
    pub(super) pass: usize,
}

/// The first difference before the computation: in the model, the prompt or its tokens, in this order.
pub(super) fn first(a: &About, b: &About) -> Option<Cause> {
    if let Some(first) = artifact(a, b) {
        return Some(Cause { first, diagnosis: Vec::new(), pass: 0 });
    }
    let (number, row) = a
        .passes
        .iter()
        .zip(&b.passes)
        .enumerate()
        .find_map(|(number, (a, b))| Some((number, different(a, b)?)))?;
    let (of_a, of_b) = (&a.passes[number], &b.passes[number]);
    let tokens = |pass: &Pass| pass.tokens.get(row).map_or(Value::Null, |token| json!(token.id));
    let site = Site::once(of_a.dims.pass, Stage::Tokens);
    let first = match (&a.prompt, &b.prompt) {
        (Some(ours), Some(theirs)) if number == 0 && ours != theirs => First {
            kind: Kind::Template,
            address: "prompt".into(),
            ours: json!(ours),
            theirs: json!(theirs),
            error: None,
            tolerance: None,
            site: None,
        },
        _ => First {
            kind: Kind::Tokens,
            address: Address::of(site, Step::Stage(Stage::Tokens), &[row]).to_string(),
            ours: tokens(of_a),
            theirs: tokens(of_b),
            error: Some(apart(of_a, of_b) as f64),
            tolerance: Some(0.0),
            site: None,
        },
    };
    // A later pass begins with a drawn token, and not with a beginning-of-text token.
    let diagnosis = if number == 0 { bos(of_a, of_b) } else { None };
    Some(Cause { first, diagnosis: diagnosis.into_iter().collect(), pass: number })
}

/// Checks that runs over the same ids split them into the same passes. Otherwise no stage has the same rows and keys.
///
/// # Errors
/// [`Error::Usage`] if they do not.
pub(super) fn check_passes(a: &About, b: &About) -> Result<()> {
    let ids = |about: &About| -> Vec<u32> {
        about.passes.iter().flat_map(|pass| &pass.tokens).map(|token| token.id).collect()
    };
    let (ours, theirs) = (ids(a), ids(b));
    let common = ours.len().min(theirs.len());
    let same = common > 0 && ours[..common] == theirs[..common];
    let mut pairs = a.passes.iter().zip(&b.passes).enumerate();
    let other = pairs.find(|(_, (a, b))| a.dims.tokens != b.dims.tokens).filter(|_| same);
    let Some((number, (of_a, of_b))) = other else { return Ok(()) };
    // If the run that reads fewer tokens ends with this pass, its text is only shorter.
    let shorter = if of_a.dims.tokens < of_b.dims.tokens { a } else { b };
    if shorter.passes.len() == number + 1 {
        return Ok(());
    }
    let tokens = |about: &About, pass: &Pass| {
        let tokens = if pass.dims.tokens == 1 { "token" } else { "tokens" };
        format!("{}: {} {tokens} in p{}", about.name, pass.dims.tokens, pass.dims.pass)
    };
    let (ours, theirs) = (format!("as in {}", tokens(a, of_a)), tokens(b, of_b));
    let other =
        Error::usage("the two runs read the same ids in different passes, so their stages do not correspond");
    // A port cannot rerun `export`.
    let anew = match (a.is_foreign(), b.is_foreign()) {
        (false, true) => Some(("A", chunk(&a.passes, &b.passes))),
        (true, false) => Some(("B", chunk(&b.passes, &a.passes))),
        _ => None,
    };
    if let Some((letter, how)) = anew {
        return Err(other.expected(ours).found(theirs).next(match how {
            Some(how) => format!("export {letter} again {how}: then it reads its prompt in the same passes as the other run"),
            None => "let the other runtime read its prompt in one pass, or in parts of equal length, as `llama-trace export --chunk` does".into(),
        }));
    }
    // The run that reads its prompt in parts.
    let (letter, first) = match (&a.passes[0].dims, &b.passes[0].dims) {
        (a, b) if a.tokens > b.tokens => ("A", b),
        (_, b) if of_a.dims.tokens > of_b.dims.tokens => ("A", b),
        (a, _) => ("B", a),
    };
    Err(other.expected(ours).found(theirs).next(format!(
        "make {letter} again, so that it reads its tokens in the same passes as the other run: \
         `llama-trace export --chunk {}`",
        first.tokens
    )))
}

/// The option of `export` that splits the prompt of the run with the passes `own` into the passes `other` of another
/// run; `None` if no option does.
fn chunk(own: &[Pass], other: &[Pass]) -> Option<String> {
    let lengths = |passes: &[Pass]| passes.iter().map(|pass| pass.dims.tokens).collect::<Vec<_>>();
    let (own, other) = (lengths(own), lengths(other));
    // A chunked prompt has passes of one length, except the last, and each later pass has one token.
    let (&first, rest) = other.split_first()?;
    let rest = &rest[rest.iter().take_while(|&&tokens| tokens == first).count()..];
    let is_chunked =
        rest.iter().all(|&tokens| tokens <= first) && rest.iter().skip(1).all(|&tokens| tokens == 1);
    // A shorter pass of several tokens is certainly the end of a prompt.
    let parts = own.iter().take_while(|&&tokens| tokens == own[0]).count();
    let end = own.get(parts).filter(|&&tokens| tokens > 1).map(|tokens| parts * own[0] + tokens);
    let how = if end == Some(first) { "without --chunk".into() } else { format!("with --chunk {first}") };
    is_chunked.then_some(how)
}

/// The first pass with different tokens. Its stages and those of later passes are not compared.
pub(super) fn same_until(a: &About, b: &About) -> usize {
    let differs = |(a, b): (&Pass, &Pass)| different(a, b).is_some();
    a.passes.iter().zip(&b.passes).position(differs).unwrap_or(a.passes.len())
}

/// The first row in which the tokens of a pass differ, if both runs have them. Otherwise row 0 if one of the two passes
/// reads more tokens.
fn different(a: &Pass, b: &Pass) -> Option<usize> {
    if a.tokens.is_empty() || b.tokens.is_empty() {
        return (a.dims.tokens != b.dims.tokens).then_some(0);
    }
    let longest = a.tokens.len().max(b.tokens.len());
    (0..longest)
        .find(|&row| a.tokens.get(row).map(|token| token.id) != b.tokens.get(row).map(|token| token.id))
}

/// The number of rows that differ.
fn apart(a: &Pass, b: &Pass) -> usize {
    let longest = a.dims.tokens.max(b.dims.tokens);
    let id = |pass: &Pass, row: usize| pass.tokens.get(row).map(|token| token.id);
    (0..longest).filter(|&row| id(a, row).is_none() || id(a, row) != id(b, row)).count()
}

/// The diagnosis `bos`, if only the beginning-of-text token differs: it is missing, there is one too many, or it is
/// another token.
fn bos(a: &Pass, b: &Pass) -> Option<Diagnosis> {
    let ids = |pass: &Pass| pass.tokens.iter().map(|token| token.id).collect::<Vec<_>>();
    let (ours, theirs) = (ids(a), ids(b));
    let (first_of_a, rest_of_a) = ours.split_first()?;
    let (first_of_b, rest_of_b) = theirs.split_first()?;
    let missing = rest_of_a == theirs && first_of_a != first_of_b;
    let too_many = rest_of_b == ours;
    let other = rest_of_a == rest_of_b;
    let after = 0.0;
    let form = match (missing, too_many) {
        (true, _) => "missing",
        (_, true) => "one too many",
        _ => "another",
    };
    let found = |form: &str| Diagnosis { name: "bos", form: form.into(), before: apart(a, b) as f64, after };
    (missing || too_many || other).then(|| found(form))
}

/// The first difference of the models: a setting that changes a number, or else the weights.
fn artifact(a: &About, b: &About) -> Option<First> {
    let differs = |address: &str, ours: Value, theirs: Value| First {
        kind: Kind::Artifact,
        address: address.into(),
        ours,
        theirs,
        error: None,
        tolerance: None,
        site: None,
    };
    if let Some((name, ours, theirs)) = setting(&a.known(), &b.known()) {
        return Some(differs(&format!("config.{name}"), ours, theirs));
    }
    // A file may contain the embedding table a second time, as a separate head. The logits show whether the two differ.
    let tied = |about: &About| about.known().get("tied").cloned();
    let alike = a.precision == b.precision && tied(a) == tied(b);
    match (&a.fingerprint, &b.fingerprint) {
        // In another precision the same weights may be different numbers.
        (Some(ours), Some(theirs)) if ours != theirs && alike => {
            Some(differs("weights", json!(ours), json!(theirs)))
        }
        _ => None,
    }
}

/// The first setting that both runs have and that differs, among the settings that change a number.
pub(super) fn setting(a: &Map<String, Value>, b: &Map<String, Value>) -> Option<(String, Value, Value)> {
    let has_window =
        |settings: &Map<String, Value>| settings.get("window").is_some_and(|window| !window.is_null());
    // Without a window, it does not matter from which layer on the window applies. Whether the head is tied shows in
    // the logits.
    let idle = |name: &str| {
        ["context", "tied"].contains(&name) || (name == "window_layers" && !has_window(a) && !has_window(b))
    };
    // A float32 and its decimal digits are the same setting.
    let same = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * a.abs(),
        _ => a == b,
    };
    let known = a.iter().filter_map(|(name, ours)| Some((name, ours, b.get(name)?)));
    let (name, ours, theirs) = known.filter(|(name, ..)| !idle(name)).find(|(_, a, b)| !same(a, b))?;
    Some((name.clone(), ours.clone(), theirs.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::{ModelCard, PassDims, TokenLabel};

    fn about(ids: &[u32], change: impl FnOnce(&mut About)) -> About {
        let tokens = ids.iter().map(|&id| TokenLabel { id, text: format!("#{id}") }).collect();
        let dims = PassDims { pass: 0, start: 0, tokens: ids.len(), ..PassDims::default() };
        let mut about = About {
            name: "a".into(),
            card: Some(ModelCard::small(|_| ())),
            settings: Map::new(),
            precision: None,
            cache: None,
            fingerprint: None,
            sampling: None,
            prompt: Some("one".into()),
            passes: vec![Pass { dims, tokens }],
            layers: None,
            nowhere: std::collections::BTreeMap::new(),
            unsure: std::collections::BTreeMap::new(),
        };
        change(&mut about);
        about
    }

    #[test]
    fn causes_come_in_their_order_and_what_changes_no_number_is_none() {
        let a = about(&[1, 2, 3], |_| ());
        let found =
            |b: &About| first(&a, b).map(|cause| (cause.first, cause.diagnosis.first().map(|one| one.name)));
        assert_eq!(
            found(&about(&[1, 2, 3], |b| (b.prompt, b.name) = (Some("two".into()), "b".into()))),
            None
        );
        assert_eq!(found(&about(&[1, 2, 3], |b| b.card.as_mut().unwrap().config.context = 99)), None);
        let (tokens, name) = found(&about(&[1, 5, 3], |_| ())).unwrap();
        assert_eq!((tokens.kind, &*tokens.address, name), (Kind::Tokens, "p0/tokens[t=1]", None));
        assert_eq!((tokens.ours, tokens.theirs), (json!(2), json!(5)));
        let (template, _) = found(&about(&[7, 5, 3], |b| b.prompt = Some("two".into()))).unwrap();
        assert_eq!((template.kind, template.ours), (Kind::Template, json!("one")));
        let other = about(&[7, 5, 3], |b| b.card.as_mut().unwrap().config.rope_theta = 9.0);
        let (artifact, _) = found(&other).unwrap();
        assert_eq!((artifact.kind, &*artifact.address), (Kind::Artifact, "config.rope_theta"));
        let weights = |text: &str| Some(text.to_owned());
        let (one, two) =
            (about(&[1], |a| a.fingerprint = weights("x")), about(&[1], |b| b.fingerprint = weights("y")));
        assert_eq!(first(&one, &two).unwrap().first.address, "weights");
        // A model whose file has a second copy of the head is still the same model.
        let tied = |tied, weights: &str| {
            about(&[1], |about| {
                about.card.as_mut().unwrap().config.tied = tied;
                about.fingerprint = Some(weights.to_owned());
            })
        };
        assert!(first(&tied(true, "x"), &tied(false, "y")).is_none());
    }

    #[test]
    fn a_beginning_of_text_that_is_missing_twice_there_or_another_is_named() {
        let a = about(&[1, 2, 3], |_| ());
        for (ids, named) in [(&[2, 3][..], true), (&[1, 1, 2, 3], true), (&[9, 2, 3], true), (&[1, 2], false)]
        {
            let Cause { first: found, diagnosis, .. } = first(&a, &about(ids, |_| ())).unwrap();
            assert_eq!(
                (found.kind, diagnosis.iter().any(|one| one.name == "bos")),
                (Kind::Tokens, named),
                "{ids:?}"
            );
        }
    }
}
