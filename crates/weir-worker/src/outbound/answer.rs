//! Reading an answer: its status, and as much of its body as is kept.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::Response;
use hyper::body::{Body as _, Bytes, Frame, Incoming};
use weir_core::{
    Clock,
    outcome::{self, Met},
    quota,
};

use super::{MAX_ANSWER_BODY, connection::Driver};

/// What has arrived so far. Outlives the read, so that a timeout still finds it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    status: Option<u16>,
    retry_after: Option<Duration>,
    used_up_for: Option<Duration>,
    body: Vec<u8>,
    whole: bool,
}

impl Answer {
    /// Reads to the end of the body, or to [`MAX_ANSWER_BODY`].
    pub(super) async fn read(
        &mut self,
        mut head: Pin<&mut impl Future<Output = hyper::Result<Response<Incoming>>>>,
        driver: &mut Driver,
        clock: &dyn Clock,
    ) -> hyper::Result<()> {
        let response = poll_fn(|cx| {
            driver.drive(cx);
            head.as_mut().poll(cx)
        })
        .await?;
        self.status = Some(response.status().as_u16());
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        self.retry_after = header("retry-after").and_then(|value| outcome::retry_after(value, clock.wall()));
        self.used_up_for = quota::used_up_for(header, clock.wall());
        let mut body = response.into_body();
        while !body.is_end_stream() {
            let Some(frame) = poll_fn(|cx| poll_frame(&mut body, driver, cx)).await.transpose()? else {
                break;
            };
            let Some(data) = frame.data_ref() else { continue };
            let room = MAX_ANSWER_BODY - self.body.len();
            self.body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room || (data.len() == room && !body.is_end_stream()) {
                return Ok(());
            }
        }
        self.whole = true;
        Ok(())
    }

    /// Whether nothing of the answer is left on the connection.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// The status is 0 before the head has arrived.
    pub(super) fn met(&self) -> Met {
        let &Self { status, retry_after, used_up_for, .. } = self;
        Met::Answer { status: status.unwrap_or_default(), retry_after, used_up_for }
    }

    /// What to say when time is up.
    pub(super) fn lateness(&self, limit: Duration) -> String {
        let what = if self.status.is_some() { "the answer's body did not end" } else { "no answer" };
        format!("{what} within {} ms", limit.as_millis())
    }

    pub(super) fn into_text(self) -> Option<String> {
        (!self.body.is_empty()).then(|| text(self.body))
    }
}

fn poll_frame(
    body: &mut Incoming,
    driver: &mut Driver,
    cx: &mut Context<'_>,
) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
    // Asking first is what makes the driver read the body at all.
    match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Pending => {
            driver.drive(cx);
            Pin::new(body).poll_frame(cx)
        }
        ready => ready,
    }
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
    fn any_bytes_become_text_of_bounded_length() {
        assert_eq!(text(b"plain".to_vec()), "plain");
        assert_eq!(text(b"a\xffb\0c".to_vec()), "a\u{fffd}b\u{fffd}c");
        let text = text(vec![0xff; MAX_ANSWER_BODY]);
        assert!(text.len() <= MAX_ANSWER_BODY && text.len() > MAX_ANSWER_BODY - 3);
    }
}
