//! Is an answer right, and which hint fits a wrong one?

use super::evaluate::{Evaluation, Unfinished, Value, World};
use super::expression::{Expression, Place, Position};
use super::{Kind, Question, Right, Scene, Tolerance};
use crate::trace::{Site, Step};

/// An answer that a user gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// The place under the cursor.
    Place {
        /// The stage or view.
        step: Step,
        /// The layer, if the stage is in a layer.
        layer: Option<usize>,
        /// The index of each axis.
        index: Vec<(char, usize)>,
    },
    /// A typed number or shape.
    Text(String),
    /// The number of a choice, from 1.
    Choice(usize),
}

/// The judgement of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is right.
    Right,
    /// It is wrong; the hint is in Markdown.
    Wrong(Option<String>),
    /// It is no answer to this question; the text says what is expected. It does not count as a try.
    Unclear(String),
}

/// The right answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Letters of axes (`L` for the layer), each with its index.
    Indices(Vec<(char, usize)>),
    /// The stage or view.
    Step(Step),
    /// A number.
    Number(f64),
    /// A shape.
    Shape(Vec<usize>),
    /// The number of a choice, from 1.
    Choice(usize),
}

/// The right answer, and the stages that it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The answer.
    pub answer: Answer,
    /// The stages. Their values are hidden while the question is open.
    pub reads: Vec<Site>,
}

/// The right answer to the question of `scene` in a run.
///
/// # Errors
/// The stages that it needs, or a message if the question has no right answer in this run.
pub fn solution(scene: &Scene, question: &Question, world: &dyn World) -> Result<Solution, Unfinished> {
    let mut evaluation = Evaluation::new(world);
    let answer = answer(scene, question, &question.answer, &mut evaluation)?;
    Ok(Solution { answer, reads: evaluation.reads().collect() })
}

/// Judges an answer to the question of `scene`.
///
/// # Errors
/// As [`solution`].
pub fn judge(
    scene: &Scene,
    question: &Question,
    given: &Given,
    world: &dyn World,
) -> Result<Verdict, Unfinished> {
    let mut evaluation = Evaluation::new(world);
    let right = answer(scene, question, &question.answer, &mut evaluation)?;
    let tolerance = question.tolerance();
    match agrees(given, &right, tolerance) {
        Agreement::Yes => return Ok(Verdict::Right),
        Agreement::Unclear(what) => return Ok(Verdict::Unclear(what)),
        Agreement::No => {}
    }
    if let (Given::Choice(number), Kind::Choice) = (given, question.kind)
        && !(1..=question.choices.len()).contains(number)
    {
        return Ok(Verdict::Unclear(format!("type a digit from 1 to {}", question.choices.len())));
    }
    for hint in &question.hints {
        let fits = match &hint.to {
            None => true,
            // A hint that has no value in this run fits no answer.
            Some(to) => match answer(scene, question, to, &mut evaluation) {
                Ok(wrong) => matches!(agrees(given, &wrong, tolerance), Agreement::Yes),
                Err(Unfinished::Wrong(_)) => false,
                Err(needs) => return Err(needs),
            },
        };
        if fits {
            return Ok(Verdict::Wrong(Some(hint.text.clone())));
        }
    }
    Ok(Verdict::Wrong(None))
}

impl Scene {
    /// Whether its address, its answer or a hint names a head of `heads.json`, which only the built-in model has.
    pub fn names_heads(&self) -> bool {
        let of = |right: &Right| match right {
            Right::Indices(indices) => indices.iter().any(|(_, text)| names_head(text)),
            Right::Value { expression, .. } => names_head(expression),
            Right::Step(_) => false,
        };
        let asks = |question: &Question| {
            of(&question.answer) || question.hints.iter().filter_map(|hint| hint.to.as_ref()).any(of)
        };
        names_head(&self.screen.at) || self.question.as_ref().is_some_and(asks)
    }
}

/// Whether an address or an expression names a head: `{induction}` or `heads.json/…`.
fn names_head(text: &str) -> bool {
    let braces = text.split('{').skip(1).filter_map(|part| part.split_once('}')).map(|(inside, _)| inside);
    let is_name =
        |inside: &str| !inside.is_empty() && inside.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    text.contains("heads.json/") || braces.into_iter().any(is_name)
}

impl Question {
    /// The tolerance of a number.
    pub fn tolerance(&self) -> Option<Tolerance> {
        match self.answer {
            Right::Value { tolerance, .. } => tolerance,
            Right::Indices(_) | Right::Step(_) => None,
        }
    }
}

impl Answer {
    /// Whether both are the same answer, within the tolerance of a number.
    pub fn is(&self, other: &Self, tolerance: Option<Tolerance>) -> bool {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => match tolerance {
                Some(tolerance) => (a - b).abs() <= tolerance.around(*b),
                None => a == b,
            },
            (a, b) => a == b,
        }
    }
}

impl Tolerance {
    /// The largest difference from the right number.
    fn around(self, right: f64) -> f64 {
        match self {
            Self::Absolute(most) => most,
            Self::Relative(share) => share * right.abs(),
        }
    }
}

/// The answer that `right` stands for in a run.
///
/// # Errors
/// As [`solution`].
pub fn answer(
    scene: &Scene,
    question: &Question,
    right: &Right,
    evaluation: &mut Evaluation<'_>,
) -> Result<Answer, Unfinished> {
    let wrong = |what: String| Unfinished::Wrong(what);
    match right {
        Right::Step(name) => {
            let step = Step::from_name(name).ok_or_else(|| wrong(format!("there is no stage `{name}`")))?;
            Ok(Answer::Step(step))
        }
        Right::Indices(indices) => {
            let place = Place::parse(&scene.screen.at).map_err(wrong)?;
            let indices = indices.iter().map(|(letter, text)| {
                let position = Position::of_answer(text).map_err(wrong)?;
                Ok((*letter, evaluation.index(&place, *letter, &position)?))
            });
            Ok(Answer::Indices(indices.collect::<Result<_, Unfinished>>()?))
        }
        Right::Value { expression, .. } => {
            let expression = Expression::parse(expression).map_err(wrong)?;
            match question.kind {
                Kind::Shape => match evaluation.value(&expression)? {
                    Value::Shape(shape) => Ok(Answer::Shape(shape)),
                    _ => Err(wrong("the answer is no shape: end its address with .shape".into())),
                },
                Kind::Choice => {
                    let number = evaluation.finite(&expression)?;
                    let most = question.choices.len() as f64;
                    match (1.0..=most).contains(&number) && number.fract() == 0.0 {
                        true => Ok(Answer::Choice(number as usize)),
                        false => {
                            Err(wrong(format!("the choices are 1 to {most}, and the answer is {number}")))
                        }
                    }
                }
                _ => Ok(Answer::Number(evaluation.finite(&expression)?)),
            }
        }
    }
}

/// Whether a given answer is a known one.
enum Agreement {
    Yes,
    No,
    Unclear(String),
}

impl From<bool> for Agreement {
    fn from(agrees: bool) -> Self {
        if agrees { Self::Yes } else { Self::No }
    }
}

fn agrees(given: &Given, answer: &Answer, tolerance: Option<Tolerance>) -> Agreement {
    let unclear = |what: &str| Agreement::Unclear(what.to_owned());
    match (given, answer) {
        (Given::Place { layer, index, .. }, Answer::Indices(wanted)) => {
            let at = |letter: char| match letter {
                'L' => *layer,
                letter => index.iter().find(|(own, _)| *own == letter).map(|(_, index)| *index),
            };
            if let Some((letter, _)) = wanted.iter().find(|(letter, _)| at(*letter).is_none()) {
                return Agreement::Unclear(format!(
                    "the answer is a place with the letter {letter}, and this stage has none: go back to the scene"
                ));
            }
            wanted.iter().all(|(letter, index)| at(*letter) == Some(*index)).into()
        }
        (Given::Place { step, .. }, Answer::Step(wanted)) => (step == wanted).into(),
        (Given::Text(text), Answer::Number(right)) => match Typed::parse(text) {
            Some(typed) => typed.agrees(*right, tolerance),
            None => unclear("type a number, with a point before its fraction, as 0.25"),
        },
        (Given::Text(text), Answer::Shape(right)) => match shape(text) {
            Some(shape) => (shape == *right).into(),
            None => unclear("type the lengths of the axes, as (4, 10, 10)"),
        },
        (Given::Choice(number), Answer::Choice(right)) => (number == right).into(),
        (_, Answer::Indices(_) | Answer::Step(_)) => unclear("answer with the cursor and Enter"),
        (_, Answer::Number(_)) => unclear("type a number"),
        (_, Answer::Shape(_)) => unclear("type a shape, as (4, 10, 10)"),
        (_, Answer::Choice(_)) => unclear("type the digit of a choice"),
    }
}

/// A typed number.
struct Typed {
    number: f64,
    /// The value of one unit of its last digit.
    unit: f64,
}

impl Typed {
    /// Reads a number. A percent sign divides it by 100.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().replace('−', "-");
        let (digits, percent) = match text.strip_suffix('%') {
            Some(digits) => (digits.trim(), 0.01),
            None => (text.as_str(), 1.0),
        };
        if !digits.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c)) {
            return None;
        }
        let number: f64 = digits.parse().ok().filter(|number: &f64| number.is_finite())?;
        let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
        let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let exponent: i32 = exponent.parse().ok()?;
        let unit = 10_f64.powi(exponent.saturating_sub(i32::try_from(decimals).ok()?));
        Some(Self { number: number * percent, unit: unit * percent })
    }

    fn agrees(&self, right: f64, tolerance: Option<Tolerance>) -> Agreement {
        /// Share by which processors may differ in the last bits of a value.
        const BITS: f64 = 1e-6;
        let apart = (self.number - right).abs();
        if let Some(tolerance) = tolerance {
            return (apart <= tolerance.around(right) * (1.0 + 1e-9)).into();
        }
        let bits = BITS * right.abs();
        // Half a unit of the second digit.
        let two_digits = match right == 0.0 {
            true => f64::INFINITY,
            false => 0.5 * 10_f64.powi(right.abs().log10().floor() as i32 - 1),
        };
        let own = 0.5 * self.unit * (1.0 + 1e-9) + bits;
        if apart <= own.min(two_digits * (1.0 + 1e-9) + bits) {
            return Agreement::Yes;
        }
        if apart <= own {
            return Agreement::Unclear("type at least 2 digits".into());
        }
        Agreement::No
    }
}

/// Reads a shape: numbers that commas, blanks or × separate, with or without parentheses.
fn shape(text: &str) -> Option<Vec<usize>> {
    let inside = text.trim().trim_start_matches(['(', '[']).trim_end_matches([')', ']']);
    let numbers = inside.split([',', ' ', '×', 'x']).filter(|part| !part.is_empty());
    let shape: Option<Vec<usize>> = numbers.map(|number| number.parse().ok()).collect();
    shape.filter(|shape| !shape.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::super::{Lesson, Value};
    use super::*;
    use crate::trace::Stage;

    /// A scene with this question.
    fn asked(ask: &str, rest: &str) -> Scene {
        let text = format!(
            "# T\n<!-- scene: p0/L1/softmax[h=0,t=0] -->\nWords.\n<!-- ask: {ask}\n-->\nWhich?\n\n{rest}"
        );
        Lesson::parse("t", &text).unwrap().scenes.remove(0)
    }

    fn verdict(scene: &Scene, given: &Given) -> Verdict {
        judge(scene, scene.question.as_ref().unwrap(), given, &Fake::new()).unwrap()
    }

    fn at(index: &[(char, usize)]) -> Given {
        Given::Place { step: Step::Stage(Stage::Softmax), layer: Some(1), index: index.to_vec() }
    }

    #[test]
    fn a_place_is_right_if_all_letters_agree() {
        let scene = asked(
            "cell\nanswer: k=p0/L1/softmax[h=0,t=0].argmax, q=0, L={induction}\nhint: k=p0/L1/softmax[h=0,t=0].arg2 | The second.\nhint: * | Look.",
            "",
        );
        let hint = |text: &str| Verdict::Wrong(Some(text.into()));
        assert_eq!(verdict(&scene, &at(&[('h', 0), ('t', 0), ('k', 3)])), Verdict::Right);
        assert_eq!(verdict(&scene, &at(&[('h', 0), ('t', 0), ('k', 2)])), hint("The second."));
        assert_eq!(verdict(&scene, &at(&[('h', 0), ('t', 1), ('k', 3)])), hint("Look."));
        assert!(matches!(verdict(&scene, &at(&[('h', 0)])), Verdict::Unclear(_)));
        assert!(matches!(verdict(&scene, &Given::Choice(1)), Verdict::Unclear(_)));
        let solution = solution(&scene, scene.question.as_ref().unwrap(), &Fake::new()).unwrap();
        assert_eq!(solution.answer, Answer::Indices(vec![('k', 3), ('t', 0), ('L', 1)]));
        assert_eq!(solution.reads, [Site::layer(0, 1, Stage::Softmax)]);
    }

    #[test]
    fn a_stage_is_compared_by_name() {
        let scene = asked("stage\nanswer: keys_t\nhint: keys | These are not transposed.", "");
        let step = |name: &str| Given::Place {
            step: Step::from_name(name).unwrap(),
            layer: Some(0),
            index: Vec::new(),
        };
        assert_eq!(verdict(&scene, &step("keys_t")), Verdict::Right);
        assert!(matches!(verdict(&scene, &step("keys")), Verdict::Wrong(Some(_))));
        assert_eq!(verdict(&scene, &step("xq")), Verdict::Wrong(None));
    }

    #[test]
    fn a_number_is_right_within_its_last_digit() {
        let number = |answer: &str, typed: &str| {
            let scene = asked(&format!("number\nanswer: {answer}"), "");
            verdict(&scene, &Given::Text(typed.into()))
        };
        for (answer, typed) in [
            ("0.3125", "0.31"),
            ("0.3125", "0.313"),
            ("0.3125", "0.3125"),
            ("0.3125", "31 %"),
            ("0 - 0.3125", "−0.31"),
            ("4", "4"),
            ("128", "128"),
            ("128", "1.28e2"),
            ("0", "0"),
            ("0", "0.00"),
            ("0.1 + 0.2", "0.30"),
        ] {
            assert_eq!(number(answer, typed), Verdict::Right, "{typed} for {answer}");
        }
        for (answer, typed) in
            [("0.3125", "0.32"), ("0.3125", "0.3124"), ("128", "130"), ("128", "−128"), ("4", "4.4")]
        {
            assert_eq!(number(answer, typed), Verdict::Wrong(None), "{typed} for {answer}");
        }
        for (answer, typed) in [
            ("0.3125", "0.3"),
            ("0.3125", "a third"),
            ("0.3125", "0,31"),
            ("1", ""),
            ("1", "inf"),
            ("1", "nan"),
            ("1", "1e999999999999"),
            ("1", "%"),
        ] {
            assert!(matches!(number(answer, typed), Verdict::Unclear(_)), "{typed} for {answer}");
        }
    }

    #[test]
    fn a_tolerance_replaces_the_digits() {
        let scene = asked("number\nanswer: 200\ntolerance: 2%\nhint: 100 | Half of it.", "");
        let number = |typed: &str| verdict(&scene, &Given::Text(typed.into()));
        assert_eq!((number("196"), number("204.0")), (Verdict::Right, Verdict::Right));
        assert_eq!(number("195"), Verdict::Wrong(None));
        assert_eq!(number("99"), Verdict::Wrong(Some("Half of it.".into())));
    }

    #[test]
    fn a_shape_may_be_written_in_several_ways() {
        let scene =
            asked("shape\nanswer: p0/L1/softmax.shape\nhint: p0/L1/softmax[h=0].shape | One head.", "");
        for typed in ["(2, 4, 4)", "2,4,4", "2 4 4", "[2×4×4]", "2x4x4"] {
            assert_eq!(verdict(&scene, &Given::Text(typed.into())), Verdict::Right, "{typed}");
        }
        assert_eq!(verdict(&scene, &Given::Text("(4, 4)".into())), Verdict::Wrong(Some("One head.".into())));
        assert!(matches!(verdict(&scene, &Given::Text("two".into())), Verdict::Unclear(_)));
    }

    #[test]
    fn a_choice_is_a_digit() {
        let scene = asked(
            "choice\nanswer: if(config/H = 2, 2, 1)\nhint: 1 | No.",
            "1. One\n2. Two\n   heads\n\nMore.",
        );
        let question = scene.question.as_ref().unwrap();
        assert_eq!(
            (&question.choices[..], question.explanation.as_str()),
            (&["One".to_owned(), "Two heads".to_owned()][..], "More.")
        );
        assert_eq!(verdict(&scene, &Given::Choice(2)), Verdict::Right);
        assert_eq!(verdict(&scene, &Given::Choice(1)), Verdict::Wrong(Some("No.".into())));
        assert!(matches!(verdict(&scene, &Given::Choice(3)), Verdict::Unclear(_)));
        let scene = asked("choice\nanswer: 3", "1. One\n2. Two");
        let wrong = solution(&scene, scene.question.as_ref().unwrap(), &Fake::new()).unwrap_err();
        assert!(matches!(wrong, Unfinished::Wrong(wrong) if wrong.contains("1 to 2")));
    }

    #[test]
    fn answers_without_a_value_are_errors() {
        for (ask, expected) in [
            ("number\nanswer: 1 / 0", "finite"),
            ("number\nanswer: ln(0 - 1)", "finite"),
            ("number\nanswer: p0/tokens.shape", "not a shape"),
            ("shape\nanswer: 3", ".shape"),
            ("key\nanswer: k=4", "past the last"),
            ("layer\nanswer: L=2", "past the last"),
            ("head\nanswer: h={previous_token}", "previous_token"),
        ] {
            let scene = asked(ask, "");
            match solution(&scene, scene.question.as_ref().unwrap(), &Fake::new()) {
                Err(Unfinished::Wrong(wrong)) => assert!(wrong.contains(expected), "{ask}: {wrong}"),
                other => panic!("{ask}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_fake_run_has_the_values_that_these_tests_assume() {
        let row = Expression::parse("p0/L1/softmax[h=0,t=0,k=2]").unwrap();
        assert_eq!(Evaluation::new(&Fake::new()).value(&row), Ok(Value::Number(17.0)));
    }
}
