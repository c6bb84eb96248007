//! A viewer on its synthetic source, driven by keys as by a user.

use std::path::Path;

use llama_trace::chapters::CHAPTERS;
use llama_trace::trace::{Source, Step};
use llama_trace::tui::OpenAt;
use llama_trace::tui::app::App;
use llama_trace::tui::effects;
use llama_trace::tui::events::action_of;
use llama_trace::tui::export::{continue_saving, save};
use llama_trace::tui::open::open;
use llama_trace::tui::runs::Runs;
use llama_trace::tui::theme::{Depth, Theme};
use llama_trace::tui::update::{Effect, update};
use llama_trace::tui::user_event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use llama_trace::tui::view::views::fitting;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use crate::synthetic::Synthetic;

pub(crate) struct Stage {
    pub(crate) app: App,
    pub(crate) source: Synthetic,
    pub(crate) size: (u16, u16),
}

impl Stage {
    pub(crate) fn new(source: Synthetic, size: (u16, u16), depth: Depth) -> Self {
        Self::themed(source, size, Theme::new(depth))
    }

    pub(crate) fn themed(source: Synthetic, size: (u16, u16), theme: Theme) -> Self {
        let app = App::new(source.outline().clone(), theme, size).with_chapters(CHAPTERS);
        let mut stage = Self { app, source, size };
        stage.sync();
        stage
    }

    /// At a step of layer 1, head 2, on a screen of 80x24.
    pub(crate) fn at(step: &str) -> Self {
        Self::sized(step, (80, 24), Depth::True)
    }

    pub(crate) fn sized(step: &str, size: (u16, u16), depth: Depth) -> Self {
        Self::on(step, size, Theme::new(depth))
    }

    /// Like [`Stage::sized`], with the colours of `theme`.
    pub(crate) fn on(step: &str, size: (u16, u16), theme: Theme) -> Self {
        let mut stage = Self::themed(Synthetic::new(), size, theme);
        let place = OpenAt { stage: Some(step.into()), layer: Some(1), head: Some(2), ..OpenAt::default() };
        open(&mut stage.app, &place).unwrap();
        stage.sync();
        stage
    }

    /// Chooses the view of this name by its number.
    pub(crate) fn choose(&mut self, name: &str) {
        let number = number_of(&self.app, name);
        self.keys(&number);
        assert_eq!(self.app.view().name(), name);
    }

    /// The body of the tensor's panel, line by line.
    pub(crate) fn body(&self) -> Vec<String> {
        let area = self.app.layout().unwrap().area;
        let buffer = self.buffer();
        let line =
            |y: u16| (area.x..area.right()).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (area.y..area.bottom()).map(line).collect()
    }

    pub(crate) fn sync(&mut self) {
        self.app.sync(&mut self.source);
        let beside = self.app.compares_itself().then_some(&mut self.source as &mut dyn Source);
        self.app.sync_compared(beside);
    }

    /// Runs the event loop once for one event.
    pub(crate) fn event(&mut self, event: Event) -> Effect {
        if let Event::Resize(columns, rows) = event {
            self.size = (columns, rows);
        }
        let Some(action) = action_of(&self.app, event) else { return Effect::None };
        let effect = update(&mut self.app, action);
        match effect {
            Effect::Advance => effects::advance(&mut self.app, &mut self.source),
            Effect::Stop => self.source.stop(),
            Effect::Branches => {
                effects::list_branches(&mut self.app, &mut Runs::new(Box::new(self.source.clone())));
            }
            _ => {}
        }
        self.sync();
        effect
    }

    pub(crate) fn key(&mut self, code: KeyCode) -> Effect {
        self.event(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    /// Clicks on a cell of the screen.
    pub(crate) fn click(&mut self, column: u16, row: u16) -> Effect {
        let kind = MouseEventKind::Down(MouseButton::Left);
        self.event(Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }))
    }

    /// Types characters, one key each.
    pub(crate) fn keys(&mut self, keys: &str) -> &mut Self {
        for c in keys.chars() {
            self.key(match c {
                '←' => KeyCode::Left,
                '→' => KeyCode::Right,
                c => KeyCode::Char(c),
            });
        }
        self
    }

    /// Lets the source work for a moment.
    pub(crate) fn wait(&mut self) -> &mut Self {
        self.source.poll().unwrap();
        self.sync();
        self
    }

    pub(crate) fn export(&mut self, folder: &Path) {
        let mut saving = save(&mut self.app, &mut self.source, folder);
        while saving.is_some() {
            saving = continue_saving(&mut self.app, &mut self.source, saving);
        }
    }

    pub(crate) fn step(&self) -> Step {
        self.app.place().step
    }

    pub(crate) fn name(&self) -> &'static str {
        self.step().name()
    }

    pub(crate) fn message(&self) -> &str {
        self.app.message().map_or("", |message| &message.text)
    }

    pub(crate) fn buffer(&self) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(self.size.0, self.size.1)).unwrap();
        terminal.draw(|frame| frame.render_widget(&self.app, frame.area())).unwrap();
        terminal.backend().buffer().clone()
    }

    /// The screen as text, without the spaces at the ends of lines.
    pub(crate) fn screen(&self) -> String {
        text_of(&self.buffer())
    }

    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        let screen = self.screen();
        assert!(screen.contains(text), "`{text}` is not on the screen:\n{screen}");
    }
}

/// The key of the view of this name: its number among the views of the step.
#[track_caller]
pub(crate) fn number_of(app: &App, name: &str) -> String {
    let step = app.place().step;
    let at = fitting(step).position(|view| view.name() == name);
    let at = at.unwrap_or_else(|| panic!("{} has no view {name}", step.name()));
    (at + 1).to_string()
}

pub(crate) fn text_of(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut screen = String::new();
    for y in 0..area.height {
        let mut line = String::new();
        let mut x = 0;
        while x < area.width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += u16::try_from(llama_trace::tui::text::width(symbol)).unwrap().max(1);
        }
        screen.push_str(line.trim_end());
        screen.push('\n');
    }
    screen
}
