//! Edits in the viewer: the line in which they are typed, the runs that they start, their marks and their list.

use llama_trace::trace::{Run, Source, TokenLabel};
use llama_trace::tui::runs::{NewRun, Runs};
use llama_trace::tui::theme::Depth;
use llama_trace_core::edit::Edit;
use llama_trace_core::error::Result;

use crate::sequences::Program;
use crate::stage::Stage;
use crate::synthetic::Synthetic;

/// A run as the program starts it. The words of an inserted text become tokens of their own.
fn begin(run: Run, new: NewRun) -> Result<Vec<Box<dyn Source>>> {
    let NewRun::Edited(new) = new else { panic!("not a prompt") };
    let mut source = Synthetic::new();
    let label = |id: u32| {
        let known = Synthetic::new().outline.passes[0].tokens.iter().find(|token| token.id == id).cloned();
        known.unwrap_or(TokenLabel { id, text: format!("#{id}") })
    };
    let mut tokens: Vec<TokenLabel> = new.ids.iter().map(|&id| label(id)).collect();
    if let Some((at, text)) = new.insert {
        tokens.insert(at, TokenLabel { id: 77, text });
    }
    let pass = &mut source.outline.passes[0];
    (pass.dims.tokens, pass.tokens) = (tokens.len(), tokens);
    let off = |edit: &String| Edit::parse(edit).unwrap().switched_off().map(str::to_owned);
    match new.edits.iter().map(off).collect::<Option<Vec<_>>>() {
        Some(parts) => source.outline.card.without = parts,
        None => source.outline.card.edits = new.edits,
    }
    source.outline.run = run;
    Ok(vec![Box::new(source)])
}

fn program(size: (u16, u16)) -> Program {
    let mut program = Program::alone(size);
    program.runs = Runs::new(Box::new(Synthetic::new())).with_starter(Box::new(begin));
    program.stage.app = program.stage.app.with_other_runs(None, None);
    program
}

#[test]
fn a_key_opens_an_edit_of_the_number_and_tab_widens_it() {
    let mut program = program((120, 40));
    program.keys("/L1/softmax[h=2,t=5,k=1]\rE");
    program.stage.shows(" this prompt with an edit ");
    program.stage.shows("/ edit p0/L1/softmax[h=2,t=5,k=1] = ");
    program.stage.shows("type a number, mean");
    for place in ["[h=2,t=5] =", "[h=2] =", "[t=5] =", " =", "[h=2,t=5,k=1] ="] {
        program.keys("\t");
        program.stage.shows(&format!("/ edit p0/L1/softmax{place}"));
    }
    // A wrong value is explained in the line, and Enter does not start a run.
    program.keys("nan");
    program.stage.shows("NaN is not a value that an edit can write");
    program.keys("\r");
    assert!(program.stage.message().starts_with("NaN is not a value"), "{}", program.stage.message());
    assert_eq!(program.stage.app.outline().run, Run(0));
    program.keys("\u{8}\u{8}\u{8}0.5");
    program.stage.shows("Enter runs the prompt with this edit");
    program.keys("\r");
    assert_eq!(program.here(), "r1:p0/L1/softmax[h=2,t=5,k=1]");
    let message = program.stage.message();
    assert!(message.starts_with("r1 runs this prompt with p0/L1/softmax[h=2,t=5,k=1] = 0.5;"), "{message}");
    program.stage.shows(" with p0/L1/softmax[h=2,t=5,k=1] = 0.5 · synthetic-3x4");
    // A view of a stage edits the stage.
    program.keys("/keys_t[h=1,c=2,k=3]\rE");
    program.stage.shows("/ edit p0/L1/keys[k=3,h=1,c=2] = ");
    program.keys("\u{1b}/xq[t=4,h=1,c=0]\rE\t\t");
    program.stage.shows("/ edit p0/L1/xq[h=1] = ");
    // Stages that cannot be edited say so.
    program.keys("\u{1b}/probs\rE1");
    program.stage.shows("probs is computed from the logits");
    // Tab keeps the indexes of the line, wherever the cursor is.
    program.keys("\u{1b}/L1/softmax[h=2,t=5,k=1]\rE");
    program.keys(&"\u{8}".repeat("[h=2,t=5,k=1] = ".len()));
    program.keys("[h=0-1,t=3,k=2] = \t");
    program.stage.shows("/ edit p0/L1/softmax[h=0-1,t=3] = ");
}

#[test]
fn edits_are_marked_and_enter_names_them() {
    for size in [(80, 24), (100, 30), (120, 40), (200, 60)] {
        for depth in [Depth::None, Depth::True] {
            let mut source = Synthetic::new();
            source.outline.card.edits = vec!["p0/L1/softmax[h=2,t=3-5,k=1] = 0".into()];
            let mut stage = Stage::new(source, size, depth);
            stage.keys("/L1/softmax[h=2,t=9,k=0]");
            stage.key(llama_trace::tui::user_event::KeyCode::Enter);
            stage.shows("◆ edited");
            // The legend has a mark too.
            let marks = |stage: &Stage| {
                let body = stage.body();
                let lines = body.iter().filter(|line| !line.contains("◆ edited"));
                lines.map(|line| line.matches('◆').count()).sum::<usize>()
            };
            assert_eq!(marks(&stage), 3, "{size:?} {depth:?}:\n{}", stage.screen());
            stage.keys("]");
            assert_eq!(marks(&stage), 0, "another head, {size:?}:\n{}", stage.screen());
            stage.keys("[").choose("numbers");
            assert_eq!(marks(&stage), 3, "{size:?} {depth:?}:\n{}", stage.screen());
            stage.shows("◆ edited");
        }
    }
    let mut program = program((120, 40));
    program.keys("/edit p0/L1/softmax[h=2,t=5] = 0\r/L1/softmax[h=2,t=5,k=1]\r");
    program.stage.shows(" · edited");
    let explained = |program: &mut Program, address: &str| {
        program.keys(&format!("\u{1b}/{address}\r\r"));
        program.stage.screen()
    };
    let screen = explained(&mut program, "L1/softmax[h=2,t=5,k=1]");
    assert!(screen.contains("edited: p0/L1/softmax[h=2,t=5] = 0"), "{screen}");
    assert!(screen.contains("gives the value before the edit"), "{screen}");
    for (address, reached) in [
        ("L1/softmax[h=1,t=5,k=1]", false),
        ("L1/xq[t=5,h=2,c=0]", false),
        ("L0/attn_heads[t=5,h=2,c=0]", false),
        ("L1/attn_heads[t=5,h=2,c=0]", true),
        ("L1/attn_heads[t=5,h=1,c=0]", false),
        ("L1/attn_heads[t=6,h=2,c=0]", false),
        ("L1/ffn_up[t=5,f=0]", true),
        ("L1/ffn_up[t=7,f=0]", false),
        ("L2/xq[t=7,h=0,c=0]", false),
        ("L2/softmax[h=0,t=7,k=1]", true),
        ("L2/softmax[h=0,t=4,k=1]", false),
        ("logits[t=7,v=0]", true),
    ] {
        let screen = explained(&mut program, address);
        let named = screen.contains("an edit can reach this number");
        assert_eq!(named, reached, "{address}:\n{screen}");
        assert!(!screen.contains("edited: p0"), "{address}:\n{screen}");
    }
}

#[test]
fn the_list_switches_edits_on_and_off_and_finds_runs_again() {
    let mut program = program((120, 40));
    program.keys("X");
    assert!(program.stage.message().starts_with("no run has an edit yet"), "{}", program.stage.message());
    // Enter after the command alone waits for its text.
    program.keys("/edit\rL1/softmax[h=0] *= 2\r/without L0/h1\r");
    assert_eq!(program.stage.app.outline().run, Run(2));
    assert_eq!(program.stage.app.outline().card.edits, ["L1/softmax[h=0] *= 2", "L0/h1 off"]);
    program.keys("X");
    program.stage.shows("[x] L1/softmax[h=0] *= 2");
    program.stage.shows("[x] L0/h1 off");
    program.stage.shows("x: this run has the edit");
    // Without the first edit it is a new run; without the second one, the first edited run.
    program.keys("\r");
    assert_eq!(program.stage.app.outline().run, Run(3));
    assert_eq!(program.stage.app.outline().card.without, ["L0/h1"]);
    program.stage.shows(" without L0/h1 · ");
    program.keys("/edits\r");
    program.stage.shows("[x] L0/h1 off");
    program.stage.shows("[ ] L1/softmax[h=0] *= 2");
    program.keys("\r");
    assert_eq!(program.stage.app.outline().run, Run(0), "without edits it is the first run");
    assert_eq!(program.stage.message(), "r0 is that run; /r3: goes back");
    program.keys("X↓");
    let screen = program.stage.screen();
    assert!(!screen.contains("[x]  "), "{screen}");
    program.keys("\u{1b}B");
    program.stage.shows("r1     with L1/softmax[h=0] *= 2");
    program.stage.shows("r3     without L0/h1");
}

#[test]
fn a_token_is_replaced_inserted_or_deleted() {
    let ids = |program: &Program| -> Vec<u32> {
        program.stage.app.outline().passes[0].tokens.iter().map(|token| token.id).collect()
    };
    let mut program = program((120, 40));
    let plain = ids(&program);
    program.keys("/L1/xq[t=2]\rw");
    program.stage.shows(" this prompt with another token ");
    program.stage.shows("/ token 2 = ␣upon");
    program.keys("\u{8}\u{8}\u{8}\u{8}at\r");
    assert!(program.stage.message().starts_with("r1 runs the prompt with other tokens;"));
    program.stage.shows("│␣at│");
    let mut replaced = plain.clone();
    replaced[2] = 77;
    assert_eq!(ids(&program), replaced);
    program.keys("/r0:\rw\t");
    program.stage.shows("/ token before 2 = ␣upon");
    program.keys("\r");
    let mut inserted = plain.clone();
    inserted.insert(2, 77);
    assert_eq!(ids(&program), inserted);
    program.keys("/r0:\r/token after 2 = of\r");
    assert_eq!(ids(&program)[..4], [plain[0], plain[1], plain[2], 77]);
    program.keys("/r0:\r/token 2 =");
    program.stage.shows("Enter runs the prompt without this token");
    program.keys("\r");
    let mut deleted = plain.clone();
    deleted.remove(2);
    assert_eq!(ids(&program), deleted);
    // At the stage of the tokens, `E` edits the token too. Wrong lines are explained.
    program.keys("/r0:\r/tokens[t=2]\rE");
    program.stage.shows("/ token 2 = ␣upon");
    for (line, expected) in [
        ("token 99 = a", "there is no token 99: 0 to 11"),
        ("token x = a", "write a position and a text"),
        ("token above 2 = a", "write a position and a text"),
        ("token 2", "write a position and a text"),
        ("token after 2 = ", "type the text of the token to insert"),
        ("edit", "write a place, an operation and a value"),
        ("edit L1/keys_t = 0", "edit keys"),
        ("without L0/x", "is not a part that can be switched off"),
    ] {
        program.keys(&format!("\u{1b}/{line}\r"));
        assert!(program.stage.message().contains(expected), "{line}: {}", program.stage.message());
    }
}

#[test]
fn a_trace_names_the_option_that_edits_need() {
    let mut source = Synthetic::new();
    source.outline.recorded = true;
    let mut stage = Stage::new(source, (120, 40), Depth::None);
    for key in ["E", "w"] {
        stage.keys(key);
        assert!(stage.message().contains("--model"), "{}", stage.message());
    }
}
