//! Places, and the order of the steps. A place is a step, in a layer or outside the layers, of a pass.

use std::fmt;

use super::screen_option::ScreenOption;
use llama_trace_core::trace::sizes::{PassDims, Sizes};
use llama_trace_core::trace::stage::Section;
use llama_trace_core::trace::{Address, LayerSet, Outline, Run, Site, Stage, Step};

/// One step of one pass. `layer` is set if and only if the step is in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The run.
    pub run: Run,
    /// Number of the sequence in its batch.
    pub sequence: usize,
    /// Number of the pass.
    pub pass: usize,
    /// Number of the layer.
    pub layer: Option<usize>,
    /// The stage or view.
    pub step: Step,
}

impl Place {
    /// The site that holds the step's values.
    pub fn site(self) -> Site {
        let Self { run, sequence, pass, layer, step } = self;
        Site { run, sequence, pass, layer, stage: step.stage() }
    }

    /// `p0/L1/softmax`, and `p0/L1/keys_t` for a view.
    pub fn path(self) -> String {
        self.address(&[])
    }

    /// The address of one value of the step: `p0/L1/softmax[h=2,t=5,k=1]`.
    pub fn address(self, index: &[usize]) -> String {
        Address::of(self.site(), self.step, index).to_string()
    }
}

/// A place to open at. A missing part means the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenAt {
    /// Number of the pass.
    pub pass: Option<usize>,
    /// Number of the layer.
    pub layer: Option<usize>,
    /// Name of a stage or a view.
    pub stage: Option<String>,
    /// Number of the query head.
    pub head: Option<usize>,
    /// An address, which replaces the pass, layer, stage and head.
    pub at: Option<Address>,
    /// Number of passes that the run will have. A later pass is opened once it is there.
    pub passes: usize,
    /// Settings of the screen, with their values.
    pub screen: Vec<(ScreenOption, String)>,
}

impl fmt::Display for OpenAt {
    /// The place as it is typed after `/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = &self.at {
            return write!(f, "{address}");
        }
        write!(f, "p{}", self.pass.unwrap_or(0))?;
        self.layer.map_or(Ok(()), |layer| write!(f, "/L{layer}"))?;
        self.stage.as_ref().map_or(Ok(()), |stage| write!(f, "/{stage}"))
    }
}

impl OpenAt {
    /// Returns whether the address names a token.
    pub(super) fn names_token(&self) -> bool {
        let named = |address: &Address| address.index.iter().any(|(letter, _)| "tq".contains(*letter));
        self.at.as_ref().is_some_and(named)
    }

    /// Number of the named pass.
    pub(super) fn pass(&self) -> Option<usize> {
        self.at.as_ref().map_or(self.pass, |address| address.pass)
    }
}

/// The steps of one pass in their order: before the layers, in each layer, after the layers.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The run.
    pub run: Run,
    /// Number of the sequence.
    pub sequence: usize,
    /// Number of the pass.
    pub pass: usize,
    /// Steps before the layers.
    pub start: Vec<Step>,
    /// Steps of the layers without RoPE, and of those with RoPE.
    kinds: [Vec<Step>; 2],
    /// The number of the first step of each layer, and of the first step after the layers.
    firsts: Vec<usize>,
    /// The layers with RoPE.
    rope_layers: LayerSet,
    /// Number of layers.
    pub layers: usize,
    /// Steps after the layers, including the sampler's.
    pub end: Vec<Step>,
}

/// Returns whether `step` exists in some layer of pass `dims` of a model of `sizes`, or outside the layers.
pub fn present(step: Step, sizes: &Sizes, dims: PassDims) -> bool {
    step.present_in(sizes, dims, None)
}

impl Walk {
    /// The steps of pass number `pass`; of a pass without tokens if the outline has no such pass.
    pub fn new(outline: &Outline, pass: usize) -> Self {
        let none = PassDims { pass, start: 0, tokens: 0, ..PassDims::default() };
        Self::of(outline, outline.passes.get(pass).map_or(none, |pass| pass.dims))
    }

    /// The steps of a pass of these sizes.
    pub fn of(outline: &Outline, dims: PassDims) -> Self {
        let sizes = outline.card.sizes();
        let of = |section, layer| {
            Step::in_section(section).filter(move |&step| step.present_in(&sizes, dims, layer))
        };
        let kinds = [false, true].map(|rope| {
            let layer = (0..sizes.layers).find(|&layer| sizes.has_rope(Some(layer)) == rope);
            layer.map_or(Vec::new(), |layer| of(Section::Layer, Some(layer)).collect())
        });
        let start: Vec<Step> = of(Section::Start, None).collect();
        let mut firsts = vec![start.len()];
        for layer in 0..sizes.layers {
            firsts.push(firsts[layer] + kinds[usize::from(sizes.has_rope(Some(layer)))].len());
        }
        Self {
            run: outline.run,
            sequence: outline.sequence,
            pass: dims.pass,
            start,
            kinds,
            firsts,
            rope_layers: sizes.rope_layers,
            layers: sizes.layers,
            end: of(Section::End, None).chain(of(Section::Sampler, None)).collect(),
        }
    }

    /// The steps of `layer`.
    pub fn layer(&self, layer: usize) -> &[Step] {
        &self.kinds[usize::from(self.rope_layers.contains(layer))]
    }

    /// The steps that some layer has.
    pub fn of_layers(&self) -> impl Iterator<Item = &Step> {
        let [without, with] = &self.kinds;
        with.iter().chain(without.iter().filter(|step| !with.contains(step)))
    }

    /// The number of the first step of `layer`; of the first step after the layers if there are fewer.
    pub fn first_of(&self, layer: usize) -> usize {
        self.firsts[layer.min(self.layers)]
    }

    /// Number of steps of the pass.
    pub fn len(&self) -> usize {
        self.first_of(self.layers) + self.end.len()
    }

    /// Returns whether there are no steps; always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place with this number, counted from 0; the last place if there are fewer.
    pub fn at(&self, number: usize) -> Place {
        let number = number.min(self.len().saturating_sub(1));
        if let Some(&step) = self.start.get(number) {
            return self.place(None, step);
        }
        let layer = self.firsts.partition_point(|&first| first <= number) - 1;
        let index = number - self.firsts[layer];
        if layer < self.layers {
            return self.place(Some(layer), self.layer(layer)[index]);
        }
        self.place(None, self.end.get(index).copied().unwrap_or(Step::Stage(Stage::Tokens)))
    }

    /// A step of this pass.
    pub fn place(&self, layer: Option<usize>, step: Step) -> Place {
        Place { run: self.run, sequence: self.sequence, pass: self.pass, layer, step }
    }

    /// The number of `place`. If its layer of this pass does not have the step (for example a mask), the number of the
    /// step after it.
    pub fn number(&self, place: Place) -> usize {
        let later = |steps: &[Step]| {
            let order = |step: Step| (step.stage(), matches!(step, Step::View(_)));
            let name = place.step.first_of_name();
            let same = steps.iter().position(|step| step.first_of_name() == name);
            same.or_else(|| steps.iter().position(|&step| order(step) > order(place.step)))
                .unwrap_or(steps.len())
        };
        match place.layer {
            Some(layer) if layer < self.layers => self.first_of(layer) + later(self.layer(layer)),
            Some(_) => self.first_of(self.layers),
            None if place.step.stage().info().section == Section::Start => later(&self.start),
            None => self.first_of(self.layers) + later(&self.end),
        }
    }

    /// The place in this pass that corresponds to `place` of any pass.
    pub fn same(&self, place: Place) -> Place {
        self.at(self.number(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::card::ModelCard;
    use llama_trace_core::trace::source::TokenLabel;
    use llama_trace_core::trace::{CacheDtype, Cached, PassOutline};

    fn outline() -> Outline {
        let card = ModelCard::small(|_| {});
        let pass = |pass, start, tokens| PassOutline {
            dims: PassDims { pass, start, tokens, ..PassDims::default() },
            tokens: vec![TokenLabel { id: 1, text: "a".into() }; tokens],
            sampled: Some(TokenLabel { id: 2, text: "b".into() }),
        };
        Outline {
            run: Run::ITSELF,
            fork: None,
            setting: None,
            sequence: 0,
            sequences: 1,
            recorded: false,
            ended: None,
            card,
            passes: vec![pass(0, 0, 3), pass(1, 3, 1)],
            cache: Cached { dtype: CacheDtype::F32, capacity: None },
        }
    }

    #[test]
    fn every_number_names_a_place_and_back() {
        let outline = outline();
        for pass in 0..2 {
            let walk = Walk::new(&outline, pass);
            for number in 0..walk.len() {
                assert_eq!(walk.number(walk.at(number)), number);
            }
        }
    }

    #[test]
    fn a_layer_without_rope_has_no_rotated_queries_and_shows_others_to_attention() {
        let mut outline = outline();
        outline.card = ModelCard::small(|config| config.rope_layers = LayerSet::From(1));
        let walk = Walk::new(&outline, 0);
        for number in 0..walk.len() {
            assert_eq!(walk.number(walk.at(number)), number);
        }
        let names = |layer| walk.layer(layer).iter().map(|step| step.name()).collect::<Vec<_>>();
        let turned: Vec<_> = names(1).into_iter().filter(|name| !names(0).contains(name)).collect();
        assert_eq!(turned, ["xq_rope", "xk_rope"]);
        let source = |layer| {
            let queries = walk.layer(layer).iter().find(|step| step.name() == "queries_t");
            queries.unwrap().stage()
        };
        assert_eq!([source(0), source(1)], [Stage::Xq, Stage::XqRope]);
        let queries = walk.place(Some(1), Step::from_name("queries_t").unwrap());
        assert_eq!(walk.same(Place { layer: Some(0), ..queries }).site().stage, Stage::Xq);
        let rotated = walk.place(Some(0), Step::Stage(Stage::XqRope));
        assert_eq!(walk.same(rotated).step, Step::Stage(Stage::CacheK));
    }

    #[test]
    fn a_step_that_a_pass_lacks_is_answered_with_the_next() {
        let walk = Walk::new(&outline(), 1);
        let before = Walk::new(&outline(), 0);
        let masked = before.place(Some(1), Step::Stage(Stage::MaskedScores));
        assert_eq!(walk.same(masked), walk.place(Some(1), Step::Stage(Stage::Softmax)));
        let mask = before.place(None, Step::Stage(Stage::Mask));
        assert_eq!(walk.same(mask), walk.place(Some(0), Step::Stage(Stage::AttnNorm)));
    }
}
