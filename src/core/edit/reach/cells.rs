//! Sets of cells of a stage, as products of indices.

/// Indices along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// Every index.
    All,
    /// These indices, in ascending order.
    Some(Vec<usize>),
}

/// The cells whose index along each axis is in the axis's set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cells(pub(super) Vec<Set>);

/// A union of products of indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Region(Vec<Cells>);

impl Set {
    pub(super) fn contains(&self, index: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(indices) => indices.binary_search(&index).is_ok(),
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::Some(Vec::new())
    }

    /// Whether an index of the set is in `range`.
    pub(super) fn meets(&self, range: &std::ops::Range<usize>) -> bool {
        match self {
            Self::All => !range.is_empty(),
            Self::Some(indices) => {
                indices.get(indices.partition_point(|&i| i < range.start)).is_some_and(|i| *i < range.end)
            }
        }
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, set) | (set, Self::All) => set.clone(),
            (Self::Some(own), other) => {
                Self::Some(own.iter().copied().filter(|&i| other.contains(i)).collect())
            }
        }
    }

    fn or(&self, other: &Self) -> Self {
        let (Self::Some(own), Self::Some(other)) = (self, other) else { return Self::All };
        let mut both = [&own[..], other].concat();
        both.sort_unstable();
        both.dedup();
        Self::Some(both)
    }

    fn covers(&self, other: &Self) -> bool {
        match other {
            Self::All => *self == Self::All,
            Self::Some(indices) => indices.iter().all(|&i| self.contains(i)),
        }
    }

    /// The images of the indices.
    pub(super) fn map(&self, to: impl Fn(usize) -> Vec<usize>) -> Self {
        match self {
            Self::All => Self::All,
            Self::Some(indices) => {
                let mut images: Vec<usize> = indices.iter().flat_map(|&i| to(i)).collect();
                images.sort_unstable();
                images.dedup();
                Self::Some(images)
            }
        }
    }
}

impl Cells {
    pub(super) fn contains(&self, index: &[usize]) -> bool {
        self.0.len() == index.len() && self.0.iter().zip(index).all(|(set, &i)| set.contains(i))
    }

    fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(own, other)| own.covers(other))
    }
}

impl Region {
    /// Adds cells. Two products that differ on one axis become one.
    pub(super) fn add(&mut self, mut cells: Cells) {
        if cells.0.iter().any(Set::is_empty) {
            return;
        }
        loop {
            if self.0.iter().any(|own| own.covers(&cells)) {
                return;
            }
            let joins = |own: &Cells| own.0.iter().zip(&cells.0).filter(|(a, b)| a != b).count() <= 1;
            let Some(at) = self.0.iter().position(joins) else { break };
            let own = self.0.swap_remove(at);
            cells = Cells(own.0.iter().zip(&cells.0).map(|(a, b)| a.or(b)).collect());
        }
        self.0.retain(|own| !cells.covers(own));
        self.0.push(cells);
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Cells> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, index: &[usize]) -> bool {
        self.0.iter().any(|cells| cells.contains(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_differ_on_one_axis_join_and_no_cell_is_lost() {
        let some = |indices: &[usize]| Set::Some(indices.to_vec());
        let mut region = Region::default();
        region.add(Cells(vec![some(&[1]), some(&[0, 2])]));
        region.add(Cells(vec![some(&[3]), some(&[0, 2])]));
        assert_eq!(region.0, [Cells(vec![some(&[1, 3]), some(&[0, 2])])]);
        region.add(Cells(vec![some(&[3]), some(&[5])]));
        region.add(Cells(vec![some(&[]), Set::All]));
        let has = |region: &Region| {
            (0..6)
                .flat_map(|a| (0..6).map(move |b| [a, b]))
                .filter(|at| region.contains(at))
                .collect::<Vec<_>>()
        };
        assert_eq!(has(&region), [[1, 0], [1, 2], [3, 0], [3, 2], [3, 5]]);
        region.add(Cells(vec![some(&[3]), Set::All]));
        assert_eq!(has(&region).len(), 2 + 6);
        region.add(Cells(vec![Set::All, Set::All]));
        assert_eq!(region.0.len(), 1);
    }

    #[test]
    fn a_set_meets_a_range_that_has_one_of_its_indices() {
        let set = Set::Some(vec![2, 5]);
        assert_eq!(
            [0..2, 2..3, 3..5, 4..9, 6..9].map(|range| set.meets(&range)),
            [false, true, false, true, false]
        );
        assert!(Set::All.meets(&(0..1)) && !Set::All.meets(&(1..1)));
        assert_eq!(set.and(&Set::Some(vec![5, 7])), Set::Some(vec![5]));
    }
}
