//! What the viewer has asked its source, and what it was told: by question, so that a view may ask many.

use std::collections::HashMap;
use std::task::Poll;

use llama_trace_core::error::Error;
use llama_trace_core::trace::{Answer, Block, Order, Part, Query, Question, Region, Site, Source, Spread};

/// How far a question has come.
#[derive(Clone, Debug)]
enum Known {
    Pending,
    There(Answer),
    /// Why there is no answer.
    Failed(String),
}

/// The answers so far.
#[derive(Debug, Default)]
pub struct Answers {
    known: HashMap<Query, Known>,
    /// The spread of a part is the same for good, and small.
    spreads: HashMap<Part, Spread>,
}

impl Answers {
    /// Asks `source` what of `wanted` is not known, in this order, and forgets what nobody wants any more; true where
    /// that is news.
    pub(super) fn ask(&mut self, source: &mut dyn Source, wanted: &[Query]) -> bool {
        let mut news = false;
        for query in wanted {
            if self.is_settled(query) {
                // The answer to another question may have what this one waits for.
                if matches!(self.known.get(query), Some(Known::Pending)) {
                    self.known.remove(query);
                    source.cancel(query);
                }
                continue;
            }
            let known = match source.ask(query) {
                Poll::Pending => Known::Pending,
                Poll::Ready(Ok(answer)) => Known::There(answer),
                Poll::Ready(Err(Error::Interrupted(_))) => {
                    Known::Failed("It was stopped. r computes it.".to_owned())
                }
                Poll::Ready(Err(error)) => Known::Failed(error.to_string()),
            };
            if let (Query::Spread(part), Known::There(Answer::Spread(spread))) = (query, &known) {
                self.spreads.insert(*part, *spread);
            }
            let waits = matches!(known, Known::Pending);
            let before = self.known.insert(query.clone(), known);
            news |= !waits || before.is_none();
        }
        self.forget(source, wanted);
        news
    }

    /// Whether there is nothing to ask: the answer is there, or that there is none.
    fn is_settled(&self, query: &Query) -> bool {
        match (query, self.known.get(query)) {
            (_, Some(Known::There(_) | Known::Failed(_))) => true,
            (Query::Block(site, region), _) => {
                self.covering(*site, region).is_some() || self.failure(*site).is_some()
            }
            (Query::Spread(part), _) => self.spreads.contains_key(part),
            _ => false,
        }
    }

    /// Lets go of what is not wanted. Of a stage whose block is on its way another one stays: it is drawn meanwhile.
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
            Known::There(answer) => needed(query, answer),
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

    /// What is on its way from `source` is not waited for any more.
    pub(super) fn leave(&mut self, source: &mut dyn Source) {
        self.known.retain(|query, known| {
            let waits = matches!(known, Known::Pending);
            if waits {
                source.cancel(query);
            }
            !waits
        });
    }

    /// Whether something is on its way.
    pub(super) fn waits(&self) -> bool {
        self.known.values().any(|known| matches!(known, Known::Pending))
    }

    /// What failed or was stopped is asked for again.
    pub(super) fn try_again(&mut self) -> bool {
        let before = self.known.len();
        self.known.retain(|_, known| !matches!(known, Known::Failed(_)));
        self.known.len() < before
    }

    fn blocks(&self, site: Site) -> impl Iterator<Item = &Block> {
        // Its frame may be that of a run that this one parts from, and says so.
        self.known.iter().filter_map(move |known| match known {
            (Query::Block(other, _), Known::There(Answer::Block(block))) if *other == site => Some(block),
            _ => None,
        })
    }

    /// A block of `site` that has what is in `region`.
    pub fn covering(&self, site: Site, region: &Region) -> Option<&Block> {
        self.blocks(site).find(|block| block.region.covers(region))
    }

    /// A block of `site` that has what is in `region`, or any until that comes.
    pub fn block(&self, site: Site, region: &Region) -> Option<&Block> {
        self.covering(site, region).or_else(|| self.blocks(site).next())
    }

    /// Why there is no block of `site`. One that failed or was stopped is not asked for again by moving about in it.
    pub fn failure(&self, site: Site) -> Option<&str> {
        self.known.iter().find_map(|(query, known)| match (query, known) {
            (Query::Block(other, _), Known::Failed(reason)) if *other == site => Some(&**reason),
            _ => None,
        })
    }

    /// What was answered, or why there is no answer; none as long as nobody knows.
    pub fn told<Q: Question>(&self, question: &Q) -> Option<Result<&Q::Told, &str>> {
        match self.known.get(&question.clone().into())? {
            Known::There(answer) => Q::told(answer).map(Ok),
            Known::Failed(reason) => Some(Err(reason)),
            Known::Pending => None,
        }
    }

    /// How far the values of `part` spread, once that is known.
    pub fn spread(&self, part: Part) -> Option<Spread> {
        self.spreads.get(&part).copied()
    }

    /// The indices of `part`'s values, the largest first, once they are known.
    pub fn order(&self, part: Part) -> Option<&Order> {
        match self.known.get(&Query::Order(part)) {
            Some(Known::There(Answer::Order(order))) => Some(order),
            _ => None,
        }
    }
}

/// Whether a failure of one question is that of the other: blocks of a stage fail together.
fn is_alike(one: &Query, other: &Query) -> bool {
    match (one, other) {
        (Query::Block(site, _), Query::Block(other, _)) => site == other,
        _ => one == other,
    }
}
