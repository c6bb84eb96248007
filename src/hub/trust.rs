//! Trusted certificate authorities: those of Mozilla's list, which is embedded in the program, and those of this
//! machine. A company whose proxy inspects https installs its own authority on the machine, or names it in
//! SSL_CERT_FILE or SSL_CERT_DIR.

use rustls::CertificateError;
use ureq::tls::{Certificate, RootCerts};
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

/// Returns the authorities, and the first error in reading those of this machine.
pub(super) fn roots() -> (RootCerts, Option<String>) {
    let machine = rustls_native_certs::load_native_certs();
    let all = machine.certs.iter().chain(TLS_SERVER_ROOT_CERTS);
    let certificates: Vec<_> = all.map(|der| Certificate::from_der(der).to_owned()).collect();
    let unread = machine.errors.first().map(ToString::to_string);
    (RootCerts::new_with_certs(&certificates), unread)
}

/// Returns why a server's certificate was rejected, if that is the error.
pub(super) fn distrust(error: &ureq::Error) -> Option<String> {
    let reason = match error {
        ureq::Error::Rustls(reason) => reason,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<rustls::Error>()?,
        _ => return None,
    };
    let rustls::Error::InvalidCertificate(reason) = reason else { return None };
    Some(match reason {
        CertificateError::UnknownIssuer => "a certificate of an unknown authority".into(),
        CertificateError::Other(reason) if reason.to_string() == "CaUsedAsEndEntity" => {
            "a self-signed certificate of an authority, not of a server".into()
        }
        other => other.to_string(),
    })
}
