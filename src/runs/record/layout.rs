//! The layout of a trace: the tensor of each stage, and the position of each pass in it.

use std::fmt;

use super::branch::Branch;
use llama_trace_core::trace::{Axis, PassDims, Run, Site, Sizes, Stage};

/// A course: the passes of a sequence, or the passes that a branch does not share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Course {
    /// Its number: sequences come first, then branches. Sites of a layout use it as their sequence.
    pub number: usize,
    /// The run.
    pub run: Run,
    /// Number of the sequence.
    pub sequence: usize,
}

/// The passes of a course that share a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The pass over the prompt.
    Prompt,
    /// All later passes, with one token each.
    Decode,
}

/// The key of a tensor that holds a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its course; `None` if all courses share the tensor.
    pub course: Option<Course>,
    /// The passes.
    pub part: Part,
    /// The layer, if the stage has one.
    pub layer: Option<usize>,
    /// The stage.
    pub stage: Stage,
}

/// The range of a key's sites in the group of the key.
struct Range {
    from: usize,
    to: usize,
}

/// The prompt passes, or the later passes, of all courses in order. `before` has prefix sums of their tokens and keys,
/// by [`Weight`]: over all passes, and over those that hide a key.
#[derive(Clone, Debug, Default)]
struct Group {
    passes: Vec<Site>,
    dims: Vec<PassDims>,
    before: Vec<[[usize; 4]; 2]>,
    /// The first pass of each course.
    first: Vec<usize>,
}

/// The passes of a run, and the position of each of their stages.
#[derive(Clone, Debug)]
pub struct Layout {
    sizes: Sizes,
    groups: [Group; 2],
    courses: Vec<Course>,
    branches: Vec<Branch>,
    shared: bool,
}

/// If there would be more tensors than this, all courses share their tensors.
const MOST_TENSORS: usize = 4000;

impl Layout {
    /// The layout of a run with these passes: those of each sequence, numbered from 0, then the unshared ones of each
    /// of `branches`. Every pass of a sequence except the first reads one token. `stages` are the stages that have a
    /// tensor.
    pub fn new(sizes: Sizes, passes: &[Vec<PassDims>], branches: &[Branch], stages: &[Stage]) -> Self {
        let mut groups = [Group::default(), Group::default()];
        for (course, passes) in passes.iter().enumerate() {
            for group in &mut groups {
                group.first.push(group.dims.len());
            }
            for dims in passes {
                groups[usize::from(dims.pass > 0)].push(course, *dims, &sizes);
            }
        }
        for group in &mut groups {
            group.first.push(group.dims.len());
        }
        let layers = stages.iter().filter(|stage| stage.in_layer()).count();
        let each = 2 * (layers.saturating_mul(sizes.layers) + stages.len() - layers);
        let shared = passes.len() > 1 && passes.len().saturating_mul(each) > MOST_TENSORS;
        let sequences = passes.len() - branches.len();
        let itself = (0..sequences).map(|sequence| (Run::ITSELF, sequence));
        let all = itself.chain((1..).map(Run).zip(branches.iter().map(|branch| branch.sequence)));
        let courses =
            all.enumerate().map(|(number, (run, sequence))| Course { number, run, sequence }).collect();
        Self { sizes, groups, courses, branches: branches.to_vec(), shared }
    }

    /// The sizes of the model.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// All courses.
    pub fn courses(&self) -> &[Course] {
        &self.courses
    }

    /// The branches.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// The sizes of pass `pass` of course number `course`.
    pub fn dims(&self, course: usize, pass: usize) -> Option<PassDims> {
        let (group, at) = self.at(course, pass)?;
        group.dims.get(at).copied()
    }

    /// All passes, as course and sizes.
    pub fn passes(&self) -> impl Iterator<Item = (usize, PassDims)> + '_ {
        (0..self.courses.len()).flat_map(move |course| {
            let of = move |group: &Group| group.first[course]..group.first[course + 1];
            let [prompt, decode] = &self.groups;
            let first = of(prompt).map(move |at| (course, prompt.dims[at]));
            first.chain(of(decode).map(move |at| (course, decode.dims[at])))
        })
    }

    fn at(&self, course: usize, pass: usize) -> Option<(&Group, usize)> {
        let group = &self.groups[usize::from(pass > 0)];
        let (first, end) = (*group.first.get(course)?, *group.first.get(course + 1)?);
        // The first pass of a branch has a number above 0.
        let at = first + pass.checked_sub(group.dims.get(first)?.pass)?;
        (at < end).then_some((group, at))
    }

    /// Every tensor of `stages`, in the order of the file.
    pub fn keys<'a>(&'a self, stages: &'a [Stage]) -> impl Iterator<Item = Key> + 'a {
        let owners = if self.shared { 0..1 } else { 0..self.courses.len() };
        let layers = self.sizes.layers;
        let start = stages.iter().copied().take_while(|stage| !stage.in_layer());
        let inside = move || stages.iter().copied().filter(|stage| stage.in_layer());
        let end =
            stages.iter().copied().skip_while(|stage| !stage.in_layer()).filter(|stage| !stage.in_layer());
        let places = move || {
            let inside = (0..layers).flat_map(move |layer| inside().map(move |stage| (Some(layer), stage)));
            start
                .clone()
                .map(|stage| (None, stage))
                .chain(inside)
                .chain(end.clone().map(|stage| (None, stage)))
        };
        let keys = owners.flat_map(move |owner| {
            let places = places.clone();
            [Part::Prompt, Part::Decode].into_iter().flat_map(move |part| {
                let course = self.courses.get(owner).copied().filter(|_| !self.shared);
                places().map(move |(layer, stage)| Key { course, part, layer, stage })
            })
        });
        keys.filter(|key| self.is_in_layer(*key) && self.rows(*key) > 0)
    }

    /// The tensor of `site`.
    pub fn key(&self, site: Site) -> Key {
        let part = if site.pass == 0 { Part::Prompt } else { Part::Decode };
        let course = self.courses.get(site.sequence).copied().filter(|_| !self.shared);
        Key { course, part, layer: site.layer, stage: site.stage }
    }

    fn group(&self, key: Key) -> (&Group, Range) {
        let group = &self.groups[usize::from(key.part == Part::Decode)];
        let range = match key.course {
            Some(Course { number, .. }) => Range { from: group.first[number], to: group.first[number + 1] },
            None => Range { from: 0, to: group.dims.len() },
        };
        (group, range)
    }

    /// Whether the layer of the tensor has the stage, in a model whose layers differ.
    fn is_in_layer(&self, key: Key) -> bool {
        let dims = PassDims { tokens: 2, ..PassDims::default() };
        key.stage.present_in(&self.sizes, dims, key.layer) || !key.stage.present(&self.sizes, dims)
    }

    /// The number of passes in the tensor, which is also its number of rows in the tables.
    pub fn rows(&self, key: Key) -> usize {
        let (group, range) = self.group(key);
        group.between(key.stage, Weight::One, &range)
    }

    /// The number of values in the tensor.
    pub fn count(&self, key: Key) -> usize {
        let (group, range) = self.group(key);
        let (weight, unit) = self.unit(key.stage);
        group.between(key.stage, weight, &range).saturating_mul(unit)
    }

    /// The sites in the tensor, in order.
    pub fn sites(&self, key: Key) -> impl Iterator<Item = Site> + '_ {
        let (group, range) = self.group(key);
        let sites = (range.from..range.to).filter(move |&at| key.stage.present(&self.sizes, group.dims[at]));
        sites.map(move |at| Site { layer: key.layer, stage: key.stage, ..group.passes[at] })
    }

    /// The row of `site` among the table rows of its tensor, and the index of its first value in the tensor. `None` if
    /// there is no such site.
    pub fn place(&self, site: Site) -> Option<(usize, usize)> {
        let (group, at) = self.at(site.sequence, site.pass)?;
        if !site.present(&self.sizes, group.dims[at]) {
            return None;
        }
        let (_, range) = self.group(self.key(site));
        let before = Range { from: range.from, to: at };
        let (weight, unit) = self.unit(site.stage);
        let values = group.between(site.stage, weight, &before).saturating_mul(unit);
        Some((group.between(site.stage, Weight::One, &before), values))
    }

    /// The number of blocks of `block` bytes up to each site, as running totals that begin with 0. Each site starts a
    /// new block.
    pub fn blocks(&self, key: Key, block: usize) -> Vec<usize> {
        let sites = self.sites(key).filter_map(|site| self.dims(site.sequence, site.pass));
        let ends = sites.scan(0_usize, |end, dims| {
            let shape = self.sizes.shape(key.stage.axes(), dims);
            let bytes = shape.into_iter().fold(key.stage.value_bytes(), usize::saturating_mul);
            *end = end.saturating_add(bytes.div_ceil(block));
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// The shape of the tensor.
    pub fn shape(&self, key: Key) -> Vec<usize> {
        let axes = key.stage.axes();
        let (group, range) = self.group(key);
        if key.part == Part::Prompt && key.course.is_some() {
            return self.sizes.shape(axes, group.dims[range.from]);
        }
        if axes.contains(&Axis::Key) {
            return vec![self.count(key)];
        }
        let nothing = PassDims { pass: 0, start: 0, tokens: 1, ..PassDims::default() };
        let mut shape = self.sizes.shape(axes, nothing);
        match axes[0] {
            Axis::Token | Axis::One => {
                shape[0] = self.count(key) / shape[1..].iter().product::<usize>().max(1);
            }
            _ => shape.insert(0, self.rows(key)),
        }
        shape
    }

    /// The number of values of a stage as two factors: the factor that depends on the pass (tokens, keys, both, or
    /// neither), and the product of the other factors.
    fn unit(&self, stage: Stage) -> (Weight, usize) {
        let axes = stage.axes();
        let weight = match (axes.contains(&Axis::Token), axes.contains(&Axis::Key)) {
            (false, false) => Weight::One,
            (true, false) => Weight::Tokens,
            (false, true) => Weight::Keys,
            (true, true) => Weight::Both,
        };
        let one = PassDims { pass: 0, start: 0, tokens: 1, ..PassDims::default() };
        (weight, self.sizes.shape(axes, one).iter().product())
    }
}

/// The quantity that is summed over passes: 1, tokens, keys, or tokens times keys.
#[derive(Clone, Copy)]
enum Weight {
    One,
    Tokens,
    Keys,
    Both,
}

impl Group {
    fn push(&mut self, course: usize, dims: PassDims, sizes: &Sizes) {
        let PassDims { tokens, .. } = dims;
        let (keys, hides) = (dims.keys(), usize::from(sizes.hides(dims)));
        let own = [1, tokens, keys, tokens.saturating_mul(keys)];
        let last = self.before.last().copied().unwrap_or_default();
        if self.before.is_empty() {
            self.before.push(last);
        }
        let mut next = last;
        for (i, own) in own.into_iter().enumerate() {
            next[0][i] = last[0][i].saturating_add(own);
            next[1][i] = last[1][i].saturating_add(own * hides);
        }
        self.before.push(next);
        self.passes.push(Site { sequence: course, ..Site::once(dims.pass, Stage::Tokens) });
        self.dims.push(dims);
    }

    /// The sum over those passes of a range that have `stage`.
    fn between(&self, stage: Stage, weight: Weight, range: &Range) -> usize {
        let hiding = usize::from(stage.info().exists == llama_trace_core::trace::stage::Exists::Hiding);
        let sum = |at: usize| self.before.get(at).map_or(0, |sums| sums[hiding][weight as usize]);
        sum(range.to) - sum(range.from)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.course {
            None => write!(f, "s*/")?,
            Some(Course { run, sequence, .. }) => {
                if run != Run::ITSELF {
                    write!(f, "{run}/")?;
                }
                if sequence != 0 {
                    write!(f, "s{sequence}/")?;
                }
            }
        }
        write!(f, "{}", if self.part == Part::Prompt { "p0/" } else { "decode/" })?;
        if let Some(layer) = self.layer {
            write!(f, "L{layer}/")?;
        }
        write!(f, "{}", self.stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::ModelCard;

    fn passes(prompt: usize, draws: usize) -> Vec<PassDims> {
        let decode = (1..draws).map(|pass| PassDims {
            pass,
            start: prompt + pass - 1,
            tokens: 1,
            ..PassDims::default()
        });
        [PassDims { pass: 0, start: 0, tokens: prompt, ..PassDims::default() }]
            .into_iter()
            .chain(decode)
            .collect()
    }

    #[test]
    fn the_sites_of_a_tensor_lie_side_by_side_and_fill_it() {
        let sizes = ModelCard::small(|config| config.window = Some(6)).sizes();
        let one = Layout::new(sizes, &[passes(3, 8), passes(5, 4)], &[], Stage::ALL);
        let many = vec![passes(2, 5); 1000];
        let branch = Branch { sequence: 1, of: Run::ITSELF, pass: 1, token: 7 };
        let own = passes(5, 4).split_off(2);
        let parted = Layout::new(sizes, &[passes(3, 8), passes(5, 4), own], &[branch], Stage::ALL);
        for layout in [one, Layout::new(sizes, &many, &[], Stage::ALL), parted] {
            let stages: Vec<_> =
                Stage::ALL.iter().copied().filter(|stage| stage.present(&sizes, many[0][0])).collect();
            let mut sites = 0;
            for key in layout.keys(&stages) {
                let mut end = 0;
                for (row, site) in layout.sites(key).enumerate() {
                    assert_eq!(layout.place(site), Some((row, end)), "{site}");
                    let dims = layout.dims(site.sequence, site.pass).unwrap();
                    end += sizes.shape(site.stage.axes(), dims).iter().product::<usize>();
                    sites += 1;
                }
                assert_eq!((end, layout.shape(key).iter().product()), (layout.count(key), end), "{key}");
            }
            let all = layout.passes().map(|(_, dims)| Site::all(&sizes, dims).len()).sum::<usize>();
            assert_eq!(sites, all);
            assert_eq!(layout.place(Site::once(99, Stage::Logits)), None);
        }
    }

    #[test]
    fn names_are_addresses() {
        let sizes = ModelCard::small(|_| ()).sizes();
        let branches =
            [(0, 0), (1, 1)].map(|(sequence, of)| Branch { sequence, of: Run(of), pass: 1, token: 7 });
        let own = || passes(3, 3).split_off(2);
        let all = [passes(3, 2), passes(5, 2), own(), own()];
        let layout = Layout::new(sizes, &all, &branches, &[Stage::Xq]);
        let names: Vec<_> = layout.keys(&[Stage::Xq]).map(|key| key.to_string()).collect();
        assert_eq!(names[..2], ["p0/L0/xq", "p0/L1/xq"]);
        assert_eq!(names[6..9], ["s1/decode/L0/xq", "s1/decode/L1/xq", "r1/decode/L0/xq"]);
        assert_eq!(names[10..], ["r2/s1/decode/L0/xq", "r2/s1/decode/L1/xq"]);
        let layout = Layout::new(sizes, &vec![passes(3, 2); 3000], &[], &[Stage::Xq]);
        assert_eq!(layout.keys(&[Stage::Xq]).next().unwrap().to_string(), "s*/p0/L0/xq");
    }
}
