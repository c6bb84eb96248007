//! A local HTTP server with the features that the tests need. Each connection has one request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// The headers, by name in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The first requested byte.
    pub(crate) fn from(&self) -> Option<usize> {
        self.range()?.split_once('-')?.0.parse().ok()
    }

    /// The end of the requested bytes (exclusive). `None` for the end of the file.
    pub(crate) fn to(&self) -> Option<usize> {
        Some(self.range()?.split_once('-')?.1.parse::<usize>().ok()? + 1)
    }

    /// The requested range, for example `0-99`.
    pub(crate) fn range(&self) -> Option<&str> {
        self.headers.get("range")?.strip_prefix("bytes=")
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// The connection closes after this many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// If true, the connection stays open after the body or its first `cut` bytes, but nothing more is sent.
    pub(crate) stall: bool,
    /// The body is sent byte by byte, with a pause after each.
    pub(crate) drip: bool,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn body(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.headers.push((name, text.into()));
        self
    }
}

pub(crate) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers every request with `handler`, until the test ends.
    pub(crate) fn start(handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::serve("http", handler, Some)
    }

    /// Like [`Server::start`], over https.
    pub(crate) fn start_tls(
        config: Arc<ServerConfig>,
        handler: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::serve("https", handler, move |stream| {
            Some(StreamOwned::new(ServerConnection::new(Arc::clone(&config)).ok()?, stream))
        })
    }

    fn serve<S: Read + Write>(
        scheme: &'static str,
        handler: impl Fn(&Request) -> Answer + Send + Sync + 'static,
        wrap: impl Fn(TcpStream) -> Option<S> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap(), scheme, log: Arc::default() };
        let (log, shared) = (Arc::clone(&server.log), Arc::new((handler, wrap)));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, shared) = (Arc::clone(&log), Arc::clone(&shared));
                std::thread::spawn(move || answer(shared.1(stream.unwrap())?, &log, &shared.0));
            }
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// The requests since the last call.
    pub(crate) fn asked(&self) -> Vec<Request> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

/// Writes the answer. If the client closes the connection, stops writing; this is not a failure.
fn answer(
    stream: impl Read + Write,
    log: &Mutex<Vec<Request>>,
    handler: &dyn Fn(&Request) -> Answer,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, text)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), text.trim().to_owned());
    }
    let request = Request { method, path, headers };
    log.lock().unwrap().push(request.clone());
    let answer = handler(&request);
    let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", answer.status);
    for (name, text) in &answer.headers {
        head += &format!("{name}: {text}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", answer.body.len());
    let stream = reader.get_mut();
    stream.write_all(head.as_bytes()).ok()?;
    if request.method != "HEAD" {
        let end = answer.cut.unwrap_or(answer.body.len()).min(answer.body.len());
        let part = if answer.drip { 1 } else { end.max(1) };
        for bytes in answer.body[..end].chunks(part) {
            stream.write_all(bytes).ok()?;
            if answer.drip {
                stream.flush().ok()?;
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
        if answer.stall {
            stream.flush().ok()?;
            // Waits until the client closes the connection.
            let _ = stream.read(&mut [0]);
        }
    }
    stream.flush().ok()?;
    Some(())
}
