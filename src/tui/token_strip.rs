//! Values of the token strip: how much each token surprised the model, or how much attention the current head pays to
//! it.

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::token_logprobs::{TokenLogprob, TokenLogprobsAt};
use llama_trace_core::trace::{Axis, Query, Region, Site, Stage};

use super::app::App;
use super::strip_values::StripValues;
use super::view::Panels;
use super::view::tokens;

/// Number of tokens in one query.
const AT_ONCE: usize = 32;

impl App {
    /// The kind of values on the strip.
    pub fn strip(&self) -> StripValues {
        self.strip
    }

    /// The pass that reads the token at `position`, and the token's row in it.
    fn read_at(&self, position: usize) -> Option<(usize, usize)> {
        let passes = &self.outline.passes;
        let pass = passes.partition_point(|pass| pass.dims.start <= position).checked_sub(1)?;
        let dims = passes.get(pass)?.dims;
        (position < dims.keys()).then_some((pass, position - dims.start))
    }

    /// The question for the probability that the model gave a token of a pass. It covers neighbouring tokens too.
    pub fn logprob_question(&self, pass: usize, token: usize) -> TokenLogprobsAt {
        let site = Site { pass, layer: None, ..self.place.site() }.other(Stage::Logits);
        let tokens = self.outline.passes.get(pass).map_or(0, |pass| pass.dims.tokens);
        let first = token / AT_ONCE * AT_ONCE;
        TokenLogprobsAt { site, tokens: first..tokens.min(first + AT_ONCE) }
    }

    /// The log-probability of a token of a pass; `Some(None)` for the first token of the text. None until it is known.
    pub fn token_logprob(&self, pass: usize, token: usize) -> Option<Option<TokenLogprob>> {
        let at = self.logprob_question(pass, token);
        self.answers.get(&at)?.ok()?.get(token - at.tokens.start).cloned()
    }

    /// Layer, head and query of the attention on the strip; none outside the layers.
    pub fn strip_query(&self) -> Option<[usize; 3]> {
        let head = self.cursor.selected.get(Axis::Head, self.outline.card.sizes().heads);
        Some([self.place.layer?, head, self.cursor.selected.get(Axis::Token, self.dims().tokens)])
    }

    /// The attention weights of the strip, as a region of the stage `softmax`.
    fn attention(&self) -> Option<(Site, Region)> {
        let ([layer, head, query], dims) = (self.strip_query()?, self.dims());
        let site = Site { layer: Some(layer), ..self.place.site() }.other(Stage::Softmax);
        Some((site, Region(vec![head..head + 1, query..query + 1, 0..dims.keys()])))
    }

    /// The value at `position`. None if there is none or it is not known yet.
    pub fn strip_value(&self, position: usize) -> Option<f64> {
        match self.strip {
            StripValues::Nothing => None,
            StripValues::Surprise => {
                let (pass, token) = self.read_at(position)?;
                Some(-f64::from(self.token_logprob(pass, token)??.log_prob))
            }
            StripValues::Attention => {
                let (site, region) = self.attention()?;
                let index = [region.0[0].start, region.0[1].start, position];
                match self.answers.covering(site, &region)?.get(&index)? {
                    Number::F32(value) => Some(value.into()),
                    Number::I64(_) => None,
                }
            }
        }
    }

    /// The questions of the strip.
    pub(super) fn strip_questions(&self) -> Vec<Query> {
        let Some(area) = Panels::new(self).tokens else { return Vec::new() };
        let mut questions = Vec::new();
        match self.strip {
            StripValues::Nothing => {}
            StripValues::Surprise => {
                for (pass, token) in
                    tokens::visible_positions(self, area.width).filter_map(|at| self.read_at(at))
                {
                    let query = Query::TokenLogprobs(self.logprob_question(pass, token));
                    if !questions.contains(&query) {
                        questions.push(query);
                    }
                }
            }
            StripValues::Attention => {
                questions.extend(self.attention().map(|(site, region)| Query::Block(site, region)));
            }
        }
        questions
    }
}
