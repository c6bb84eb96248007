//! What the strip of tokens carries beside their texts: how much each surprised the model, or how much of its attention
//! the head in view gives it.

use llama_trace_core::trace::token_logprobs::{TokenLogprob, TokenLogprobsAt};
use llama_trace_core::trace::{Axis, Query, Region, Site, Stage};

use super::app::App;
use super::carries::Carries;
use super::view::Panels;
use super::view::tokens;

/// Tokens that are asked about at once.
const AT_ONCE: usize = 32;

impl App {
    /// What the strip carries.
    pub fn carries(&self) -> Carries {
        self.carries
    }

    /// The pass that reads the token at `position`, and the token's place in it.
    fn read_at(&self, position: usize) -> Option<(usize, usize)> {
        let passes = &self.outline.passes;
        let pass = passes.partition_point(|pass| pass.dims.start <= position).checked_sub(1)?;
        let dims = passes.get(pass)?.dims;
        (position < dims.keys()).then_some((pass, position - dims.start))
    }

    /// The question how likely a token of a pass was, with those around it.
    pub fn foretold_at(&self, pass: usize, token: usize) -> TokenLogprobsAt {
        let site = Site { pass, layer: None, ..self.place.site() }.other(Stage::Logits);
        let tokens = self.outline.passes.get(pass).map_or(0, |pass| pass.dims.tokens);
        let first = token / AT_ONCE * AT_ONCE;
        TokenLogprobsAt { site, tokens: first..tokens.min(first + AT_ONCE) }
    }

    /// How likely a token of a pass was: none for the first of all. Nothing while that is not known.
    pub fn foretold(&self, pass: usize, token: usize) -> Option<Option<TokenLogprob>> {
        let at = self.foretold_at(pass, token);
        self.answers.told(&at)?.ok()?.get(token - at.tokens.start).cloned()
    }

    /// The layer and the head in view and the query under the cursor, whose attention the strip carries, where a layer
    /// is in view.
    pub fn attends(&self) -> Option<[usize; 3]> {
        let head = self.selected.get(Axis::Head, self.outline.card.sizes().heads);
        Some([self.place.layer?, head, self.selected.get(Axis::Token, self.dims().tokens)])
    }

    /// The weights that the strip carries.
    fn attention(&self) -> Option<(Site, Region)> {
        let ([layer, head, query], dims) = (self.attends()?, self.dims());
        let site = Site { layer: Some(layer), ..self.place.site() }.other(Stage::Softmax);
        Some((site, Region(vec![head..head + 1, query..query + 1, 0..dims.keys()])))
    }

    /// What the strip carries at `position`; nothing where there is nothing, or while it is not known.
    pub fn carried(&self, position: usize) -> Option<f64> {
        match self.carries {
            Carries::Nothing => None,
            Carries::Surprise => {
                let (pass, token) = self.read_at(position)?;
                Some(-f64::from(self.foretold(pass, token)??.log_prob))
            }
            Carries::Attention => {
                let (site, region) = self.attention()?;
                let index = [region.0[0].start, region.0[1].start, position];
                match self.answers.covering(site, &region)?.get(&index)? {
                    llama_trace_core::trace::frame::Number::F32(value) => Some(value.into()),
                    llama_trace_core::trace::frame::Number::I64(_) => None,
                }
            }
        }
    }

    /// What must be known for the strip.
    pub(super) fn strip_questions(&self) -> Vec<Query> {
        let Some(area) = Panels::new(self).tokens else { return Vec::new() };
        let mut questions = Vec::new();
        match self.carries {
            Carries::Nothing => {}
            Carries::Surprise => {
                for (pass, token) in tokens::seen(self, area.width).filter_map(|at| self.read_at(at)) {
                    let query = Query::TokenLogprobs(self.foretold_at(pass, token));
                    if !questions.contains(&query) {
                        questions.push(query);
                    }
                }
            }
            Carries::Attention => {
                questions.extend(self.attention().map(|(site, region)| Query::Block(site, region)));
            }
        }
        questions
    }
}
