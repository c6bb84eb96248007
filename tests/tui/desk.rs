//! The viewer on a real model, driven by keys as a user would.

use std::sync::Arc;

use llama_trace::backend::cpu::Cpu;
use llama_trace::chapters::CHAPTERS;
use llama_trace::generate::{Sampler, Sampling};
use llama_trace::model::Model;
use llama_trace::replay::{DEFAULT_MEMORY, Live, Start};
use llama_trace::stop::LOOK;
use llama_trace::tokenizer::{self, Tokenizer};
use llama_trace::trace::{Address, Run, Source, Status, TokenLabel};
use llama_trace::tui::OpenAt;
use llama_trace::tui::action::Action;
use llama_trace::tui::app::App;
use llama_trace::tui::events::action_of;
use llama_trace::tui::open::open;
use llama_trace::tui::patch_state::Clean;
use llama_trace::tui::report::Report;
use llama_trace::tui::theme::{Depth, Theme};
use llama_trace::tui::update::update;
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use crate::stage::{number_of, text_of};

/// The viewer on a running model.
pub(crate) struct Desk {
    pub(crate) app: App,
    live: Live,
    size: (u16, u16),
}

impl Desk {
    /// The built-in model on "Once upon a time", with the cursor at an address.
    pub(crate) fn at(address: &str, size: (u16, u16)) -> Self {
        Self::reading("Once upon a time", address, size)
    }

    /// The built-in model on `prompt`, with the cursor at an address.
    pub(crate) fn reading(prompt: &str, address: &str, size: (u16, u16)) -> Self {
        let (model, tokenizer) = Self::builtin();
        let ids = tokenizer.encode(prompt).unwrap();
        Self::on(model, ids, Some(tokenizer), address, size)
    }

    pub(crate) fn on(
        model: Model,
        ids: Vec<u32>,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        address: &str,
        size: (u16, u16),
    ) -> Self {
        let mut desk = Self::themed(model, ids, tokenizer, size, Depth::None);
        desk.go(address);
        desk
    }

    fn themed(
        model: Model,
        ids: Vec<u32>,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        size: (u16, u16),
        depth: Depth,
    ) -> Self {
        let sampler = Sampler::new(Sampling {
            temperature: 0.8,
            top_k: 20,
            top_p: 0.9,
            seed: 3,
            ..Sampling::default()
        })
        .unwrap();
        let start = Start {
            ids,
            draws: 3,
            sampler,
            tokenizer,
            eos: Vec::new(),
            memory: DEFAULT_MEMORY,
            context: Some(64),
        };
        let mut live = Live::start(Arc::new(model), start).unwrap();
        while live.status() != Status::Idle {
            live.wait(LOOK);
            live.poll().unwrap();
        }
        let app = App::new(live.outline().clone(), Theme::new(depth), size)
            .with_chapters(CHAPTERS)
            .with_other_runs(None, None);
        Self { app, live, size }
    }

    /// The built-in model on the corrupted prompt, with the map of the clean prompt.
    pub(crate) fn patching(clean: &str, corrupted: &str, size: (u16, u16), depth: Depth) -> Self {
        let (model, tokenizer) = Self::builtin();
        let encode = |text| tokenizer.encode(text).unwrap();
        let tokens = encode(clean).iter().map(|&id| TokenLabel { id, text: tokenizer.label(id) }).collect();
        let clean = Clean { run: Run(1), sequence: 0, tokens, text: None };
        let mut desk = Self::themed(model, encode(corrupted), Some(Arc::clone(&tokenizer)), size, depth);
        update(&mut desk.app, Action::Report(Report::Clean(clean)));
        desk.wait();
        desk
    }

    fn builtin() -> (Model, Arc<dyn Tokenizer>) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/builtin/tokenizer.json");
        let tokenizer: Arc<dyn Tokenizer> = Arc::from(tokenizer::open(folder.as_ref()).unwrap());
        let checkpoint = llama_trace::builtin::open().unwrap();
        (Model::load(&checkpoint, Cpu::default()).unwrap(), tokenizer)
    }

    pub(crate) fn go(&mut self, address: &str) {
        let at = OpenAt { at: Some(Address::parse(address).unwrap()), ..OpenAt::default() };
        open(&mut self.app, &at).unwrap();
        self.wait();
    }

    /// Waits until everything on the screen has arrived.
    pub(crate) fn wait(&mut self) {
        loop {
            self.app.sync(&mut self.live);
            if self.live.status() == Status::Idle && !self.app.sync(&mut self.live) {
                return;
            }
            if self.live.status() != Status::Idle {
                self.live.wait(LOOK);
            }
            self.live.poll().unwrap();
        }
    }

    pub(crate) fn event(&mut self, event: Event) -> &mut Self {
        if let Some(action) = action_of(&self.app, event) {
            update(&mut self.app, action);
        }
        self.wait();
        self
    }

    pub(crate) fn key(&mut self, code: KeyCode) -> &mut Self {
        self.event(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    pub(crate) fn keys(&mut self, keys: &str) -> &mut Self {
        for c in keys.chars() {
            self.key(KeyCode::Char(c));
        }
        self
    }

    /// Chooses the view of this name by its number.
    pub(crate) fn choose(&mut self, name: &str) -> &mut Self {
        let number = number_of(&self.app, name);
        self.keys(&number)
    }

    pub(crate) fn address(&self) -> String {
        self.app.place().address(&self.app.index())
    }

    pub(crate) fn buffer(&self) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(self.size.0, self.size.1)).unwrap();
        terminal.draw(|frame| frame.render_widget(&self.app, frame.area())).unwrap();
        terminal.backend().buffer().clone()
    }

    pub(crate) fn screen(&self) -> String {
        text_of(&self.buffer())
    }

    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        let screen = self.screen();
        assert!(screen.contains(text), "`{text}` is not on the screen:\n{screen}");
    }

    #[track_caller]
    pub(crate) fn hides(&self, text: &str) {
        let screen = self.screen();
        assert!(!screen.contains(text), "`{text}` is on the screen:\n{screen}");
    }
}
