//! Requests to the hub, one at a time, with redirects, the token, and limited retries.

use std::collections::HashSet;
use std::io::Read;
use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, BodyReader};

use super::address;
use super::name::{Name, is_commit, is_safe};
use super::pace::Paced;
use super::resolve::Resolve;
use super::settings::Settings;
use super::trust;
use super::verify::Digest;
use llama_trace_core::stop;

/// The maximum size in bytes of a list of files. 100,000 files would fit.
const MAX_LISTING: u64 = 16 << 20;
const MAX_REDIRECTS: usize = 8;
/// The number of retries of a request if the server is busy or fails.
const RETRIES: u32 = 2;
/// The longest pause that a server may request. For a longer one, the user gets an error.
const MAX_PAUSE: u64 = 30;
const CONNECT: Duration = Duration::from_secs(15);

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No connection, or it broke.
    Unreachable(String),
    /// The server's certificate is not trusted.
    Untrusted(String),
    /// The hub refused the request.
    Refused {
        status: u16,
        /// The hub's error code, such as `GatedRepo`.
        code: String,
        message: String,
    },
    /// The response is not that of a hub.
    Strange(String),
}

pub(super) type Answer<T> = Result<T, Failure>;

/// The hub's description of a repository at a revision.
#[derive(Debug, Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
}

/// The commit of a revision, and its files.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// The hub's description of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// The name of its blob in the cache.
    pub(super) etag: String,
    pub(super) size: u64,
    pub(super) digest: Option<Digest>,
}

/// A client for one repository of the hub.
pub(super) struct Client<'s> {
    agent: Agent,
    /// The first error in reading this machine's trusted certificates.
    unread: Option<String>,
    settings: &'s Settings,
    name: &'s Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Head,
    Get,
}

impl<'s> Client<'s> {
    pub(super) fn new(settings: &'s Settings, name: &'s Name) -> Self {
        let (roots, unread) = trust::roots();
        // The client follows redirects itself: the token must only go to the hub.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(settings.patience))
            .timeout_per_read(Some(settings.patience))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(concat!("llama-trace/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::default(), Resolve);
        Self { agent, unread, settings, name }
    }

    /// Returns the settings and the name of the repository.
    pub(super) fn asked(&self) -> (&'s Settings, &'s Name) {
        (self.settings, self.name)
    }

    /// Requests the commit of the revision, and its files. Ignores names that would lead out of a folder.
    pub(super) fn listing(&self) -> Answer<Listing> {
        let Self { settings: Settings { endpoint, .. }, name: Name { repo, revision, .. }, .. } = self;
        let url = format!("{endpoint}/api/models/{repo}/revision/{}", address::part(revision));
        let body = self.send(Method::Get, &url, None)?.into_body();
        let mut bytes = Vec::new();
        self.paced(body)
            .take(MAX_LISTING + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::Unreachable(error.to_string()))?;
        if bytes.len() as u64 > MAX_LISTING {
            return Err(Failure::Strange(format!("a list of files of more than {MAX_LISTING} bytes")));
        }
        let info: Info = serde_json::from_slice(&bytes)
            .map_err(|error| Failure::Strange(format!("no list of files: {error}")))?;
        if !is_commit(&info.sha) {
            return Err(Failure::Strange(format!("`{}` as the id of a commit", info.sha)));
        }
        let files = info.siblings.into_iter().map(|sibling| sibling.rfilename).filter(|name| is_safe(name));
        let mut seen = HashSet::new();
        // A name that is listed twice is one file.
        let files = files.filter(|name| seen.insert(name.clone()));
        Ok(Listing { commit: info.sha, files: files.collect() })
    }

    /// Wraps a body in a reader that fails if the server sends too little for too long.
    fn paced(&self, body: Body) -> Paced<BodyReader<'static>> {
        Paced::new(body.into_reader(), self.settings.patience)
    }

    fn address_of(&self, commit: &str, file: &str) -> String {
        let Self { settings: Settings { endpoint, .. }, name: Name { repo, .. }, .. } = self;
        format!("{endpoint}/{repo}/resolve/{commit}/{}", address::path(file))
    }

    /// Requests the size and the checksum of a file. For a large file, the hub returns both with its redirect to the
    /// storage.
    pub(super) fn meta(&self, commit: &str, file: &str) -> Answer<Meta> {
        let response = self.send(Method::Head, &self.address_of(commit, file), None)?;
        let headers = response.headers();
        let (etag, size) = match text(headers, LINKED_ETAG) {
            Some(etag) => (Some(etag), text(headers, "x-linked-size")),
            None => (text(headers, "etag"), text(headers, "content-length")),
        };
        let etag = etag.unwrap_or_default().trim_start_matches("W/").trim_matches('"');
        // The ETag becomes the name of a file.
        let plain = etag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if etag.is_empty() || etag.len() > 128 || !plain {
            return Err(Failure::Strange(format!("`{etag}` as the ETag of {file}")));
        }
        let Some(size) = size.and_then(|size| size.parse().ok()) else {
            return Err(Failure::Strange(format!("no size for {file}")));
        };
        if let Some(other) = text(headers, "x-repo-commit").filter(|other| *other != commit) {
            return Err(Failure::Strange(format!("{file} of commit {other} instead of {commit}")));
        }
        Ok(Meta { etag: etag.into(), size, digest: Digest::of_etag(etag, size) })
    }

    /// Requests the bytes of a file from byte `start` on. Returns them with their first position, which is 0 if the
    /// server does not support ranges.
    pub(super) fn bytes(
        &self,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Answer<(u64, Paced<BodyReader<'static>>)> {
        let range = (start > 0).then(|| format!("bytes={start}-"));
        let response = self.send(Method::Get, &self.address_of(commit, file), range.as_deref())?;
        let from = begin(&response, file, start)?;
        Ok((from, self.paced(response.into_body())))
    }

    /// Requests the bytes of a file at `range`, which must be inside the file. Retries if the connection breaks.
    pub(super) fn part(&self, commit: &str, file: &str, range: &Range<u64>) -> Answer<Vec<u8>> {
        let mut tried = 0;
        loop {
            match self.part_once(commit, file, range) {
                Err(Failure::Unreachable(_)) if tried < RETRIES => sleep(pause(tried))?,
                answer => return answer,
            }
            tried += 1;
        }
    }

    fn part_once(&self, commit: &str, file: &str, range: &Range<u64>) -> Answer<Vec<u8>> {
        let &Range { start, end } = range;
        let asked = format!("bytes={start}-{}", end.saturating_sub(1));
        let response = self.send(Method::Get, &self.address_of(commit, file), Some(&asked))?;
        let skipped = start - begin(&response, file, start)?;
        let mut reader = self.paced(response.into_body());
        let mut bytes = Vec::new();
        let read = std::io::copy(&mut reader.by_ref().take(skipped), &mut std::io::sink())
            .and_then(|_| reader.take(end - start).read_to_end(&mut bytes));
        match read {
            Err(error) => Err(Failure::Unreachable(error.to_string())),
            Ok(count) if count as u64 != end - start => {
                Err(Failure::Unreachable(format!("the connection ended after {count} bytes of {file}")))
            }
            Ok(_) => Ok(bytes),
        }
    }

    /// Returns the last response after all redirects. For a HEAD request, returns the first one with the file's ETag.
    fn send(&self, method: Method, url: &str, range: Option<&str>) -> Answer<Response<Body>> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.patiently(method, &url, range)?;
            let status = response.status();
            let told = method == Method::Head && response.headers().contains_key(LINKED_ETAG);
            if status.is_success() || status.is_redirection() && told {
                return Ok(response);
            }
            if !status.is_redirection() {
                return Err(refusal(&response));
            }
            let location = text(response.headers(), header::LOCATION.as_str()).unwrap_or_default();
            url = address::follow(&url, location)
                .ok_or_else(|| Failure::Strange(format!("a redirect to `{location}`")))?;
        }
        Err(Failure::Strange(format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// Sends one request; retries after a pause if the server is busy or fails.
    fn patiently(&self, method: Method, url: &str, range: Option<&str>) -> Answer<Response<Body>> {
        let mut tried = 0;
        loop {
            let response = self.once(method, url, range)?;
            let again = matches!(response.status().as_u16(), 408 | 429 | 500 | 502 | 503 | 504);
            let asked = text(response.headers(), "retry-after").and_then(|after| after.parse::<u64>().ok());
            if !again || tried == RETRIES || asked.is_some_and(|seconds| seconds > MAX_PAUSE) {
                return Ok(response);
            }
            sleep(asked.map_or_else(|| pause(tried), Duration::from_secs))?;
            tried += 1;
        }
    }

    fn once(&self, method: Method, url: &str, range: Option<&str>) -> Answer<Response<Body>> {
        let mut request = match method {
            Method::Head => self.agent.head(url),
            Method::Get => self.agent.get(url),
        }
        // Sizes and ranges must be those of the file itself, not of a compressed one.
        .header(header::ACCEPT_ENCODING, "identity");
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        let hub = address::origin(&self.settings.endpoint);
        if let Some(token) = self.settings.token.as_ref().filter(|_| address::origin(url) == hub) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|error| match trust::distrust(&error) {
            Some(why) => Failure::Untrusted(
                [Some(why), self.unread.clone()].into_iter().flatten().collect::<Vec<_>>().join("; "),
            ),
            None => Failure::Unreachable(error.to_string()),
        })
    }
}

/// Returns the first position of an answer's bytes, after a request from `start` on: `start`, or 0 if the server does
/// not support ranges.
fn begin(response: &Response<Body>, file: &str, start: u64) -> Answer<u64> {
    let from = match response.status() {
        StatusCode::PARTIAL_CONTENT => {
            let range = text(response.headers(), "content-range").unwrap_or_default();
            let from = range.strip_prefix("bytes ").and_then(|range| range.split_once('-'));
            from.and_then(|(from, _)| from.trim().parse().ok())
                .ok_or_else(|| Failure::Strange(format!("an unknown range of {file}: `{range}`")))?
        }
        _ => 0,
    };
    if from != 0 && from != start {
        return Err(Failure::Strange(format!("{file} from byte {from} instead of {start}")));
    }
    Ok(from)
}

const LINKED_ETAG: &str = "x-linked-etag";

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Waits before a retry. A stop request makes this fail; [`refusal::report`] then reports the interruption.
///
/// [`refusal::report`]: super::refusal::report
fn sleep(time: Duration) -> Answer<()> {
    stop::sleep(time).map_err(|_| Failure::Unreachable("interrupted".into()))
}

/// Returns the pause before retry number `tried`, counted from 0.
pub(super) fn pause(tried: u32) -> Duration {
    Duration::from_millis(250 << tried.min(5))
}

fn refusal(response: &Response<Body>) -> Failure {
    let status = response.status().as_u16();
    let header = |name| text(response.headers(), name).unwrap_or_default().to_owned();
    let (code, message) = (header("x-error-code"), header("x-error-message"));
    Failure::Refused { status, code, message }
}
