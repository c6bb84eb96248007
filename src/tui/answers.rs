//! The source's answers, stored by question, so that one view can ask many questions; and the texts of tokens.

use std::collections::HashMap;
use std::task::Poll;

use llama_trace_core::error::Error;
use llama_trace_core::trace::{Answer, Block, Order, Part, Query, Question, Region, Site, Source, Spread};

use super::bins::BinCache;

/// State of a question.
#[derive(Clone, Debug)]
enum Known {
    Pending,
    Answered(Answer),
    /// The reason why there is no answer.
    Failed(String),
}

/// The answers so far.
#[derive(Debug, Default)]
pub struct Answers {
    known: HashMap<Query, Known>,
    /// Spreads. They never change and are small, so they are never dropped.
    spreads: HashMap<Part, Spread>,
    /// Texts of the vocabulary's tokens that were fetched so far.
    texts: HashMap<u32, String>,
    pub(super) bins: BinCache,
}

impl Answers {
    /// Asks `source` the unanswered questions of `wanted`, in this order, and drops the answers to other questions.
    /// Returns true if the answers changed.
    pub(super) fn ask(&mut self, source: &mut dyn Source, wanted: &[Query]) -> bool {
        let mut news = false;
        for query in wanted {
            if self.is_settled(query) {
                // The answer to another question may cover this one.
                if matches!(self.known.get(query), Some(Known::Pending)) {
                    self.known.remove(query);
                    source.cancel(query);
                }
                continue;
            }
            let known = match source.ask(query) {
                Poll::Pending => Known::Pending,
                Poll::Ready(Ok(answer)) => Known::Answered(answer),
                Poll::Ready(Err(Error::Interrupted(_))) => {
                    Known::Failed("The computation was stopped. r starts it again.".to_owned())
                }
                Poll::Ready(Err(error)) => Known::Failed(error.to_string()),
            };
            if let (Query::Spread(part), Known::Answered(Answer::Spread(spread))) = (query, &known) {
                self.spreads.insert(*part, *spread);
            }
            let waits = matches!(known, Known::Pending);
            let before = self.known.insert(query.clone(), known);
            news |= !waits || before.is_none();
        }
        self.forget(source, wanted);
        news
    }

    /// Returns whether the question was answered or has failed, so that it is not asked again.
    fn is_settled(&self, query: &Query) -> bool {
        match (query, self.known.get(query)) {
            (_, Some(Known::Answered(_) | Known::Failed(_))) => true,
            (Query::Block(site, region), _) => {
                self.covering(*site, region).is_some() || self.failure(*site).is_some()
            }
            (Query::Spread(part), _) => self.spreads.contains_key(part),
            _ => false,
        }
    }

    /// Drops the answers that are not wanted. While one block of a stage is pending, the stage's other blocks stay and
    /// are drawn.
    fn forget(&mut self, source: &mut dyn Source, wanted: &[Query]) {
        let waiting: Vec<Site> = wanted
            .iter()
            .filter_map(|query| match query {
                Query::Block(site, region) if self.covering(*site, region).is_none() => Some(*site),
                _ => None,
            })
            .collect();
        let needed = |query: &Query, answer: &Answer| match (query, answer) {
            (Query::Block(site, _), Answer::Block(block)) => {
                let covers = |other: &Query| match other {
                    Query::Block(other, region) => other == site && block.region.covers(region),
                    _ => false,
                };
                waiting.contains(site) || wanted.iter().any(covers)
            }
            _ => wanted.contains(query),
        };
        self.known.retain(|query, known| match known {
            Known::Answered(answer) => needed(query, answer),
            Known::Failed(_) => wanted.iter().any(|other| is_alike(query, other)),
            Known::Pending => {
                let stays = wanted.contains(query);
                if !stays {
                    source.cancel(query);
                }
                stays
            }
        });
    }

    /// Drops all values that are there.
    pub(super) fn drop_values(&mut self) {
        self.known.retain(|_, known| matches!(known, Known::Pending));
        self.spreads.clear();
        self.bins = BinCache::default();
    }

    /// Cancels all pending questions to `source`.
    pub(super) fn leave(&mut self, source: &mut dyn Source) {
        self.known.retain(|query, known| {
            let waits = matches!(known, Known::Pending);
            if waits {
                source.cancel(query);
            }
            !waits
        });
    }

    /// Returns whether a question is pending.
    pub(super) fn waits(&self) -> bool {
        self.known.values().any(|known| matches!(known, Known::Pending))
    }

    /// Forgets failures, so that the failed questions are asked again; false if there were none.
    pub(super) fn retry(&mut self) -> bool {
        let before = self.known.len();
        self.known.retain(|_, known| !matches!(known, Known::Failed(_)));
        self.known.len() < before
    }

    fn blocks(&self, site: Site) -> impl Iterator<Item = &Block> {
        // Compares the site in the question, not the site in the frame. A branch may share a frame of its parent, and
        // such a frame has the parent's site.
        self.known.iter().filter_map(move |known| match known {
            (Query::Block(other, _), Known::Answered(Answer::Block(block))) if *other == site => Some(block),
            _ => None,
        })
    }

    /// A block of `site` that covers `region`.
    pub fn covering(&self, site: Site, region: &Region) -> Option<&Block> {
        self.blocks(site).find(|block| block.region.covers(region))
    }

    /// A block of `site` that covers `region`. Until that block has come, any other block of `site`.
    pub fn block(&self, site: Site, region: &Region) -> Option<&Block> {
        self.covering(site, region).or_else(|| self.blocks(site).next())
    }

    /// The reason why `site` failed. After a failure no other block of the site is asked for, so that moving the cursor
    /// does not repeat the failure.
    pub fn failure(&self, site: Site) -> Option<&str> {
        self.known.iter().find_map(|(query, known)| match (query, known) {
            (Query::Block(other, _), Known::Failed(reason)) if *other == site => Some(&**reason),
            _ => None,
        })
    }

    /// The answer to `question`, or the reason why it failed; none while it is pending.
    pub fn get<Q: Question>(&self, question: &Q) -> Option<Result<&Q::Told, &str>> {
        match self.known.get(&question.clone().into())? {
            Known::Answered(answer) => Q::told(answer).map(Ok),
            Known::Failed(reason) => Some(Err(reason)),
            Known::Pending => None,
        }
    }

    /// The spread of the values of `part`, once it is known.
    pub fn spread(&self, part: Part) -> Option<Spread> {
        self.spreads.get(&part).copied()
    }

    /// The indices of `part`'s values in descending order, once they are known.
    pub fn order(&self, part: Part) -> Option<&Order> {
        match self.known.get(&Query::Order(part)) {
            Some(Known::Answered(Answer::Order(order))) => Some(order),
            _ => None,
        }
    }

    /// The text of a token of the vocabulary, once it was fetched.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(&id).map(|text| &**text)
    }

    /// Fetches the missing texts of `ids`; true if any text was missing.
    pub(super) fn fetch_texts(&mut self, source: &dyn Source, ids: &[u32]) -> bool {
        let before = self.texts.len();
        for &id in ids {
            self.texts.entry(id).or_insert_with(|| source.token_text(id));
        }
        self.texts.len() > before
    }
}

/// Returns whether two questions fail together. Questions for blocks of one stage do.
fn is_alike(one: &Query, other: &Query) -> bool {
    match (one, other) {
        (Query::Block(site, _), Query::Block(other, _)) => site == other,
        _ => one == other,
    }
}
