//! `page --serve`: a web server for this machine only. It answers GET and HEAD for the page's files, and nothing else.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::shell;
use super::files::PageFile;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;

/// Largest size of a request, in bytes. Browsers send less than a tenth.
const MOST: usize = 16 << 10;
/// Maximum number of connections at once.
const CONNECTIONS: usize = 32;
/// Longest time for a request to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves the files until the process is asked to stop.
pub(super) fn run(files: Vec<PageFile>, port: Option<u16>, links: &[String]) -> Result<()> {
    let failed = |error: io::Error| {
        Error::output("the page cannot be served on this machine")
            .at(format!("127.0.0.1:{}", port.unwrap_or(0)))
            .found(error)
            .next("give another --port")
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    listener.set_nonblocking(true).map_err(failed)?;
    let mut text = format!("http://127.0.0.1:{port}/\n");
    for link in links {
        text += &format!("http://127.0.0.1:{port}/{link}\n");
    }
    shell::print(text.as_bytes())?;
    let (files, open) = (Arc::new(files), Arc::new(AtomicUsize::new(0)));
    loop {
        match listener.accept() {
            Ok((stream, _)) if open.load(Ordering::SeqCst) < CONNECTIONS => {
                open.fetch_add(1, Ordering::SeqCst);
                let (files, own) = (Arc::clone(&files), Arc::clone(&open));
                let answering = move || {
                    // A browser that goes away needs no answer.
                    drop(answer(stream, &files, port));
                    own.fetch_sub(1, Ordering::SeqCst);
                };
                if thread::Builder::new().spawn(answering).is_err() {
                    open.fetch_sub(1, Ordering::SeqCst);
                }
            }
            // More connections are closed.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stop::sleep(Duration::from_millis(20))?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => stop::check()?,
            Err(error) => return Err(failed(error)),
        }
        stop::check()?;
    }
}

/// Reads a request and answers it.
fn answer(mut stream: TcpStream, files: &[PageFile], port: u16) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let started = Instant::now();
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = PATIENCE.saturating_sub(started.elapsed());
        if left.is_zero() || head.len() > MOST {
            return respond(&mut stream, 400, "text/plain", b"", true);
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&part[..count]),
        }
    }
    match asked(&head, files, port) {
        Ok((file, whole)) => match file.bytes() {
            Ok(bytes) => respond(&mut stream, 200, file.kind(), &bytes, whole),
            Err(_) => respond(&mut stream, 500, "text/plain", b"", true),
        },
        Err(code) => respond(&mut stream, code, "text/plain", b"", true),
    }
}

/// The file that a request asks for, and whether its bytes are asked for too; otherwise the code of the answer.
fn asked<'f>(
    head: &[u8],
    files: &'f [PageFile],
    port: u16,
) -> std::result::Result<(&'f PageFile, bool), u16> {
    let head = std::str::from_utf8(head).map_err(|_| 400_u16)?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Err(400);
    }
    // A page of another site could reach this server under a name of its own that leads to 127.0.0.1.
    let mut hosts =
        lines.filter_map(|line| line.split_once(':')).filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = hosts.next().map(|(_, host)| host.trim()).unwrap_or_default();
    let own = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    if hosts.next().is_some() || !own.iter().any(|own| own == host) {
        return Err(421);
    }
    let whole = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Err(405),
    };
    let path = path.split('?').next().unwrap_or_default().strip_prefix('/').ok_or(400_u16)?;
    let name = decoded(path).ok_or(400_u16)?;
    let name = if name.is_empty() { "index.html" } else { &name };
    files.iter().find(|file| file.name == name).map(|file| (file, whole)).ok_or(404)
}

/// Resolves the escapes of a path.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push(if byte == b'%' { (digit()? * 16 + digit()?) as u8 } else { byte });
    }
    String::from_utf8(bytes).ok()
}

fn respond(stream: &mut TcpStream, code: u16, kind: &str, bytes: &[u8], whole: bool) -> io::Result<()> {
    let reason = match code {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        _ => "Internal Server Error",
    };
    let allow = if code == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n\r\n",
        bytes.len()
    );
    stream.write_all(head.as_bytes())?;
    if whole {
        stream.write_all(bytes)?;
    }
    stream.flush()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_named_files_are_answered_and_only_for_this_machine() {
        let files = [PageFile::added(Path::new("my lesson.md"), Some(b"# x".to_vec())).unwrap()];
        let code = |request: &str| match asked(request.as_bytes(), &files, 8000) {
            Ok((file, whole)) => (200, file.size() * usize::from(whole)),
            Err(code) => (code, 0),
        };
        let host = "HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n";
        assert_eq!(code(&format!("GET /my%20lesson.md {host}")), (200, 3));
        assert_eq!(code(&format!("HEAD /my%20lesson.md?x {host}")), (200, 0));
        for (request, expected) in [
            (format!("GET / {host}"), 404),
            (format!("GET /../Cargo.toml {host}"), 404),
            (format!("GET /%2e%2e/Cargo.toml {host}"), 404),
            (format!("GET /%zz {host}"), 400),
            (format!("POST /my%20lesson.md {host}"), 405),
            ("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".into(), 421),
            ("GET / HTTP/1.1\r\n\r\n".into(), 421),
            ("GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nHost: example.org\r\n\r\n".into(), 421),
            ("GET http://127.0.0.1:8000/ HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n".into(), 400),
            ("nonsense\r\n\r\n".into(), 400),
        ] {
            assert_eq!(code(&request), (expected, 0), "{request}");
        }
    }
}
