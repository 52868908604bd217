//! What people want to know of a certificate: whose it is, who issued it, and when it expires. Whether it is trusted is
//! decided elsewhere, by a library that verifies.

use std::time::Duration;

use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use crate::time::Timestamp;

/// A certificate that expires within this time is reported. Owners who renew by hand need some days, and most renewals
/// by machine come a month before.
pub const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// The facts of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Such as `CN=hooks.example, O=Acme`; empty if the certificate names its subject otherwise.
    pub subject: String,
    pub issuer: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// `SubjectPublicKeyInfo`, in DER.
    pub public_key: Vec<u8>,
}

impl Certificate {
    /// Reads a certificate in DER (RFC 5280, section 4.1).
    pub fn read(certificate: &[u8]) -> Option<Self> {
        let (_, certificate, _) = element(certificate)?;
        let (_, mut rest, _) = element(certificate)?;
        // The version is optional; then come serial number and signature algorithm.
        let (tag, _, after) = element(rest)?;
        if tag == EXPLICIT_0 {
            rest = after;
        }
        for _ in 0..2 {
            (_, _, rest) = element(rest)?;
        }
        let (_, issuer, rest) = element(rest)?;
        let (_, validity, rest) = element(rest)?;
        let (_, subject, rest) = element(rest)?;
        let (_, _, after_key) = element(rest)?;
        let public_key = rest.get(..rest.len() - after_key.len())?.to_vec();
        let (tag, not_before, after) = element(validity)?;
        let not_before = time(tag, not_before)?;
        let (tag, not_after, _) = element(after)?;
        let not_after = time(tag, not_after)?;
        Some(Self { subject: name(subject), issuer: name(issuer), not_before, not_after, public_key })
    }

    /// The certificates in a PEM text that can be read, in their order.
    pub fn in_pem(text: &str) -> Vec<Self> {
        let found = CertificateDer::pem_slice_iter(text.as_bytes()).map_while(Result::ok);
        found.filter_map(|der| Self::read(&der)).collect()
    }

    /// What its owner should know of its validity.
    pub fn warning(&self, now: Timestamp) -> Option<String> {
        let Self { not_before, not_after, .. } = self;
        match now {
            _ if now < *not_before => Some(format!("not valid before {not_before}")),
            _ if now > *not_after => Some(format!("expired at {not_after}")),
            _ if now + EXPIRES_SOON > *not_after => Some(format!("expires at {not_after}")),
            _ => None,
        }
    }
}

const EXPLICIT_0: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The attributes of a name that are shown: the last byte of their object identifier `2.5.4.x`.
const ATTRIBUTES: [(u8, &str); 6] = [(3, "CN"), (11, "OU"), (10, "O"), (7, "L"), (8, "ST"), (6, "C")];

/// A name: sets of attributes, each of an identifier and a text.
fn name(mut sets: &[u8]) -> String {
    let mut parts = Vec::new();
    while let Some((_, mut set, rest)) = element(sets) {
        sets = rest;
        while let Some((_, attribute, rest)) = element(set) {
            set = rest;
            let Some((_, [0x55, 0x04, kind], value)) = element(attribute) else { continue };
            let known = ATTRIBUTES.iter().find(|(number, _)| number == kind);
            if let (Some((_, label)), Some((_, text, _))) = (known, element(value)) {
                let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
                parts.push(format!("{label}={text}"));
            }
        }
    }
    parts.join(", ")
}

/// `YYMMDDHHMMSSZ` until 2049, and `YYYYMMDDHHMMSSZ` after that.
fn time(tag: u8, time: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(time).ok()?;
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

    fn certificate(not_after: (i32, u8, u8)) -> rcgen::Certificate {
        let mut params = rcgen::CertificateParams::new(vec!["hooks.example".to_owned()]).unwrap();
        let (year, month, day) = not_after;
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, month, day);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "hooks.example");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "Acme\nLtd");
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn names_and_validity_are_read_before_and_after_2050() {
        for (date, expected) in [((2031, 2, 3), "2031-02-03T00:00:00Z"), ((2055, 12, 31), "2055-12-31T00:00:00Z")] {
            let [read] = &Certificate::in_pem(&certificate(date).pem())[..] else { panic!("one certificate") };
            assert_eq!(
                (read.not_after, read.subject.as_str()),
                (expected.parse().unwrap(), "CN=hooks.example, O=Acme Ltd")
            );
            assert_eq!((read.not_before, &read.issuer), ("2020-01-01T00:00:00Z".parse().unwrap(), &read.subject));
        }
    }

    #[test]
    fn a_warning_names_the_day() {
        let read = Certificate::read(certificate((2031, 2, 3)).der()).unwrap();
        let warning = |now: &str| read.warning(now.parse().unwrap());
        assert_eq!(warning("2031-01-01T00:00:00Z"), None);
        assert_eq!(warning("2031-01-21T00:00:00Z").unwrap(), "expires at 2031-02-03T00:00:00.000Z");
        assert_eq!(warning("2031-02-04T00:00:00Z").unwrap(), "expired at 2031-02-03T00:00:00.000Z");
        assert_eq!(warning("2019-02-04T00:00:00Z").unwrap(), "not valid before 2020-01-01T00:00:00.000Z");
    }

    #[test]
    fn what_is_no_certificate_says_nothing() {
        let certificate = certificate((2031, 2, 3));
        for len in 0..certificate.der().len().min(200) {
            // No prefix is read beyond its end.
            let _ = Certificate::read(&certificate.der()[..len]);
        }
        for bytes in [&b""[..], b"\x30", b"\x30\x80", b"\x30\x84\xff\xff\xff\xff", b"\x30\x03abc"] {
            assert_eq!(Certificate::read(bytes), None);
        }
        assert_eq!(Certificate::in_pem("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"), []);
    }
}
