//! The cookie of a session.
//!
//! Under https its name has the prefix `__Host-`: a browser accepts such a cookie only from this host itself, over
//! https and for all paths, so neither another host of the same site nor a page over plain http can plant one.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};

use super::{public_url::PublicUrl, session::Token};

/// The name and the scope of the cookie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionCookie<'a> {
    name: &'static str,
    path: &'a str,
    /// Whether browsers may send the cookie only over https.
    secure: bool,
}

impl<'a> SessionCookie<'a> {
    pub(crate) fn of(public_url: Option<&'a PublicUrl>) -> Self {
        match public_url {
            Some(url) if url.is_https() => Self { name: "__Host-weir_session", path: "/", secure: true },
            Some(url) if !url.path().is_empty() => Self { name: "weir_session", path: url.path(), secure: false },
            _ => Self { name: "weir_session", path: "/", secure: false },
        }
    }

    /// The header that gives a browser the token for this time.
    pub(crate) fn set(&self, token: Token, valid_for: Duration) -> HeaderValue {
        self.header(&token.to_text(), valid_for)
    }

    /// The header that makes a browser forget the token.
    pub(crate) fn clear(&self) -> HeaderValue {
        self.header("", Duration::ZERO)
    }

    fn header(&self, value: &str, valid_for: Duration) -> HeaderValue {
        let Self { name, path, secure } = self;
        // Rounded up: only the server judges the end of a session.
        let age = valid_for.as_secs() + u64::from(valid_for.subsec_nanos() > 0);
        let secure = if *secure { "; Secure" } else { "" };
        let header = format!("{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
        // The path of a URL and base64url have only printable ASCII.
        HeaderValue::try_from(header).unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    /// The tokens in a request. There may be several: cookies do not belong to a port, and a browser sends those of
    /// other paths too.
    pub(super) fn tokens<'h>(&self, headers: &'h HeaderMap) -> impl Iterator<Item = Token> + use<'h> {
        let name = self.name;
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(move |(other, _)| *other == name).filter_map(|(_, value)| Token::parse(value))
    }
}

#[cfg(test)]
mod tests {
    use weir_core::Timestamp;

    use super::*;

    fn token(byte: u8) -> Token {
        Token::sign(&[5; 32], &[byte; 32], Timestamp::from_secs(1_800_000_000))
    }

    #[test]
    fn the_attributes_follow_the_public_url() {
        let url = |text: &str| text.parse::<PublicUrl>().unwrap();
        let (text, hour) = (token(1).to_text(), Duration::from_secs(3_600));
        let common = "Max-Age=3600; HttpOnly; SameSite=Lax";
        for (url, expected) in [
            (None, format!("weir_session={text}; Path=/; {common}")),
            (Some(url("http://weir.lan:8080")), format!("weir_session={text}; Path=/; {common}")),
            (Some(url("http://weir.lan/hooks/")), format!("weir_session={text}; Path=/hooks; {common}")),
            (Some(url("https://weir.test/")), format!("__Host-weir_session={text}; Path=/; {common}; Secure")),
            (Some(url("https://weir.test/hooks")), format!("__Host-weir_session={text}; Path=/; {common}; Secure")),
        ] {
            assert_eq!(SessionCookie::of(url.as_ref()).set(token(1), hour), expected);
        }
        assert_eq!(SessionCookie::of(None).clear(), "weir_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax");
    }

    #[test]
    fn every_token_of_this_name_is_found_among_other_cookies() {
        let (one, two) = (token(1).to_text(), token(2).to_text());
        let mut headers = HeaderMap::new();
        let first = format!("theme=dark; weir_session={one};weir_session=;  weir_session=forged");
        headers.append(header::COOKIE, first.parse().unwrap());
        headers.append(header::COOKIE, format!("__Host-weir_session={two}").parse().unwrap());
        let found = |cookie: SessionCookie<'_>| cookie.tokens(&headers).collect::<Vec<_>>();
        assert_eq!(found(SessionCookie::of(None)), [token(1)]);
        let https: PublicUrl = "https://weir.test".parse().unwrap();
        assert_eq!(found(SessionCookie::of(Some(&https))), [token(2)]);
    }
}
