use std::sync::atomic::AtomicUsize;

use super::*;

/// How often work looked at a request.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    count: AtomicUsize,
    /// The look at which it is asked to stop; 0 for none.
    last: AtomicUsize,
}

impl Looks {
    pub(super) fn look(&self, stop: &Stop) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count == self.last.load(Ordering::Relaxed) {
            stop.ask();
        }
    }
}

impl Stop {
    /// A request that makes itself when it is looked at for the `last`th time, from 1.
    pub(crate) fn at_look(last: usize) -> Self {
        let stop = Self::default();
        stop.looks.last.store(last, Ordering::Relaxed);
        stop
    }

    /// How often it was looked at.
    pub(crate) fn looks(&self) -> usize {
        self.looks.count.load(Ordering::Relaxed)
    }
}

/// Runs `work` once to its end, and once more for some of its looks at the request, which is made there: then it
/// fails, and looks at most `after` times more, once for each thread and loop that was under way. Returns how often
/// the whole work looks.
pub(crate) fn stops_at_every_look(
    what: &str,
    after: usize,
    mut work: impl FnMut(&Stop) -> Result<()>,
) -> usize {
    let whole = Stop::default();
    work(&whole).unwrap_or_else(|error| panic!("{what}: {error}"));
    let looks = whole.looks();
    assert!(looks > 0, "{what} never looks");
    for last in (1..=looks).step_by((looks / 20).max(1)) {
        let stop = Stop::at_look(last);
        let result = work(&stop);
        assert!(matches!(result, Err(Error::Interrupted(_))), "{what} goes on after look {last} of {looks}");
        let more = stop.looks() - last;
        assert!(more <= after, "{what} looks {more} times after it was asked to stop at {last} of {looks}");
    }
    looks
}

#[test]
fn clones_share_a_request_and_others_do_not() {
    let (stop, other) = (Stop::default(), Stop::default());
    let clone = stop.clone();
    clone.ask();
    assert!(stop.asked() && matches!(stop.check(), Err(Error::Interrupted(_))));
    assert!(other.check().is_ok());
    stop.clear();
    assert!(clone.check().is_ok());
}

#[test]
fn work_that_cannot_look_is_left_alone() {
    let (stop, (hold, held)) = (Stop::default(), channel::<()>());
    assert_eq!(stop.unless_asked(|| Ok(7)).unwrap(), 7);
    assert!(matches!(stop.unless_asked(|| Err::<(), _>(Error::usage("no"))), Err(Error::Usage(_))));
    let asks = stop.clone();
    // It would wait for ever.
    let result = stop.unless_asked(move || {
        asks.ask();
        let _ = held.recv();
        Ok(())
    });
    assert!(matches!(result, Err(Error::Interrupted(_))));
    drop(hold);
}

#[test]
fn work_that_takes_too_long_is_left_alone() {
    let (hold, held) = channel::<()>();
    let stop = Stop::default();
    let late = || Error::usage("late");
    assert_eq!(stop.within(Duration::from_secs(600), late, || Ok(7)).unwrap(), 7);
    let work = move || {
        let _ = held.recv();
        Ok(())
    };
    assert!(matches!(stop.within(Duration::from_millis(20), late, work), Err(Error::Usage(_))));
    drop(hold);
}
