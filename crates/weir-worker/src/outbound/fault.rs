//! Errors of sends, each as a sentence for the destination's owner: no internals, no secrets.

use std::{error::Error, io};

use rustls::AlertDescription;
use weir_core::outcome::Failure;

/// No request could be sent; no byte was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Unreachable {
    pub failure: Failure,
    /// For the destination's owner.
    pub error: String,
}

impl Unreachable {
    pub(super) fn new(failure: Failure, error: impl Into<String>) -> Self {
        Self { failure, error: error.into() }
    }

    /// The connection was closed before any byte was sent.
    pub(super) fn closed_before_send() -> Self {
        Self::new(Failure::Connect, "connection closed before the request was sent")
    }
}

/// Why there is no connection to send on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoConnection {
    /// The cause is the destination or its settings: a failed attempt.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Weir has no resources left for a connection: not an attempt, and not a failure of the destination.
    #[error("{0}")]
    Exhausted(&'static str),
}

impl NoConnection {
    /// The resource that this process or machine lacks, if the error says so. The error number for "no free port" also
    /// means "no local address for this destination": the dialler distinguishes the two.
    pub(super) fn exhausted(error: &io::Error) -> Option<Self> {
        let what = match error.raw_os_error()? {
            libc::EMFILE => "the process may open no more files",
            libc::ENFILE => "the system may open no more files",
            libc::EADDRNOTAVAIL => "no local port is free",
            libc::ENOBUFS | libc::ENOMEM => "the system has no memory for another connection",
            _ => return None,
        };
        Some(Self::Exhausted(what))
    }
}

/// Why no TCP connection could be made.
pub(super) fn connect_error(error: &io::Error) -> Unreachable {
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => "connection reset",
        io::ErrorKind::TimedOut => "connection timed out",
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        _ => "connection failed",
    };
    Unreachable::new(Failure::Connect, text)
}

/// Why the TLS handshake failed.
pub(super) fn tls_error(error: &io::Error, host: &str) -> Unreachable {
    let text = match find::<rustls::Error>(error) {
        Some(rustls::Error::InvalidCertificate(reason)) => certificate_error(reason, host),
        Some(rustls::Error::AlertReceived(alert)) => refused_by_server(*alert),
        Some(other) => format!("TLS handshake failed: {other}"),
        None => "connection closed during the TLS handshake".to_owned(),
    };
    Unreachable::new(Failure::Tls, text)
}

/// The server has ended the connection with this TLS alert. In TLS 1.3 the one about a client certificate comes after the
/// handshake, in place of the answer or before the request.
fn refused_by_server(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let cause = match alert {
        A::CertificateRequired => "it wants a client certificate".to_owned(),
        A::UnknownCA => "it does not know the authority of the client certificate".to_owned(),
        A::CertificateExpired => "the client certificate has expired".to_owned(),
        A::CertificateRevoked => "the client certificate was revoked".to_owned(),
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate => {
            format!("it does not accept the client certificate, or the lack of one ({alert:?})")
        }
        A::AccessDenied => "it does not let this client in".to_owned(),
        A::HandshakeFailure => "no common ground (HandshakeFailure); perhaps it wants a client certificate".to_owned(),
        other => format!("{other:?}"),
    };
    format!("TLS refused by the server: {cause}")
}

/// The refusal by TLS in an error of a connection.
pub(super) fn tls_refusal(error: &hyper::Error) -> Option<Unreachable> {
    match find::<rustls::Error>(error) {
        Some(rustls::Error::AlertReceived(alert)) => Some(Unreachable::new(Failure::Tls, refused_by_server(*alert))),
        _ => None,
    }
}

fn certificate_error(reason: &rustls::CertificateError, host: &str) -> String {
    use rustls::CertificateError as E;
    match reason {
        E::UnknownIssuer => "certificate not trusted: unknown issuer".to_owned(),
        E::Expired | E::ExpiredContext { .. } => "certificate not trusted: expired".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => "certificate not trusted: not valid yet".to_owned(),
        E::BadSignature => "certificate not trusted: bad signature".to_owned(),
        E::Revoked => "certificate not trusted: revoked".to_owned(),
        E::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "certificate not trusted: it is that of an authority (CA:TRUE), not of a server".to_owned()
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            format!("certificate not trusted: not valid for {host}")
        }
        other => format!("certificate not trusted: {other}"),
    }
}

/// Why the answer to a sent request did not arrive completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("the answer is not valid HTTP/1.1")]
    NotHttp,
    #[error("the answer's headers are too large")]
    TooLarge,
    #[error("too many interim answers (1xx) came before the final one")]
    Endless,
    #[error("connection reset before the answer ended")]
    Reset,
    #[error("connection closed before the answer ended")]
    Closed,
    #[error("{}", refused_by_server(*.0))]
    Refused(AlertDescription),
}

impl Broken {
    pub(super) fn failure(self) -> Failure {
        if let Self::Refused(_) = self { Failure::Tls } else { Failure::Broken }
    }
}

impl From<io::ErrorKind> for Broken {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Reset,
            _ => Self::Closed,
        }
    }
}

impl From<&hyper::Error> for Broken {
    fn from(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            return Self::TooLarge;
        }
        if error.is_parse() {
            return Self::NotHttp;
        }
        if let Some(rustls::Error::AlertReceived(alert)) = find::<rustls::Error>(error) {
            return Self::Refused(*alert);
        }
        match find::<io::Error>(error) {
            // An error in the chunks of a body. TLS errors have the same kinds.
            Some(io) if matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                if find::<rustls::Error>(error).is_some() { Self::Closed } else { Self::NotHttp }
            }
            Some(io) => Self::from(io.kind()),
            None => Self::Closed,
        }
    }
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an `io::Error` is the source of the error that it wraps, not the wrapped error itself.
        let wrapped = error.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
        if let Some(found) = wrapped.and_then(|wrapped| wrapped.downcast_ref()) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_resources_are_distinguished_from_failures_of_the_destination() {
        for code in [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::ENOBUFS, libc::ENOMEM] {
            assert!(NoConnection::exhausted(&io::Error::from_raw_os_error(code)).is_some(), "{code}");
        }
        for code in [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT, libc::ECONNRESET] {
            assert_eq!(NoConnection::exhausted(&io::Error::from_raw_os_error(code)), None, "{code}");
        }
        assert_eq!(NoConnection::exhausted(&io::ErrorKind::TimedOut.into()), None);
    }
}
