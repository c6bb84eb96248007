//! Actions and the key table. Key presses are looked up in this table, and the footer and the help screen show it.

use super::erase::Erase;
use super::report::Report;
use super::user_event::{KeyCode, KeyEvent, KeyModifiers};

/// An input of the viewer: usually a key press, but also the mouse, the clock of a playback or the result of an effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Goes to the next step, views included.
    NextStep,
    /// Goes to the previous step.
    PreviousStep,
    /// Skips the reshapes between stages, or stops skipping them.
    SkipReshapes,
    /// Goes to the same step of the next layer.
    NextLayer,
    /// Goes to the same step of the previous layer.
    PreviousLayer,
    /// Goes to the next head, or the next index of the held axis.
    NextSlice,
    /// Goes to the previous head.
    PreviousSlice,
    /// Goes to the first step of the pass.
    FirstStep,
    /// Goes to the last step of the pass.
    LastStep,
    /// Goes to the same step of the next pass.
    NextPass,
    /// Goes to the same step of the previous pass.
    PreviousPass,
    /// Goes to the same place of the next sequence.
    NextSequence,
    /// Goes to the same place of the previous sequence.
    PreviousSequence,
    /// Runs a decode pass with the token that was sampled last.
    NextToken,
    /// Begins a branch with another token.
    Branch,
    /// Lists the branches.
    Branches,
    /// Opens the go-to line with an edit of the number under the cursor.
    Edit,
    /// Opens the go-to line with the current token, to replace it.
    EditToken,
    /// Lists the edits.
    Edits,
    /// Moves up by a row, a line or a step, depending on the focus.
    Up,
    /// Moves down.
    Down,
    /// Moves left.
    Left,
    /// Moves right.
    Right,
    /// Pages up.
    PageUp,
    /// Pages down.
    PageDown,
    /// Pages left.
    PageLeft,
    /// Pages right.
    PageRight,
    /// Goes to the first column, or the top.
    Home,
    /// Goes to the last column, or the bottom.
    End,
    /// Moves the focus to the next panel.
    NextFocus,
    /// Moves the focus to the previous panel.
    PreviousFocus,
    /// Moves the focus to the notes, or back to the tensor.
    Notes,
    /// Opens the derivation of the number under the cursor, or goes to the chosen operand.
    Explain,
    /// Goes back along the trail of derivations, or to the previous step.
    Back,
    /// Opens the list of views, or chooses the next view in it.
    Views,
    /// Chooses a view of this step by its number, counted from 1.
    ChooseView(u8),
    /// Holds another axis, or transposes rows and columns.
    CycleAxes,
    /// Chooses the next colour scale: this slice, the whole tensor, three standard deviations, everything.
    CycleScale,
    /// Chooses the next values of the token strip: none, surprise, attention.
    CycleStrip,
    /// Counts draws in the sampler view, or ends the count.
    CountDraws,
    /// Compares with what was shown before.
    Compare,
    /// Shows the difference of two compared tensors in place of the second tensor.
    Subtract,
    /// Goes to the next stage that differs.
    NextDifference,
    /// Goes back in the history.
    Earlier,
    /// Goes forward in the history.
    Later,
    /// Goes to the largest value of the row.
    LargestInRow,
    /// Goes to the largest value of the tensor.
    LargestOfAll,
    /// Marks this place with a letter.
    Mark,
    /// Returns to the place with a letter.
    Return,
    /// Shows only the panel with the focus, or all panels again.
    Zoom,
    /// Folds or unfolds the outline.
    FoldOutline,
    /// Folds or unfolds the notes.
    FoldNotes,
    /// Sets a filter for cells like the one under the cursor, or removes the filter.
    Filter,
    /// Goes to the next cell of the filter. A playback gets faster.
    NextLike,
    /// Goes to the previous cell of the filter. A playback gets slower.
    PreviousLike,
    /// Starts or stops the playback of the last walk.
    Play,
    /// Shows or folds the answers of exercises.
    Answers,
    /// Opens the list of chapters.
    Chapters,
    /// Copies the address and the value to the clipboard.
    Copy,
    /// Opens the go-to line.
    Goto,
    /// Opens the help screen.
    Help,
    /// Writes this stage to a file.
    Export,
    /// Draws the screen into a file.
    Draw,
    /// Suspends the process, as the shell's Ctrl-Z does.
    Suspend,
    /// Redraws the whole screen.
    Redraw,
    /// Closes the open popup or panel, or stops the work under way.
    Close,
    /// Computes again what was stopped or failed.
    Again,
    /// Closes the open list, or ends the program.
    Quit,
    /// Ends the program, with any popup open.
    Leave,
    /// A key without a binding, by its name. The viewer shows a message.
    Unbound(String),
    /// A character typed into an input line.
    Type(char),
    /// Text pasted into an input line.
    Paste(String),
    /// Deletes text at the end of an input line.
    Erase(Erase),
    /// Inserts the completion.
    Complete,
    /// Goes to the place in the go-to line.
    Submit,
    /// Goes to the next scene of the lesson.
    NextScene,
    /// Goes to the previous scene of the lesson.
    PreviousScene,
    /// A digit for the question of the scene: the number of a choice, or the first digit of a typed answer.
    AnswerDigit(char),
    /// Appends the screen as a scene to the file of a lesson.
    AppendScene,
    /// The new size of the terminal, in columns and rows.
    Resize(u16, u16),
    /// A click at a column and a row.
    Click(u16, u16),
    /// The pointer was dragged to a column and a row.
    Drag(u16, u16),
    /// The wheel was turned at a column and a row.
    Scroll {
        /// Column.
        x: u16,
        /// Row.
        y: u16,
        /// Lines down; negative is up.
        down: i8,
        /// Columns to the right.
        right: i8,
    },
    /// The next step of the playback is due.
    PlayOn,
    /// The result of an effect.
    Report(Report),
}

/// A section of the help screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Keys that walk through the pass.
    Walk,
    /// Keys for a tensor.
    Tensor,
    /// All other keys.
    Program,
}

impl Group {
    /// Every group, in the order of the help screen.
    pub const ALL: [Self; 3] = [Self::Walk, Self::Tensor, Self::Program];

    /// The group's heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Walk => "Walking through the pass",
            Self::Tensor => "Looking at a tensor",
            Self::Program => "The program",
        }
    }
}

/// A key, with or without Ctrl or Alt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    code: KeyCode,
    ctrl: bool,
    alt: bool,
}

/// One row of the key table.
#[derive(Debug)]
pub struct Binding {
    /// The keys; the footer shows the first one.
    pub keys: &'static [Key],
    /// The action of these keys.
    pub action: Action,
    /// The section of the help screen.
    pub group: Group,
    /// The word in the footer; neighbours with the same word share one entry.
    pub word: &'static str,
    /// Priority in the footer: 1 is the highest, 0 is not shown.
    pub rank: u8,
    /// The text in the help screen.
    pub help: &'static str,
}

const fn c(c: char) -> Key {
    Key { code: KeyCode::Char(c), ctrl: false, alt: false }
}
const fn k(code: KeyCode) -> Key {
    Key { code, ctrl: false, alt: false }
}
const fn ctrl(code: KeyCode) -> Key {
    Key { code, ctrl: true, alt: false }
}
const fn alt(code: KeyCode) -> Key {
    Key { code, ctrl: false, alt: true }
}

macro_rules! bindings {
    ($( $group:ident $action:ident $(($number:literal))? [$($key:expr),*] $rank:literal $word:literal $help:literal; )*) => {
        /// The key table.
        pub static BINDINGS: &[Binding] = &[$(Binding {
            keys: &[$($key),*],
            action: Action::$action $(($number))?,
            group: Group::$group,
            word: $word,
            rank: $rank,
            help: $help,
        },)*];
    };
}

bindings! {
    Walk NextStep [c('n'), c(' ')] 1 "step" "next step, views such as transposes included";
    Walk PreviousStep [c('p')] 1 "step" "previous step";
    Walk SkipReshapes [c('R')] 13 "reshapes" "n and p skip the reshapes and transposes between stages (xq_heads, keys_t and similar steps); R again: they stop there";
    Walk NextLayer [c('N'), c('}')] 4 "layer" "same step, next layer";
    Walk PreviousLayer [c('P'), c('{')] 4 "layer" "same step, previous layer";
    Walk NextSlice [c(']')] 5 "head" "next head (or next index of the axis fixed with a)";
    Walk PreviousSlice [c('[')] 5 "head" "previous head";
    Walk NextToken [c('t')] 6 "token" "next token: run a decode pass that reads the token sampled last";
    Walk NextPass [c('.'), c('>')] 11 "pass" "same step, next pass";
    Walk PreviousPass [c(','), c('<')] 11 "pass" "same step, previous pass";
    Walk NextSequence [c(')')] 0 "" "same place, next sequence (of several prompts)";
    Walk PreviousSequence [c('(')] 0 "" "same place, previous sequence";
    Walk Play [c('A')] 0 "" "play: repeat the last key that moved (n, N, ], . and similar keys); + is faster, - is slower, any other key stops";
    Walk FirstStep [c('g')] 12 "first/last" "first step of the pass";
    Walk LastStep [c('G')] 12 "first/last" "last step of the pass";
    Walk Goto [c('/'), c(':')] 3 "go to" "go to a stage, layer, pass, sequence or address: softmax, L3/xq, 3 (layer 3), step 24, p1, s1, p0/L1/softmax[h=2,t=5,k=1], or a weight: L1/wq[o=5,i=17]; omitted parts stay as they are; a few letters, a head (h2) or a token's text find a place too: soft upon h2; commands: /prompt A fox (run another text), /without L0/h2 (switch a part off), /edit L1/softmax[h=0] = 0 (change values), /token 3 = dog (another token), /edits (list of edits), /compare h=2 (side by side), /patch A fox (which places carry the answer of this other text)";
    Walk Earlier [alt(KeyCode::Left)] 0 "" "back to the previous place";
    Walk Later [alt(KeyCode::Right)] 0 "" "forward again";
    Walk Mark [c('m')] 0 "" "m and a letter: mark this place; --marks FILE keeps the marks in a file, without it they last until the program ends";
    Walk Return [c('\'')] 0 "" "' and a letter: go to the place with this mark";
    Walk Branch [c('b')] 0 "" "branch: continue with the token under the cursor (in logits, probs or nucleus); in the sampler view, b takes the token that the sampler picks, Enter takes the token under the cursor";
    Walk Branches [c('B')] 0 "" "list the branches, and where each one begins";
    Walk Edit [c('E')] 0 "" "edit: run this prompt again with the number under the cursor changed; type a value (0, mean, an address, a .npy file); Tab widens the place to the row, the head or the token; the new run is r1, and c compares it with this one";
    Walk EditToken [c('w')] 0 "" "run this prompt again with another token at the current position; Tab inserts a token before or after it; without a text, the token is deleted";
    Walk Edits [c('X')] 0 "" "list all edits; Enter runs this prompt with or without the chosen one";
    Tensor Up [k(KeyCode::Up), c('k')] 0 "" "a row up (in the notes: a line; in the outline: a step)";
    Tensor Down [k(KeyCode::Down), c('j')] 0 "" "a row down";
    Tensor Left [k(KeyCode::Left), c('h')] 0 "" "a column to the left (in the outline: a layer back)";
    Tensor Right [k(KeyCode::Right), c('l')] 0 "" "a column to the right";
    Tensor PageUp [k(KeyCode::PageUp), ctrl(KeyCode::Char('b'))] 0 "" "a screen up";
    Tensor PageDown [k(KeyCode::PageDown), ctrl(KeyCode::Char('f'))] 0 "" "a screen down";
    Tensor PageLeft [ctrl(KeyCode::Left), c('H')] 0 "" "a screen to the left";
    Tensor PageRight [ctrl(KeyCode::Right), c('L')] 0 "" "a screen to the right";
    Tensor Home [k(KeyCode::Home), c('0')] 0 "" "first column (in a list: the top)";
    Tensor End [k(KeyCode::End), c('$')] 0 "" "last column (in a list: the bottom)";
    Tensor Explain [k(KeyCode::Enter)] 7 "why" "explain where the number under the cursor comes from; in the explanation: go to the chosen operand";
    Tensor Back [k(KeyCode::Backspace)] 0 "" "back to the number where you pressed Enter (if there is none: previous step)";
    Tensor Compare [c('c')] 0 "" "compare with the previous place: another head, layer, pass, sequence or run; /compare h=2 (t=3, L0, p0, xq) names another place; shows the difference of the cell under the cursor; both tensors have the same colour scale";
    Tensor Subtract [c('d')] 0 "" "in a comparison: show the difference as a heatmap (or as numbers) instead of the second tensor, and back";
    Tensor NextDifference [c('D')] 0 "" "the next stage that differs, at the cell with the largest error (in `diff A B --tui`; `i` shows the verdict)";
    Tensor LargestInRow [c('*')] 0 "" "the largest value of the row (not the value furthest from 0)";
    Tensor LargestOfAll [c('#')] 0 "" "the largest value of the whole tensor, all heads";
    Tensor Filter [c('=')] 0 "" "find cells like this one: the same sign, and at least as far from 0; the others are dimmed (again: show all)";
    Tensor NextLike [c('+')] 0 "" "the next such cell of the tensor";
    Tensor PreviousLike [c('-')] 0 "" "the previous such cell";
    Tensor Views [c('v')] 7 "view" "list the views of this step; in the list: v or ↓ shows the next view, ↑ the previous one, a number chooses a view, Enter keeps the shown view, Esc goes back to the view before";
    Tensor ChooseView(1) [c('1'), c('2'), c('3'), c('4'), c('5'), c('6'), c('7'), c('8'), c('9')] 0 "" "1 to 9: the view with this number in the list of v";
    Tensor CycleAxes [c('a')] 9 "axes" "fix another axis (head, token, …), or exchange rows and columns";
    Tensor CycleScale [c('s')] 10 "scale" "colour scale: the usual values (all but the 1% furthest from 0) of this slice or of the whole tensor, ±3 standard deviations, or all values";
    Tensor CycleStrip [c('T')] 0 "" "the token strip shows the surprise of each token (−log p), the attention of the current head, or only the tokens";
    Tensor CountDraws [c('u')] 0 "" "in the sampler view: draw 100 times from the same probabilities, and show the frequencies beside them (again: hide them)";
    Program NextFocus [k(KeyCode::Tab)] 8 "panel" "move the focus of the arrow keys to the next panel: tensor, notes, outline";
    Program PreviousFocus [k(KeyCode::BackTab)] 0 "" "move the focus to the previous panel";
    Program Notes [c('i')] 8 "notes" "show or hide the notes on this step";
    Program Zoom [c('z')] 0 "" "show the panel in focus on the whole screen, and back";
    Program FoldOutline [c('f')] 0 "" "fold the outline, and back";
    Program FoldNotes [c('F')] 0 "" "fold the notes, and back";
    Program Chapters [c('C')] 0 "" "list the chapters; Enter runs the chosen one as a lesson on its own prompt: Space is the next scene, Backspace the one before, Esc returns here; /learn is the first lesson";
    Program Answers [c('x')] 0 "" "show or hide the answers of the chapters' exercises";
    Program AppendScene [c('W')] 0 "" "append this screen as a scene to the lesson of --lesson FILE";
    Program Copy [c('y')] 0 "" "copy the address and the value (with OSC 52, which not every terminal supports)";
    Program Export [c('e')] 9 "export" "export this stage as a .npy file into the current folder";
    Program Draw [c('S')] 0 "" "draw this screen into an .svg file in the current folder";
    Program Help [c('?'), k(KeyCode::F(1))] 2 "help" "this screen; type to search it, Esc or ? closes it";
    Program Close [k(KeyCode::Esc)] 0 "" "close an open panel, stop the computation (during the first pass: and quit), or go back to the tensor";
    Program Again [c('r')] 0 "" "compute again after a stop";
    Program Redraw [ctrl(KeyCode::Char('l'))] 0 "" "draw the screen again";
    Program Suspend [ctrl(KeyCode::Char('z'))] 0 "" "suspend; `fg` comes back";
    Program Quit [c('q')] 2 "quit" "quit; an open list is closed first (in this screen, q is a letter to search)";
    Program Leave [ctrl(KeyCode::Char('c'))] 0 "" "quit, even if a list is open";
}

impl Key {
    fn matches(self, event: KeyEvent) -> bool {
        let ctrl = event.modifiers.contains(KeyModifiers::CONTROL);
        let alt = event.modifiers.contains(KeyModifiers::ALT);
        self.code == event.code && self.ctrl == ctrl && self.alt == alt
    }

    /// The key's name on the screen.
    pub fn label(self) -> String {
        let name = match self.code {
            KeyCode::Char(' ') => "Space".to_owned(),
            KeyCode::Char(c) if self.ctrl => c.to_ascii_uppercase().to_string(),
            KeyCode::Char(c) => c.to_string(),
            KeyCode::Up => "↑".to_owned(),
            KeyCode::Down => "↓".to_owned(),
            KeyCode::Left => "←".to_owned(),
            KeyCode::Right => "→".to_owned(),
            KeyCode::PageUp => "PgUp".to_owned(),
            KeyCode::PageDown => "PgDn".to_owned(),
            KeyCode::BackTab => "Shift-Tab".to_owned(),
            KeyCode::F(number) => format!("F{number}"),
            KeyCode::Other(name) => name.to_owned(),
            code => format!("{code:?}"),
        };
        match (self.ctrl, self.alt) {
            (true, _) => format!("Ctrl-{name}"),
            (false, true) => format!("Alt-{name}"),
            (false, false) => name,
        }
    }
}

impl Binding {
    /// All keys of the row: "n, Space".
    pub fn labels(&self) -> String {
        if matches!(self.action, Action::ChooseView(_)) {
            return "1 … 9".to_owned();
        }
        let labels: Vec<_> = self.keys.iter().map(|key| key.label()).collect();
        labels.join(", ")
    }
}

/// The action of a key outside the go-to line.
pub fn of_key(event: KeyEvent) -> Option<Action> {
    let binding = BINDINGS.iter().find(|binding| binding.keys.iter().any(|key| key.matches(event)));
    let Some(binding) = binding else { return Some(unbound(event)) };
    match (binding.action.clone(), event.code) {
        (Action::ChooseView(_), KeyCode::Char(digit)) => {
            Some(Action::ChooseView(u8::try_from(digit.to_digit(10)?).ok()?))
        }
        (action, _) => Some(action),
    }
}

/// The action of a key that is not in the table: it shows a message.
fn unbound(event: KeyEvent) -> Action {
    let ctrl = event.modifiers.contains(KeyModifiers::CONTROL);
    let alt = event.modifiers.contains(KeyModifiers::ALT);
    Action::Unbound(Key { code: event.code, ctrl, alt }.label())
}

/// The action of a key that edits an input line; none for other keys.
fn of_edit_key(event: KeyEvent) -> Option<Action> {
    let plain = !event.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    let ctrl = event.modifiers.contains(KeyModifiers::CONTROL);
    match event.code {
        KeyCode::Char(c) if plain => Some(Action::Type(c)),
        KeyCode::Char('h') if ctrl => Some(Action::Erase(Erase::Character)),
        KeyCode::Char('w') if ctrl => Some(Action::Erase(Erase::Word)),
        KeyCode::Char('u') if ctrl => Some(Action::Erase(Erase::Line)),
        KeyCode::Backspace => Some(Action::Erase(Erase::Character)),
        _ => None,
    }
}

/// The action of a key in the help screen, where letters are typed to filter it.
pub fn of_found_key(event: KeyEvent) -> Option<Action> {
    of_edit_key(event).or_else(|| of_key(event))
}

/// The action of a key in the go-to line.
pub fn of_typed_key(event: KeyEvent) -> Option<Action> {
    if let Some(edit) = of_edit_key(event) {
        return Some(edit);
    }
    match event.code {
        KeyCode::Char('c') if event.modifiers.contains(KeyModifiers::CONTROL) => Some(Action::Leave),
        KeyCode::Tab => Some(Action::Complete),
        KeyCode::Enter => Some(Action::Submit),
        KeyCode::Esc => Some(Action::Close),
        KeyCode::Up | KeyCode::BackTab => Some(Action::Up),
        KeyCode::Down => Some(Action::Down),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_stands_twice() {
        let keys: Vec<_> = BINDINGS.iter().flat_map(|binding| binding.keys).collect();
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{}", key.label());
        }
    }

    #[test]
    fn shifted_letters_are_keys_of_their_own() {
        let event = |c, modifiers| KeyEvent::new(KeyCode::Char(c), modifiers);
        assert_eq!(of_key(event('n', KeyModifiers::NONE)), Some(Action::NextStep));
        assert_eq!(of_key(event('N', KeyModifiers::SHIFT)), Some(Action::NextLayer));
        assert_eq!(of_key(event('c', KeyModifiers::CONTROL)), Some(Action::Leave));
        assert_eq!(of_key(event('n', KeyModifiers::ALT)), Some(Action::Unbound("Alt-n".to_owned())));
    }
}
