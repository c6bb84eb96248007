//! The screen. Each panel has its own file, and drawing changes nothing.
//!
//! ```text
//!  llama-trace  stories-260k · cpu f32     pass 0 (prefill) · layer 1 of 0-4 · step 17 of 150   title
//!  <s>│Once│␣upon│␣a│␣time│ → ,                                                                 tokens
//! ─ outline ──────────────┬─ tensor ───────────────────────────────┬─ notes ─────────────────
//!  p0 prefill 5 tokens    │ softmax  head 4 × token 5 × key 5 …    │ softmax
//!   tokens (5)            │ head 2 of 0-3 · ↓ token · → key        │ the formula, with sizes
//!   …                     │         <s> Once ␣upon ␣a ␣time        │ inputs and output
//!   layer 1               │ 0 <s>    ▓                             │ what it is for
//!    attn_norm (5, 64)    │ 1 Once   ▒   ░                         │ names elsewhere
//!    softmax (4, 5, 5)    │ colours, statistics, the cursor's cell │ the chapter
//!  n p step  / go to  ? help  q quit                                                        footer
//! ```

pub mod attribution;
pub mod bars;
pub mod branches;
pub mod cache;
pub mod chapters;
pub mod common_factors;
pub mod derivation;
mod diagram;
pub mod difference;
mod earlier_rows;
mod edges;
pub mod edits;
pub mod figure;
pub mod flow;
pub mod footer;
pub mod goto;
pub mod grid;
mod half_blocks;
pub mod heads;
pub mod heatmap;
pub mod help;
pub mod histogram;
pub mod kind;
pub mod labels;
pub mod layers;
pub mod layout;
pub mod legend;
pub mod lens;
pub mod lesson;
pub mod list;
pub mod markdown;
pub mod neurons;
pub mod notes;
pub mod numbers;
pub mod outline;
pub mod overview;
pub mod paint;
pub mod patch;
pub mod pieces;
pub mod residual;
pub mod rope;
pub mod sampler;
pub mod tensor;
pub mod tensor_foot;
mod thumbnail;
pub mod title;
pub mod tokens;
pub mod too_small;
pub mod view_list;
pub mod views;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use ratatui::widgets::Widget;

use llama_trace_picture::Paper;

use super::app::App;
use super::input::Mode;
use super::panel_state::Focus;
use super::theme::Depth;

/// Columns and rows of the smallest screen that is drawn on.
pub const SMALLEST: (u16, u16) = (60, 16);

/// Columns that the tensor needs beside the notes.
const TENSOR: u16 = 55;

/// Columns that the tensor needs beside the words of a lesson.
const NARROW: u16 = 36;

/// Minimum and maximum columns of the words of a lesson.
const WORDS: (u16, u16) = (34, 76);

/// A screen with fewer columns has no panels beside the tensor.
const BESIDE: u16 = 72;

/// Minimum lines of the words of a lesson under two compared tensors.
const FEWEST: u16 = 4;

/// Minimum columns of a derivation beside the tensor.
const DERIVATION: u16 = 48;

/// Minimum lines in which the tensor fits above the first terms of a derivation. If there are fewer, the
/// panel with the focus takes all lines.
const BOTH: u16 = 26;

/// Minimum lines in which two tensors fit above the verdict on them.
const TALL: u16 = 44;

/// Minimum lines of the tensor above a derivation.
const TOP: u16 = 9;

/// Minimum lines of the upper of two tensors.
const UPPER: u16 = 6;

/// Places of the panels; none if a panel has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Panels {
    /// The first line.
    pub title: Option<Rect>,
    /// The token strip.
    pub tokens: Option<Rect>,
    /// The rule with the panels' names.
    pub rule: Option<Rect>,
    /// The outline.
    pub outline: Option<Rect>,
    /// The tensor.
    pub middle: Option<Rect>,
    /// The compared tensor, beside the first tensor or under it.
    pub compared: Option<Rect>,
    /// The verdict on two runs, under the tensors.
    pub verdict: Option<Rect>,
    /// The derivation, beside the tensor or under it.
    pub derivation: Option<Rect>,
    /// The notes, or the words of a lesson. On a narrow screen, these are under the tensor.
    pub notes: Option<Rect>,
    /// The last line.
    pub footer: Option<Rect>,
}

impl Panels {
    /// The places of the panels on the screen of `app`.
    pub fn new(app: &App) -> Self {
        if let Some(pane) = app.panels.pane {
            let whole = (Some(pane), None);
            let open = app.derivation().is_some();
            let (middle, derivation) =
                if open { under(pane, app.panels.focus, app.panels.zoomed) } else { whole };
            return Self { middle, derivation, ..Self::default() };
        }
        let Rect { width, height, .. } = app.panels.size;
        if width < SMALLEST.0 || height < SMALLEST.1 {
            return Self::default();
        }
        let line = |y| Some(Rect::new(0, y, width, 1));
        let lesson = app.lesson.as_ref();
        let presents = lesson.is_some_and(|lesson| lesson.presents);
        // A presentation has only the tensor and the words, without the token strip.
        let top = if presents { 2 } else { 3 };
        let panel = |x: u16, width: u16| Some(Rect::new(x, top, width, height - 1 - top));
        let (outline_width, notes_width) = match width {
            0..BESIDE => (0, 0),
            BESIDE..100 => (24, 0),
            100..140 => (27, 36),
            140..180 => (32, 46),
            _ => (34, 62),
        };
        // A zoomed panel is drawn as on a narrow screen.
        let (outline_width, notes_width) =
            if app.panels.zoomed { (0, 0) } else { (outline_width, notes_width) };
        let outline_width = if app.panels.outline_folded { 0 } else { outline_width };
        // In a lesson, the words are beside the tensor on every screen that is wide enough for the program's own panels.
        let notes_width = match lesson {
            Some(_) if width < BESIDE || app.panels.zoomed => 0,
            Some(_) if presents => (width * 9 / 20).clamp(WORDS.0, WORDS.1),
            Some(_) => (width * 2 / 5).clamp(WORDS.0, WORDS.1),
            None => notes_width,
        };
        let notes_width = if app.panels.notes_folded { 0 } else { notes_width };
        // An open derivation takes the place of the notes, with more columns. If there are too few columns, it takes
        // lines of the tensor.
        let open = app.derivation().is_some() && app.panels.focus != Focus::Notes;
        let beside = (width - outline_width).saturating_sub(2 + TENSOR);
        let derivation_width = match beside {
            _ if app.panels.zoomed => 0,
            0..DERIVATION => 0,
            _ => ((width - outline_width) * 9 / 20).clamp(DERIVATION, beside),
        };
        // A derivation covers the compared tensor. Only in a verdict on two runs does each tensor have its own
        // derivation.
        let compares = app.comparison.with.is_some() && (!open || app.comparison.verdict.is_some());
        let notes_width = match (open, compares) {
            (true, false) => derivation_width,
            (_, true) if lesson.is_none() => 0,
            (true, true) => 0,
            (false, true) => notes_width,
            (false, false) => notes_width,
        };
        // The notes are beside the tensor only if the tensor keeps its columns. Otherwise only one of the two is shown
        // at a time.
        let least = if lesson.is_some() && !open { NARROW } else { TENSOR };
        let notes_width = if width < outline_width + notes_width + 2 + least { 0 } else { notes_width };
        let mut panels = Self {
            title: line(0),
            tokens: line(1).filter(|_| !presents),
            rule: line(top - 1),
            footer: line(height - 1),
            ..Self::default()
        };
        // Neighbours are separated by a rule of one column.
        let left = if outline_width > 0 { outline_width + 1 } else { 0 };
        let right = if notes_width > 0 { notes_width + 1 } else { 0 };
        if outline_width > 0 {
            panels.outline = panel(0, outline_width);
        }
        if notes_width > 0 {
            let side = panel(width - notes_width, notes_width);
            *(if open { &mut panels.derivation } else { &mut panels.notes }) = side;
        }
        let middle = panel(left, width - left - right);
        match app.panels.focus {
            Focus::Notes if notes_width == 0 => panels.notes = middle,
            Focus::Outline if outline_width == 0 => panels.outline = middle,
            _ => panels.middle = middle,
        }
        // On a narrow screen, the words of a lesson are under the tensor.
        let hides_words = lesson.is_none() || open || app.panels.zoomed || app.panels.notes_folded;
        if let Some(middle) = panels.middle.filter(|_| width < BESIDE && !hides_words) {
            (panels.middle, panels.notes) = above_words(middle, compares);
        }
        if let Some(middle) = panels.middle.filter(|_| compares) {
            let judged =
                app.comparison.verdict.is_some() && middle.height >= TALL && !open && !app.panels.zoomed;
            let height = if judged { middle.height / 2 } else { middle.height };
            if judged {
                let y = middle.y + height + 1;
                panels.verdict = Some(Rect { y, height: middle.bottom() - y, ..middle });
            }
            (panels.middle, panels.compared) =
                split_in_two(Rect { height, ..middle }, app.comparison.subtracts);
        }
        if let Some(middle) = panels.middle.filter(|_| open && notes_width == 0) {
            (panels.middle, panels.derivation) = under(middle, app.panels.focus, app.panels.zoomed);
        }
        panels
    }
}

/// Places of two tensors, side by side or one under the other; none for the second tensor if there is no room.
/// `subtracts` says that the second one is the difference.
fn split_in_two(middle: Rect, subtracts: bool) -> (Option<Rect>, Option<Rect>) {
    if middle.width >= 2 * TENSOR {
        let width = middle.width / 2;
        let x = middle.x + width + 1;
        let right = Rect { x, width: middle.right() - x, ..middle };
        return (Some(Rect { width, ..middle }), Some(right));
    }
    // Both tensors have the same number of lines of values, so that they show the same rows. In little room one tensor
    // has an additional line: the lower one for the common legend, or the upper one for the common cursor.
    let half = middle.height.saturating_sub(1) / 2;
    let more = u16::from(half + 1 < tensor::FOLDED);
    let height = middle.height.saturating_sub(1 + more) / 2;
    if height < UPPER {
        return (Some(middle), None);
    }
    let (upper, lower) = if subtracts { (height + more, height) } else { (height, height + more) };
    let y = middle.y + upper + 1;
    (Some(Rect { height: upper, ..middle }), Some(Rect { y, height: lower, ..middle }))
}

/// Places of the tensor and, below a rule, the words of a lesson. Two compared tensors keep the lines that they need.
fn above_words(middle: Rect, compares: bool) -> (Option<Rect>, Option<Rect>) {
    let both = 2 * (UPPER + 1);
    let tensor = if compares && middle.height > both + FEWEST { both } else { middle.height / 2 };
    let y = middle.y + tensor + 1;
    (Some(Rect { height: tensor, ..middle }), Some(Rect { y, height: middle.bottom() - y, ..middle }))
}

/// Places of the tensor and, below a rule, the derivation. If there is no room for both, only the one with the focus
/// has a place.
fn under(middle: Rect, focus: Focus, zoomed: bool) -> (Option<Rect>, Option<Rect>) {
    let tensor = (middle.height * 2 / 5).max(TOP);
    match focus {
        _ if middle.height >= BOTH && !zoomed => {
            let top = Rect { height: tensor, ..middle };
            let y = top.bottom() + 1;
            (Some(top), Some(Rect { y, height: middle.bottom() - y, ..middle }))
        }
        Focus::Derivation => (None, Some(middle)),
        _ => (Some(middle), None),
    }
}

impl Widget for &App {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let panels = Panels::new(self);
        let area = area.intersection(self.panels.size).intersection(buf.area);
        if panels.title.is_none() {
            return too_small::TooSmall(self).render(area, buf);
        }
        let mut draw = |panel: Option<Rect>, widget: &dyn Fn(Rect, &mut Buffer)| {
            if let Some(panel) = panel.map(|panel| panel.intersection(area)).filter(|panel| !panel.is_empty())
            {
                widget(panel, buf);
            }
        };
        draw(panels.title, &|area, buf| title::Title(self).render(area, buf));
        draw(panels.tokens, &|area, buf| tokens::Tokens(self).render(area, buf));
        draw(panels.rule, &|area, buf| title::Rules { app: self, panels }.render(area, buf));
        draw(panels.outline, &|area, buf| outline::OutlinePanel(self).render(area, buf));
        draw(panels.middle, &|area, buf| tensor::TensorPanel(self).render(area, buf));
        if let Some(other) = &self.other {
            let theirs = Panels::new(other);
            draw(theirs.middle, &|area, buf| match self.comparison.subtracts && self.view().is_grid() {
                true => difference::DifferencePanel { app: self, other }.render(area, buf),
                false => tensor::TensorPanel(other).render(area, buf),
            });
            draw(theirs.derivation, &|area, buf| derivation::DerivationPanel(other).render(area, buf));
        }
        draw(panels.derivation, &|area, buf| derivation::DerivationPanel(self).render(area, buf));
        draw(panels.verdict, &|area, buf| notes::JudgedPanel(self).render(area, buf));
        draw(panels.notes, &|area, buf| notes::Notes(self).render(area, buf));
        draw(panels.footer, &|area, buf| footer::Footer(self).render(area, buf));
        match &self.input.mode {
            Mode::Walk | Mode::Answer(_) | Mode::Mark | Mode::Return => {}
            Mode::Help(line, wanted) => {
                help::Help { app: self, line: *line, wanted }.render(area, buf);
            }
            Mode::Branches(list) => {
                branches::BranchesPopup { theme: self.theme, list }.render(area, buf);
            }
            Mode::Views(_) => view_list::ViewList(self).render(area, buf),
            Mode::Edits(list) => edits::EditsPopup { theme: self.theme, list }.render(area, buf),
            Mode::Chapters(at) => chapters::Chapters { app: self, at: *at }.render(area, buf),
            Mode::Goto(line) => goto::GotoPopup { app: self, line }.render(area, buf),
        }
        if self.input.message.is_some() {
            footer::MessageBox(self).render(area, buf);
        }
        if self.presents() {
            present(self, panels.middle, area, buf);
        }
    }
}

/// Makes a screen legible from the back of a room: bold numbers in the tensor, dark on light paper. The terminal's own
/// background may be dark.
fn present(app: &App, tensor: Option<Rect>, area: Rect, buf: &mut Buffer) {
    let paper = (app.theme.depth() > Depth::None && app.theme.paper() == Paper::Light)
        .then_some((Color::White, Color::Black));
    for position in area.positions() {
        let Some(cell) = buf.cell_mut(position) else { continue };
        let is_number = cell.symbol().bytes().all(|byte| byte.is_ascii_digit() || b".-".contains(&byte));
        if is_number && tensor.is_some_and(|tensor| tensor.contains(position)) {
            cell.modifier.insert(Modifier::BOLD);
        }
        if let Some((paper, ink)) = paper {
            cell.bg = if cell.bg == Color::Reset { paper } else { cell.bg };
            cell.fg = if cell.fg == Color::Reset { ink } else { cell.fg };
        }
    }
}
