use std::sync::mpsc::channel;

use super::*;

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
    // Blocks for ever.
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
