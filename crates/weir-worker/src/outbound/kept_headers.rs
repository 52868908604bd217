//! The headers of an answer that are recorded with the attempt: the first of them, cut to a bounded size, without those
//! that may hold credentials.
//!
//! A cookie or a token in an answer lets its reader act as Weir's account at the receiver. Everybody who may read a
//! delivery sees its attempts, so such a header is not recorded at all.

use http::HeaderMap;

/// The most headers that are recorded: an answer of a web framework behind a proxy has about a dozen. They take at most
/// 5 KiB of an attempt.
const MAX_HEADERS: usize = 16;
/// The most bytes that are recorded of a value.
const MAX_VALUE: usize = 256;
/// The longest name of a header that is recorded. Nobody looks for a header with a longer name, so it is left out.
const MAX_NAME: usize = 64;

/// Parts of the names of headers that may hold credentials. `www-authenticate` holds a challenge and is recorded: it
/// explains a 401.
const CREDENTIALS: [&str; 14] = [
    "cookie",
    "authorization",
    "authentication-info",
    "x-auth",
    "token",
    "secret",
    "password",
    "passwd",
    "credential",
    "session",
    "api-key",
    "apikey",
    "access-key",
    "private-key",
];

/// The headers to record, in the order in which the server sent them, as far as `http` keeps it.
pub(super) fn of(headers: &HeaderMap) -> Vec<(String, String)> {
    let kept = headers.iter().filter(|(name, _)| {
        let name = name.as_str();
        name.len() <= MAX_NAME && !CREDENTIALS.iter().any(|part| name.contains(part))
    });
    kept.take(MAX_HEADERS).map(|(name, value)| (name.as_str().to_owned(), shown(value.as_bytes()))).collect()
}

/// A value as text of at most [`MAX_VALUE`] bytes.
fn shown(value: &[u8]) -> String {
    // A byte that is not UTF-8 becomes a character of three bytes, and a cut may split a character: cut again as text.
    let mut text = String::from_utf8_lossy(&value[..value.len().min(MAX_VALUE + 3)]).into_owned();
    text.truncate(text.floor_char_boundary(MAX_VALUE));
    text
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn kept(headers: &[(&str, &[u8])]) -> Vec<(String, String)> {
        let header = |&(name, value): &(&str, &[u8])| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap())
        };
        of(&headers.iter().map(header).collect())
    }

    #[test]
    fn headers_that_may_hold_credentials_are_left_out() {
        for name in [
            "Set-Cookie",
            "set-cookie2",
            "Authorization",
            "Proxy-Authorization",
            "Authentication-Info",
            "X-Auth",
            "X-Auth-Key",
            "X-CSRF-Token",
            "X-Amz-Security-Token",
            "Client-Secret",
            "X-Session-Id",
            "X-Api-Key",
        ] {
            assert_eq!(kept(&[(name, b"s3cret")]), [], "{name}");
        }
        let challenge = kept(&[("WWW-Authenticate", b"Bearer realm=\"hooks\""), ("x-request-id", b"r-1")]);
        let names: Vec<_> = challenge.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["www-authenticate", "x-request-id"]);
    }

    #[test]
    fn the_number_and_the_size_of_headers_are_bounded() {
        let names: Vec<String> = (0..40).map(|number| format!("x-{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), &b"1"[..])).collect();
        assert_eq!(kept(&many).len(), MAX_HEADERS);
        assert_eq!(kept(&[(&"x".repeat(65), b"1"), ("y", b"2")]), [("y".to_owned(), "2".to_owned())]);
        assert_eq!(kept(&[("x", &[b'a'; 300])])[0].1, "a".repeat(256));
        // Two bytes a character, and none of them UTF-8: the cut is between characters.
        assert_eq!(kept(&[("x", format!("a{}", "é".repeat(200)).as_bytes())])[0].1, format!("a{}", "é".repeat(127)));
        let broken = &kept(&[("x", &[0xff; 300])])[0].1;
        assert_eq!(broken, &"\u{fffd}".repeat(85));
    }
}
