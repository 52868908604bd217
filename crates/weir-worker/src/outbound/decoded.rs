//! The decoded body of an answer that a server compressed although no request asked for it.
//!
//! Only the bytes that were read are decoded, and only as far as they are kept, so a small body that would become a
//! gigabyte costs what any other one costs.

use std::io::{ErrorKind, Read};

use flate2::read::{DeflateDecoder, GzDecoder, ZlibDecoder};
use http::{HeaderMap, header};

/// The first `most` bytes of a body with a `Content-Encoding` that is known. The body may be cut off. `None`: it is not
/// encoded, or not as the header says.
pub(super) fn of(headers: &HeaderMap, body: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    // Several encodings, one inside the other, are not sent in practice.
    let (Some(encoding), None) = (encodings.next(), encodings.next()) else { return None };
    match encoding.to_str().ok()?.trim().to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => first(GzDecoder::new(body), most),
        // Servers send it with the frame of zlib, as RFC 9110 says, and without. Without a frame nothing says that the body
        // is encoded at all, and part of a plain text may decode to something.
        "deflate" => first(ZlibDecoder::new(body), most)
            .or_else(|| first(DeflateDecoder::new(body), most).filter(|decoded| is_text(decoded))),
        _ => None,
    }
}

/// Whether the bytes are UTF-8, except for a last character that is cut off.
fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).err().is_none_or(|error| error.error_len().is_none())
}

/// What can be decoded before the end or the limit. `None` if that is nothing, or not of this encoding.
fn first(mut decoder: impl Read, most: usize) -> Option<Vec<u8>> {
    let mut decoded = vec![0; most];
    let mut length = 0;
    while length < most {
        match decoder.read(&mut decoded[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            // The body was cut off.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(_) => return None,
        }
    }
    decoded.truncate(length);
    (length > 0).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{
        Compression,
        write::{DeflateEncoder, GzEncoder, ZlibEncoder},
    };

    use super::*;

    fn encoded(text: &[u8]) -> [(&'static str, Vec<u8>); 4] {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::best());
        for encoder in [&mut gzip as &mut dyn Write, &mut zlib, &mut raw] {
            encoder.write_all(text).unwrap();
        }
        let gzip = gzip.finish().unwrap();
        [
            ("gzip", gzip.clone()),
            ("X-Gzip", gzip),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", raw.finish().unwrap()),
        ]
    }

    fn decoded(encodings: &[&str], body: &[u8], most: usize) -> Option<String> {
        let headers = encodings.iter().map(|&encoding| (header::CONTENT_ENCODING, encoding.parse().unwrap())).collect();
        of(&headers, body, most).map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn gzip_and_both_spellings_of_deflate_are_decoded() {
        for (encoding, body) in encoded(b"too many requests") {
            assert_eq!(decoded(&[encoding], &body, 100).as_deref(), Some("too many requests"), "{encoding}");
        }
    }

    #[test]
    fn a_body_that_is_cut_off_is_decoded_as_far_as_it_goes() {
        let text: String = (0..2_000).map(|number| format!("{number} ")).collect();
        for (encoding, body) in encoded(text.as_bytes()) {
            let part = decoded(&[encoding], &body[..body.len() / 2], 16 * 1024).unwrap();
            assert!(part.len() > 100 && text.starts_with(&part), "{encoding}: {}", part.len());
        }
    }

    #[test]
    fn no_more_is_decoded_than_is_kept() {
        for (encoding, body) in encoded(&vec![b'a'; 10_000_000]) {
            assert!(body.len() < 16 * 1024);
            assert_eq!(decoded(&[encoding], &body, 1_024), Some("a".repeat(1_024)), "{encoding}");
        }
    }

    #[test]
    fn a_body_that_is_not_encoded_as_its_header_says_stays_as_it_is() {
        let [(_, gzip), ..] = encoded(b"x");
        for encodings in [&[][..], &["identity"], &["br"], &["gzip", "gzip"], &["gzip, gzip"]] {
            assert_eq!(decoded(encodings, &gzip, 100), None, "{encodings:?}");
        }
        for encoding in ["gzip", "deflate"] {
            assert_eq!(decoded(&[encoding], b"{\"error\": \"plain\"}", 100), None, "{encoding}");
            assert_eq!(decoded(&[encoding], b"", 100), None, "{encoding}");
        }
    }
}
