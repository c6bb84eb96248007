//! A score, query · key, split by RoPE's pairs, and into content and position.

use super::{Operands, Taking, single};
use crate::config::Pairing;
use crate::error::Result;
use crate::explain::rule::{Cell, Fold, Line, Place};
use crate::trace::explanation::Split;

impl<O: Operands> Taking<'_, O> {
    /// Splits query · key by RoPE's pairs, and into content, what it would be with both tokens at one position, and
    /// position, what turning the two apart changed.
    pub(super) fn content_and_position(&mut self, query: Line, key: Line) -> Result<()> {
        let (mut pairs, mut content, mut whole) = (Vec::new(), 0.0, 0.0);
        for i in 0..query.count {
            let Some((of_query, false)) = self.pair(query.cell(i)) else { continue };
            let Some((of_key, _)) = self.pair(key.cell(i)) else { continue };
            // Both stand at the same places of a head, before it is turned and after.
            let places = of_query.map(|cell| cell.at % query.count);
            let (mut before, mut after) = (0.0, 0.0);
            for (n, place) in places.into_iter().enumerate() {
                let [q, k] = [of_query[n], of_key[n]];
                before += f64::from(single(self.operands, q)?) * f64::from(single(self.operands, k)?);
                let [q, k] = [query.cell(place), key.cell(place)];
                after += f64::from(single(self.operands, q)?) * f64::from(single(self.operands, k)?);
            }
            let (angle, name) = (self.angle(query, key, i), pairs.len());
            pairs.push((format!("pair {name}, {angle:.4} radians apart"), after));
            content += before;
            whole += after;
        }
        let content = ("content: both tokens at one position".to_owned(), content);
        let position = ("position: what turning them apart changed".to_owned(), whole - content.1);
        self.folded.splits.push(Split { by: "content and position", parts: vec![content, position] });
        self.folded.splits.push(Split { by: "pair of RoPE", parts: pairs });
        Ok(())
    }

    /// The two numbers of which RoPE made `cell`, and whether it is the second of its pair; for a key by way of
    /// repeat-KV and the cache.
    fn pair(&self, mut cell: Cell) -> Option<([Cell; 2], bool)> {
        loop {
            let Place::Stage(site) = cell.place else { return None };
            cell = match self.rules.of(site)?.cell(cell.at).fold {
                Fold::Rotate { pair, second, .. } => return Some((pair, second)),
                Fold::Same { from } | Fold::Cached { from, .. } => from,
                _ => return None,
            };
        }
    }

    /// By how many radians component `i` of a query is turned further than that of a key.
    fn angle(&self, query: Line, key: Line, i: usize) -> f64 {
        let Place::Stage(site) = query.place else { return f64::NAN };
        let Some(dims) = self.rules.pass(site.pass) else { return f64::NAN };
        let sizes = self.rules.sizes();
        let width = sizes.heads * sizes.head_dim;
        let (position, key) = (dims.start + query.first / width, key.first / width);
        let pairs = sizes.head_dim / 2;
        let pair = match self.rules.card().config.pairing {
            Pairing::Halves => i % pairs,
            Pairing::Neighbours => i / 2,
        };
        (position as f64 - key as f64) * f64::from(self.rules.frequency(pair))
    }
}
