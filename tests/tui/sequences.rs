//! Several prompts and branches: keys and addresses that lead from one to another.

use llama_trace::config::Precision;
use llama_trace::error::Error;
use llama_trace::trace::{Run, Source, TokenLabel};
use llama_trace::tui::effects;
use llama_trace::tui::events::{action_of, take_in};
use llama_trace::tui::runs::{NewRun, Runs};
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::{Effect, update};
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};

use crate::stage::{Stage, number_of};
use crate::synthetic::{self, Synthetic};

/// One of four sequences. Each has one token less than the one before, and the last cannot be opened.
fn sequence(number: usize) -> Synthetic {
    let mut source = Synthetic::new();
    let pass = &mut source.outline.passes[0];
    pass.tokens.truncate(pass.tokens.len() - number);
    pass.tokens[0].text = format!("begin{number}");
    pass.dims.tokens -= number;
    (source.outline.sequence, source.outline.sequences) = (number, 4);
    source.factor = 1.0 + number as f32;
    source
}

/// A viewer of the sequences, and its sources.
pub(crate) struct Program {
    pub(crate) stage: Stage,
    pub(crate) runs: Runs,
}

impl Program {
    fn new() -> Self {
        Self::sized((120, 40))
    }

    fn sized(size: (u16, u16)) -> Self {
        let opener = |number| match number {
            3 => Err(Error::prompt("there is no memory for it")),
            _ => Ok(Box::new(sequence(number)) as Box<dyn Source>),
        };
        let runs = Runs::of_sequences(Box::new(sequence(0)), Box::new(opener));
        Self { stage: Stage::new(sequence(0), size, Depth::None), runs }
    }

    /// A viewer of a single run.
    pub(crate) fn alone(size: (u16, u16)) -> Self {
        let runs = Runs::new(Box::new(Synthetic::new()));
        Self { stage: Stage::new(Synthetic::new(), size, Depth::None), runs }
    }

    /// Chooses the view of this name by its number.
    fn choose(&mut self, name: &str) {
        let number = number_of(&self.stage.app, name);
        self.keys(&number);
    }

    /// Runs the event loop once for each of the keys.
    pub(crate) fn keys(&mut self, keys: &str) -> &mut Self {
        for key in keys.chars() {
            let code = match key {
                '\r' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{8}' => KeyCode::Backspace,
                '\u{1b}' => KeyCode::Esc,
                '→' => KeyCode::Right,
                '←' => KeyCode::Left,
                '↑' => KeyCode::Up,
                '↓' => KeyCode::Down,
                key => KeyCode::Char(key),
            };
            let event = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
            let action = action_of(&self.stage.app, event).unwrap();
            let (app, runs) = (&mut self.stage.app, &mut self.runs);
            match update(app, action) {
                Effect::Open(run, address) => effects::open_run(app, runs, run, &address),
                Effect::Branch(fork) => effects::branch(app, runs, fork),
                Effect::Branches => effects::list_branches(app, runs),
                Effect::Edits => effects::list_edits(app, runs),
                Effect::Advance => effects::advance(app, runs.source()),
                Effect::Begin(new) => effects::begin_run(app, runs, new),
                Effect::Patch(clean) => effects::patch(app, runs, clean),
                Effect::Scene(setting) => effects::show_scene(app, runs, &setting),
                _ => {}
            }
            while take_in(&mut self.stage.app, &mut self.runs).unwrap() {}
        }
        self
    }

    pub(crate) fn here(&self) -> String {
        let address = self.stage.app.place().address(&self.stage.app.index());
        self.stage.shows(&address);
        address
    }
}

#[test]
fn a_key_goes_to_the_same_cell_of_the_next_sequence_and_back() {
    let mut program = Program::new();
    program.keys("/L1/softmax[h=2,t=11,k=3]\r");
    program.stage.shows("sequence 0 of 0-3 · pass 0");
    let value = |program: &Program| program.stage.app.tensor().unwrap().get(&program.stage.app.index());
    let first = value(&program);
    program.keys(")");
    program.stage.shows("sequence 1 of 0-3 · pass 0");
    program.stage.shows("begin1");
    assert_eq!(program.here(), "s1/p0/L1/softmax[h=2,t=10,k=3]", "sequence 1 has no token 11");
    let second = value(&program);
    assert_ne!(first, second);
    program.keys(")");
    assert_eq!(program.here(), "s2/p0/L1/softmax[h=2,t=9,k=3]");
    program.keys("((");
    assert_eq!(
        program.here(),
        "p0/L1/softmax[h=2,t=11,k=3]",
        "back in sequence 0, the chosen token is selected again"
    );
    assert_eq!(value(&program), first);
    program.keys("(");
    assert_eq!(program.stage.message(), "this is the first sequence");
    program.keys("/s3\r");
    assert_eq!(program.stage.message(), "there is no memory for it");
    assert_eq!(
        program.here(),
        "p0/L1/softmax[h=2,t=11,k=3]",
        "a sequence that cannot be opened is not shown"
    );
}

#[test]
fn an_address_leads_to_a_sequence_and_errors_list_the_sequences() {
    let mut program = Program::new();
    program.keys("/s2/p0/L2/xq[t=4,h=1,c=3]\r");
    assert_eq!(program.here(), "s2/p0/L2/xq[t=4,h=1,c=3]");
    // Omitted parts of an address are those of the current place.
    program.keys("/[h=0]\r");
    assert_eq!(program.here(), "s2/p0/L2/xq[t=4,h=0,c=3]");
    program.keys("/s1\r");
    assert_eq!(program.here(), "s1/p0/L2/xq[t=4,h=0,c=3]");
    for (text, message) in [
        ("s7", "there is no sequence 7: 0 to 3"),
        ("s4/p0/L1/softmax", "there is no sequence 4: 0 to 3"),
        ("s2/p5", "there is no pass 5: 0 to 0 so far"),
    ] {
        program.keys(&format!("/{text}\r"));
        assert_eq!(program.stage.message(), message, "{text}");
        program.stage.key(KeyCode::Esc);
        program.keys("/s1/p0/L2/xq\r");
    }
    // The number of sequences is that of the current run.
    let mut other = sequence(0);
    (other.outline.run, other.outline.sequences) = (Run(1), 1);
    program.runs.add(Box::new(other));
    program.keys("/r1:\r");
    assert_eq!(program.here(), "r1:p0/L2/xq[t=4,h=0,c=3]");
    program.keys(")");
    assert!(program.stage.message().starts_with("r1 has only one sequence"), "{}", program.stage.message());
    program.keys("/r1:s2\r");
    assert_eq!(program.stage.message(), "there is no sequence 2: 0 is the only one");
    program.stage.key(KeyCode::Esc);
    program.keys("/r0:s2/L1\r");
    assert_eq!(program.here(), "s2/p0/L1/xq[t=4,h=0,c=3]");
    let all: Vec<_> = program.runs.all().collect();
    assert_eq!(all, [Run(0), Run(1)], "sequences are no runs of their own");
}

#[test]
fn two_sequences_are_compared_at_one_cell_with_their_difference() {
    use llama_trace::tui::text;
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut program = Program::sized(size);
        program.keys("c");
        assert!(program.stage.message().starts_with("there is nothing to compare with yet"));
        program.keys("/L1/xq[h=2,t=4,c=3]\r)c");
        let value = |program: &Program, sequence: usize| {
            let factor = 1.0 + sequence as f32;
            let shown = program.stage.app.tensor().unwrap().get(&program.stage.app.index()).unwrap();
            let llama_trace::trace::frame::Number::F32(shown) = shown else { panic!("{shown:?}") };
            // All sequences have the same wave of values. Each sequence multiplies the wave by another factor.
            shown / (1.0 + program.stage.app.outline().sequence as f32) * factor
        };
        let shows_both = |program: &Program, here: usize, there: usize| {
            let (one, other) = (value(program, here), value(program, there));
            let address = |sequence: usize| {
                let address = program.stage.app.place().address(&program.stage.app.index());
                let path = address.strip_prefix("s1/").or(address.strip_prefix("s2/")).unwrap_or(&address);
                if sequence == 0 { path.to_owned() } else { format!("s{sequence}/{path}") }
            };
            program.stage.shows(&address(here));
            program.stage.shows(&address(there));
            let difference = (f64::from(one) - f64::from(other)) as f32;
            let difference = text::full_in(llama_trace::trace::frame::Number::F32(difference), 12);
            program.stage.shows(&format!("s{there} · here − there = {difference}"));
        };
        shows_both(&program, 1, 0);
        program.keys("lj");
        shows_both(&program, 1, 0);
        program.keys("N");
        shows_both(&program, 1, 0);
        program.keys(")");
        shows_both(&program, 2, 1);
        // Two sequences may have different lengths, so a token of one may not exist in the other.
        program.keys("(/t\u{1b}");
        program.keys("/L1/xq[t=10,h=2,c=3]\r");
        program.stage.shows("s2 · no value at this index");
        program.keys("c");
        assert!(!program.stage.screen().contains("there ="), "{}", program.stage.screen());
    }
}

/// If two sequences have different lengths, both panels begin with the same row. A panel that does not have the
/// cursor's row shows no cursor.
#[test]
fn two_sequences_of_different_lengths_show_the_same_rows() {
    for size in [(80, 24), (100, 30), (120, 40), (200, 60)] {
        let mut program = Program::sized(size);
        program.keys("/s2\r/s0\rc/L1/xq[t=8,h=2,c=3]\r");
        program.stage.shows("s2 · here − there = ");
        let firsts = |program: &Program| {
            let screen = program.stage.screen();
            let mut firsts = Vec::new();
            let lines: Vec<&str> = screen.lines().collect();
            for (y, line) in lines.iter().enumerate() {
                for (x, _) in line.match_indices("token ↓") {
                    let columns = line[..x].chars().count();
                    let row: String = lines[y + 1].chars().skip(columns).take(3).collect();
                    firsts.push(row.trim().split(' ').next().unwrap().to_owned());
                }
            }
            firsts
        };
        let both = firsts(&program);
        assert_eq!(both.len(), 2, "{}", program.stage.screen());
        assert_eq!(both[0], both[1], "{}", program.stage.screen());
        program.keys("jjj");
        program.stage.shows("p0/L1/xq[t=11,h=2,c=3]");
        program.stage.shows("s2 · no value at this index");
        program.stage.shows("s2/p0/L1/xq has no such value");
        let both = firsts(&program);
        // If a sequence has none of these rows, its panel is empty.
        assert!(both[1].is_empty() || both[0] == both[1], "{}", program.stage.screen());
    }
}

#[test]
fn a_file_that_is_exported_names_its_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::new(sequence(1), (120, 40), Depth::None);
    stage.keys("/L1/xq");
    stage.key(KeyCode::Enter);
    stage.export(folder.path());
    assert!(folder.path().join("s1_p0_L1_xq.npy").exists(), "{}", stage.message());
}

#[test]
fn a_single_sequence_has_no_number() {
    let mut stage = Stage::at("xq");
    assert!(!stage.screen().contains("sequence"), "{}", stage.screen());
    stage.keys(")");
    assert!(stage.message().starts_with("there is only one sequence"));
}

#[test]
fn a_picked_token_starts_a_branch_that_is_listed_and_compared() {
    for size in [(80, 24), (100, 30), (120, 40), (200, 60)] {
        let mut program = Program::alone(size);
        program.keys("tt/p1/probs\r");
        assert_eq!(program.stage.app.outline().passes.len(), 3);
        program.keys("jjj");
        let token = program.stage.app.index()[0] as u32;
        program.keys("b");
        let said = program.stage.message().to_owned();
        assert!(said.starts_with("r1 branches from r0 after pass 1"), "{said}");
        let outline = program.stage.app.outline().clone();
        assert_eq!((outline.run, outline.passes.len()), (Run(1), 3), "the branch's first own pass has run");
        assert_eq!(outline.passes[1].sampled.as_ref().map(|token| token.id), Some(token));
        assert_eq!(outline.passes[2].tokens[0].id, token);
        assert_eq!(program.stage.app.place().path(), "r1:p2/probs", "the same step of that pass");
        program.stage.shows("r1 · ");
        program.stage.shows("║");
        // The token at the fork was not sampled.
        program.keys("/p1/probs\r");
        program.stage.shows("← picked");
        assert!(!program.stage.screen().contains("← sampled"));
        program.keys("/p2/probs\r");
        program.stage.shows("← sampled");
        // Runs a decode pass in the branch.
        program.keys("t");
        assert_eq!(program.stage.app.outline().passes.len(), 4);
        // The list shows the texts of the run and of the branch from the fork on.
        program.keys("B");
        program.stage.shows("forks from r0 after p1");
        program.stage.shows("the original run");
        program.stage.shows("║ is the fork");
        crate::pictures::compare(&format!("branches-{}x{}", size.0, size.1), &program.stage.screen());
        program.keys("k\r");
        assert_eq!(program.here().split('[').next(), Some("p1/probs"), "the list leads to the fork");
        assert_eq!(program.stage.app.outline().run, Run(0));
        program.keys("Bjc");
        assert_eq!(program.stage.app.outline().run, Run(1));
        program.stage.shows("r0 · here − there = ");
        program.keys("/r0:p2\r");
        assert_eq!(program.here().split('[').next(), Some("p2/probs"));
        for line in ["/r7:\r", "/r7\r"] {
            program.keys(line);
            assert_eq!(program.stage.message(), "there is no run r7: the runs are r0, r1");
        }
        program.keys("/r1\r");
        assert_eq!(program.stage.app.outline().run, Run(1));
    }
}

/// If the user picks a token that is not in the nucleus, the list of the nucleus still has a row for it.
#[test]
fn a_picked_token_outside_the_nucleus_has_a_row_in_its_list() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut program = Program::alone(size);
        program.keys("/p0/nucleus\r");
        let kept = program.stage.app.kept().unwrap().positive;
        let cut = |screen: &str| screen.lines().find(|line| line.contains("│  cut ")).map(str::to_owned);
        assert_eq!(cut(&program.stage.screen()), None);
        program.keys("/p0/probs\r").keys(&"j".repeat(kept + 2));
        let token = program.stage.app.index()[0];
        program.keys("b/p0/nucleus\r").keys(&"j".repeat(kept + 5));
        assert_eq!(program.stage.app.index(), [token], "the picked token is in the last row");
        let screen = program.stage.screen();
        let row = cut(&screen).unwrap();
        assert!(row.contains(&format!(" {token} ")) && row.contains('←'), "{screen}");
        program.stage.shows(&format!("{kept} of 64 stay; the other {} are 0", 64 - kept));
        program.stage.shows(&format!("r1:p0/nucleus[v={token}] = 0"));
        // A picked token inside the nucleus has the mark in its own row.
        program.keys("/r0:p0/probs\rb/p0/nucleus\r");
        let screen = program.stage.screen();
        assert!(cut(&screen).is_none() && screen.contains('←'), "{screen}");
    }
}

/// In a small window, the two panels of a comparison are one above the other. Each still shows its cells.
#[test]
fn both_panels_show_cells_in_a_small_window() {
    let mut stage = Stage::at("softmax");
    stage.keys("]c");
    let view = |stage: &mut Stage, name: &str| {
        stage.choose(name);
        stage.screen()
    };
    let heads = view(&mut stage, "heads");
    assert!(heads.contains("▸3") && heads.contains("▸2"), "each panel marks its own head\n{heads}");
    let layers = view(&mut stage, "layers");
    assert!(layers.matches("│ layer ").count() >= 2, "{layers}");
    let mut program = Program::alone((80, 24));
    program.keys("t/p0/probs\rjjb/r1:p0/probs\rc");
    program.choose("sampler");
    let screen = program.stage.screen();
    assert_eq!(screen.matches("  logit ").count(), 2, "{screen}");
    assert!(screen.matches("␣w").count() >= 4, "both panels list tokens\n{screen}");
    // Ids are names, so the screen shows no difference between two ids.
    program.keys("/sampled\r");
    assert!(!program.stage.screen().contains("here − there"), "{}", program.stage.screen());
}

#[test]
fn the_sampler_explains_top_p_and_its_bars() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut program = Program::alone(size);
        program.keys("/probs\r");
        program.choose("sampler");
        let share = |program: &Program| {
            program.stage.screen().contains(" of what top-k kept")
                || program.stage.screen().contains(" of top-k's")
        };
        let mut lines = 0;
        while !share(&program) {
            lines += 1;
            assert!(lines < 40, "{}", program.stage.screen());
            program.keys("↓");
        }
        let screen = program.keys("]]→").stage.screen();
        let legend =
            screen.lines().find(|line| line.contains("T tried")).unwrap_or_else(|| panic!("{screen}"));
        assert!(legend.contains("█ may be sampled") || legend.contains("█ kept"), "{legend}");
    }
}

/// `u` shows how often each token was drawn in 100 draws. Min-p, typical-p and the penalty have knobs too.
#[test]
fn the_sampler_counts_a_hundred_draws_and_tries_every_filter() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut program = Program::alone(size);
        program.keys("/probs\r");
        while program.stage.app.view().name() != "sampler" {
            program.keys("v");
        }
        let shown = |program: &Program| {
            let at = program.stage.app.draw_at(program.stage.app.sampler_trial().setting());
            program.stage.app.answers().get(&at).unwrap().unwrap().clone()
        };
        assert!(!program.stage.screen().contains("of 100"));
        program.keys("u");
        let draw = shown(&program);
        assert_eq!((draw.times, draw.tokens.iter().map(|token| token.count).sum::<u32>()), (100, 100));
        program.stage.shows("of 100");
        // Temperature 1, then min-p, typical-p and the penalty.
        program.keys("→→]]]→→→→]←←←[[[[[→→→");
        let setting = program.stage.app.sampler_trial().setting().unwrap();
        assert_eq!((setting.min_p, setting.typical_p, setting.repetition_penalty), (0.1, 0.9, 1.2));
        let draw = shown(&program);
        assert!(draw.after_min_p.count <= draw.after_p.count, "{draw:?}");
        assert!(draw.after_typical_p.count <= draw.after_min_p.count, "{draw:?}");
        program.stage.shows("‹1.2›");
        program.keys("u");
        assert!(!program.stage.screen().contains("of 100"));
    }
}

#[test]
fn in_a_small_window_the_sampler_shows_the_setting_and_every_cut() {
    for size in [(60, 16), (80, 16), (80, 24), (120, 40), (200, 60)] {
        let mut program = Program::alone(size);
        program.keys("/probs\r");
        program.choose("sampler");
        // Chooses a top-p that cuts inside a small top-k.
        program.keys("→→]←←←←]←←");
        let setting = program.stage.app.sampler_trial().setting().unwrap();
        let (k, p) = (setting.top_k, setting.top_p);
        assert!(k > 0 && p < 1.0, "{setting:?}");
        let at = program.stage.app.draw_at(Some(setting));
        let draw = program.stage.app.answers().get(&at).unwrap().unwrap();
        let screen = program.stage.screen();
        assert!(screen.contains(&format!("‹{p}›")), "{size:?}\n{screen}");
        let said = |name: &str, count: usize| {
            let short = name.trim_start_matches("top-");
            [name, short].iter().any(|name| screen.contains(&format!("→ {name}: {count}")))
        };
        let cuts = said("top-k", draw.after_k.count) && said("top-p", draw.after_p.count);
        let kept = screen.contains(&format!("{} kept", draw.after_p.count));
        assert!(if size.1 == 16 { kept } else { cuts }, "{size:?}\n{screen}");
    }
}

#[test]
fn the_sampler_branches_with_its_token_or_the_token_under_the_cursor() {
    let mut program = Program::alone((120, 40));
    program.keys("/probs\r");
    program.choose("sampler");
    // Changes the seed until another token is sampled.
    program.keys("]]]]]");
    let run = program.stage.app.outline().passes[0].sampled.clone().unwrap();
    let drawn = |program: &Program| {
        let setting = program.stage.app.sampler_trial().setting();
        let at = program.stage.app.draw_at(setting);
        program.stage.app.answers().get(&at).unwrap().unwrap().drawn
    };
    program.keys("→");
    for _ in 0..50 {
        if drawn(&program) == run.id {
            program.keys("→");
        }
    }
    let (tried, setting) = (drawn(&program), program.stage.app.sampler_trial().setting());
    assert!(tried != run.id && setting.is_some());
    program.keys("b");
    let fork = program.stage.app.outline().fork.unwrap();
    assert_eq!((fork.of, fork.pass, fork.token, fork.setting), (Run(0), 0, tried, setting));
    assert_eq!(
        program.stage.app.sampler_trial().setting(),
        None,
        "the tried setting became the setting of the branch"
    );
    // The title has the sampling settings of this run.
    let own = setting.unwrap();
    let title = program.stage.screen().lines().next().unwrap().to_owned();
    assert!(
        title.contains(&format!("s {}", own.seed)) || title.contains(&format!("seed {}", own.seed)),
        "{title}"
    );
    program.keys("/r0:p0/probs\r");
    program.stage.key(KeyCode::Home);
    program.keys("↓\r");
    let fork = program.stage.app.outline().fork.unwrap();
    assert_eq!((program.stage.app.outline().run, fork.setting), (Run(2), None));
    assert!(!program.stage.screen().lines().next().unwrap().contains("seed"), "the run's own");
    assert_eq!(fork.token as usize, program.stage.app.outline().passes[1].tokens[0].id as usize);
    // At the pass where the token was picked, the view says so, and samples nothing.
    program.keys("/r2:p0/probs\r");
    assert_eq!(program.stage.app.view().name(), "sampler");
    let screen = program.stage.screen();
    let text = program.stage.app.outline().passes[1].tokens[0].text.replace(' ', "␣");
    assert_ne!(fork.token, run.id);
    let lines: Vec<&str> = screen.lines().collect();
    let settings =
        lines.iter().position(|line| line.contains("  picked")).unwrap_or_else(|| panic!("{screen}"));
    assert!(lines[settings + 1].contains(&text.chars().take(4).collect::<String>()), "{screen}");
    let marked = lines.iter().find(|line| line.contains(" ←") && line.contains("0.0")).unwrap();
    assert!(marked.contains(&text), "{screen}");
    program.stage.shows("→ picked");
    // A branch with the run's own token has the same text as the run, and a message says so.
    program.keys("/r0:p0/probs\rb");
    assert!(
        program.stage.message().contains("continues r0 after pass 0, with the same token"),
        "{}",
        program.stage.message()
    );
    program.keys("B");
    program.stage.shows("as r0 after p0");
    program.keys("B");
    // At other stages there is no token for a branch.
    program.keys("/r0:p0/L1/xq\rb");
    assert!(
        program.stage.message().starts_with("b continues with another token"),
        "{}",
        program.stage.message()
    );
    program.keys("/logits[t=3]\rb");
    assert!(
        program.stage.message().contains("a branch can begin only after the prompt's last token, 11"),
        "{}",
        program.stage.message()
    );
}

/// In a trace no branch can be computed. The key `b` says this at once, at every stage.
#[test]
fn a_branch_of_a_trace_is_refused_at_once() {
    let mut source = Synthetic::new();
    source.outline.recorded = true;
    let mut stage = Stage::new(source, (120, 40), Depth::None);
    for address in ["L1/xq", "probs", "logits"] {
        stage.keys("/").keys(address).key(KeyCode::Enter);
        stage.keys("b");
        assert!(
            stage.message().starts_with("a trace has only the passes that were recorded"),
            "{}",
            stage.message()
        );
    }
}

#[test]
fn the_go_to_line_runs_another_prompt_and_keeps_the_previous_run() {
    let beginner = |run, other: NewRun| match other {
        NewRun::Scene(_) => panic!("no scene"),
        NewRun::Prompt(text) if text.is_empty() => Err(Error::prompt("a text of no characters")),
        NewRun::Prompt(text) if text == "nothing" => Err(Error::prompt("the prompt is empty")),
        NewRun::Edited(new) if new.edits == ["L9/h9 off"] => Err(Error::usage("the model has no L9/h9")),
        NewRun::Edited(new) => {
            let mut source = Synthetic::new();
            let ids: Vec<u32> = source.outline.passes[0].tokens.iter().map(|token| token.id).collect();
            assert_eq!((new.ids, &new.edits[..]), (ids, &["L0/h1 off".to_owned()][..]));
            (source.outline.run, source.outline.card.without) = (run, vec!["L0/h1".into()]);
            Ok(vec![Box::new(source) as Box<dyn Source>])
        }
        NewRun::Prompt(text) => {
            let tokens = text.split(' ').zip(40..).map(|(word, id)| TokenLabel { id, text: word.to_owned() });
            let mut source = Synthetic::with(synthetic::config(), Precision::F32, tokens.collect());
            source.outline.run = run;
            source.outline.passes[0].sampled = None;
            Ok(vec![Box::new(source) as Box<dyn Source>])
        }
    };
    let mut program = Program::alone((120, 40));
    program.keys("/prompt Hello\r");
    assert!(program.stage.message().starts_with("no other prompt can be run next to"));
    program.runs = Runs::new(Box::new(Synthetic::new())).with_starter(Box::new(beginner));
    program.keys("/L1/xq[h=1]\r/prompt\r");
    assert!(
        program.stage.message().starts_with("type a text after the word prompt"),
        "{}",
        program.stage.message()
    );
    program.keys("\u{1b}/prompt \"\"\r");
    assert_eq!(program.stage.message(), "a text of no characters", "as a shell has it");
    program.keys("\u{1b}/prompt nothing\r");
    assert_eq!(program.stage.message(), "the prompt is empty");
    assert_eq!(program.stage.app.place().path(), "p0/L1/xq");
    program.keys("/prompt A fox / and a crow\r");
    assert!(program.stage.message().starts_with("r1 runs another prompt;"), "{}", program.stage.message());
    assert_eq!(program.stage.app.place().path(), "r1:p0/L1/xq");
    program.keys("k");
    assert_eq!(program.here(), "r1:p0/L1/xq[t=4,h=1,c=0]");
    assert_eq!(program.stage.app.outline().passes[0].tokens.len(), 6);
    program.keys("B");
    program.stage.shows("another prompt");
    program.stage.shows("andacrow→");
    program.stage.shows("→ is the end of a prompt");
    program.keys("\u{1b}/r0:\r");
    assert_eq!(program.stage.app.place().path(), "p0/L1/xq");
    // Requests a run of the same prompt with a part of the model switched off; at first, no part is named.
    program.keys("/without\r");
    assert!(
        program.stage.message().starts_with("name the part to switch off"),
        "{}",
        program.stage.message()
    );
    program.keys("\u{1b}/without L9/h9\r");
    assert_eq!(program.stage.message(), "the model has no L9/h9");
    assert_eq!(program.stage.app.place().path(), "p0/L1/xq");
    program.keys("/without L0/h1");
    program.stage.shows(" this prompt without a part of the model ");
    program.keys("\r");
    assert!(program.stage.message().starts_with("r2 runs this prompt without L0/h1;"));
    assert_eq!(program.stage.app.place().path(), "r2:p0/L1/xq");
    program.stage.shows("without L0/h1 · ");
    program.keys("B");
    program.stage.shows("r2     without L0/h1");
}
