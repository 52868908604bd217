//! The message after a redirect: what the action did, or why it was refused. It travels in a cookie that the next page
//! shows and removes. Its text is escaped like every other one.

use http::{HeaderMap, HeaderValue, header};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const NAME: &str = "weir_flash";
/// A message that no page has shown by then is of no interest.
const MAX_AGE_S: u32 = 30;
const MAX_CHARS: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flash {
    pub(crate) is_error: bool,
    pub(crate) text: String,
}

impl Flash {
    pub(crate) fn done(text: impl Into<String>) -> Self {
        Self { is_error: false, text: text.into() }
    }

    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, text: text.into() }
    }

    /// The message in the cookies of a request.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == NAME)?;
        let (kind, text) = value.split_once('.')?;
        let text: String = percent_decode_str(text).decode_utf8().ok()?.chars().take(MAX_CHARS).collect();
        Some(Self { is_error: kind == "error", text })
    }

    /// The cookie that carries the message to the next page.
    pub(crate) fn cookie(&self, base: &str, is_https: bool) -> Option<HeaderValue> {
        let kind = if self.is_error { "error" } else { "done" };
        let text: String = self.text.chars().take(MAX_CHARS).collect();
        let text = utf8_percent_encode(&text, NON_ALPHANUMERIC);
        set_cookie(&format!("{kind}.{text}"), base, MAX_AGE_S, is_https)
    }

    /// The cookie that removes the message.
    pub(crate) fn removal(base: &str, is_https: bool) -> Option<HeaderValue> {
        set_cookie("", base, 0, is_https)
    }
}

fn set_cookie(value: &str, base: &str, max_age_s: u32, is_https: bool) -> Option<HeaderValue> {
    let secure = if is_https { "; Secure" } else { "" };
    let cookie = format!("{NAME}={value}; Path={base}/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::try_from(cookie).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_redirect() {
        let flash = Flash::error("It's <b>; 50 % – no");
        let cookie = flash.cookie("/weir", false).unwrap();
        let pair = cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::try_from(format!("a=b; {pair}")).unwrap());
        assert_eq!(Flash::read(&headers), Some(flash));
        assert!(cookie.to_str().unwrap().ends_with("Path=/weir/; Max-Age=30; HttpOnly; SameSite=Lax"));
        let secure = Flash::removal("", true).unwrap();
        assert_eq!(secure, "weir_flash=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure");
        assert_eq!(Flash::read(&HeaderMap::new()), None);
    }
}
