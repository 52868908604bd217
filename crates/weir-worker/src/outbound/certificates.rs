//! When the certificates of receivers, and those that Weir shows them, expire: read at each TLS handshake, warned of two
//! weeks before.
//!
//! Only hosts whose certificate expires soon are remembered. Whether a certificate is trusted is decided elsewhere.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::gauge;
use parking_lot::Mutex;
use weir_core::{
    Clock, Timestamp,
    certificate::{Certificate, EXPIRES_SOON},
};

/// A host is reported in the log this often.
const WARN_EVERY: Duration = Duration::from_secs(86_400);
/// A host that was not dialled for this long is forgotten: its destination may be gone.
const KEPT: Duration = Duration::from_secs(2 * 86_400);
/// The most hosts that are remembered.
const MOST: usize = 10_000;

/// The hosts whose certificates expire soon.
#[derive(Clone)]
pub(super) struct Certificates {
    clock: Arc<dyn Clock>,
    expiring: Arc<Mutex<HashMap<String, Expiring>>>,
}

#[derive(Debug, Clone, Copy)]
struct Expiring {
    seen_at: Timestamp,
    warned_at: Timestamp,
}

impl Certificates {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        gauge!("weir_certificates_expiring").set(0.0);
        Self { clock, expiring: Arc::default() }
    }

    /// Weir has shown a host this certificate.
    pub(super) fn shown(&self, host: &str, subject: &str, certificate: &[u8]) {
        // Several destinations may have one host, each with a certificate of its own.
        self.seen(&format!("{host}, client certificate of {subject}"), certificate);
    }

    /// A host has shown this certificate.
    pub(super) fn seen(&self, host: &str, certificate: &[u8]) {
        // A certificate that this reader does not understand says nothing; the handshake has accepted it.
        let Some(Certificate { not_after, .. }) = Certificate::read(certificate) else { return };
        let now = self.clock.wall();
        let mut expiring = self.expiring.lock();
        if not_after > now + EXPIRES_SOON {
            if expiring.remove(host).is_some() {
                tracing::info!(host, %not_after, "the certificate of a destination was renewed");
            }
        } else {
            let known = expiring.get(host).copied();
            let is_warned = known.is_some_and(|known| now.since(known.warned_at) < WARN_EVERY);
            if !is_warned {
                tracing::warn!(host, %not_after, "the certificate of a destination expires soon; tell its owner");
            }
            if known.is_some() || expiring.len() < MOST {
                let warned_at = known.filter(|_| is_warned).map_or(now, |known| known.warned_at);
                expiring.insert(host.to_owned(), Expiring { seen_at: now, warned_at });
            }
        }
        expiring.retain(|_, of| now.since(of.seen_at) < KEPT);
        gauge!("weir_certificates_expiring").set(expiring.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(Timestamp);

    impl Clock for At {
        fn now(&self) -> Timestamp {
            self.0
        }

        fn wall(&self) -> Timestamp {
            self.0
        }
    }

    fn certificate(not_after: (i32, u8, u8)) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["hooks.example".to_owned()]).unwrap();
        let (year, month, day) = not_after;
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, month, day);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_host_is_remembered_until_its_certificate_is_renewed() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let seen = |now: &str, days: &[(i32, u8, u8)]| {
            let certificates = Certificates::new(Arc::new(At(at(now))));
            for day in days {
                certificates.seen("hooks.example", &certificate(*day));
            }
            certificates.expiring.lock().len()
        };
        assert_eq!(seen("2031-01-01T00:00:00Z", &[(2031, 2, 3)]), 0);
        assert_eq!(seen("2031-01-21T00:00:00Z", &[(2031, 2, 3), (2031, 2, 3)]), 1);
        assert_eq!(seen("2031-01-21T00:00:00Z", &[(2031, 2, 3), (2032, 2, 3)]), 0);
    }
}
