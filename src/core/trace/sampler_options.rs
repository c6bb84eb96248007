//! The options of the sampler as words: `--temperature 1.5 --top-k 40`, as on the command line.

use super::draw::Sampling;

/// The names of the options.
pub const OPTIONS: [&str; 7] =
    ["temperature", "top-k", "top-p", "min-p", "typical-p", "repetition-penalty", "seed"];

impl Sampling {
    /// The setting with the options of `text` changed. The dashes may be left out: `temperature 1.5`. `greedy` sets the
    /// temperature to 0.
    ///
    /// # Errors
    /// A text that names the wrong word and says what is expected.
    pub fn changed(mut self, text: &str) -> Result<Self, String> {
        let text = text.replace('=', " ");
        let mut words = text.split_whitespace();
        let mut found = false;
        while let Some(word) = words.next() {
            found = true;
            let option = word.trim_start_matches('-');
            if option == "greedy" {
                self.temperature = 0.0;
                continue;
            }
            if option != "temp" && !OPTIONS.contains(&option) {
                let options = OPTIONS.join(", ");
                return Err(format!("`{word}` is not an option of the sampler: {options} or greedy"));
            }
            let value = words
                .next()
                .ok_or_else(|| format!("{option} needs a number: {option} {}", example(option)))?;
            self.set(option, value)?;
        }
        match found {
            true => Ok(self),
            false => {
                let options = OPTIONS.join(", ");
                Err(format!("the sampler's options are expected, as temperature 1.5: {options}"))
            }
        }
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        let number = |fits: &dyn Fn(f32) -> bool, expected: &str| {
            let number = value.parse().ok().filter(|&number: &f32| number.is_finite() && fits(number));
            number.ok_or_else(|| format!("{option} is {expected}, not `{value}`"))
        };
        let share = "a number over 0 and up to 1";
        match option {
            "temperature" | "temp" => {
                let fits = |number| number == 0.0 || number >= 1e-30;
                self.temperature = number(&fits, "0 or more")?;
            }
            "top-p" => self.top_p = number(&|p| p > 0.0 && p <= 1.0, share)?,
            "min-p" => self.min_p = number(&|p| (0.0..=1.0).contains(&p), "a number from 0 to 1")?,
            "typical-p" => self.typical_p = number(&|p| p > 0.0 && p <= 1.0, share)?,
            "repetition-penalty" => {
                let expected = "a number from 0.01 to 100";
                self.repetition_penalty = number(&|r| (0.01..=100.0).contains(&r), expected)?;
            }
            "top-k" => self.top_k = whole(option, value)?,
            _ => self.seed = whole(option, value)?,
        }
        Ok(())
    }

    /// The options that differ from greedy sampling, as words that [`Sampling::changed`] reads.
    pub fn options(self) -> Vec<String> {
        let none = Self::GREEDY;
        let given = [
            ("temperature", self.temperature != none.temperature, self.temperature.to_string()),
            ("top-k", self.top_k != none.top_k, self.top_k.to_string()),
            ("top-p", self.top_p != none.top_p, self.top_p.to_string()),
            ("min-p", self.min_p != none.min_p, self.min_p.to_string()),
            ("typical-p", self.typical_p != none.typical_p, self.typical_p.to_string()),
            (
                "repetition-penalty",
                self.repetition_penalty != none.repetition_penalty,
                self.repetition_penalty.to_string(),
            ),
            ("seed", self.seed != none.seed, self.seed.to_string()),
        ];
        let given = given.into_iter().filter(|(_, differs, _)| *differs);
        given.flat_map(|(name, _, value)| [format!("--{name}"), value]).collect()
    }
}

fn whole<N: std::str::FromStr>(option: &str, value: &str) -> Result<N, String> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value
        .parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| format!("{option} is a whole number, 0 or more, not `{value}`"))
}

fn example(option: &str) -> &'static str {
    match option {
        "top-k" => "40",
        "seed" => "7",
        "repetition-penalty" => "1.2",
        _ => "0.9",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_with_and_without_dashes_and_come_back() {
        let wanted = Sampling { temperature: 1.5, top_k: 40, seed: 7, ..Sampling::GREEDY };
        for text in ["--temperature 1.5 --top-k 40 --seed 7", "temperature=1.5 top-k 40 seed 7"] {
            assert_eq!(Sampling::GREEDY.changed(text), Ok(wanted));
        }
        assert_eq!(Sampling::GREEDY.changed(&wanted.options().join(" ")), Ok(wanted));
        assert_eq!(wanted.changed("greedy").unwrap().temperature, 0.0);
        assert!(Sampling::GREEDY.options().is_empty());
    }

    #[test]
    fn a_wrong_word_is_named() {
        for (text, named) in [
            ("", "temperature 1.5"),
            ("warmth 1", "`warmth`"),
            ("temperature", "temperature needs a number"),
            ("temperature -1", "0 or more, not `-1`"),
            ("temperature nan", "not `nan`"),
            ("top-p 0", "over 0"),
            ("top-p 1.1", "up to 1"),
            ("top-k -1", "whole number"),
            ("top-k +1", "whole number"),
            ("seed 1.5", "whole number"),
            ("repetition-penalty 1000", "100"),
        ] {
            let wrong = Sampling::GREEDY.changed(text).unwrap_err();
            assert!(wrong.contains(named), "{text}: {wrong}");
        }
    }
}
