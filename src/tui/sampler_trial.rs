//! Trial of other sampler settings, as the user tries them in the sampler view. The run keeps its own setting.

use llama_trace_core::trace::draw::Sampling;

/// A setting that can be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knob {
    /// Repetition penalty.
    Penalty,
    /// Temperature.
    #[default]
    Temperature,
    /// Top-k.
    TopK,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// Typical-p.
    TypicalP,
    /// Seed.
    Seed,
}

/// The number of draws that the view counts.
const TIMES: usize = 100;

/// The tried setting of the sampler view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerTrial {
    knob: Knob,
    setting: Option<Sampling>,
    counts: bool,
}

impl SamplerTrial {
    /// The knob that the arrow keys turn.
    pub fn knob(&self) -> Knob {
        self.knob
    }

    /// The tried setting; none means the run's own setting.
    pub fn setting(&self) -> Option<Sampling> {
        self.setting
    }

    /// The number of draws that the view counts; 0 if it counts none.
    pub fn times(&self) -> usize {
        if self.counts { TIMES } else { 0 }
    }

    /// Begins or ends the count of draws.
    pub(super) fn toggle_counts(&mut self) {
        self.counts = !self.counts;
    }

    /// Begins a trial of `setting`.
    pub(super) fn begin(&mut self, setting: Sampling) {
        self.setting = Some(setting);
    }

    /// Ends the trial; the knob stays chosen.
    pub(super) fn end(&mut self) {
        self.setting = None;
    }

    /// Chooses the next knob (`by` > 0) or the previous one.
    pub(super) fn choose(&mut self, by: isize) {
        let count = Knob::ALL.len();
        let now = Knob::ALL.iter().position(|&knob| knob == self.knob).unwrap_or(0);
        self.knob = Knob::ALL[(now + count).saturating_add_signed(by.signum()) % count];
    }

    /// Turns the chosen knob a step up or down, starting from the tried setting or else from the run's `own`. Returning
    /// to `own` ends the trial. Returns a message if the knob was already at its end.
    pub(super) fn turn(&mut self, own: Sampling, up: bool) -> Option<String> {
        let now = self.setting.unwrap_or(own);
        let next = turned(now, own, self.knob, up);
        self.setting = (next != own).then_some(next);
        let end = if up { "largest" } else { "smallest" };
        (next == now).then(|| {
            format!(
                "{} = {} is the {end} value that the arrow keys reach",
                self.knob.name(),
                self.knob.value(now)
            )
        })
    }
}

/// The steps of the arrow keys.
const TEMPERATURES: [f32; 17] =
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0];
const TOP_PS: [f32; 13] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
const MIN_PS: [f32; 9] = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0];
const TYPICAL_PS: [f32; 11] = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
const PENALTIES: [f32; 11] = [0.5, 0.8, 0.9, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 5.0];
/// 0 means all tokens.
const TOP_KS: [usize; 13] = [1, 2, 3, 5, 10, 20, 40, 50, 100, 200, 500, 1000, 0];

impl Knob {
    /// All knobs, in the order in which the sampler applies them.
    pub const ALL: [Self; 7] =
        [Self::Penalty, Self::Temperature, Self::TopK, Self::TopP, Self::MinP, Self::TypicalP, Self::Seed];

    /// The knob's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalty => "penalty",
            Self::Temperature => "temperature",
            Self::TopK => "top-k",
            Self::TopP => "top-p",
            Self::MinP => "min-p",
            Self::TypicalP => "typical-p",
            Self::Seed => "seed",
        }
    }

    /// The knob's value in `setting`, as a text for the user.
    pub fn value(self, setting: Sampling) -> String {
        let off = || "off".to_owned();
        match self {
            Self::Penalty if setting.repetition_penalty == 1.0 => off(),
            Self::Penalty => setting.repetition_penalty.to_string(),
            Self::Temperature => setting.temperature.to_string(),
            Self::TopK if setting.top_k == 0 => "all".to_owned(),
            Self::TopK => setting.top_k.to_string(),
            Self::TopP => setting.top_p.to_string(),
            Self::MinP if setting.min_p == 0.0 => off(),
            Self::MinP => setting.min_p.to_string(),
            Self::TypicalP if setting.typical_p == 1.0 => off(),
            Self::TypicalP => setting.typical_p.to_string(),
            Self::Seed => setting.seed.to_string(),
        }
    }
}

/// The next larger step (`up`) or next smaller step than `now`, among `steps` and the run's `own`; `now` if there is
/// none.
fn neighbour<T: Copy + PartialOrd>(now: T, steps: &[T], own: T, up: bool) -> T {
    let beyond = steps.iter().copied().chain([own]).filter(|&step| if up { step > now } else { step < now });
    beyond.reduce(|a, b| if (a < b) == up { a } else { b }).unwrap_or(now)
}

/// `now` with the value of `knob` a step up or down; `own` is the run's setting.
fn turned(now: Sampling, own: Sampling, knob: Knob, up: bool) -> Sampling {
    // 0 means no limit, so it counts as the largest value.
    let count = |k: usize| if k == 0 { usize::MAX } else { k };
    match knob {
        Knob::Penalty => {
            let repetition_penalty =
                neighbour(now.repetition_penalty, &PENALTIES, own.repetition_penalty, up);
            Sampling { repetition_penalty, ..now }
        }
        Knob::Temperature => {
            let temperature = neighbour(now.temperature, &TEMPERATURES, own.temperature, up);
            Sampling { temperature, ..now }
        }
        Knob::TopK => {
            let next = neighbour(count(now.top_k), &TOP_KS.map(count), count(own.top_k), up);
            Sampling { top_k: if next == usize::MAX { 0 } else { next }, ..now }
        }
        Knob::TopP => Sampling { top_p: neighbour(now.top_p, &TOP_PS, own.top_p, up), ..now },
        Knob::MinP => Sampling { min_p: neighbour(now.min_p, &MIN_PS, own.min_p, up), ..now },
        Knob::TypicalP => {
            Sampling { typical_p: neighbour(now.typical_p, &TYPICAL_PS, own.typical_p, up), ..now }
        }
        Knob::Seed if up => Sampling { seed: now.seed.saturating_add(1), ..now },
        Knob::Seed => Sampling { seed: now.seed.saturating_sub(1), ..now },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Sampling = Sampling { temperature: 0.85, top_k: 30, top_p: 0.92, seed: 7, ..Sampling::GREEDY };

    #[test]
    fn arrows_go_through_the_steps_and_the_runs_own_setting() {
        let walk = |knob: Knob, up: bool| {
            let mut values = vec![knob.value(OWN)];
            let mut now = OWN;
            for _ in 0..40 {
                now = turned(now, OWN, knob, up);
                values.push(knob.value(now));
            }
            values.dedup();
            values.join(" ")
        };
        assert_eq!(walk(Knob::Temperature, true), "0.85 0.9 1 1.2 1.5 2 3 5 10");
        assert_eq!(walk(Knob::Temperature, false), "0.85 0.8 0.7 0.6 0.5 0.4 0.3 0.2 0.1 0");
        assert_eq!(walk(Knob::TopK, true), "30 40 50 100 200 500 1000 all");
        assert_eq!(walk(Knob::TopK, false), "30 20 10 5 3 2 1");
        assert_eq!(walk(Knob::TopP, true), "0.92 0.95 0.99 1");
        assert_eq!(walk(Knob::MinP, true), "off 0.01 0.02 0.05 0.1 0.2 0.3 0.5 1");
        assert_eq!(walk(Knob::TypicalP, false), "off 0.99 0.95 0.9 0.8 0.7 0.5 0.3 0.2 0.1 0.05");
        assert_eq!(walk(Knob::Penalty, true), "off 1.05 1.1 1.2 1.3 1.5 2 5");
        assert_eq!(walk(Knob::Penalty, false), "off 0.9 0.8 0.5");
        assert_eq!(turned(turned(OWN, OWN, Knob::TopP, true), OWN, Knob::TopP, false), OWN);
        assert_eq!(turned(Sampling { seed: 0, ..OWN }, OWN, Knob::Seed, false).seed, 0);
    }
}
