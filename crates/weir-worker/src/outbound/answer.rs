//! The answer to a request: its status, the headers that Weir acts on, and the first bytes of its body.
//!
//! The status decides as soon as the head has arrived. The body is kept for the destination's owner. A body that is cut
//! off or does not end in time is noted as an error and changes no verdict. Neither does a head that is too large: its
//! status has arrived.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderMap, Response, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use url::Url;
use weir_core::{
    Timestamp,
    hints::Hints,
    outcome::{Failure, SendResult},
};

use super::{MAX_ANSWER_BODY, MAX_SUCCESS_BODY, TimeLimit, decoded, fault::Broken, kept_headers};

/// The most bytes of a location in the text of an error: more than the URLs of endpoints have.
const MAX_LOCATION: usize = 256;

/// The part of an answer that has arrived. It outlives the read, so it is still there after a timeout.
#[derive(Default)]
pub(super) struct Answer {
    response: Option<ResponseParts>,
    /// The status of a head that is too large.
    status_alone: Option<u16>,
    /// The first bytes of the body: [`MAX_SUCCESS_BODY`] of a 2xx answer, otherwise all that were read.
    kept: Vec<u8>,
    /// How much of the body was read, at most [`MAX_ANSWER_BODY`].
    read: usize,
    /// The whole body has been read.
    is_complete: bool,
}

struct ResponseParts {
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
}

impl Answer {
    pub(super) fn has_head(&self) -> bool {
        self.response.is_some()
    }

    pub(super) fn set_head(&mut self, response: Response<Incoming>) {
        let (head, body) = response.into_parts();
        self.response = Some(ResponseParts { status: head.status, headers: head.headers, body });
    }

    /// Only this of the head is known, because the rest is too large.
    pub(super) fn set_status_alone(&mut self, status: Option<u16>) {
        self.status_alone = status;
    }

    /// Reads the body until it ends or is longer than [`MAX_ANSWER_BODY`].
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Some(response) = &mut self.response else { return Poll::Pending };
        while !self.is_complete {
            match ready!(Pin::new(&mut response.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers are ignored.
                    let Ok(data) = frame.into_data() else { continue };
                    // Once more than this has arrived, the rest is not read.
                    let unread = MAX_ANSWER_BODY - self.read;
                    let most = if response.status.is_success() { MAX_SUCCESS_BODY } else { MAX_ANSWER_BODY };
                    self.kept.extend_from_slice(&data[..data.len().min(most - self.kept.len())]);
                    self.read += data.len().min(unread);
                    if data.len() > unread {
                        break;
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(Broken::from(&error))),
                None => self.is_complete = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether [`MAX_ANSWER_BODY`] bytes have arrived: more are not waited for.
    pub(super) fn is_full(&self) -> bool {
        self.read == MAX_ANSWER_BODY
    }

    /// Whether the answer allows another request on its connection.
    pub(super) fn allows_reuse(&self) -> bool {
        // An answer with two different framings may be an attack (response splitting).
        let has = |name| self.response.as_ref().is_some_and(|response| response.headers.contains_key(name));
        self.is_complete && !(has(header::TRANSFER_ENCODING) && has(header::CONTENT_LENGTH))
    }

    /// The idle timeout that the server names in `Keep-Alive`.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        let headers = &self.response.as_ref()?.headers;
        let values = headers.get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).find_map(keep_alive_timeout)
    }

    /// The error text after a timeout.
    pub(super) fn timeout_error(&self, limit: TimeLimit) -> String {
        let what = if self.has_head() { "the answer's body did not end" } else { "no answer" };
        let connecting = match limit.connecting.as_millis() {
            0 => String::new(),
            took => format!(", of which connecting took {took} ms"),
        };
        format!("{what} within {} ms{connecting}", limit.whole.as_millis())
    }

    /// Where a redirect leads, and what to do about it. Weir follows none: the address that it would lead to is one
    /// that nobody has configured.
    pub(super) fn redirect(&self) -> Option<String> {
        let ResponseParts { status, headers, .. } = self.response.as_ref()?;
        if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        let location = headers.get(header::LOCATION).map(|location| shown_location(location.as_bytes()));
        let to = location.filter(|to| !to.is_empty()).map_or_else(String::new, |to| format!(" to {to}"));
        Some(format!("a redirect{to}; redirects are not followed: edit the URL of the destination"))
    }

    /// The result of the send: an answer if its head has arrived, even when the rest of it failed.
    pub(super) fn send_result(&self, failure: Failure, wall: Timestamp) -> SendResult {
        match (&self.response, self.status_alone) {
            (Some(ResponseParts { status, headers, .. }), _) => {
                let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
                SendResult::Answer { status: status.as_u16(), hints: Hints::read(headers, wall) }
            }
            (None, Some(status)) => SendResult::Answer { status, hints: Hints::default() },
            (None, None) => SendResult::Failure(failure),
        }
    }

    /// The headers to record; none before the head has arrived.
    pub(super) fn kept_headers(&self) -> Vec<(String, String)> {
        self.response.as_ref().map(|response| kept_headers::of(&response.headers)).unwrap_or_default()
    }

    pub(super) fn into_text(self) -> Option<String> {
        let most = match &self.response {
            Some(response) if response.status.is_success() => MAX_SUCCESS_BODY,
            _ => MAX_ANSWER_BODY,
        };
        let decoded = self.response.as_ref().and_then(|response| decoded::of(&response.headers, &self.kept, most));
        let kept = decoded.unwrap_or(self.kept);
        (!kept.is_empty()).then(|| text(kept))
    }
}

/// A location of at most [`MAX_LOCATION`] bytes, without credentials and without characters that are not visible.
fn shown_location(location: &[u8]) -> String {
    let location = String::from_utf8_lossy(location);
    let without_credentials = Url::parse(location.trim()).ok().map(|mut url| {
        // A URL that cannot have credentials has none.
        let _ = url.set_username("").and_then(|()| url.set_password(None));
        url.to_string()
    });
    let mut shown = without_credentials.unwrap_or_else(|| location.into_owned());
    shown.truncate(shown.floor_char_boundary(MAX_LOCATION));
    shown.replace(|char: char| !char.is_ascii_graphic(), "?")
}

/// The `N` of `timeout=N`.
fn keep_alive_timeout(parameter: &str) -> Option<Duration> {
    let (name, value) = parameter.split_once('=')?;
    let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
    value.trim().trim_matches('"').parse().ok().filter(|_| is_timeout).map(Duration::from_secs)
}

/// Converts bytes to text of at most [`MAX_ANSWER_BODY`] bytes. NUL is replaced too, because PostgreSQL cannot store it
/// in text.
fn text(body: Vec<u8>) -> String {
    let mut text = match String::from_utf8(body) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    // A replacement character is longer than the byte that it replaces.
    text.truncate(text.floor_char_boundary(MAX_ANSWER_BODY));
    // It may wait for its record beside thousands of others.
    text.shrink_to_fit();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_of_keep_alive_is_read_among_its_parameters() {
        let read = |value: &str| value.split(',').find_map(keep_alive_timeout);
        for value in ["timeout=5", "max=100, Timeout = 5", "timeout=\"5\", max=1"] {
            assert_eq!(read(value), Some(Duration::from_secs(5)), "{value}");
        }
        for value in ["", "5", "timeout", "timeout=", "timeout=-1", "timeout=5s", "max=5"] {
            assert_eq!(read(value), None, "{value}");
        }
    }

    #[test]
    fn a_shown_location_is_short_visible_and_without_credentials() {
        for (location, shown) in [
            ("https://user:s3cret@new.example/hooks?a=b", "https://new.example/hooks?a=b"),
            ("/hooks/", "/hooks/"),
            ("//new.example/\u{202e}x y\u{7f}", "//new.example/?x?y?"),
            ("https://b\u{fc}cher.example/", "https://xn--bcher-kva.example/"),
        ] {
            assert_eq!(shown_location(location.as_bytes()), shown);
        }
        assert_eq!(shown_location(b"/\xff"), "/?");
        assert_eq!(shown_location("/\u{e9}".repeat(300).as_bytes()).len(), MAX_LOCATION / 3 * 2 + 1);
    }

    #[test]
    fn any_bytes_become_text_of_bounded_length() {
        assert_eq!(text(b"plain".to_vec()), "plain");
        assert_eq!(text(b"a\xffb\0c".to_vec()), "a\u{fffd}b\u{fffd}c");
        let text = text(vec![0xff; MAX_ANSWER_BODY]);
        assert!(text.len() <= MAX_ANSWER_BODY && text.len() > MAX_ANSWER_BODY - 3);
    }
}
