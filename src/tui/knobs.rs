//! Turning what the sampler view tries: which setting the arrows change, and to what.

use llama_trace_core::trace::draw::{DrawAt, Sampling};
use llama_trace_core::trace::{Site, Stage};

use super::app::App;
use super::trying::{Knob, turned};

impl App {
    /// The question what is drawn after this pass, in the run's own setting or in the one that is tried.
    pub fn draw_at(&self, setting: Option<Sampling>) -> DrawAt {
        let site = Site { layer: None, ..self.place.site() }.other(Stage::Sampled);
        DrawAt { site, setting }
    }

    /// The next of what can be changed, or the one before.
    pub(super) fn choose_knob(&mut self, by: isize) {
        let count = Knob::ALL.len();
        let now = Knob::ALL.iter().position(|&knob| knob == self.trying.knob).unwrap_or(0);
        self.trying.knob = Knob::ALL[(now + count).saturating_add_signed(by.signum()) % count];
    }

    /// Tries the next setting, once the run's own is known. One that is the run's own is not tried.
    pub(super) fn turn_knob(&mut self, right: isize) {
        let Some(Ok(draw)) = self.answers.told(&self.draw_at(None)) else { return };
        let own = draw.setting;
        let now = self.trying.setting.unwrap_or(own);
        let next = turned(now, own, self.trying.knob, right > 0);
        if next == now {
            let (knob, end) = (self.trying.knob, if right > 0 { "last" } else { "first" });
            self.say(format!("{} {} is the {end} step", knob.name(), knob.value(now)), false);
        }
        self.trying.setting = (next != own).then_some(next);
    }
}
