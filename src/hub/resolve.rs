//! Name resolution with a time limit. The system's own resolution has no limit and may take very long. So a separate
//! thread does it, if the system can start one.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::unversioned::transport::time::Duration;

/// A resolver with a time limit. Unlike [`DefaultResolver`], it does not panic if no thread can be started.
#[derive(Debug, Default)]
pub(super) struct Resolve;

impl Resolver for Resolve {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let without_limit = NextTimeout { after: Duration::NotHappening, ..timeout };
        let (sender, receiver) = sync_channel(1);
        let (theirs, settings) = (uri.clone(), config.clone());
        let other = thread::Builder::new().spawn(move || {
            // The receiver may be gone after the time limit.
            drop(sender.send(DefaultResolver::default().resolve(&theirs, &settings, without_limit)));
        });
        match other.map(|_| receiver.recv_timeout(*timeout.after)) {
            Ok(Ok(found)) => found,
            Ok(Err(RecvTimeoutError::Timeout)) => Err(Error::Timeout(timeout.reason)),
            // Resolve in this thread, without a time limit.
            Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => {
                DefaultResolver::default().resolve(uri, config, without_limit)
            }
        }
    }
}
