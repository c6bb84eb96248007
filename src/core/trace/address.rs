//! The address of a tensor in a trace, or of one number in it: `p0/L1/softmax[h=2,t=5,k=1]`. The go-to line, `--at`,
//! the chapters, manifests and messages share one grammar:
//!
//! ```text
//! address = [RUN ':'] ['s' N '/'] ['p' N '/'] ['L' N '/'] step ['[' letter '=' N {',' letter '=' N} ']']
//! ```
//!
//! RUN is letters, digits, `-` and `_`; `r0` is the original run. `s` is the sequence of a batch, `p` the pass, `L` the
//! layer. A step is a stage, a view or a weight ([`Weight`]). A letter names an axis of the step ([`Axis::index`],
//! [`Weight::letters`]); `q`, for query, is an alias of `t`.
//!
//! An omitted part means "here" in the viewer, and the first (r0, s0, p0, L0) elsewhere. Printed addresses are complete
//! except for `r0:` and `s0/`.

use std::fmt;

use super::axis::Axis;
use super::select::near;
use super::site::{Run, Site};
use super::stage::Section;
use super::step::Step;
use super::weight::Weight;

/// The target of an address: a step of the pass, or a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A stage or a view.
    Step(Step),
    /// A weight.
    Weight(Weight),
}

/// A parsed address; omitted parts are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Name of the run.
    pub run: Option<String>,
    /// Number of the sequence.
    pub sequence: Option<usize>,
    /// Number of the pass.
    pub pass: Option<usize>,
    /// Number of the layer.
    pub layer: Option<usize>,
    /// The stage, view or weight.
    pub subject: Option<Subject>,
    /// Letters of axes, each with its index.
    pub index: Vec<(char, usize)>,
}

impl Subject {
    /// The subject with this name. A step takes precedence over a weight.
    pub fn from_name(name: &str) -> Option<Self> {
        let weight = || Weight::from_name(name).map(Self::Weight);
        Step::from_name(name).map(Self::Step).or_else(weight)
    }

    /// Its axes, outermost first, each with the letter that indexes it.
    pub fn letters(self) -> Vec<(char, Axis)> {
        match self {
            Self::Step(step) => step.axes().iter().map(|&axis| (axis.index(), axis)).collect(),
            Self::Weight(weight) => weight.letters().into_iter().zip(weight.axes().iter().copied()).collect(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => f.write_str(step.name()),
            Self::Weight(weight) => weight.fmt(f),
        }
    }
}

impl Address {
    /// The complete address of one value of `step`, or of all its values if `index` is empty.
    pub fn of(site: Site, step: Step, index: &[usize]) -> Self {
        let letters = step.axes().iter().map(|axis| axis.index());
        Self {
            run: (site.run != Run::ITSELF).then(|| site.run.to_string()),
            sequence: (site.sequence != 0).then_some(site.sequence),
            pass: Some(site.pass),
            layer: site.layer,
            subject: Some(Subject::Step(step)),
            index: letters.zip(index.iter().copied()).collect(),
        }
    }

    /// Parses an address. A layer may be a plain number. The letters may have any order.
    ///
    /// # Errors
    /// A message that names the wrong part.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, index) = match text.split_once('[') {
            Some((path, rest)) => {
                let index = rest.trim_end().strip_suffix(']');
                (path, Some(index.ok_or_else(|| format!("`[{rest}` has no `]` at its end"))?))
            }
            None => (text, None),
        };
        let mut address = Self::default();
        let path = match path.split_once(':') {
            Some((run, path)) => {
                address.run = Some(run_name(run.trim())?);
                path
            }
            None => path,
        };
        for part in path.split('/').map(str::trim).filter(|part| !part.is_empty()) {
            address.part(part)?;
        }
        for part in index.into_iter().flat_map(|index| index.split(',')).map(str::trim) {
            address.index.push(indexed(part)?);
        }
        Ok(address)
    }

    /// Parses one part of the path: the sequence, the pass, the layer or the step, in this order.
    fn part(&mut self, part: &str) -> Result<(), String> {
        let number = |prefixes: &[char]| part.strip_prefix(prefixes)?.parse::<usize>().ok();
        if let Some(subject) = self.subject {
            return Err(format!("only an index in brackets can follow {subject}, not `{part}`"));
        }
        if let Some(sequence) = number(&['s', 'S']) {
            if self.sequence.is_some() || self.pass.is_some() || self.layer.is_some() {
                return Err(format!("`{part}` must come first, and only once, as in s0/p0/L1/softmax"));
            }
            self.sequence = Some(sequence);
        } else if let Some(pass) = number(&['p', 'P']) {
            if self.pass.is_some() || self.layer.is_some() {
                return Err(format!(
                    "`{part}` must come before the layer, and only once, as in p0/L1/softmax"
                ));
            }
            self.pass = Some(pass);
        } else if let Some(layer) = number(&['l', 'L']).or_else(|| part.parse().ok()) {
            if self.layer.is_some() {
                return Err(format!(
                    "`{part}` is a second layer: give only one, before the stage, as in L1/softmax"
                ));
            }
            self.layer = Some(layer);
        } else {
            let subject = Subject::from_name(&part.to_ascii_lowercase());
            self.subject = Some(subject.ok_or_else(|| no_number(part).unwrap_or_else(|| no_stage(part)))?);
        }
        Ok(())
    }

    /// The number of its run, or `here` if it names no run. `None` if the name is not `r` followed by a number; the
    /// caller may have opened a run with such a name.
    pub fn run_number(&self, here: Run) -> Option<Run> {
        match &self.run {
            None => Some(here),
            Some(name) => name.strip_prefix('r')?.parse().ok().map(Run),
        }
    }

    /// The positions of the axes of `subject` that the letters name, each with its index.
    ///
    /// # Errors
    /// A text that names a letter that is unknown or given twice.
    pub fn axes(&self, subject: Subject) -> Result<Vec<(usize, usize)>, String> {
        let letters = subject.letters();
        let mut named: Vec<(usize, usize)> = Vec::new();
        for &(letter, index) in &self.index {
            let fits = |(own, axis): &(char, Axis)| *own == letter || (letter == 'q' && *axis == Axis::Token);
            let Some(at) = letters.iter().position(fits) else {
                let letters = letters.iter().map(|(letter, axis)| format!("{letter} ({})", axis.name()));
                let letters = letters.collect::<Vec<_>>().join(", ");
                return Err(format!("{subject} has no axis `{letter}`: its letters are {letters}"));
            };
            if named.iter().any(|(other, _)| *other == at) {
                return Err(format!("`{letter}={index}`: this axis has an index already"));
            }
            named.push((at, index));
        }
        Ok(named)
    }
}

/// A message for a layer, pass or sequence whose number is not a whole number.
fn no_number(part: &str) -> Option<String> {
    let letter = part.chars().next()?.to_ascii_lowercase();
    part[letter.len_utf8()..].parse::<f64>().ok()?;
    let (what, shown) = match letter {
        's' => ("sequence", 's'),
        'p' => ("pass", 'p'),
        'l' => ("layer", 'L'),
        _ => return None,
    };
    Some(format!("`{part}` is not a {what}: write a whole number, 0 or larger, as in {shown}0"))
}

/// A message for an unknown name, with similar names.
fn no_stage(name: &str) -> String {
    let sections = [Section::Start, Section::Layer, Section::End, Section::Sampler];
    let steps = sections.into_iter().flat_map(Step::in_section);
    let mut names: Vec<_> = steps.filter(|step| step.first_of_name() == *step).map(Step::name).collect();
    names.extend(Weight::all().map(Weight::name).filter(|name| Step::from_name(name).is_none()));
    match &near(name, &names)[..] {
        [] => format!("there is no stage `{name}`"),
        near => format!("there is no stage `{name}`; did you mean {}?", near.join(" or ")),
    }
}

/// Checks the name of a run.
fn run_name(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(fits) {
        return Err(format!("`{name}:` is not a name of a run: use letters, digits, `-` and `_`, as in r0:"));
    }
    Ok(name.to_owned())
}

/// Parses a letter and its index: `t=5`.
fn indexed(part: &str) -> Result<(char, usize), String> {
    let (name, number) = part
        .split_once('=')
        .ok_or_else(|| format!("`{part}` is not an index: write a letter, `=` and a number, as in t=5"))?;
    let (name, number) = (name.trim(), number.trim());
    let mut letters = name.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => match number.parse() {
            Ok(number) => Ok((letter, number)),
            Err(_) => Err(format!("`{part}`: `{number}` is not a whole number, 0 or larger")),
        },
        _ => Err(format!("`{part}`: an axis is named by one letter, as in t=5")),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(run) = &self.run {
            write!(f, "{run}:")?;
        }
        let sequence = self.sequence.map(|sequence| format!("s{sequence}"));
        let pass = self.pass.map(|pass| format!("p{pass}"));
        let layer = self.layer.map(|layer| format!("L{layer}"));
        let subject = self.subject.map(|subject| subject.to_string());
        let parts = [sequence, pass, layer, subject];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("/"))?;
        if self.index.is_empty() {
            return Ok(());
        }
        let index: Vec<_> = self.index.iter().map(|(letter, number)| format!("{letter}={number}")).collect();
        write!(f, "[{}]", index.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::Stage;
    use super::super::step::View;
    use super::*;

    const XQ_ROPE: Subject = Subject::Step(Step::Stage(Stage::XqRope));

    #[test]
    fn an_address_is_read_back_as_it_was_written() {
        for text in
            ["p0/L1/softmax[h=2,t=5,k=1]", "L1/keys_t[k=3]", "p2", "xq", "[h=0]", "p0/logits[t=0,v=7]"]
                .into_iter()
                .chain(["r1:s2/p0/L1/xq", "before:p0", "r0:", "s3/L0", "L1/wq[o=5,i=17]"])
                .chain(["tok_embeddings[v=9,d=3]", "L0/ffn_norm.weight[d=1]", "L0/bq[o=2]"])
        {
            assert_eq!(Address::parse(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        let address = Address::parse(" 3/ KEYS_T [ k = 3 , h=0 ] ").unwrap();
        let keys_t = Subject::Step(Step::View(View::KeysT));
        assert_eq!((address.layer, address.subject), (Some(3), Some(keys_t)));
        assert_eq!(address.axes(keys_t), Ok(vec![(2, 3), (0, 0)]));
    }

    #[test]
    fn a_query_is_a_token() {
        let address = Address::parse("softmax[h=2,q=5,k=1]").unwrap();
        let axes = address.axes(Subject::Step(Step::Stage(Stage::Softmax))).unwrap();
        assert_eq!(axes, [(0, 2), (1, 5), (2, 1)]);
    }

    #[test]
    fn a_weight_has_letters_of_its_own() {
        let address = Address::parse("L1/wq[i=17,o=5]").unwrap();
        let Some(wq @ Subject::Weight(_)) = address.subject else { panic!("{address}") };
        assert_eq!(address.axes(wq), Ok(vec![(1, 17), (0, 5)]));
        let wrong = Address::parse("wq[d=1]").unwrap().axes(wq).unwrap_err();
        assert_eq!(wrong, "wq has no axis `d`: its letters are o (head·head_dim), i (dim)");
    }

    #[test]
    fn a_run_has_a_number_or_a_name() {
        let run = |text: &str| Address::parse(text).unwrap().run_number(Run(7));
        assert_eq!(run("L0/xq"), Some(Run(7)));
        assert_eq!(run("r2:L0/xq"), Some(Run(2)));
        assert_eq!((run("mine:xq"), run("r99999:xq")), (None, None));
    }

    #[test]
    fn printed_addresses_are_complete_but_for_the_run_itself_and_the_first_sequence() {
        let site = Site::layer(0, 1, Stage::Softmax);
        let print = |site| Address::of(site, Step::Stage(Stage::Softmax), &[2, 5, 1]).to_string();
        assert_eq!(print(site), "p0/L1/softmax[h=2,t=5,k=1]");
        let other = Site { run: Run(1), sequence: 2, ..site };
        assert_eq!(print(other), "r1:s2/p0/L1/softmax[h=2,t=5,k=1]");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| Address::parse(text).unwrap_err();
        assert_eq!(wrong("p0/L0/nothing[t=0]"), "there is no stage `nothing`");
        assert_eq!(wrong("softmax[h=2"), "`[h=2` has no `]` at its end");
        assert_eq!(wrong("softmax[h2]"), "`h2` is not an index: write a letter, `=` and a number, as in t=5");
        assert_eq!(wrong("softmax[h=-1]"), "`h=-1`: `-1` is not a whole number, 0 or larger");
        assert_eq!(wrong("softmax[head=1]"), "`head=1`: an axis is named by one letter, as in t=5");
        assert_eq!(wrong("L0/p1/xq"), "`p1` must come before the layer, and only once, as in p0/L1/softmax");
        assert_eq!(
            wrong("L0/L1/xq"),
            "`L1` is a second layer: give only one, before the stage, as in L1/softmax"
        );
        assert_eq!(wrong("p0/s1/xq"), "`s1` must come first, and only once, as in s0/p0/L1/softmax");
        assert_eq!(
            wrong("a b:xq"),
            "`a b:` is not a name of a run: use letters, digits, `-` and `_`, as in r0:"
        );
        assert_eq!(wrong("L0/x/xq"), "there is no stage `x`");
        assert_eq!(wrong("L-1/xq"), "`L-1` is not a layer: write a whole number, 0 or larger, as in L0");
        assert_eq!(wrong("p1.5/xq"), "`p1.5` is not a pass: write a whole number, 0 or larger, as in p0");
        assert_eq!(wrong("s-0/xq"), "`s-0` is not a sequence: write a whole number, 0 or larger, as in s0");
        assert_eq!(wrong("xq/L0"), "only an index in brackets can follow xq, not `L0`");
        let axes = |text: &str| Address::parse(text).unwrap().axes(XQ_ROPE).unwrap_err();
        assert_eq!(
            axes("[k=1]"),
            "xq_rope has no axis `k`: its letters are t (token), h (head), c (head_dim)"
        );
        assert_eq!(axes("[t=1,q=2]"), "`q=2`: this axis has an index already");
    }
}
