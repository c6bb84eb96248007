//! The values of expressions.

use std::collections::BTreeSet;

use ndarray::{ArrayViewD, Axis as Dim};

use super::expression::{At, Cell, Expression, Function, Node, Operator, Place, Position};
use super::statistic::Statistic;
use crate::trace::{Address, Axis, Frame, FrameData, ModelCard, PassDims, Site, Stage, Step, Subject};

/// Largest number of values of a stage that an expression reads.
const MOST_VALUES: usize = 1 << 24;

/// What an expression reads: a run of a model.
pub trait World {
    /// The model.
    fn card(&self) -> &ModelCard;

    /// The sizes of a pass; `None` if the run has no such pass.
    fn dims(&self, sequence: usize, pass: usize) -> Option<PassDims>;

    /// All values of a stage that the run has; `None` if they are not there yet.
    fn frame(&self, site: Site) -> Option<&Frame>;

    /// The text of a token.
    fn token_text(&self, id: u32) -> String;

    /// A number of `fixtures/builtin/heads.json`: `induction/layer`. `None` for any other model than the built-in one.
    fn fact(&self, path: &str) -> Option<f64>;
}

/// The value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(f64),
    /// The lengths of axes.
    Shape(Vec<usize>),
    /// The text of a token.
    Text(String),
}

/// The reason why there is no value.
#[derive(Clone, Debug, PartialEq)]
pub enum Unfinished {
    /// These stages are read, and are not there yet. Other stages may follow once they are.
    Needs(Vec<Site>),
    /// The expression has no value.
    Wrong(String),
}

impl Value {
    /// The number.
    ///
    /// # Errors
    /// A message if it is a shape or a text.
    pub fn number(&self) -> Result<f64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Shape(_) => Err("arithmetic needs numbers, not a shape".into()),
            Self::Text(_) => Err("arithmetic needs numbers, not a text".into()),
        }
    }
}

/// Evaluates expressions, and collects the stages that they read.
pub struct Evaluation<'a> {
    world: &'a dyn World,
    reads: BTreeSet<Site>,
    needs: BTreeSet<Site>,
}

impl std::fmt::Debug for Evaluation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluation").field("reads", &self.reads).field("needs", &self.needs).finish()
    }
}

/// Why the value of a part is not known. The sites that are needed are in [`Evaluation::needs`].
enum Halt {
    Needs,
    Wrong(String),
}

impl From<String> for Halt {
    fn from(wrong: String) -> Self {
        Self::Wrong(wrong)
    }
}

impl From<&str> for Halt {
    fn from(wrong: &str) -> Self {
        Self::Wrong(wrong.to_owned())
    }
}

impl<'a> Evaluation<'a> {
    /// Evaluates expressions over a run.
    pub fn new(world: &'a dyn World) -> Self {
        Self { world, reads: BTreeSet::new(), needs: BTreeSet::new() }
    }

    /// The stages that were read so far.
    pub fn reads(&self) -> impl Iterator<Item = Site> + '_ {
        self.reads.iter().copied()
    }

    /// The value of an expression.
    ///
    /// # Errors
    /// The stages that it needs, or a message.
    pub fn value(&mut self, expression: &Expression) -> Result<Value, Unfinished> {
        let value = self.node(&expression.0);
        self.told(value)
    }

    /// The value of a number's expression.
    ///
    /// # Errors
    /// The stages that it needs, or a message. A number that is not finite is an error.
    pub fn finite(&mut self, expression: &Expression) -> Result<f64, Unfinished> {
        let number = self.value(expression)?.number().map_err(Unfinished::Wrong)?;
        match number.is_finite() {
            true => Ok(number),
            false => Err(Unfinished::Wrong(format!("the value is {number}, and not a finite number"))),
        }
    }

    /// The address of a scene, with numbers in place of its expressions. A part that is omitted stays omitted.
    ///
    /// # Errors
    /// The stages that it needs, or a message if the run has no such place.
    pub fn address(&mut self, place: &Place) -> Result<Address, Unfinished> {
        let address = self.resolved(place);
        self.told(address)
    }

    /// An index of the stage that a scene shows. `L` is the layer.
    ///
    /// # Errors
    /// The stages that it needs, or a message if the run has no such index.
    pub fn index(&mut self, scene: &Place, letter: char, position: &Position) -> Result<usize, Unfinished> {
        let (pass, sequence) = (scene.pass.unwrap_or(0), scene.sequence.unwrap_or(0));
        let sizes = self.world.card().sizes();
        let axes = scene.step.map_or(&[][..], |step| step.axes());
        let axis = axes.iter().find(|axis| axis.index() == letter);
        let length = match (axis, self.world.dims(sequence, pass)) {
            _ if letter == 'L' => sizes.layers,
            (Some(axis), Some(dims)) => sizes.axis(*axis, dims),
            (None, _) => return Err(Unfinished::Wrong(format!("the scene's stage has no axis `{letter}`"))),
            (_, None) => return Err(Unfinished::Wrong(format!("the run has no pass {pass}"))),
        };
        let key = if letter == 'L' { "layer" } else { "head" };
        let index = self.position(position, length, key);
        self.told(index)
    }

    fn told<T>(&mut self, value: Result<T, Halt>) -> Result<T, Unfinished> {
        let needs = std::mem::take(&mut self.needs);
        match value {
            Ok(value) => Ok(value),
            Err(Halt::Needs) => Err(Unfinished::Needs(needs.into_iter().collect())),
            Err(Halt::Wrong(wrong)) => Err(Unfinished::Wrong(wrong)),
        }
    }

    fn number(&mut self, node: &Node) -> Result<f64, Halt> {
        Ok(self.node(node)?.number()?)
    }

    fn node(&mut self, node: &Node) -> Result<Value, Halt> {
        Ok(Value::Number(match node {
            Node::Number(number) => *number,
            Node::Config(name) => self.config(name)?,
            Node::Fact(path) => self.fact(path)?,
            Node::Cell(cell) => return self.cell(cell),
            Node::Apply(function, inside) => {
                let inside = self.number(inside)?;
                match function {
                    Function::Sqrt => inside.sqrt(),
                    Function::Exp => inside.exp(),
                    Function::Ln => inside.ln(),
                }
            }
            Node::Join(operator, sides) => {
                // Both sides are evaluated first, so that the needs of both are known at once.
                let (left, right) = (self.number(&sides.0), self.number(&sides.1));
                let (left, right) = match (left, right) {
                    (Err(Halt::Needs), Err(wrong @ Halt::Wrong(_))) => return Err(wrong),
                    (left, right) => (left?, right?),
                };
                let is = |holds: bool| if holds { 1.0 } else { 0.0 };
                match operator {
                    Operator::Add => left + right,
                    Operator::Subtract => left - right,
                    Operator::Multiply => left * right,
                    Operator::Divide => left / right,
                    Operator::Less => is(left < right),
                    Operator::Greater => is(left > right),
                    Operator::Equal => is(left == right),
                }
            }
            Node::If(parts) => {
                let [condition, yes, no] = &**parts;
                let holds = self.number(condition)?;
                return self.node(if holds == 0.0 { no } else { yes });
            }
        }))
    }

    fn config(&self, name: &str) -> Result<f64, Halt> {
        let card = self.world.card();
        let sizes = card.sizes();
        let number = match name {
            "D" => sizes.dim,
            "H" => sizes.heads,
            "G" => sizes.kv_heads,
            "C" => sizes.head_dim,
            "F" => sizes.hidden,
            "V" => sizes.vocab,
            "g" => sizes.group.ok_or("no groups in this precision")?,
            "layers" => sizes.layers,
            "context" => card.config.context,
            "eps" => return Ok(f64::from(card.config.norm_eps)),
            "theta" => return Ok(f64::from(card.config.rope_theta)),
            _ => return Err(format!("the configuration has no {name}").into()),
        };
        Ok(number as f64)
    }

    fn fact(&self, path: &str) -> Result<f64, Halt> {
        let fact = self.world.fact(path);
        fact.ok_or_else(|| {
            format!("heads.json has no {path}, or this is not the built-in model, whose heads it describes")
                .into()
        })
    }

    /// The number of a layer or an index. `key` is `layer` or `head`: the number of a named head that is meant.
    fn position(&mut self, position: &Position, length: usize, key: &str) -> Result<usize, Halt> {
        let number = match &position.at {
            At::Number(number) => *number,
            At::Last => length.checked_sub(1).ok_or("there is no last one")?,
            At::Head(name) => whole(self.fact(&format!("{name}/{key}"))?)?,
            At::Value(node) => whole(self.number(node)?)?,
        };
        match number < length {
            true => Ok(number),
            false => Err(format!("{number} is past the last of {length}").into()),
        }
    }

    fn resolved(&mut self, place: &Place) -> Result<Address, Halt> {
        let Some(step) = place.step else { return Err("the address names no stage".into()) };
        let (sequence, pass) = (place.sequence.unwrap_or(0), place.pass.unwrap_or(0));
        let sizes = self.world.card().sizes();
        let step = step.in_model(&sizes, None);
        let missing = |layer: Option<usize>| {
            let site = Site { sequence, layer, ..Site::once(pass, step.stage()) };
            format!("there is no {} in this run", Address::of(site, step, &[]))
        };
        let number = match &place.layer {
            Some(layer) if step.stage().in_layer() => match self.position(layer, usize::MAX, "layer")? {
                number if number < sizes.layers => Some(number),
                number => return Err(missing(Some(number)).into()),
            },
            None if step.stage().in_layer() => Some(0),
            _ => None,
        };
        let Some(dims) = self.world.dims(sequence, pass) else { return Err(missing(number).into()) };
        let step = step.in_model(&sizes, number);
        if let Some(absence) = step.absence(self.world.card(), dims, number) {
            return Err(format!("{}, because {}", absence.what, absence.why).into());
        }
        let mut index = Vec::new();
        for (letter, position) in &place.index {
            let fits = |axis: &&Axis| axis.index() == *letter || (*letter == 'q' && **axis == Axis::Token);
            let axis = step.axes().iter().find(fits);
            let axis = axis.ok_or_else(|| format!("{} has no axis `{letter}`", step.name()))?;
            index.push((*letter, self.position(position, sizes.axis(*axis, dims), "head")?));
        }
        Ok(Address {
            run: None,
            sequence: place.sequence,
            pass: Some(pass),
            layer: number,
            subject: Some(Subject::Step(step)),
            index,
        })
    }

    /// A frame that is there.
    fn frame(&mut self, site: Site) -> Result<&'a Frame, Halt> {
        self.reads.insert(site);
        self.world.frame(site).ok_or_else(|| {
            self.needs.insert(site);
            Halt::Needs
        })
    }

    fn cell(&mut self, cell: &Cell) -> Result<Value, Halt> {
        let address = self.resolved(&cell.place)?;
        let Some(Subject::Step(step)) = address.subject else {
            return Err("the address names no stage".into());
        };
        let (sequence, pass) = (address.sequence.unwrap_or(0), address.pass.unwrap_or(0));
        let site = Site { sequence, layer: address.layer, ..Site::once(pass, step.stage()) };
        let sizes = self.world.card().sizes();
        let Some(dims) = self.world.dims(sequence, pass) else { return Err("there is no such pass".into()) };
        let shape = sizes.shape(step.axes(), dims);
        let named = address.axes(Subject::Step(step))?;
        let free: Vec<Axis> = (step.axes().iter().enumerate())
            .filter(|(at, _)| named.iter().all(|(other, _)| other != at))
            .map(|(_, axis)| *axis)
            .collect();
        if cell.statistic == Statistic::Shape {
            return Ok(Value::Shape(free.iter().map(|axis| sizes.axis(*axis, dims)).collect()));
        }
        if cell.statistic.is_ranked() && free.len() != 1 {
            return Err("a rank needs one free axis".into());
        }
        if shape
            .iter()
            .try_fold(1_usize, |count, length| count.checked_mul(*length))
            .is_none_or(|n| n > MOST_VALUES)
        {
            return Err(format!("{site} has more than {MOST_VALUES} values").into());
        }
        let frame = self.frame(site)?;
        let values = match step {
            Step::View(view) => selected(&frame.view(view, &sizes), &named)?,
            Step::Stage(_) => selected(frame, &named)?,
        };
        let number = cell.statistic.of(&values)?;
        if !cell.text {
            return Ok(Value::Number(number));
        }
        let id = match free[..] {
            [Axis::Vocab] => whole(number)?,
            [Axis::Token | Axis::Key] if site.stage.is_ids() => whole(number)?,
            [axis @ (Axis::Token | Axis::Key)] => self.token_at(site, axis, whole(number)?)?,
            [] if site.stage.is_ids() => whole(number)?,
            _ => return Err("it has no text".into()),
        };
        let id = u32::try_from(id).map_err(|_| format!("{id} is no token"))?;
        Ok(Value::Text(self.world.token_text(id)))
    }

    /// The id at a position: on a token axis a position of the pass, on a key axis a position of the whole text.
    fn token_at(&mut self, site: Site, axis: Axis, position: usize) -> Result<usize, Halt> {
        let first = if axis == Axis::Key { 0 } else { site.pass };
        let mut left = position;
        for pass in first..=site.pass {
            let frame = self.frame(Site { pass, layer: None, stage: Stage::Tokens, ..site })?;
            let FrameData::I64(ids) = &frame.data else { break };
            match ids.iter().nth(left) {
                Some(&id) => return whole(id as f64),
                None => left -= ids.len(),
            }
        }
        Err(format!("there is no token {position}").into())
    }
}

/// The values of `frame` with these indices of its axes.
fn selected(frame: &Frame, index: &[(usize, usize)]) -> Result<Vec<f64>, Halt> {
    fn at<T: Copy>(
        array: &ArrayViewD<'_, T>,
        index: &[(usize, usize)],
        real: fn(T) -> f64,
    ) -> Option<Vec<f64>> {
        let mut array = array.view();
        // The last axes first, so that the numbers of the others stay as they are.
        let mut index = index.to_vec();
        index.sort_unstable_by(|a, b| b.cmp(a));
        for (axis, at) in index {
            if array.shape().get(axis).is_none_or(|length| at >= *length) {
                return None;
            }
            array.index_axis_inplace(Dim(axis), at);
        }
        Some(array.iter().map(|&value| real(value)).collect())
    }
    let values = match &frame.data {
        FrameData::F32(array) => at(&array.view(), index, f64::from),
        FrameData::I64(array) => at(&array.view(), index, |id| id as f64),
        FrameData::I8(array) => at(&array.view(), index, f64::from),
    };
    values.ok_or_else(|| format!("{} has another shape than its pass", frame.site).into())
}

/// A whole number, 0 or more.
fn whole(number: f64) -> Result<usize, Halt> {
    match number >= 0.0 && number.fract() == 0.0 && number < 1e15 {
        true => Ok(number as usize),
        false => Err(format!("{number} is no index: a whole number, 0 or more, is expected").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;

    fn value(text: &str) -> Result<Value, Unfinished> {
        Evaluation::new(&Fake::new()).value(&Expression::parse(text).unwrap())
    }

    fn number(text: &str) -> f64 {
        value(text).unwrap().number().unwrap()
    }

    fn wrong(text: &str) -> String {
        match value(text) {
            Err(Unfinished::Wrong(wrong)) => wrong,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn arithmetic_has_the_usual_precedence() {
        for (text, expected) in [
            ("1 + 2 · 3 - 4 / 8", 6.5),
            ("(1 + 2) * 3 ÷ 9 − 1", 0.0),
            ("1 + 1 < 3", 1.0),
            ("1 > 2", 0.0),
            ("if(1 = 1, sqrt(16), p0/L0/xq.max)", 4.0),
            ("if(0, ln(0), exp(0))", 1.0),
            ("config/layers · heads.json/induction/score", 1.92),
            ("−2 * pi", -2.0 * std::f64::consts::PI),
        ] {
            assert!((number(text) - expected).abs() < 1e-12, "{text}");
        }
    }

    #[test]
    fn addresses_are_read_from_the_run() {
        // softmax of layer 1 is (2, 4, 4): 32 values, of which number i is (7 i + 3) mod 32.
        assert_eq!(number("p0/L1/softmax[h=1,t=2,k=3]"), f64::from((27 * 7 + 3) % 32));
        assert_eq!(
            number("p0/L{induction}/softmax[h={induction},q=last,k={1 + 2}]"),
            f64::from((31 * 7 + 3) % 32)
        );
        assert_eq!(value("p0/L1/softmax[h=0].shape"), Ok(Value::Shape(vec![4, 4])));
        assert_eq!(value("p1/L0/keys_t.shape"), Ok(Value::Shape(vec![2, 4, 5])));
        assert_eq!(number("p0/L1/softmax.count"), 32.0);
        assert_eq!(value("p0/tokens[t=1].text"), Ok(Value::Text("<2>".into())));
        // The row is 3, 10, 17, 24.
        assert_eq!(number("p0/L1/softmax[h=0,t=0].argmax"), 3.0);
        assert_eq!(value("p0/L1/softmax[h=0,t=0].argmax.text"), Ok(Value::Text("<0>".into())));
    }

    #[test]
    fn the_stages_that_are_not_there_are_asked_for_together() {
        let evaluation_of = |text: &str| {
            let fake = Fake::new();
            let mut evaluation = Evaluation::new(&fake);
            let value = evaluation.value(&Expression::parse(text).unwrap());
            (value, evaluation.reads().collect::<Vec<_>>())
        };
        let (xq, xk) = (Site::layer(0, 0, Stage::Xq), Site::layer(0, 0, Stage::Xk));
        let (value, reads) = evaluation_of("p0/L0/xq.max + p0/L0/xk.max · p0/logits.max");
        assert_eq!(value, Err(Unfinished::Needs(vec![xq, xk])));
        assert_eq!(
            reads,
            [xq, xk, Site::once(0, Stage::Logits)]
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        );
        let (value, _) =
            evaluation_of("p0/L1/softmax[h={p0/L0/xq[t=0,h=0].argmax}].max + (1 + p0/tokens.shape)");
        assert!(matches!(value, Err(Unfinished::Wrong(wrong)) if wrong.contains("not a shape")));
    }

    #[test]
    fn what_the_run_lacks_is_named() {
        for (text, expected) in [
            ("p0/L9/xq.max", "there is no p0/L9/xq in this run"),
            ("p7/L0/xq.max", "there is no p7/L0/xq in this run"),
            ("s1/p0/L0/xq.max", "there is no s1/p0/L0/xq in this run"),
            ("p1/mask.max", "has no mask"),
            ("p0/L0/xq[h=2].max", "2 is past the last of 2"),
            ("p0/L0/xq[h={0 - 1}].max", "no index"),
            ("p0/L0/xq[h={1 / 2}].max", "no index"),
            ("p0/L0/xq[h={1 / 0}].max", "no index"),
            ("p0/L{previous_token}/xq.max", "heads.json has no previous_token/layer"),
            ("config/J", "no J"),
            ("config/g", "no groups"),
            ("p0/L1/softmax.argmax", "one free axis"),
            ("p0/L1/softmax[h=0]", "leaves 16 values"),
            ("p0/L1/softmax[h=0,t=0,k=0].text", "no text"),
            ("1 + p0/tokens[t=0].text", "not a text"),
        ] {
            assert!(wrong(text).contains(expected), "{text}: {}", wrong(text));
        }
        let endless = Evaluation::new(&Fake::new()).finite(&Expression::parse("1 / 0").unwrap());
        assert!(matches!(endless, Err(Unfinished::Wrong(wrong)) if wrong.contains("finite")));
    }
}
