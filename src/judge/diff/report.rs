//! The result of a comparison.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use llama_trace_core::trace::stage::Section;
use llama_trace_core::trace::{Run, Site, Stage};

/// The kind of the first difference, in the order of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Configuration or weights.
    Artifact,
    /// The text of the prompt.
    Template,
    /// The ids of the text.
    Tokens,
    /// A stage.
    Stage,
}

/// The first difference of two runs. A difference of shapes is reported only if all stages in the right shape are
/// equal.
#[derive(Clone, Debug, PartialEq)]
pub struct First {
    /// The kind.
    pub kind: Kind,
    /// The complete address of the cell with the largest error; for other kinds, the setting or the token.
    pub address: String,
    /// A's value.
    pub ours: Value,
    /// B's value.
    pub theirs: Value,
    /// The error; `None` if it is not a number, as for two texts.
    pub error: Option<f64>,
    /// The tolerance.
    pub tolerance: Option<f64>,
    /// The stage, if the difference is in a stage.
    pub site: Option<Site>,
}

impl First {
    /// Returns whether it is a difference of shapes.
    fn is_shape(&self) -> bool {
        self.kind == Kind::Stage && self.error.is_none()
    }

    /// A's value and B's as text. Numbers (`nan` and `inf` too, which are strings in JSON) and shapes of a stage are
    /// shown unquoted; other texts, such as a prompt, are quoted.
    pub fn told(&self) -> [String; 2] {
        [&self.ours, &self.theirs].map(|value| match value {
            Value::String(number_or_shape) if self.kind == Kind::Stage => number_or_shape.clone(),
            Value::Null => "nothing".to_owned(),
            other => other.to_string(),
        })
    }
}

/// A known mistake that would give B's values.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// Its name: one of [`super::NAMES`].
    pub name: &'static str,
    /// Its form as text: `θ = 500000`; empty if there is only one.
    pub form: String,
    /// B's error.
    pub before: f64,
    /// The error that is left with the mistake.
    pub after: f64,
}

impl Diagnosis {
    /// The name, and the form if there are several.
    pub fn told(&self) -> String {
        if self.form.is_empty() { self.name.to_owned() } else { format!("{} ({})", self.name, self.form) }
    }
}

/// A stage that both runs have, but one of them in a wrong shape. Its values cannot be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Misshapen {
    /// The stage.
    pub site: Site,
    /// A's shape and B's, as text.
    pub shapes: [String; 2],
    /// The run with the wrong shape, and the expected shape.
    pub why: String,
    /// The key of a map that may read B's shape.
    pub key: Option<&'static str>,
}

impl Misshapen {
    /// The wrong shape as a difference of the report.
    pub(super) fn difference(&self) -> First {
        let [ours, theirs] = self.shapes.each_ref().map(|shape| json!(shape));
        First {
            kind: Kind::Stage,
            address: self.site.to_string(),
            ours,
            theirs,
            error: None,
            tolerance: None,
            site: Some(self.site),
        }
    }
}

/// A stage that was not compared: only one run has it, it cannot be read, or its layer did not run.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The stage.
    pub site: Site,
    /// The reason, if one is known.
    pub why: Option<String>,
    /// Whether the stage exists but cannot be read. It is then unknown whether the runs agree in this stage.
    pub damaged: bool,
}

/// A stage that both runs have.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The stage.
    pub site: Site,
    /// How far B is from A: ‖B − A‖ / ‖A‖.
    pub apart: f64,
    /// The judged error: with a model, the larger error of the stage itself in both runs; otherwise `apart`.
    pub error: f64,
    /// The tolerance.
    pub tolerance: f64,
    /// With a model: the error of its inputs, ‖rule(B's inputs) − rule(A's inputs)‖ / ‖rule(A's inputs)‖.
    pub inherited: Option<f64>,
}

impl Line {
    /// Returns whether the error exceeds the tolerance.
    pub fn differs(&self) -> bool {
        // A NaN exceeds every tolerance.
        !self.error.le(&self.tolerance)
    }
}

/// The distance of B from A in a layer, or after the last one, ‖B − A‖ / ‖A‖.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The layer (`None` before and after the layers) with its pass, sequence and run, and the stage with the largest
    /// distance.
    pub site: Site,
    /// The distance after attention; `None` if it was not compared.
    pub attn_residual: Option<f64>,
    /// The distance after the feed-forward network.
    pub ffn_residual: Option<f64>,
    /// The largest distance; `None` if no stage could be compared.
    pub worst: Option<f64>,
    /// The first of its stages with another shape.
    pub misshapen: Option<Stage>,
    /// Whether one of its stages exceeds its tolerance, or has another shape.
    pub differs: bool,
}

impl Growth {
    /// The layer's address: `s1/p0/L3`, or `s1/p0/start` before the layers and `s1/p0/end` after them.
    pub fn place(&self) -> String {
        let address = self.site.to_string();
        let place = address.rsplit_once('/').map_or(&*address, |(place, _)| place);
        match self.site.stage.info().section {
            Section::Layer => place.to_owned(),
            Section::Start => format!("{place}/start"),
            Section::End | Section::Sampler => format!("{place}/end"),
        }
    }

    /// The stage with the largest distance, formatted by `told`, and the stage with another shape.
    pub fn worst_told(&self, told: impl Fn(f64) -> String) -> String {
        let worst = self.worst.map(|worst| format!("{} {}", self.site.stage, told(worst)));
        let misshapen = self.misshapen.map(|stage| format!("{stage} shape"));
        worst.into_iter().chain(misshapen).collect::<Vec<_>>().join(", ")
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first difference; `None` if the runs are equal within the tolerance.
    pub first: Option<First>,
    /// The mistakes that would explain the first difference, the best first.
    pub diagnosis: Vec<Diagnosis>,
    /// Stages of A that B lacks, or that cannot be read.
    pub missing: Vec<Missing>,
    /// The sequences, branches and passes of A that B lacks, each represented by the site of its first `tokens` stage.
    pub absent: Vec<Site>,
    /// The passes of both runs in which A has stages and none but the tokens is compared, each represented by the site
    /// of its `tokens` stage.
    pub empty: Vec<Site>,
    /// The number of B's stages that A lacks, which are not judged.
    pub unjudged: usize,
    /// The stages that both runs have, in the order of the pass.
    pub lines: Vec<Line>,
    /// The stages with another shape.
    pub misshapen: Vec<Misshapen>,
    /// Every stage that differs, each with the cell of its largest error.
    pub differences: Vec<First>,
    /// Whether only the file of the first difference is wrong: the stage that reads it is equal in both.
    pub written_alone: bool,
    /// Notes about unusual findings.
    pub notes: Vec<String>,
    /// Whether tolerances were measured with a model.
    pub measured: bool,
    /// Whether only a sample of rows, and the rows that stand out, were computed for some matrices.
    pub samples: bool,
}

impl Report {
    /// The result for sequence `sequence` of `run`, which was compared as if it were the only one.
    #[must_use]
    pub fn of_sequence(mut self, run: Run, sequence: usize) -> Self {
        if (run, sequence) == (Run::ITSELF, 0) {
            return self;
        }
        let number = if run == Run::ITSELF { String::new() } else { format!("{run}:") };
        let part = if sequence == 0 { String::new() } else { format!("s{sequence}/") };
        let place = format!("{number}{part}");
        let first = self.first.iter_mut().chain(&mut self.differences).flat_map(|first| {
            if matches!(first.kind, Kind::Stage | Kind::Tokens) {
                first.address.insert_str(0, &place);
            }
            first.site.as_mut()
        });
        let lines = self.lines.iter_mut().map(|line| &mut line.site);
        let missing = self.missing.iter_mut().map(|missing| &mut missing.site).chain(&mut self.absent);
        let missing = missing.chain(&mut self.empty);
        let misshapen = self.misshapen.iter_mut().map(|misshapen| &mut misshapen.site);
        first
            .chain(lines)
            .chain(missing)
            .chain(misshapen)
            .for_each(|site| (site.run, site.sequence) = (run, sequence));
        let place = place.trim_end_matches(['/', ':']);
        self.notes.iter_mut().for_each(|note| note.insert_str(0, &format!("{place}: ")));
        self
    }

    /// Adds the result of the next sequence. The first difference is that of the earliest sequence; a difference of
    /// values precedes one of shapes.
    pub fn join(&mut self, next: Self) {
        let has_value = |first: &Option<First>| first.as_ref().is_some_and(|first| !first.is_shape());
        if self.first.is_none() || has_value(&next.first) && !has_value(&self.first) {
            (self.first, self.diagnosis) = (next.first, next.diagnosis);
            self.written_alone = next.written_alone;
            self.notes.extend(next.notes);
        }
        self.misshapen.extend(next.misshapen);
        self.differences.extend(next.differences);
        self.lines.extend(next.lines);
        self.samples |= next.samples;
        self.missing.extend(next.missing);
        self.absent.extend(next.absent);
        self.empty.extend(next.empty);
        self.unjudged += next.unjudged;
        self.measured |= next.measured;
    }

    /// Returns whether nothing exceeds its tolerance, everything could be read, and no sequence, branch or pass is
    /// absent or empty.
    pub fn same(&self) -> bool {
        self.first.is_none() && self.uncompared().is_none()
    }

    /// A description of what could not be compared: stages that cannot be read, sequences, branches and passes that B
    /// lacks, and passes without a compared stage. `None` if everything was compared.
    pub fn uncompared(&self) -> Option<String> {
        let of = |(what, several): (&str, &str)| match self
            .absent
            .iter()
            .filter(|site| whole(**site) == what)
            .count()
        {
            0 => None,
            1 => Some(format!("a {what}")),
            count => Some(format!("{count} {several}")),
        };
        let kinds = [("sequence", "sequences"), ("branch", "branches"), ("pass", "passes")];
        let absent: Vec<String> = kinds.into_iter().filter_map(of).collect();
        let absent = (!absent.is_empty()).then(|| format!("{} that B does not have", absent.join(" and ")));
        let damaged = self.damaged_stages().map(|stages| format!("{stages} that cannot be read"));
        let empty = match self.empty.len() {
            0 => None,
            1 => Some("a pass in which no stage is compared".to_owned()),
            count => Some(format!("{count} passes in which no stage is compared")),
        };
        let all: Vec<String> = damaged.into_iter().chain(absent).chain(empty).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    }

    /// Stages that exist but cannot be read.
    pub fn damaged(&self) -> impl Iterator<Item = &Missing> {
        self.missing.iter().filter(|missing| missing.damaged)
    }

    /// The number of stages that cannot be read, as text; `None` if all can be.
    pub fn damaged_stages(&self) -> Option<String> {
        match self.damaged().count() {
            0 => None,
            1 => Some("a stage".to_owned()),
            count => Some(format!("{count} stages")),
        }
    }

    /// The smallest tolerance with which every stage would pass. `None` if an error is not finite, or a stage has
    /// another shape.
    pub fn smallest_tolerance(&self) -> Option<f64> {
        let worst = self
            .lines
            .iter()
            .map(|line| line.error)
            .try_fold(0.0, |worst: f64, error| error.is_finite().then(|| worst.max(error)));
        worst.filter(|_| !self.lines.is_empty() && self.misshapen.is_empty())
    }

    /// The mistakes that explain the first difference best. There are several if each leaves an error within the
    /// tolerance: the available values do not tell them apart.
    pub fn likeliest(&self) -> impl Iterator<Item = &Diagnosis> {
        let allowed = self.first.as_ref().and_then(|first| first.tolerance).unwrap_or(0.0);
        let least = self.diagnosis.first().map_or(0.0, |best| best.after);
        self.diagnosis.iter().filter(move |one| one.after <= allowed.max(least))
    }

    /// The growth of errors by layer and after the layers; also before them if errors begin there.
    pub fn growth(&self) -> Vec<Growth> {
        let mut layers: BTreeMap<_, (Vec<&Line>, Option<Site>)> = BTreeMap::new();
        let place = |site: Site| {
            let is_after = !matches!(site.stage.info().section, Section::Start | Section::Layer);
            (site.run, site.sequence, site.pass, is_after, site.layer)
        };
        // The drawn token has no distance.
        let grows = |line: &Line| match line.site.stage.info().section {
            Section::Start => line.differs() && line.site.stage != Stage::Tokens,
            Section::Layer | Section::End => true,
            Section::Sampler => line.site.stage == Stage::Probs,
        };
        for line in self.lines.iter().filter(|line| grows(line)) {
            layers.entry(place(line.site)).or_default().0.push(line);
        }
        for site in self.misshapen.iter().map(|misshapen| misshapen.site) {
            layers.entry(place(site)).or_default().1.get_or_insert(site);
        }
        let order = |apart: f64| if apart.is_nan() { f64::INFINITY } else { apart };
        let growth = |(lines, misshapen): (Vec<&Line>, Option<Site>)| {
            let of = |stage: Stage| lines.iter().find(|line| line.site.stage == stage).map(|line| line.apart);
            let worst = lines.iter().max_by(|a, b| order(a.apart).total_cmp(&order(b.apart)));
            Some(Growth {
                site: worst.map(|worst| worst.site).or(misshapen)?,
                attn_residual: of(Stage::AttnResidual),
                ffn_residual: of(Stage::FfnResidual),
                worst: worst.map(|worst| worst.apart),
                misshapen: misshapen.map(|site| site.stage),
                differs: misshapen.is_some() || lines.iter().any(|line| line.differs()),
            })
        };
        layers.into_values().filter_map(growth).collect()
    }

    /// The report as a JSON object.
    pub fn json(&self) -> Value {
        let first = self.first.as_ref().map(|first| {
            json!({
                "kind": first.kind.name(),
                "address": first.address,
                "ours": first.ours,
                "theirs": first.theirs,
                "error": first.error.map(number),
                "tolerance": first.tolerance.map(number),
            })
        });
        let diagnosis = self
            .diagnosis
            .iter()
            .map(|one| json!({"name": one.name, "form": one.form, "before": number(one.before), "after": number(one.after)}));
        let missing = self.missing.iter().map(|missing| &missing.site).chain(&self.absent);
        let told = self.first.as_ref().and_then(|first| first.site);
        let misshapen = self.misshapen.iter().filter(|one| Some(one.site) != told);
        let misshapen = misshapen.map(|one| format!("{} cannot be compared: {}", one.site, one.why));
        json!({
            "same": self.same(),
            "first": first,
            "smallest_tolerance": self.smallest_tolerance(),
            "missing": missing.map(Site::to_string).collect::<Vec<_>>(),
            "diagnosis": diagnosis.collect::<Vec<_>>(),
            "notes": self.notes.iter().cloned().chain(misshapen).collect::<Vec<_>>(),
        })
    }
}

/// The part of a run that is absent if this site is in [`Report::absent`]: a pass, or, for the first pass, the whole
/// sequence or branch.
pub fn whole(site: Site) -> &'static str {
    match site.run {
        _ if site.pass > 0 => "pass",
        Run::ITSELF => "sequence",
        _ => "branch",
    }
}

impl Kind {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Artifact => "artifact",
            Self::Template => "template",
            Self::Tokens => "tokens",
            Self::Stage => "stage",
        }
    }
}

/// A number in JSON; non-finite numbers become strings.
pub fn number(value: f64) -> Value {
    match value {
        value if value.is_nan() => json!("nan"),
        f64::INFINITY => json!("inf"),
        f64::NEG_INFINITY => json!("-inf"),
        value => json!(value),
    }
}
