//! The guard of the terminal. It restores the terminal at the end of the viewer, at a panic, and when a
//! signal asks the program to stop. In the viewer, only this module uses crossterm.

mod canvas;
mod keys;

#[cfg(unix)]
use std::io::IsTerminal;
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::{Arc, Mutex};
use std::thread;
#[cfg(unix)]
use std::time::Duration;

use crossterm::cursor::{Hide, Show};
use crossterm::event::{
    DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture,
};
use crossterm::execute;
use crossterm::style::ResetColor;
use crossterm::terminal::{
    EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use llama_trace_core::error::{Error, Result};
use llama_trace_ending as ending;
#[cfg(unix)]
use llama_trace_ending::Taken;

pub(super) use canvas::{Canvas, copy};
pub(super) use keys::Keys;

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send + 'static>;

/// Holds the terminal in raw mode, on its alternate screen, with mouse and paste events, until it is dropped.
pub struct Guard {
    previous: Arc<Hook>,
    /// Panic messages of other threads, kept while the viewer uses the screen.
    elsewhere: Arc<Mutex<Vec<String>>>,
    /// The watchdog runs as long as the guard holds this value.
    #[cfg(unix)]
    held: Arc<()>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

/// Interval at which the watchdog checks the terminal.
#[cfg(unix)]
const LOOK: Duration = Duration::from_secs(1);

impl Guard {
    /// Takes the terminal.
    ///
    /// # Errors
    /// [`Error::Terminal`] if the terminal cannot be taken. It is then in the same state as before.
    pub fn take() -> Result<Self> {
        ending::watch()?;
        let guard = Self {
            previous: Arc::new(panic::take_hook()),
            elsewhere: Arc::default(),
            #[cfg(unix)]
            held: Arc::default(),
        };
        guard.set_hook();
        guard.watch()?;
        enter().map_err(|error| failed(&error))?;
        Ok(guard)
    }

    /// The name of the signal that asked the program to stop.
    pub fn stopped_by(&self) -> Option<&'static str> {
        ending::asked()
    }

    /// Restores the terminal and stops the process, as Ctrl-Z does. Takes the terminal again when the process
    /// continues.
    ///
    /// # Errors
    /// [`Error::Terminal`] if the terminal cannot be taken again.
    pub fn suspend(&self) -> Result<()> {
        #[cfg(unix)]
        {
            leave();
            let stopped = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP);
            stopped.and_then(|()| enter()).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Takes the terminal again after a signal that cannot be caught stopped the process. It is unknown what
    /// the shell did with the terminal meanwhile.
    ///
    /// # Errors
    /// [`Error::Terminal`] if the terminal cannot be taken again.
    pub fn resume(&self) -> Result<()> {
        leave();
        enter().map_err(|error| failed(&error))
    }

    /// Sets the panic hook. A panic of this thread restores the terminal before its message is written. A panic of
    /// another thread does not end the program, and its message waits until the screen is free.
    fn set_hook(&self) {
        let (previous, elsewhere, owner) =
            (self.previous.clone(), self.elsewhere.clone(), thread::current().id());
        panic::set_hook(Box::new(move |info| {
            if thread::current().id() == owner {
                leave();
                previous(info);
            } else if let Ok(mut messages) = elsewhere.lock() {
                messages.push(info.to_string());
            }
        }));
    }

    /// Starts the watchdog. If the terminal has gone and no signal reports it, reading events never returns. The
    /// watchdog then ends the program.
    #[cfg(unix)]
    fn watch(&self) -> Result<()> {
        let held = Arc::downgrade(&self.held);
        let watch = move || {
            while held.strong_count() > 0 {
                if !io::stdin().is_terminal() {
                    ending::now(&Error::terminal("the terminal is gone"));
                }
                thread::sleep(LOOK);
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(watch);
        thread.map(drop).map_err(|error| Error::no_thread("to watch the terminal", &error))
    }

    #[cfg(not(unix))]
    fn watch(&self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        leave();
        if !thread::panicking() {
            drop(panic::take_hook());
            let previous = self.previous.clone();
            panic::set_hook(Box::new(move |info| previous(info)));
        }
        if let Ok(messages) = self.elsewhere.lock() {
            for message in messages.iter() {
                // If standard error is gone too, the message is lost.
                drop(writeln!(io::stderr(), "{message}"));
            }
        }
    }
}

fn enter() -> io::Result<()> {
    #[cfg(unix)]
    ending::take(Taken::Screen);
    enable_raw_mode()?;
    #[cfg(unix)]
    keep_ctrl_c()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, EnableBracketedPaste, Hide)
}

/// Leaves Ctrl-C to the terminal, which sends SIGINT ([`ending::ctrl_c`]). If Ctrl-C were read as a key, it would be
/// lost after an incomplete escape sequence and after a paste without an end.
#[cfg(unix)]
fn keep_ctrl_c() -> io::Result<()> {
    use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex as Code, tcgetattr, tcsetattr};
    const CTRL_C: u8 = 3;
    const NONE: u8 = if cfg!(target_vendor = "apple") { 0xff } else { 0 };
    let mut settings = tcgetattr(io::stdin())?;
    // NOFLSH: Ctrl-C does not discard keys that were pressed before it.
    settings.local_modes |= LocalModes::ISIG | LocalModes::NOFLSH;
    settings.special_codes[Code::VINTR] = CTRL_C;
    settings.special_codes[Code::VQUIT] = NONE;
    settings.special_codes[Code::VSUSP] = NONE;
    Ok(tcsetattr(io::stdin(), OptionalActions::Now, &settings)?)
}

/// Restores the terminal as far as possible. Failures cannot be reported here.
fn leave() {
    let leave = || {
        drop(execute!(
            io::stdout(),
            EndSynchronizedUpdate,
            ResetColor,
            DisableBracketedPaste,
            DisableMouseCapture,
            LeaveAlternateScreen,
            Show
        ));
        drop(disable_raw_mode());
    };
    #[cfg(unix)]
    ending::give_back(leave);
    #[cfg(not(unix))]
    leave();
}

/// The error for a terminal that does not answer.
pub(super) fn failed(error: &io::Error) -> Error {
    Error::terminal("the terminal failed")
        .found(error)
        .next("use `llama-trace log` or `llama-trace export`, which need no terminal")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_a_handler_writes_is_what_the_viewer_leaves_with() {
        let mut bytes = Vec::new();
        crossterm::queue!(
            bytes,
            EndSynchronizedUpdate,
            ResetColor,
            DisableBracketedPaste,
            DisableMouseCapture,
            LeaveAlternateScreen,
            Show
        )
        .unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(ending::SCREEN));
    }
}
