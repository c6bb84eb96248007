//! Finding where a host is. It may take longer than anybody waits, and the system has no limit for it: another thread
//! does it, where the system gives one.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::unversioned::transport::time::Duration;

/// [`DefaultResolver`], which panics where no thread can be started.
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
            // Nobody may wait for it any more.
            drop(sender.send(DefaultResolver::default().resolve(&theirs, &settings, without_limit)));
        });
        match other.map(|_| receiver.recv_timeout(*timeout.after)) {
            Ok(Ok(found)) => found,
            Ok(Err(RecvTimeoutError::Timeout)) => Err(Error::Timeout(timeout.reason)),
            // It can be done here, only for longer.
            Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => {
                DefaultResolver::default().resolve(uri, config, without_limit)
            }
        }
    }
}
