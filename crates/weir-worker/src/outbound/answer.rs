//! What an answer says: its status, what its headers ask for, and as much of its body as is kept.
//!
//! The status decides as soon as the head is there. What comes of the body after it is kept for the destination's owner; that it was
//! cut, or did not end in time, is noted and changes no verdict.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderMap, Response, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use weir_core::{
    Timestamp,
    outcome::{self, Failure, SendResult},
    quota,
};

use super::{MAX_ANSWER_BODY, fault::Broken};

/// What has arrived so far. Outlives the read, so that a timeout still finds it.
#[derive(Default)]
pub(super) struct Answer {
    begun: Option<Begun>,
    kept: Vec<u8>,
    /// All of it has been read.
    whole: bool,
}

struct Begun {
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
}

impl Answer {
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    pub(super) fn begin(&mut self, response: Response<Incoming>) {
        let (head, body) = response.into_parts();
        self.begun = Some(Begun { status: head.status, headers: head.headers, body });
    }

    /// Reads the body until it ends, or is longer than what is kept.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Some(begun) = &mut self.begun else { return Poll::Pending };
        while !self.whole {
            match ready!(Pin::new(&mut begun.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers are passed over.
                    let Ok(data) = frame.into_data() else { continue };
                    let room = MAX_ANSWER_BODY - self.kept.len();
                    self.kept.extend_from_slice(&data[..data.len().min(room)]);
                    if data.len() > room {
                        break;
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(Broken::from(&error))),
                None => self.whole = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// As much of the body has come as is kept: no more is waited for.
    pub(super) fn is_full(&self) -> bool {
        self.kept.len() == MAX_ANSWER_BODY
    }

    /// Whether another request may follow on the connection, as far as the answer says.
    pub(super) fn leaves_nothing(&self) -> bool {
        // Two ways to tell the length are the mark of somebody who means two different answers.
        let has = |name| self.begun.as_ref().is_some_and(|begun| begun.headers.contains_key(name));
        self.whole && !(has(header::TRANSFER_ENCODING) && has(header::CONTENT_LENGTH))
    }

    /// How long the server says that it keeps the connection while nothing is sent on it.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        let headers = &self.begun.as_ref()?.headers;
        let values = headers.get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).find_map(keep_alive_timeout)
    }

    /// What to say when time is up.
    pub(super) fn lateness(&self, limit: Duration) -> String {
        let what = if self.has_begun() { "the answer's body did not end" } else { "no answer" };
        format!("{what} within {} ms", limit.as_millis())
    }

    /// What the attempt met: an answer when its head has come, whatever ended the reading.
    pub(super) fn send_result(&self, failure: Failure, wall: Timestamp) -> SendResult {
        let Some(Begun { status, headers, .. }) = &self.begun else { return SendResult::Failure(failure) };
        let first = |name| headers.get(name).and_then(|value| value.to_str().ok());
        SendResult::Answer {
            status: status.as_u16(),
            retry_after: first("retry-after").and_then(|value| outcome::retry_after(value, wall)),
            used_up_for: quota::used_up_for(first, wall),
        }
    }

    pub(super) fn into_text(self) -> Option<String> {
        (!self.kept.is_empty()).then(|| text(self.kept))
    }
}
/// The `N` of `timeout=N`.
fn keep_alive_timeout(parameter: &str) -> Option<Duration> {
    let (name, value) = parameter.split_once('=')?;
    let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
    value.trim().trim_matches('"').parse().ok().filter(|_| is_timeout).map(Duration::from_secs)
}

/// Bytes as text of at most as many bytes. NUL goes too: PostgreSQL stores none in text.
fn text(body: Vec<u8>) -> String {
    let mut text = match String::from_utf8(body) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    // A replacement character is longer than what it replaces.
    text.truncate(text.floor_char_boundary(MAX_ANSWER_BODY));
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
    fn any_bytes_become_text_of_bounded_length() {
        assert_eq!(text(b"plain".to_vec()), "plain");
        assert_eq!(text(b"a\xffb\0c".to_vec()), "a\u{fffd}b\u{fffd}c");
        let text = text(vec![0xff; MAX_ANSWER_BODY]);
        assert!(text.len() <= MAX_ANSWER_BODY && text.len() > MAX_ANSWER_BODY - 3);
    }
}
