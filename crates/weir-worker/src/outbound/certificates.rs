//! When the certificates of receivers expire: read at each TLS handshake, warned of two weeks before.
//!
//! Only hosts whose certificate expires soon are remembered. Of a certificate only its validity is read; whether it is
//! trusted is decided elsewhere.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::gauge;
use parking_lot::Mutex;
use weir_core::{Clock, Timestamp};

/// A certificate that expires within this time is reported. Owners who renew by hand need some days, and most renewals
/// by machine come a month before.
const SOON: Duration = Duration::from_secs(14 * 86_400);
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

    /// A host has shown this certificate.
    pub(super) fn seen(&self, host: &str, certificate: &[u8]) {
        // A certificate that this reader does not understand says nothing; the handshake has accepted it.
        let Some(not_after) = not_after(certificate) else { return };
        let now = self.clock.wall();
        let mut expiring = self.expiring.lock();
        if not_after > now + SOON {
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

/// The end of the validity of a certificate in DER (RFC 5280, section 4.1): the second time in `validity`.
fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    // The version is optional; then come serial number, signature algorithm and issuer.
    let (tag, _, after) = element(rest)?;
    if tag == EXPLICIT_0 {
        rest = after;
    }
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, rest) = element(validity)?;
    let (tag, time, _) = element(rest)?;
    let text = std::str::from_utf8(time).ok()?;
    // YYMMDDHHMMSSZ until 2049, and YYYYMMDDHHMMSSZ after that.
    let text = match (tag, text.len()) {
        (UTC_TIME, 13) if text.get(..2)? < "50" => format!("20{text}"),
        (UTC_TIME, 13) => format!("19{text}"),
        (GENERALIZED_TIME, 15) => text.to_owned(),
        _ => return None,
    };
    let part = |from: usize, to: usize| text.get(from..to);
    let date = format!("{}-{}-{}", part(0, 4)?, part(4, 6)?, part(6, 8)?);
    format!("{date}T{}:{}:{}Z", part(8, 10)?, part(10, 12)?, part(12, 14)?).parse().ok()
}

const EXPLICIT_0: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first element: its tag, its contents, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The length is in this many bytes; a certificate is far below 4 GiB.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((tag, contents, rest))
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
    fn the_end_of_the_validity_is_read_before_and_after_2050() {
        for (date, expected) in [((2031, 2, 3), "2031-02-03T00:00:00Z"), ((2055, 12, 31), "2055-12-31T00:00:00Z")] {
            assert_eq!(not_after(&certificate(date)), Some(expected.parse().unwrap()));
        }
    }

    #[test]
    fn what_is_no_certificate_says_nothing() {
        let certificate = certificate((2031, 2, 3));
        for len in 0..certificate.len().min(200) {
            // No prefix is read beyond its end.
            let _ = not_after(&certificate[..len]);
        }
        for bytes in [&b""[..], b"\x30", b"\x30\x80", b"\x30\x84\xff\xff\xff\xff", b"\x30\x03abc"] {
            assert_eq!(not_after(bytes), None);
        }
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
