//! The title line with model and place, and the rules with the names of the panels.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use llama_trace_core::error::printable;
use llama_trace_core::trace::draw::Sampling;
use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Run, Status};

use super::super::app::App;
use super::super::edited;
use super::super::fit::{Piece, fit};
use super::super::panel_state::Focus;
use super::super::text;
use super::super::verdict_keys;
use super::Panels;
use super::lesson;
use super::paint::{put, put_fit};

/// Index of one form in the result of [`drawing`]. The title keeps room for the sampler's setting in this
/// form.
const LEAST: usize = 2;

/// The title line.
#[derive(Debug)]
pub struct Title<'a>(pub &'a App);

impl Widget for Title<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let app = self.0;
        let theme = app.theme;
        if let Some(lesson) = app.lesson.as_ref().filter(|lesson| lesson.presents) {
            let title = format!("  {}", printable(&lesson.lesson.title));
            put(buf, area, 0, 0, &text::left(&title, area.width.into()), theme.current());
            return;
        }
        let walk = app.walk();
        let place = app.place();
        let kind = app.dims().kind();
        let strong = theme.strong();
        let layer = match place.layer {
            Some(layer) => {
                let (short, last) = (format!(" · layer {layer}"), walk.layers.saturating_sub(1));
                Piece::forms([format!("{short} of 0-{last}"), short], strong).rank(1)
            }
            None if walk.start.contains(&place.step) => Piece::whole(" · before the layers", strong).rank(2),
            None => Piece::whole(" · after the layers", strong).rank(2),
        };
        let (step, count) = (walk.number(place) + 1, walk.len());
        let step = [format!(" · step {step} of {count} "), format!(" · step {step} "), " ".to_owned()];
        let (sequence, sequences) = (place.sequence, app.outline().sequences);
        let sequence = match sequences {
            0 | 1 => Piece::whole("", strong),
            _ => {
                let last = sequences - 1;
                let forms = [format!("sequence {sequence} of 0-{last} · "), format!("s{sequence} · ")];
                Piece::forms(forms, strong).rank(1)
            }
        };
        let run = match place.run {
            Run::ITSELF => Piece::whole("", strong),
            run if app.outline().fork.is_some() => {
                Piece::forms([format!("branch {run} · "), format!("{run} · ")], app.theme.key()).rank(1)
            }
            run => Piece::whole(format!("{run} · "), strong),
        };
        let here = [
            run,
            sequence,
            Piece::whole(format!("pass {}", place.pass), strong),
            Piece::whole(format!(" ({kind})"), strong).rank(3),
            layer,
            Piece::forms(step, strong).rank(2),
        ];
        // The place leaves room for the sampler's setting. The less important words of the place shrink first.
        let card = &app.outline().card;
        let drawn = drawing(app).into_iter().nth(LEAST).unwrap_or_default();
        let beside = text::width(&format!(
            "{} {}  {} · {}",
            file(app),
            card.name,
            card.backend,
            card.precision.name()
        ));
        let beside = (beside + text::width(&drawn) + 1).min(usize::from(area.width) / 2);
        let here = fit(&here, usize::from(area.width) - beside);
        let taken: usize = here.iter().map(|(content, _)| text::width(content)).sum();
        // A computation under way replaces the model's name.
        let ignored = match &card.ignored[..] {
            [] => String::new(),
            ignored => format!("without {}", ignored.join(", ")),
        };
        // Deviations come first, so that there is always room for the first of them.
        let names = [ignored, edited::name(card), card.name.clone()].map(|name| printable(&name).to_string());
        let name = names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" · ");
        let model = match &app.progress.status {
            Status::Working(what) => vec![Piece::words(format!(" {what} …"), strong)],
            Status::Idle => vec![
                Piece::whole(if app.playback.is_playing() { " ▶ plays ·" } else { "" }, theme.key()),
                Piece::whole(file(app), strong).rank(3),
                Piece::words(format!(" {name}"), strong),
                Piece::whole(format!("  {} · {}", card.backend, card.precision.name()), theme.dim()).rank(1),
                Piece::forms(drawing(app), theme.dim()).rank(4),
            ],
        };
        let room = Rect { width: area.width.saturating_sub(taken as u16 + 1), ..area };
        put_fit(buf, room, 0, 0, &model);
        here.iter().fold(area.width.saturating_sub(taken as u16), |x, (content, style)| {
            x + put(buf, area, x, 0, content, *style)
        });
    }
}

/// The trace that is open: " r.trace ·".
fn file(app: &App) -> String {
    app.origin.file.as_ref().map_or_else(String::new, |name| format!(" {} ·", text::visible(name)))
}

/// Forms of the sampler's setting, the longest first: " · temperature 0.8 top-k 40 top-p 0.9 seed 7 stream 1". Stream 0
/// is not named. At temperature 0 only the temperature and a repetition penalty are named, because nothing else has an
/// effect.
fn drawing(app: &App) -> Vec<String> {
    // A branch may have its own setting.
    let own = app.outline().setting;
    let run = app.origin.drawing.map(|drawing| drawing.sampling);
    let Some(sampling) = own.or(run) else { return vec![String::new()] };
    let Sampling { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed } = sampling;
    let filters = sampling.filters();
    let penalty = |name: &str| {
        if filters.penalty { format!(" {name} {repetition_penalty}") } else { String::new() }
    };
    if temperature == 0.0 {
        let short = format!(" · T 0{}", penalty("r"));
        let whole = format!(" · temperature 0{}", penalty("penalty"));
        return vec![whole, short.clone(), short, String::new()];
    }
    let k = |name: &str| if top_k > 0 { format!(" {name} {top_k}") } else { String::new() };
    let p = |name: &str| if top_p < 1.0 { format!(" {name} {top_p}") } else { String::new() };
    let min = |name: &str| if filters.min_p { format!(" {name} {min_p}") } else { String::new() };
    let typical = |name: &str| if filters.typical_p { format!(" {name} {typical_p}") } else { String::new() };
    let long = [k("top-k"), p("top-p"), min("min-p"), typical("typical-p"), penalty("penalty")].concat();
    let short = [k("k"), p("p"), min("m"), typical("t"), penalty("r")].concat();
    // Each sequence has its own stream of random numbers. The streams are numbered in the order of the sequences.
    let stream = app.origin.drawing.map_or(0, |drawing| drawing.stream) + app.outline().sequence as u64;
    let stream = if stream > 0 { format!(" stream {stream}") } else { String::new() };
    vec![
        format!(" · temperature {temperature}{long} seed {seed}{stream}"),
        format!(" · T {temperature}{short} s {seed}{stream}"),
        format!(" · T {temperature}{short} …"),
        format!(" · T {temperature} …"),
        String::new(),
    ]
}

/// The rules: one below the token strip with the panels' names, and one between neighbouring panels.
#[derive(Debug)]
pub struct Rules<'a> {
    /// The viewer.
    pub app: &'a App,
    /// The places of the panels.
    pub panels: Panels,
}

impl Widget for Rules<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Self { app, panels } = self;
        let theme = app.theme;
        put(buf, area, 0, 0, &"─".repeat(area.width.into()), theme.dim());
        let beside = app.compared().map_or_else(String::new, |(run, name, difference)| {
            let (which, less) = verdict_keys::names(app, run, name);
            match difference {
                Some(difference) => {
                    format!("{which} · {less} = {}", text::full_in(Number::F32(difference as f32), 12))
                }
                // The difference of two ids means nothing.
                None if app.place().step.stage().is_ids() => which,
                None => format!("{which} · no value at this index"),
            }
        });
        let own =
            verdict_keys::letter(app, app.outline().run).map_or_else(String::new, |own| format!("{own} · "));
        let theirs = app.other.as_ref().and_then(|other| Panels::new(other).derivation);
        let mut middle = format!("{own}tensor · {}", app.view().name());
        if let Some(filter) = app.filter() {
            middle += &format!(" · {}", filter.words());
        }
        let notes = lesson::heading(app).unwrap_or_else(|| "notes".to_owned());
        let named = [
            (panels.outline, Some(Focus::Outline), "outline"),
            (panels.middle, Some(Focus::Tensor), &middle),
            (panels.derivation, Some(Focus::Derivation), "where from"),
            (panels.compared, None, &beside),
            (panels.notes, Some(Focus::Notes), &notes),
            (theirs, None, "where from there"),
            (panels.verdict, None, "A against B"),
        ];
        // If only the tensor or the notes fit, `i` shows the other.
        if panels.notes.is_none() || panels.middle.is_none() {
            let hint = match (panels.notes, &app.lesson) {
                (Some(_), _) => " i: tensor ",
                (None, Some(_)) => " i: words ",
                (None, None) => " i: notes ",
            };
            put(buf, area, area.width.saturating_sub(text::width(hint) as u16 + 1), 0, hint, theme.dim());
        }
        let whole = app.panels.size;
        for (panel, focus, name) in named {
            let Some(panel) = panel else { continue };
            // A panel that is under another panel has its own rule.
            if panel.y > area.bottom() {
                put(buf, whole, panel.x, panel.y - 1, &"─".repeat(panel.width.into()), theme.dim());
                if let Some(x) = panel.x.checked_sub(1) {
                    put(buf, whole, x, panel.y - 1, "├", theme.dim());
                    (panel.y..panel.bottom()).for_each(|y| {
                        put(buf, whole, x, y, "│", theme.dim());
                    });
                }
                let name = format!(" {name} ");
                put(buf, whole, panel.x + 1, panel.y - 1, &name, theme.heading(Some(app.focus()) == focus));
                continue;
            }
            put(buf, area, panel.x + 1, 0, &format!(" {name} "), theme.heading(Some(app.focus()) == focus));
            if panel.x > 0 {
                put(buf, area, panel.x - 1, 0, "┬", theme.dim());
                // Two panels, one under the other, may leave a line free at the bottom. The rule is drawn in that line
                // too.
                for y in panel.y..whole.height.saturating_sub(1) {
                    put(buf, whole, panel.x - 1, y, "│", theme.dim());
                }
            }
        }
    }
}
