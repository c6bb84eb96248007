//! The hub over https: accepted certificates, and connections through a proxy.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;

use super::{RUN, expected, ok, refused, tiny};
use crate::common::stderr;
use crate::repo::Hub;

/// A certificate authority that the machine does not know.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let (key, folder) = (KeyPair::generate().unwrap(), tempfile::tempdir().unwrap());
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// Its certificate, as a company may install it for its users.
    fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A server with a certificate of this authority for `host`, valid until the year `end`.
    fn server(&self, host: &str, end: i32) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.not_after = date_time_ymd(end, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }
}

#[test]
fn an_authority_in_ssl_cert_file_is_trusted() {
    let authority = Authority::new("company");
    let hub = Hub::new_tls(tiny(), &authority.server("127.0.0.1", 4000));
    assert_eq!(ok(&hub.command(&RUN).env("SSL_CERT_FILE", authority.file()).output().unwrap()), expected());
}

#[test]
fn an_untrusted_certificate_is_reported() {
    let (authority, other) = (Authority::new("company"), Authority::new("other"));
    let missing = other.folder.path().join("missing.pem");
    for (host, end, trusted, found) in [
        ("127.0.0.1", 4000, None, "unknown authority"),
        ("127.0.0.1", 4000, Some(other.file()), "unknown authority"),
        ("127.0.0.1", 4000, Some(missing), "missing.pem"),
        ("elsewhere.org", 4000, Some(authority.file()), "elsewhere.org"),
        ("127.0.0.1", 2000, Some(authority.file()), "expired"),
    ] {
        let hub = Hub::new_tls(tiny(), &authority.server(host, end));
        let mut command = hub.command(&RUN);
        if let Some(trusted) = trusted {
            command.env("SSL_CERT_FILE", trusted);
        }
        let output = command.output().unwrap();
        refused(&output, 3, &["is not trusted", "SSL_CERT_FILE", found]);
        assert_eq!(stderr(&output).lines().count(), 5, "{}", stderr(&output));
        assert!(
            hub.hub.asked().is_empty(),
            "no request may be sent to a server without a trusted certificate"
        );
    }
}

/// A proxy that connects to the requested host. The second value has the requests.
fn proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let (listener, asked) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::default());
    let (address, log) = (listener.local_addr().unwrap(), Arc::clone(&asked));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let log: Arc<Mutex<Vec<String>>> = Arc::clone(&log);
            std::thread::spawn(move || tunnel(stream.ok()?, &log));
        }
    });
    (format!("http://{address}"), asked)
}

fn tunnel(mut client: TcpStream, log: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    log.lock().unwrap().push(line.trim().to_owned());
    let address = line.strip_prefix("CONNECT ")?.split(' ').next()?.to_owned();
    while line.trim() != "" {
        line.clear();
        reader.read_line(&mut line).ok()?;
    }
    let mut server = TcpStream::connect(address).ok()?;
    client.write_all(b"HTTP/1.1 200 here you are\r\n\r\n").ok()?;
    let (mut from, mut to) = (server.try_clone().ok()?, client.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        to.shutdown(std::net::Shutdown::Both)
    });
    std::io::copy(&mut reader, &mut server).ok()?;
    Some(())
}

#[test]
fn the_proxy_in_the_environment_is_used() {
    let authority = Authority::new("company");
    let hub = Hub::new_tls(tiny(), &authority.server("127.0.0.1", 4000));
    let (proxy, asked) = proxy();
    let run = |name: &str, value: &str, no_proxy: &str| {
        let mut command = hub.command(&RUN);
        command.env("SSL_CERT_FILE", authority.file()).env("HF_HOME", tempfile::tempdir().unwrap().path());
        command.env(name, value).env("NO_PROXY", no_proxy).output().unwrap()
    };
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        assert_eq!(ok(&run(name, &proxy, "")), expected());
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        let address = hub.hub.url().replace("https://", "");
        assert!(asked.contains(&format!("CONNECT {address} HTTP/1.1")), "{name}: {asked:?}");
    }
    assert_eq!(ok(&run("HTTPS_PROXY", &proxy, "127.0.0.1")), expected());
    assert!(asked.lock().unwrap().is_empty());
    refused(&run("HTTPS_PROXY", "http://127.0.0.1:1", ""), 3, &["the hub cannot be reached", "the proxy"]);
}
