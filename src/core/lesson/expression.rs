//! Expressions over a run, and addresses whose layer and indices are such expressions. The chapters give the values of
//! their numbers with them, and lessons their answers. [`crate::chapters`] has the table of the addresses.
//!
//! ```text
//! expression = sum [(' < ' | ' > ' | ' = ') sum]            a comparison is 1 or 0
//! sum        = product {(' + ' | ' − ' | ' - ') product}
//! product    = atom {(' · ' | ' * ' | ' ÷ ' | ' / ') atom}
//! atom       = NUMBER | 'pi' | '(' expression ')' | ('sqrt' | 'exp' | 'ln') '(' expression ')'
//!            | 'if(' expression ', ' expression ', ' expression ')' | 'config/' NAME | 'heads.json/' PATH
//!            | ['s' N '/'] 'p' N '/' ['L' position '/'] STEP ['[' letter '=' position {',' …} ']'] ['.' STATISTIC] ['.text']
//! position   = N | 'last' | '{' NAME of a head '}' | '{' expression '}'
//! ```
//!
//! A lesson comes from a stranger: the length and the depth of an expression are bounded.

use std::fmt;

use super::statistic::Statistic;
use crate::trace::{Address, Step, Subject};

/// Largest number of characters of an expression.
const LONGEST: usize = 2000;
/// Largest depth of parentheses and braces.
const DEEPEST: usize = 32;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression(pub(super) Node);

/// A part of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Number(f64),
    /// A name of the model's configuration: `D`.
    Config(String),
    /// A path in heads.json.
    Fact(String),
    Cell(Box<Cell>),
    Apply(Function, Box<Node>),
    Join(Operator, Box<(Node, Node)>),
    /// The condition, and the two branches.
    If(Box<[Node; 3]>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Function {
    Sqrt,
    Exp,
    Ln,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Less,
    Greater,
    Equal,
}

/// Values of a run, and a statistic of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) place: Place,
    pub(super) statistic: Statistic,
    /// Whether the value is a token whose text is meant.
    pub(super) text: bool,
}

/// An address whose layer and indices may be expressions. Omitted parts are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// Number of the sequence.
    pub sequence: Option<usize>,
    /// Number of the pass.
    pub pass: Option<usize>,
    /// The layer.
    pub layer: Option<Position>,
    /// The stage or view.
    pub step: Option<Step>,
    /// Letters of axes, each with its index.
    pub index: Vec<(char, Position)>,
}

/// A layer or an index, with its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Position {
    text: String,
    pub(super) at: At,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum At {
    Number(usize),
    /// The last index of the axis.
    Last,
    /// The layer or the head of this name in heads.json.
    Head(String),
    Value(Box<Node>),
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// A message that names the wrong part.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.chars().count() > LONGEST {
            return Err(format!("an expression has at most {LONGEST} characters"));
        }
        Reader { rest: text.trim(), depth: 0 }.whole().map(Self)
    }
}

impl Place {
    /// Parses an address. A scene omits the parts that it inherits.
    ///
    /// # Errors
    /// A message that names the wrong part.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.chars().count() > LONGEST {
            return Err(format!("an address has at most {LONGEST} characters"));
        }
        place(text.trim(), 0)
    }

    /// The letter in the table of axes: `q` is another name of `t`.
    fn names(&self, letter: char) -> bool {
        let axis = |letter| if letter == 'q' { 't' } else { letter };
        self.index.iter().any(|(own, _)| axis(*own) == axis(letter))
    }

    /// This address with its omitted parts taken from `before`. Indices are taken only within the same step of the same
    /// pass.
    #[must_use]
    pub fn onto(&self, before: &Self) -> Self {
        let mut place = self.clone();
        place.sequence = self.sequence.or(before.sequence);
        place.pass = self.pass.or(before.pass);
        place.step = self.step.or(before.step);
        place.layer = self.layer.clone().or_else(|| before.layer.clone());
        if (place.sequence, place.pass, place.step) == (before.sequence, before.pass, before.step) {
            let inherited = before.index.iter().filter(|(letter, _)| !self.names(*letter));
            place.index.extend(inherited.cloned());
        }
        place
    }
}

impl fmt::Display for Place {
    /// The address as it is typed. The layer is left out if the step is not in a layer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_layer = self.step.is_none_or(|step| step.stage().in_layer());
        let sequence = self.sequence.map(|sequence| format!("s{sequence}"));
        let pass = self.pass.map(|pass| format!("p{pass}"));
        let layer = self.layer.as_ref().filter(|_| in_layer).map(|layer| format!("L{}", layer.text));
        let step = self.step.map(|step| step.name().to_owned());
        let parts: Vec<_> = [sequence, pass, layer, step].into_iter().flatten().collect();
        f.write_str(&parts.join("/"))?;
        if self.index.is_empty() {
            return Ok(());
        }
        let index: Vec<_> =
            self.index.iter().map(|(letter, position)| format!("{letter}={}", position.text)).collect();
        write!(f, "[{}]", index.join(","))
    }
}

impl Position {
    /// A number as a position.
    pub fn number(number: usize) -> Self {
        Self { text: number.to_string(), at: At::Number(number) }
    }

    /// The parts of a list of indices, which commas separate.
    pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
        split(text, ',')
    }

    /// Parses the index in an answer: a position as in an address, or an expression without braces.
    pub(super) fn of_answer(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "last" || text.starts_with('{') {
            return Self::parse(text, 0);
        }
        Ok(Self { text: text.to_owned(), at: At::Value(Box::new(Expression::parse(text)?.0)) })
    }

    fn parse(text: &str, depth: usize) -> Result<Self, String> {
        let text = text.trim();
        let at = if text == "last" {
            At::Last
        } else if let Some(inside) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            let is_name = !inside.is_empty()
                && inside.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                && inside != "pi";
            if is_name {
                At::Head(inside.to_owned())
            } else {
                At::Value(Box::new(Reader { rest: inside.trim(), depth: deeper(depth)? }.whole()?))
            }
        } else {
            let wrong = || {
                format!(
                    "`{text}` is no index: write a whole number, last, {{induction}}, or an expression in braces"
                )
            };
            At::Number(text.parse().map_err(|_| wrong())?)
        };
        Ok(Self { text: text.to_owned(), at })
    }
}

fn deeper(depth: usize) -> Result<usize, String> {
    if depth >= DEEPEST {
        return Err(format!("parentheses and braces are nested more than {DEEPEST} deep"));
    }
    Ok(depth + 1)
}

/// Parses an address that is `depth` braces deep.
fn place(text: &str, depth: usize) -> Result<Place, String> {
    let (path, index) = match outside(text, &['[']) {
        Some(at) => {
            let inside = text[at + 1..].trim_end().strip_suffix(']');
            (&text[..at], inside.ok_or_else(|| format!("`{}` has no `]` at its end", &text[at..]))?)
        }
        None => (text, ""),
    };
    let mut place = Place::default();
    // The same path with plain numbers, whose order and names the address checks.
    let mut plain = Vec::new();
    let mut layer = None;
    for part in split(path, '/') {
        match part.strip_prefix(['L', 'l']).filter(|rest| rest.starts_with('{')) {
            Some(rest) => {
                layer = Some(Position::parse(rest, depth)?);
                plain.push("L0");
            }
            None => plain.push(part),
        }
    }
    let address = Address::parse(&plain.join("/"))?;
    if let Some(run) = address.run {
        return Err(format!("`{run}:` is the name of a run, which only the tracer knows: leave it out"));
    }
    place.sequence = address.sequence;
    place.pass = address.pass;
    place.layer = layer.or_else(|| address.layer.map(Position::number));
    place.step = match address.subject {
        Some(Subject::Weight(weight)) => return Err(format!("{weight} is a weight: name a stage or a view")),
        Some(Subject::Step(step)) => Some(step),
        None => None,
    };
    let mut letters = Vec::new();
    for part in split(index, ',') {
        let (letter, position) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is no index: write a letter, `=` and an index, as in t=5"))?;
        let mut name = letter.trim().chars();
        let (Some(letter), None) = (name.next(), name.next()) else {
            return Err(format!("`{part}`: an axis is named by one letter, as in t=5"));
        };
        place.index.push((letter, Position::parse(position, depth)?));
        letters.push((letter, 0));
    }
    if let Some(step) = place.step {
        Address { index: letters, ..Address::default() }.axes(Subject::Step(step))?;
        if place.layer.is_some() && !step.stage().in_layer() {
            return Err(format!(
                "`{path}` is no path of a stage: {} is in no layer, so leave the layer out",
                step.name()
            ));
        }
    }
    Ok(place)
}

/// The parts of `text` between marks that are outside brackets, without blanks around them. Empty parts are left out.
fn split(text: &str, mark: char) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = outside(rest, &[mark]).unwrap_or(rest.len());
        let part = &rest[..end];
        rest = rest.get(end + mark.len_utf8()..).unwrap_or_default();
        Some(part.trim())
    })
    .filter(|part| !part.is_empty())
}

/// The offset of the first of `marks` in `text` that is outside brackets.
fn outside(text: &str, marks: &[char]) -> Option<usize> {
    let mut depth = 0_usize;
    text.find(|c| {
        if depth == 0 && marks.contains(&c) {
            return true;
        }
        match c {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        false
    })
}

/// Reads an expression from left to right.
struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn whole(mut self) -> Result<Node, String> {
        if self.rest.is_empty() {
            return Err("the expression is empty".into());
        }
        let node = self.comparison()?;
        if self.rest.is_empty() { Ok(node) } else { Err(format!("`{}` is left over", self.rest.trim())) }
    }

    fn takes(&mut self, mark: &str) -> bool {
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes one of the operators, which have blanks around them.
    fn operator(&mut self, marks: &[(&str, Operator)]) -> Option<Operator> {
        marks.iter().find(|(mark, _)| self.takes(mark)).map(|(_, operator)| *operator)
    }

    fn comparison(&mut self) -> Result<Node, String> {
        let left = self.sum()?;
        let marks = [(" < ", Operator::Less), (" > ", Operator::Greater), (" = ", Operator::Equal)];
        match self.operator(&marks) {
            Some(operator) => Ok(Node::Join(operator, Box::new((left, self.sum()?)))),
            None => Ok(left),
        }
    }

    fn sum(&mut self) -> Result<Node, String> {
        let marks = [(" + ", Operator::Add), (" − ", Operator::Subtract), (" - ", Operator::Subtract)];
        let mut left = self.product()?;
        while let Some(operator) = self.operator(&marks) {
            left = Node::Join(operator, Box::new((left, self.product()?)));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Node, String> {
        let marks = [
            (" · ", Operator::Multiply),
            (" * ", Operator::Multiply),
            (" ÷ ", Operator::Divide),
            (" / ", Operator::Divide),
        ];
        let mut left = self.atom()?;
        while let Some(operator) = self.operator(&marks) {
            left = Node::Join(operator, Box::new((left, self.atom()?)));
        }
        Ok(left)
    }

    /// An expression in parentheses. The opening one is already read.
    fn inside(&mut self, end: &str) -> Result<Node, String> {
        let node = self.comparison()?;
        if self.takes(end) {
            return Ok(node);
        }
        Err(match end {
            ")" => "a parenthesis is not closed".into(),
            _ => "if has three parts, separated by a comma and a blank: if(c, a, b)".into(),
        })
    }

    fn atom(&mut self) -> Result<Node, String> {
        let functions = [
            ("sqrt(", Some(Function::Sqrt)),
            ("exp(", Some(Function::Exp)),
            ("ln(", Some(Function::Ln)),
            ("(", None),
        ];
        let before = self.depth;
        for (name, function) in functions {
            if self.takes(name) {
                self.depth = deeper(before)?;
                let inside = self.inside(")")?;
                self.depth = before;
                return Ok(match function {
                    Some(function) => Node::Apply(function, Box::new(inside)),
                    None => inside,
                });
            }
        }
        if self.takes("if(") {
            self.depth = deeper(before)?;
            let parts = [self.inside(", ")?, self.inside(", ")?, self.inside(")")?];
            self.depth = before;
            return Ok(Node::If(Box::new(parts)));
        }
        let end = outside(self.rest, &[' ', ')', ',']).unwrap_or(self.rest.len());
        let (atom, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.word(atom)
    }

    fn word(&self, atom: &str) -> Result<Node, String> {
        if atom.is_empty() {
            return Err("a number or an address is missing".into());
        }
        let digits = atom.replace('−', "-");
        if digits.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.'))
            && let Ok(number) = digits.parse::<f64>()
        {
            return match number.is_finite() {
                true => Ok(Node::Number(number)),
                false => Err(format!("{atom} is no finite number")),
            };
        }
        if atom == "pi" {
            return Ok(Node::Number(std::f64::consts::PI));
        }
        if let Some(name) = atom.strip_prefix("config/") {
            return Ok(Node::Config(name.to_owned()));
        }
        if let Some(path) = atom.strip_prefix("heads.json/") {
            return Ok(Node::Fact(path.to_owned()));
        }
        let (path, statistic) = atom.split_at(outside(atom, &['.']).unwrap_or(atom.len()));
        let (statistic, text) = match statistic.strip_suffix(".text") {
            Some(statistic) => (statistic, true),
            None => (statistic, false),
        };
        let place = place(path, self.depth)?;
        let Some(step) = place.step else { return Err(format!("`{path}` names no stage")) };
        if step.stage().in_layer() && place.layer.is_none() {
            return Err(format!(
                "`{path}` is no path of a stage: {} needs a layer, as in p0/L0/{0}",
                step.name()
            ));
        }
        if place.pass.is_none() {
            return Err(format!("`{path}` names no pass: begin with p0/"));
        }
        let statistic = Statistic::parse(statistic)?;
        if statistic == Statistic::Shape && text {
            return Err("a shape has no text".into());
        }
        Ok(Node::Cell(Box::new(Cell { place, statistic, text })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_the_chapters_are_read() {
        for text in [
            "config/D ÷ config/H",
            "2 · (config/layers + 1) − 3",
            "p0/L{induction}/softmax[h={induction},t=last].argmax.text",
            "p0/L0/softmax[h=3,q=last].sum",
            "p0/L0/softmax[h=0,t={p0/L1/softmax[h=0,t=last].argmax}].arg2",
            "p0/L0/xq[h=2].at_least(1)",
            "if(p0/logits[t=last].argmax = 3, 1, 2)",
            "s1/p0/tokens[t=1]",
            "−1.5 * 2e3 - 1 < 3",
            "heads.json/induction/score",
        ] {
            assert!(Expression::parse(text).is_ok(), "{text}: {:?}", Expression::parse(text));
        }
    }

    #[test]
    fn the_wrong_part_is_named() {
        for (text, expected) in [
            ("", "empty"),
            ("1 +", "`+` is left over"),
            ("1 + (", "is missing"),
            ("(1 + 2", "not closed"),
            ("if(1, 2)", "three parts"),
            ("1e999", "no finite number"),
            ("inf", "there is no stage"),
            ("p0/L0/nothing", "there is no stage"),
            ("p0/L0/wq", "is a weight"),
            ("p0/xq", "needs a layer"),
            ("p0/L0/logits", "no path of a stage"),
            ("L0/xq", "names no pass"),
            ("r1:p0/L0/xq", "only the tracer knows"),
            ("p0/L0/xq[t=1", "no `]`"),
            ("p0/L0/xq[k=1]", "no axis `k`"),
            ("p0/L0/xq[t=1,t=2]", "has an index already"),
            ("p0/L0/xq[t=-1]", "is no index"),
            ("p0/L0/xq[tt=1]", "one letter"),
            ("p0/L0/xq.median", "no known statistic"),
            ("p0/L0/xq.shape.text", "no text"),
            ("p{1}/L0/xq", "there is no stage"),
        ] {
            let wrong = Expression::parse(text).unwrap_err();
            assert!(wrong.contains(expected), "{text}: {wrong}");
        }
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let nested = |deep: usize| format!("{}1{}", "(".repeat(deep), ")".repeat(deep));
        assert!(Expression::parse(&nested(32)).is_ok());
        assert!(Expression::parse(&nested(33)).unwrap_err().contains("nested"));
        let braces = |deep: usize| format!("{}1{}", "p0/tokens[t={".repeat(deep), "}]".repeat(deep));
        assert!(Expression::parse(&braces(32)).is_ok());
        assert!(Expression::parse(&braces(33)).unwrap_err().contains("nested"));
        assert!(Expression::parse(&"1".repeat(2001)).unwrap_err().contains("2000"));
    }

    #[test]
    fn an_address_inherits_what_it_omits() {
        let onto = |text: &str, before: &str| {
            Place::parse(text).unwrap().onto(&Place::parse(before).unwrap()).to_string()
        };
        let before = "p0/L{induction}/softmax[h={induction},t=last]";
        assert_eq!(onto("", before), before);
        assert_eq!(onto("[q=3]", before), "p0/L{induction}/softmax[q=3,h={induction}]");
        assert_eq!(onto("L0", before), "p0/L0/softmax[h={induction},t=last]");
        assert_eq!(onto("p1", before), "p1/L{induction}/softmax");
        assert_eq!(onto("scores[h=1]", before), "p0/L{induction}/scores[h=1]");
        assert_eq!(onto("logits", before), "p0/logits");
    }
}
