//! The slice of a tensor on the screen: one axis goes down, one goes across, and the third is held at one index. Also
//! the selected index on each axis, which stays the same from step to step.

use llama_trace_core::trace::Axis;
use llama_trace_core::trace::sizes::Sizes;

/// Roles of a tensor's axes on the screen. Each axis is given by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The axis that is held at one index, if there are three axes.
    pub held: Option<usize>,
    /// The axis that goes down.
    pub rows: usize,
    /// The axis that goes across, if there are two or more.
    pub columns: Option<usize>,
}

impl Cut {
    /// The cut of a tensor with `axes`. `turn` chooses among the possible cuts; cut 0 fixes a head, so that each head
    /// is a matrix.
    pub fn new(axes: &[Axis], turn: usize) -> Self {
        match axes.len() {
            0 | 1 => Self { held: None, rows: 0, columns: None },
            2 if turn.is_multiple_of(2) => Self { held: None, rows: 0, columns: Some(1) },
            2 => Self { held: None, rows: 1, columns: Some(0) },
            count => {
                let head = axes.iter().position(|axis| matches!(axis, Axis::Head | Axis::KvHead));
                let held = (head.unwrap_or(0) + turn) % count;
                let mut others = (0..count).filter(|&axis| axis != held);
                Self { held: Some(held), rows: others.next().unwrap_or(0), columns: others.next() }
            }
        }
    }

    /// Number of possible cuts of a tensor with `count` axes.
    pub fn choices(count: usize) -> usize {
        count.clamp(1, 3)
    }
}

const AXES: usize = Axis::One as usize + 1;

/// The selected index on every kind of axis. The key/value head is computed from the query head. The index on a merged
/// axis is computed from head and component. So the same number stays under the cursor from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    index: [usize; AXES],
    group: usize,
    head_dim: usize,
}

impl Selected {
    /// Index 0 on every axis.
    pub fn new(sizes: &Sizes) -> Self {
        let group = (sizes.heads / sizes.kv_heads.max(1)).max(1);
        Self { index: [0; AXES], group, head_dim: sizes.head_dim.max(1) }
    }

    /// Number of query heads per key/value head.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The index on `axis`, below `length`.
    pub fn get(&self, axis: Axis, length: usize) -> usize {
        let at = |axis: Axis| self.index[axis as usize];
        let index = match axis {
            Axis::KvHead => at(Axis::Head) / self.group,
            Axis::HeadsMerged => at(Axis::Head) * self.head_dim + at(Axis::HeadDim),
            Axis::KvHeadsMerged => at(Axis::Head) / self.group * self.head_dim + at(Axis::HeadDim),
            axis => at(axis),
        };
        index.min(length.saturating_sub(1))
    }

    /// Selects `index` on `axis`.
    pub fn set(&mut self, axis: Axis, index: usize) {
        match axis {
            Axis::KvHead => {
                let within = self.index[Axis::Head as usize] % self.group;
                self.index[Axis::Head as usize] = index * self.group + within;
            }
            Axis::HeadsMerged => {
                self.index[Axis::Head as usize] = index / self.head_dim;
                self.index[Axis::HeadDim as usize] = index % self.head_dim;
            }
            Axis::KvHeadsMerged => {
                self.set(Axis::KvHead, index / self.head_dim);
                self.index[Axis::HeadDim as usize] = index % self.head_dim;
            }
            axis => self.index[axis as usize] = index,
        }
    }

    /// The selected index of a tensor with these axes and lengths.
    pub fn index(&self, axes: &[Axis], shape: &[usize]) -> Vec<usize> {
        axes.iter().zip(shape).map(|(&axis, &length)| self.get(axis, length)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::ModelCard;

    #[test]
    fn a_head_is_held_first() {
        let axes = [Axis::Token, Axis::Head, Axis::HeadDim];
        assert_eq!(Cut::new(&axes, 0), Cut { held: Some(1), rows: 0, columns: Some(2) });
        assert_eq!(Cut::new(&axes, 1), Cut { held: Some(2), rows: 0, columns: Some(1) });
        assert_eq!(Cut::new(&axes, 2), Cut { held: Some(0), rows: 1, columns: Some(2) });
    }

    #[test]
    fn a_key_head_follows_its_query_head() {
        let sizes =
            ModelCard::small(|config| (config.dim, config.heads, config.kv_heads) = (16, 4, 2)).sizes();
        let mut selected = Selected::new(&sizes);
        selected.set(Axis::Head, 3);
        assert_eq!(selected.get(Axis::KvHead, 2), 1);
        selected.set(Axis::KvHead, 0);
        assert_eq!(selected.get(Axis::Head, 4), 1);
        selected.set(Axis::HeadsMerged, 14);
        assert_eq!((selected.get(Axis::Head, 4), selected.get(Axis::HeadDim, 4)), (3, 2));
        assert_eq!(selected.get(Axis::HeadsMerged, 16), 14);
    }
}
