//! Layout of the flow diagram: the stages of a layer, or of a whole pass, as boxes with rows, lanes and edges. The
//! whole layout is computed from the inputs in the table of stages.

use llama_trace_core::trace::stage::{Input, Op, Section};
use llama_trace_core::trace::{PassDims, Site, Sizes, Stage};

/// The content of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A stage of the layer, or of the pass outside of the layers.
    Stage(Stage),
    /// The input of the layer.
    Input,
    /// A whole layer, folded.
    Layer(usize),
}

/// A box and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) node: Node,
    /// Row and lane.
    pub(super) at: (usize, usize),
    /// Numbers of the boxes that are its inputs.
    pub(super) reads: Vec<usize>,
    /// Whether the box is a part of the residual stream.
    pub(super) stream: bool,
}

/// Boxes and edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Diagram {
    pub(super) spots: Vec<Spot>,
    pub(super) rows: usize,
}

/// Number of boxes side by side.
pub(super) const LANES: usize = 3;

/// Returns whether a stage is an addition to the residual stream.
fn adds(stage: Stage) -> bool {
    stage.info().op == Op::Add
}

impl Diagram {
    /// The stages of `layer` in pass `dims`.
    pub(super) fn layer(sizes: &Sizes, dims: PassDims, layer: usize) -> Self {
        let stages: Vec<(Stage, Vec<Input>)> = here(Section::Layer, sizes, dims, Some(layer))
            .map(|stage| (stage, Site::layer(dims.pass, layer, stage).inputs(sizes, dims)))
            .collect();
        let readers = |stage: Stage| {
            stages
                .iter()
                .filter(move |(_, inputs)| inputs.contains(&Input::Stage(stage)))
                .map(|(reader, _)| *reader)
        };
        let mut diagram = Self::default();
        diagram.place(Node::Input, Vec::new(), true, (0, 0));
        for (stage, inputs) in &stages {
            let (reads, stream) = (diagram.numbers(inputs), adds(*stage));
            let first = reads.first().map(|&first| &diagram.spots[first]);
            let shared = match first.map(|first| first.node) {
                Some(Node::Stage(first)) => readers(first).count() > 1,
                _ => false,
            };
            let lane = match first {
                _ if stream => 0,
                // Boxes that read the stream, and outputs that are added to the stream, are beside it.
                Some(first) if first.stream => 1,
                _ if readers(*stage).any(adds) => 1,
                Some(first) if !shared => first.at.1,
                _ => 0,
            };
            let row = reads.iter().map(|&read| diagram.below(read, stream)).max().unwrap_or(0);
            diagram.place(Node::Stage(*stage), reads, stream, (row, lane));
        }
        diagram
    }

    /// The stages of pass `dims` outside of the layers, and each layer as one box.
    pub(super) fn pass(sizes: &Sizes, dims: PassDims) -> Self {
        let mut diagram = Self::default();
        for stage in here(Section::Start, sizes, dims, None) {
            let reads = diagram.numbers(&stage.inputs(sizes, dims));
            let row = reads.iter().map(|&read| diagram.below(read, false)).max().unwrap_or(0);
            // The stream begins with the embedding of the tokens.
            let stream = !reads.is_empty();
            let lane = if stream || diagram.spots.is_empty() { 0 } else { 1 };
            diagram.place(Node::Stage(stage), reads, stream, (row, lane));
        }
        for layer in 0..sizes.layers {
            let mut outside: Vec<usize> = Vec::new();
            for stage in here(Section::Layer, sizes, dims, Some(layer)) {
                let inputs = Site::layer(dims.pass, layer, stage).inputs(sizes, dims);
                outside.extend(inputs.iter().filter_map(|input| match input {
                    Input::Stage(stage) => diagram.number(Node::Stage(*stage)),
                    _ => None,
                }));
            }
            outside.sort_unstable();
            outside.dedup();
            let before = diagram.spots.iter().rposition(|spot| spot.stream);
            let reads: Vec<usize> = before.into_iter().chain(outside.iter().copied()).collect();
            let row = reads.iter().map(|&read| diagram.below(read, false)).max().unwrap_or(0);
            diagram.place(Node::Layer(layer), reads, true, (row, 0));
        }
        for stage in here(Section::End, sizes, dims, None).chain(here(Section::Sampler, sizes, dims, None)) {
            let reads = diagram.numbers(&stage.inputs(sizes, dims));
            let row = reads.iter().map(|&read| diagram.below(read, false)).max().unwrap_or(0);
            diagram.place(Node::Stage(stage), reads, false, (row, 0));
        }
        diagram
    }

    /// The first possible row of a box that reads box number `read`.
    fn below(&self, read: usize, joins: bool) -> usize {
        let spot = &self.spots[read];
        // A box that reads the layer's input is in the same row as the input. A box that adds a sublayer's
        // output is in the same row as that output.
        let beside = spot.node == Node::Input && !joins || joins && !spot.stream;
        spot.at.0 + usize::from(!beside)
    }

    /// Adds a box at a row and a lane, or at the next free place beside or below.
    fn place(&mut self, node: Node, reads: Vec<usize>, stream: bool, (row, lane): (usize, usize)) {
        let taken = |at| self.spots.iter().any(|spot| spot.at == at);
        let beside = |row| [lane].into_iter().chain(0..LANES).map(move |lane| (row, lane));
        let at = (row..).flat_map(beside).find(|&at| !taken(at)).unwrap_or((row, lane));
        self.rows = self.rows.max(at.0 + 1);
        self.spots.push(Spot { node, at, reads, stream });
    }

    fn number(&self, node: Node) -> Option<usize> {
        self.spots.iter().position(|spot| spot.node == node)
    }

    /// Numbers of the boxes of these inputs. Inputs without a box are left out.
    fn numbers(&self, inputs: &[Input]) -> Vec<usize> {
        let of = |input: &Input| match input {
            Input::Stage(stage) => self.number(Node::Stage(*stage)),
            // Outside of the layers, the input is the last layer.
            Input::LayerInput => {
                self.number(Node::Input).or_else(|| self.spots.iter().rposition(|spot| spot.stream))
            }
            Input::Positions => None,
        };
        inputs.iter().filter_map(of).collect()
    }

    /// The box at a row and a lane, or else the nearest box of that row.
    pub(super) fn nearest(&self, (row, lane): (usize, usize)) -> Option<usize> {
        let row = self.spots.iter().enumerate().filter(|(_, spot)| spot.at.0 == row);
        row.min_by_key(|(_, spot)| spot.at.1.abs_diff(lane)).map(|(number, _)| number)
    }

    /// Number of lanes that a box can fill: its own lane, and the lanes to its right, up to the first one with a box or
    /// an edge in this row.
    pub(super) fn span(&self, number: usize) -> usize {
        let (row, lane) = self.spots[number].at;
        let crossed = |lane: usize| {
            self.spots.iter().enumerate().any(|(to, spot)| {
                let between = |from: &usize| self.spots[*from].at.0 < row && row < spot.at.0;
                spot.reads.iter().any(|from| between(from) && self.way(*from, to) == lane)
            })
        };
        let free = |lane: &usize| self.spots.iter().all(|spot| spot.at != (row, *lane)) && !crossed(*lane);
        1 + (lane + 1..LANES).take_while(free).count()
    }

    /// The lane in which an edge between two boxes runs down. It is a free lane, if possible the lane of one of the two
    /// boxes.
    pub(super) fn way(&self, from: usize, to: usize) -> usize {
        let (from, to) = (self.spots[from].at, self.spots[to].at);
        let free = |lane: &usize| {
            self.spots.iter().all(|spot| spot.at.1 != *lane || spot.at.0 <= from.0 || spot.at.0 >= to.0)
        };
        [from.1, to.1].into_iter().chain(0..LANES).find(free).unwrap_or(from.1)
    }
}

/// The stages of a section in a pass, in order; of `layer`, if the section is that of the layers.
fn here(
    section: Section,
    sizes: &Sizes,
    dims: PassDims,
    layer: Option<usize>,
) -> impl Iterator<Item = Stage> + '_ {
    let all = Stage::ALL.iter().copied();
    all.filter(move |stage| stage.info().section == section && stage.present_in(sizes, dims, layer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::ModelCard;

    /// Models with and without the optional stages.
    fn models() -> Vec<Sizes> {
        let plain = ModelCard::small(|_| {}).sizes();
        let norms = ModelCard::small(|config| (config.qk_norm, config.window) = (true, Some(2))).sizes();
        let int8 = |sizes: Sizes| Sizes { group: Some(3), ..sizes };
        vec![plain, norms, int8(plain), int8(norms)]
    }

    fn every(mut check: impl FnMut(&Diagram, &Sizes, PassDims, Section)) {
        for sizes in models() {
            for (pass, start, tokens) in [(0, 0, 4), (1, 4, 1)] {
                let dims = PassDims { pass, start, tokens, ..PassDims::default() };
                check(&Diagram::layer(&sizes, dims, 0), &sizes, dims, Section::Layer);
                check(&Diagram::pass(&sizes, dims), &sizes, dims, Section::Start);
            }
        }
    }

    /// The edges are exactly those that the table has between two boxes of the diagram.
    #[test]
    fn the_edges_are_the_inputs_that_the_table_names() {
        every(|diagram, sizes, dims, _| {
            for spot in &diagram.spots {
                let Node::Stage(stage) = spot.node else { continue };
                let inputs = stage.inputs(sizes, dims);
                let named = |node: Node| match node {
                    Node::Stage(other) => inputs.contains(&Input::Stage(other)),
                    Node::Input => inputs.contains(&Input::LayerInput),
                    Node::Layer(layer) => inputs.contains(&Input::LayerInput) && layer + 1 == sizes.layers,
                };
                for (number, other) in diagram.spots.iter().enumerate() {
                    assert_eq!(
                        spot.reads.contains(&number),
                        named(other.node),
                        "{stage} of {:?}",
                        other.node
                    );
                }
            }
        });
    }

    #[test]
    fn each_stage_of_the_table_has_a_box_and_each_box_a_place_of_its_own_below_what_it_reads() {
        every(|diagram, sizes, dims, section| {
            let stages: Vec<Stage> = (diagram.spots.iter())
                .filter_map(|spot| if let Node::Stage(stage) = spot.node { Some(stage) } else { None })
                .collect();
            let expected: Vec<Stage> = (Stage::ALL.iter().copied())
                .filter(|stage| stage.present(sizes, dims) && stage.in_layer() == (section == Section::Layer))
                .collect();
            assert_eq!(stages, expected);
            for (number, spot) in diagram.spots.iter().enumerate() {
                assert!(spot.at.0 < diagram.rows && spot.at.1 < LANES);
                assert!(diagram.spots[..number].iter().all(|other| other.at != spot.at), "{:?}", spot.node);
                for &read in &spot.reads {
                    let read = &diagram.spots[read];
                    let above = read.at.0 < spot.at.0 || read.at.0 == spot.at.0 && read.at.1 != spot.at.1;
                    assert!(above, "{:?} of {:?}", spot.node, read.node);
                }
            }
        });
    }

    #[test]
    fn no_edge_runs_behind_a_box() {
        every(|diagram, _, _, _| {
            for (to, spot) in diagram.spots.iter().enumerate() {
                for &from in spot.reads.iter().filter(|&&from| !diagram.spots[from].stream) {
                    let (way, rows) = (diagram.way(from, to), diagram.spots[from].at.0 + 1..spot.at.0);
                    let behind =
                        diagram.spots.iter().find(|box_| box_.at.1 == way && rows.contains(&box_.at.0));
                    assert_eq!(behind, None, "{:?} → {:?}", diagram.spots[from].node, spot.node);
                }
            }
        });
    }

    #[test]
    fn no_box_is_so_wide_that_it_hides_another_or_an_edge() {
        every(|diagram, _, _, _| {
            let mut wide = 0;
            for (number, spot) in diagram.spots.iter().enumerate() {
                let lanes = spot.at.1 + 1..spot.at.1 + diagram.span(number);
                assert!(lanes.end <= LANES, "{:?}", spot.node);
                wide += usize::from(!lanes.is_empty());
                let hidden = |other: &Spot| other.at.0 == spot.at.0 && lanes.contains(&other.at.1);
                assert!(!diagram.spots.iter().any(hidden), "{:?}", spot.node);
                for (to, reader) in diagram.spots.iter().enumerate() {
                    for &from in &reader.reads {
                        let rows = diagram.spots[from].at.0 + 1..reader.at.0;
                        let behind = rows.contains(&spot.at.0) && lanes.contains(&diagram.way(from, to));
                        assert!(!behind, "{:?} hides what {:?} reads", spot.node, reader.node);
                    }
                }
            }
            assert!(wide > 2, "what stands alone is wide");
        });
    }

    #[test]
    fn the_stream_is_in_the_first_lane() {
        every(|diagram, _, _, _| {
            assert!(diagram.spots.iter().filter(|spot| spot.stream).all(|spot| spot.at.1 == 0));
            assert!(diagram.spots.iter().filter(|spot| spot.stream).count() > 1);
        });
    }
}
