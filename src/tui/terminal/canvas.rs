//! Drawing in the terminal.

use std::io::{self, Stdout, Write};
use std::mem::ManuallyDrop;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crossterm::execute;
use crossterm::style::Print;
use crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Rect, Size};
use ratatui::widgets::Widget;

#[cfg(unix)]
use llama_trace_ending as ending;

/// Standard output while the viewer owns the terminal. Once the terminal was restored at the end of the process,
/// nothing more is drawn.
#[derive(Debug)]
struct Screen(Stdout);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(unix)]
        return ending::on_screen(|| self.0.write(bytes)).unwrap_or(Ok(bytes.len()));
        #[cfg(not(unix))]
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        #[cfg(unix)]
        return ending::on_screen(|| self.0.flush()).unwrap_or(Ok(()));
        #[cfg(not(unix))]
        self.0.flush()
    }
}

/// The terminal as a canvas.
pub(crate) struct Canvas(ManuallyDrop<Terminal<CrosstermBackend<Screen>>>);

impl Canvas {
    /// A canvas on standard output.
    ///
    /// # Errors
    /// The terminal's errors. This holds for the other functions too.
    pub(crate) fn new() -> io::Result<Self> {
        let backend = CrosstermBackend::new(Screen(io::stdout()));
        // The terminal is never dropped: its drop would print failures to stderr, and would panic if stderr is gone
        // together with the terminal. The guard shows the cursor again.
        Terminal::new(backend).map(|terminal| Self(ManuallyDrop::new(terminal)))
    }

    /// Columns and rows of the terminal.
    pub(crate) fn size(&self) -> io::Result<Size> {
        self.0.size()
    }

    /// Draws a frame. If the terminal supports it, the frame appears in one update.
    pub(crate) fn draw(&mut self, what: impl Widget) -> io::Result<()> {
        execute!(self.0.backend_mut(), BeginSynchronizedUpdate)?;
        self.0.draw(|frame| frame.render_widget(what, frame.area()))?;
        execute!(self.0.backend_mut(), EndSynchronizedUpdate)
    }

    /// Clears the screen, so that the next drawing writes every cell. `Terminal::clear` would first query the cursor's
    /// position, and would fail on terminals that do not answer.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        let size = self.size()?;
        self.0.resize(Rect::new(0, 0, size.width, size.height))
    }
}

/// Sends `text` to the terminal's clipboard (OSC 52). The terminal may ignore it silently.
pub(crate) fn copy(text: &str) -> io::Result<()> {
    execute!(io::stdout(), Print(format!("\x1b]52;c;{}\x07", STANDARD.encode(text))))
}
