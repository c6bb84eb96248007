//! The functions that the page's script calls, and those of the script that are called from here.
//!
//! Texts and bytes from the script are written into a buffer that [`room`] makes. Texts and bytes for the script lie in
//! buffers whose place a function returns. The module runs on a single thread.
#![allow(unsafe_code, reason = "the functions of the script are foreign, and exports have unmangled names")]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, Range};
use std::panic;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::input;
use crate::outcome::Outcome;
use crate::session::{Next, Session};
use llama_trace_core::tensor::{Bytes, Held};
use llama_trace_core::time::set_clock;
use llama_trace_formats::files::{forget, give};
use llama_trace_picture::Paper;
use llama_trace_tui::user_event::Event;

#[link(wasm_import_module = "page")]
unsafe extern "C" {
    /// Milliseconds since 1970.
    safe fn now() -> f64;
    /// A random number in all 32 bits.
    safe fn random() -> u32;
    /// Reports a panic, whose message lies at this place.
    fn failed(text: *const u8, length: usize);
}

/// The folder of the files that the page was given.
const GIVEN: &str = "given";

#[derive(Default)]
struct State {
    session: Option<Session>,
    /// Bytes from the script.
    input: Vec<u8>,
    /// Cells for the script.
    cells: Vec<u8>,
    /// A text for the script.
    text: String,
    outcome: Option<Outcome>,
    stored: BTreeMap<String, String>,
    /// Memory for files, and their lengths.
    reserved: VecDeque<(Vec<u8>, usize)>,
    files: Vec<PathBuf>,
    /// Number of the folder of the files.
    folder: u32,
}

/// The bytes of a file, in the buffer that the script filled: a large file is not copied.
struct Given(Vec<u8>);

impl Deref for Given {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Held for Given {
    /// The bytes are in memory only.
    fn give_back(&self, _: Range<usize>) {}
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

fn with<T>(use_it: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(use_it)
}

/// Runs `use_it` on the session, if there is one.
fn session<T: Default>(use_it: impl FnOnce(&mut Session, &[u8]) -> T) -> T {
    with(|state| state.session.as_mut().map(|session| use_it(session, &state.input))).unwrap_or_default()
}

fn text(bytes: &[u8]) -> &str {
    // The script encodes texts as UTF-8.
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Makes the input buffer `length` bytes long, and returns its place; 0 if there is no memory for it.
#[unsafe(no_mangle)]
extern "C" fn room(length: usize) -> *mut u8 {
    with(|state| {
        state.input = Vec::new();
        if state.input.try_reserve_exact(length).is_err() {
            return std::ptr::null_mut();
        }
        state.input.resize(length, 0);
        state.input.as_mut_ptr()
    })
}

/// Adds a stored progress. The input is the slug of the lesson, a line end and the text.
#[unsafe(no_mangle)]
extern "C" fn store() {
    with(|state| {
        if let Some((slug, progress)) = text(&state.input).split_once('\n') {
            state.stored.insert(slug.to_owned(), progress.to_owned());
        }
    });
}

/// Begins the session. The input is the link. Returns whether it began.
#[unsafe(no_mangle)]
extern "C" fn begin(columns: u16, rows: u16, light: bool) -> bool {
    set_clock(|| Duration::from_micros((now() * 1000.0) as u64));
    panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        // SAFETY: the script reads `length` bytes at `text` before it returns.
        unsafe { failed(text.as_ptr(), text.len()) };
    }));
    with(|state| {
        let stored = state.stored.clone();
        let session = Session::begin(text(&state.input), &stored, (columns, rows), paper(light));
        state.session = session.ok();
        state.session.is_some()
    })
}

fn paper(light: bool) -> Paper {
    if light { Paper::Light } else { Paper::Dark }
}

/// A key. The input is its name.
#[unsafe(no_mangle)]
extern "C" fn key(modifiers: u32) {
    session(|session, name| {
        if let Some(event) = input::key(text(name), modifiers) {
            session.event(event);
        }
    });
}

/// The mouse at a cell.
#[unsafe(no_mangle)]
extern "C" fn mouse(kind: u32, column: u16, row: u16, modifiers: u32) {
    session(|session, _| {
        if let Some(event) = input::mouse(kind, column, row, modifiers) {
            session.event(event);
        }
    });
}

/// A pasted text, which is the input.
#[unsafe(no_mangle)]
extern "C" fn paste() {
    session(|session, pasted| session.event(Event::Paste(text(pasted).to_owned())));
}

/// A new size of the screen.
#[unsafe(no_mangle)]
extern "C" fn resize(columns: u16, rows: u16) {
    session(|session, _| session.event(Event::Resize(columns, rows)));
}

/// Draws all cells again.
#[unsafe(no_mangle)]
extern "C" fn redraw() {
    session(|session, _| session.redraw());
}

/// A new background.
#[unsafe(no_mangle)]
extern "C" fn set_paper(light: bool) {
    session(|session, _| session.set_paper(paper(light)));
}

/// Shows a message of the page, which is the input.
#[unsafe(no_mangle)]
extern "C" fn message(failure: bool) {
    session(|session, message| session.say(text(message), failure));
}

/// Reserves memory for a file of `length` bytes. Returns whether there is enough.
#[unsafe(no_mangle)]
extern "C" fn reserve(length: usize) -> bool {
    with(|state| {
        let mut bytes = Vec::new();
        let enough = bytes.try_reserve_exact(length).is_ok();
        if enough {
            state.reserved.push_back((bytes, length));
        }
        enough
    })
}

/// The place for the bytes of reserved file number `number`; 0 if there is none.
#[unsafe(no_mangle)]
extern "C" fn file_place(number: usize) -> *mut u8 {
    with(|state| match state.reserved.get_mut(number) {
        Some((bytes, length)) => {
            bytes.resize(*length, 0);
            bytes.as_mut_ptr()
        }
        None => std::ptr::null_mut(),
    })
}

/// Takes in the first reserved file, whose bytes are at their place. The input is its name, behind the name of its folder
/// and a slash if it comes from one.
#[unsafe(no_mangle)]
extern "C" fn file() {
    with(|state| {
        let Some((bytes, _)) = state.reserved.pop_front() else { return };
        // Parts such as `..` would leave the folder.
        let parts = Path::new(text(&state.input)).components();
        let name: PathBuf = parts.filter(|part| matches!(part, Component::Normal(_))).collect();
        // The tracer shows the name of a model's folder.
        let folder = if name.components().count() > 1 { "" } else { "model" };
        let path = Path::new(GIVEN).join(state.folder.to_string()).join(folder).join(name);
        give(&path, Bytes::held(Given(bytes)));
        state.files.push(path);
    });
}

/// Releases the memory of files that were not taken in.
#[unsafe(no_mangle)]
extern "C" fn abandon() {
    with(|state| state.reserved.clear());
}

/// Opens the files that were taken in. If `linked`, the input is the link for which they were fetched.
#[unsafe(no_mangle)]
extern "C" fn open(linked: bool) {
    with(|state| {
        let files = std::mem::take(&mut state.files);
        if let Some(session) = &mut state.session {
            session.open(&files, linked.then(|| text(&state.input)));
        }
        // The bytes in use stay until their model is dropped.
        forget(&Path::new(GIVEN).join(state.folder.to_string()));
        state.folder += 1;
    });
}

/// Does a piece of work. Returns the milliseconds until there is more: 0 for at once, −1 for the next event.
#[unsafe(no_mangle)]
extern "C" fn work() -> f64 {
    session(|session, _| match session.work() {
        Next::Now => 0.0,
        Next::After(time) => time.as_secs_f64() * 1000.0,
        Next::Event => -1.0,
    })
}

/// Encodes the cells that changed, and returns the number of bytes.
#[unsafe(no_mangle)]
extern "C" fn draw() -> usize {
    with(|state| {
        state.cells.clear();
        if let Some(session) = &mut state.session {
            session.draw(&mut state.cells);
        }
        state.cells.len()
    })
}

/// The place of the encoded cells.
#[unsafe(no_mangle)]
extern "C" fn cells_place() -> *const u8 {
    with(|state| state.cells.as_ptr())
}

/// Writes the screen as text for tests, and returns its number of bytes. If `styled`, it has the codes of a terminal's
/// colours.
#[unsafe(no_mangle)]
extern "C" fn screen(styled: bool) -> usize {
    with(|state| {
        state.text = state.session.as_ref().map(|session| session.text(styled)).unwrap_or_default();
        state.text.len()
    })
}

/// The place of the text of the screen.
#[unsafe(no_mangle)]
extern "C" fn screen_text() -> *const u8 {
    with(|state| state.text.as_ptr())
}

/// Takes the next request to the page, and returns its kind; −1 if there is none.
#[unsafe(no_mangle)]
extern "C" fn outcome() -> i32 {
    with(|state| {
        state.outcome = state.session.as_mut().and_then(Session::next_outcome);
        state.outcome.as_ref().map_or(-1, |outcome| outcome.kind() as i32)
    })
}

/// The place (`what` 0) and the length (1) of the request's text, and the place (2) and the length (3) of its bytes.
#[unsafe(no_mangle)]
extern "C" fn outcome_part(what: u32) -> usize {
    with(|state| {
        let Some(outcome) = &state.outcome else { return 0 };
        let (text, bytes) = outcome.parts();
        match what {
            0 => text.as_ptr() as usize,
            1 => text.len(),
            2 => bytes.as_ptr() as usize,
            _ => bytes.len(),
        }
    })
}

/// Random bytes for the crates that seed hash tables.
///
/// # Safety
/// The caller gives the place of `length` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(
    place: *mut u8,
    length: usize,
) -> Result<(), getrandom::Error> {
    for at in 0..length {
        // SAFETY: `at` is below `length`, and the caller gives that many writable bytes.
        unsafe { place.add(at).write(random() as u8) };
    }
    Ok(())
}
