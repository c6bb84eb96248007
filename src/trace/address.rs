//! The address of a place in a trace, or of one number there: `p0/L1/softmax[h=2,t=5,k=1]`. What the program
//! prints and what it reads is one grammar:
//!
//! ```text
//! address = ['p' N '/'] ['L' N '/'] step ['[' letter '=' N {',' letter '=' N} ']']
//! ```
//!
//! A step is a stage or a view, a letter that of one of its axes ([`Axis::index`]). What is left out means
//! "here": who reads an address knows where that is.

use std::fmt;

use super::stage::{Axis, Step};

/// An address as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Number of the pass.
    pub pass: Option<usize>,
    /// Number of the layer.
    pub layer: Option<usize>,
    /// The stage or view.
    pub step: Option<Step>,
    /// Letters of axes with an index on each.
    pub index: Vec<(char, usize)>,
}

impl Address {
    /// Reads an address. A layer may be a number alone, and the order of the letters does not matter.
    ///
    /// # Errors
    /// Which part is wrong, and what there is instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, index) = match text.split_once('[') {
            Some((path, rest)) => {
                let index = rest.trim_end().strip_suffix(']');
                (path, Some(index.ok_or_else(|| format!("`[{rest}` has no `]` at its end"))?))
            }
            None => (text, None),
        };
        let mut address = Self::default();
        for part in path.split('/').map(str::trim).filter(|part| !part.is_empty()) {
            address.part(part)?;
        }
        for part in index.into_iter().flat_map(|index| index.split(',')).map(str::trim) {
            address.index.push(indexed(part)?);
        }
        Ok(address)
    }

    /// Takes one part of the path: the pass, the layer, the step, in this order.
    fn part(&mut self, part: &str) -> Result<(), String> {
        let number = |prefixes: &[char]| part.strip_prefix(prefixes)?.parse::<usize>().ok();
        if let Some(step) = self.step {
            return Err(format!(
                "after {} comes nothing but an index in brackets, and not `{part}`",
                step.name()
            ));
        }
        if let Some(pass) = number(&['p', 'P']) {
            if self.pass.is_some() || self.layer.is_some() {
                return Err(format!("`{part}` comes first, as in p0/L1/softmax, and once"));
            }
            self.pass = Some(pass);
        } else if let Some(layer) = number(&['l', 'L']).or_else(|| part.parse().ok()) {
            if self.layer.is_some() {
                return Err(format!(
                    "`{part}` is a second layer; one stands before the stage, as in L1/softmax"
                ));
            }
            self.layer = Some(layer);
        } else {
            let step = Step::from_name(&part.to_ascii_lowercase());
            self.step = Some(step.ok_or_else(|| format!("there is no stage `{part}`"))?);
        }
        Ok(())
    }

    /// The axes of `step` that the letters name, with the index on each. `q`, for query, may stand for `t`.
    ///
    /// # Errors
    /// Which letter is none of the step's, or stands twice.
    pub fn axes(&self, step: Step) -> Result<Vec<(Axis, usize)>, String> {
        let mut named: Vec<(Axis, usize)> = Vec::new();
        for &(letter, index) in &self.index {
            let fits = |axis: &&Axis| axis.index() == letter || (letter == 'q' && **axis == Axis::Token);
            let Some(&axis) = step.axes().iter().find(fits) else {
                let letters = step.axes().iter().map(|axis| format!("{} ({})", axis.index(), axis.name()));
                let letters = letters.collect::<Vec<_>>().join(", ");
                return Err(format!("{} has no axis `{letter}`: its letters are {letters}", step.name()));
            };
            if named.iter().any(|(other, _)| *other == axis) {
                return Err(format!("`{letter}={index}`: this axis stands there twice"));
            }
            named.push((axis, index));
        }
        Ok(named)
    }
}

/// A letter and its index: `t=5`.
fn indexed(part: &str) -> Result<(char, usize), String> {
    let (name, number) = part
        .split_once('=')
        .ok_or_else(|| format!("`{part}` is no index: one is a letter, `=` and a number, as in t=5"))?;
    let (name, number) = (name.trim(), number.trim());
    let mut letters = name.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => match number.parse() {
            Ok(number) => Ok((letter, number)),
            Err(_) => Err(format!("`{part}`: `{number}` is no number from 0 on")),
        },
        _ => Err(format!("`{part}`: an axis is named by one letter, as in t=5")),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pass = self.pass.map(|pass| format!("p{pass}"));
        let layer = self.layer.map(|layer| format!("L{layer}"));
        let step = self.step.map(|step| step.name().to_owned());
        f.write_str(&[pass, layer, step].into_iter().flatten().collect::<Vec<_>>().join("/"))?;
        if self.index.is_empty() {
            return Ok(());
        }
        let index: Vec<_> = self.index.iter().map(|(letter, number)| format!("{letter}={number}")).collect();
        write!(f, "[{}]", index.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::{Stage, View};
    use super::*;

    #[test]
    fn an_address_is_read_back_as_it_was_written() {
        for text in
            ["p0/L1/softmax[h=2,t=5,k=1]", "L1/keys_t[k=3]", "p2", "xq", "[h=0]", "p0/logits[t=0,v=7]"]
        {
            assert_eq!(Address::parse(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        let address = Address::parse(" 3/ KEYS_T [ k = 3 , h=0 ] ").unwrap();
        let keys_t = Step::View(View::KeysT);
        assert_eq!((address.layer, address.step), (Some(3), Some(keys_t)));
        assert_eq!(address.axes(keys_t), Ok(vec![(Axis::Key, 3), (Axis::Head, 0)]));
    }

    #[test]
    fn a_query_is_a_token() {
        let address = Address::parse("softmax[h=2,q=5,k=1]").unwrap();
        let axes = address.axes(Step::Stage(Stage::Softmax)).unwrap();
        assert_eq!(axes, [(Axis::Head, 2), (Axis::Token, 5), (Axis::Key, 1)]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| Address::parse(text).unwrap_err();
        assert_eq!(wrong("p0/L0/nothing[t=0]"), "there is no stage `nothing`");
        assert_eq!(wrong("softmax[h=2"), "`[h=2` has no `]` at its end");
        assert_eq!(wrong("softmax[h2]"), "`h2` is no index: one is a letter, `=` and a number, as in t=5");
        assert_eq!(wrong("softmax[h=-1]"), "`h=-1`: `-1` is no number from 0 on");
        assert_eq!(wrong("softmax[head=1]"), "`head=1`: an axis is named by one letter, as in t=5");
        assert_eq!(wrong("L0/p1/xq"), "`p1` comes first, as in p0/L1/softmax, and once");
        assert_eq!(
            wrong("L0/L1/xq"),
            "`L1` is a second layer; one stands before the stage, as in L1/softmax"
        );
        assert_eq!(wrong("L0/x/xq"), "there is no stage `x`");
        assert_eq!(wrong("xq/L0"), "after xq comes nothing but an index in brackets, and not `L0`");
        let axes = |text: &str| Address::parse(text).unwrap().axes(Step::Stage(Stage::XqRope)).unwrap_err();
        assert_eq!(
            axes("[k=1]"),
            "xq_rope has no axis `k`: its letters are t (token), h (head), c (head_dim)"
        );
        assert_eq!(axes("[t=1,q=2]"), "`q=2`: this axis stands there twice");
    }
}
