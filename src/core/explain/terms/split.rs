//! An attention score, query · key, split by RoPE's pairs, and into content and position.

use super::{Explainer, Operands, single};
use crate::error::{Error, Result};
use crate::explain::rule::{Cell, Fold, Line, Place};
use crate::trace::explanation::Split;

impl<O: Operands> Explainer<'_, O> {
    /// Splits query · key by RoPE's pairs, and into content and position. Content is the product that both tokens would
    /// have at the same position. Position is the rest of the score, the effect of their distance. Both need the values
    /// before RoPE.
    pub(super) fn content_and_position(&mut self, query: Line, key: Line) -> Result<()> {
        let (mut pairs, mut content, mut whole) = (Vec::new(), Ok(0.0), 0.0);
        // Whether both have the same position, like the query and the key of one token.
        let mut together = true;
        // The product of the components that RoPE does not rotate.
        let mut rest = None;
        // Ministral 3 multiplies the rotated queries by a factor.
        let by = match query.place {
            Place::Stage(site) => self.rules.of(site).map_or(1.0, |of| of.cell(query.first).by),
            Place::Weight(..) => 1.0,
        };
        for i in 0..query.count {
            let (of_query, of_key) = match (self.pair(query.cell(i)), self.pair(key.cell(i))) {
                (Some((of_query, false)), Some((of_key, _))) => (of_query, of_key),
                (None, _) => {
                    let product = self.times(query.cell(i), key.cell(i))?;
                    rest = Some(rest.unwrap_or(0.0) + product);
                    continue;
                }
                _ => continue,
            };
            // The two components of the pair have the same indices in the head before and after RoPE.
            let places = of_query.map(|cell| cell.at % query.count);
            let mut after = 0.0;
            for place in places {
                after += self.times(query.cell(place), key.cell(place))?;
            }
            let (angle, name) = (self.angle(query, key, i), pairs.len());
            together &= angle == 0.0;
            let apart = if angle == 0.0 { String::new() } else { format!(", {angle:.4} radians apart") };
            pairs.push((format!("pair {name}{apart}"), after));
            whole += after;
            if let Ok(so_far) = content {
                let [a, b] = [0, 1].map(|n| self.times(of_query[n], of_key[n]));
                content = a.and_then(|a| Ok(so_far + f64::from(by) * (a + b?)));
            }
        }
        // In a layer without RoPE, positions have no effect.
        if pairs.is_empty() {
            return Ok(());
        }
        if let Some(rest) = rest {
            pairs.push(("components without RoPE".to_owned(), rest));
            (whole, content) = (whole + rest, content.map(|content| content + rest));
        }
        match content {
            Ok(content) => {
                let position = ("position: the effect of the distance".to_owned(), whole - content);
                let content = ("content: both tokens at one position".to_owned(), content);
                self.folded.splits.push(Split { by: "content and position", parts: vec![content, position] });
            }
            Err(Error::Usage(_)) if self.operands.is_all() => {
                self.note(
                    "The split into content and position needs the queries and keys before RoPE, and some of them are missing.",
                );
            }
            Err(error) => return Err(error),
        }
        let by = if together {
            "pair of RoPE; both tokens are at one position, 0 radians apart"
        } else {
            "pair of RoPE"
        };
        self.folded.splits.push(Split { by, parts: pairs });
        Ok(())
    }

    /// The product of two numbers.
    fn times(&mut self, a: Cell, b: Cell) -> Result<f64> {
        Ok(f64::from(single(self.operands, a)?) * f64::from(single(self.operands, b)?))
    }

    /// The two values from which RoPE computed `cell`, and whether the cell is the second of its pair. For a key, the
    /// search goes back through repeat-KV and the cache. `None` if there is no RoPE before the cell.
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

    /// The angle between the rotations of a query and a key at component `i`, in radians: query minus key.
    fn angle(&self, query: Line, key: Line, i: usize) -> f64 {
        let Place::Stage(site) = query.place else { return f64::NAN };
        let Some(dims) = self.rules.pass(site.pass) else { return f64::NAN };
        let sizes = self.rules.sizes();
        let width = sizes.heads * sizes.head_dim;
        let (position, key) = (dims.start + query.first / width, key.first / width);
        let pair = self.rules.card().config.pairing.pair_of(i, 2 * sizes.pairs);
        (position as f64 - key as f64) * f64::from(self.rules.angle(site, pair))
    }
}
