//! The fields of a submitted form. A field may occur several times, such as the ticked rows of a table.
//!
//! Anybody may send a form, so only its first bytes are read before the API knows its sender. They are enough for a
//! login and for most forms.

use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};
use url::form_urlencoded;
use weir_api_types as types;
use weir_core::inbound::{HeldBytes, time_to_arrive};

use crate::{
    client::{ApiPath, Client},
    refusal::Refusal,
    site::Site,
};

/// What is read of a form before its sender is known. With one form for each connection this is little memory.
const MAX_OPEN_BYTES: usize = 4 * 1024;
/// The largest form: a pasted request body of the size that the API verifies, in which the browser has encoded each
/// byte as three.
const MAX_BYTES: usize = 3 * 256 * 1024;

#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        // Browsers send line breaks in text areas as CR LF.
        let pairs = form_urlencoded::parse(bytes);
        Self(pairs.map(|(name, value)| (name.into_owned(), value.replace("\r\n", "\n"))).collect())
    }

    pub(crate) fn of(pairs: impl IntoIterator<Item = (impl Into<String>, String)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// The same with another value of one field.
    pub(crate) fn with(mut self, name: &str, value: String) -> Self {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// The trimmed value of a field; empty when the field is absent.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// The value as it was typed.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// All values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.trim()).collect()
    }

    pub(crate) fn is_ticked(&self, name: &str) -> bool {
        !self.raw(name).is_empty()
    }
}

impl FromRequest<Site> for Fields {
    type Rejection = Refusal;

    async fn from_request(request: Request, site: &Site) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        if parts.headers.contains_key(header::CONTENT_ENCODING) {
            let detail = "The form must be sent as it is, without `Content-Encoding`.";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "The form is compressed", detail));
        }
        let mut form = Arriving::new(body);
        if form.read_to(MAX_OPEN_BYTES, None).await? == Read::End {
            return Ok(Self::parse(&form.bytes));
        }
        let api = Client::new(site.api.clone(), site.carry, &parts);
        let me: types::Me = match api.get(&ApiPath::of(["me"])).await {
            Ok(me) => me,
            Err(refusal) => {
                form.drop_rest().await;
                return Err(refusal);
            }
        };
        match form.read_to(MAX_BYTES, Some(site.forms.open(me.name.as_deref()))).await? {
            Read::End => Ok(Self::parse(&form.bytes)),
            Read::More => {
                Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "The form is too large", "The form is too large."))
            }
        }
    }
}

/// A form that is being read.
struct Arriving {
    body: Body,
    began: Instant,
    bytes: Vec<u8>,
}

#[derive(PartialEq, Eq)]
enum Read {
    /// The form has ended.
    End,
    /// The form is larger than was to be read.
    More,
}

impl Arriving {
    fn new(body: Body) -> Self {
        Self { body, began: Instant::now(), bytes: Vec::new() }
    }

    /// Drops a refused form as it arrives: a browser that is still sending would not see the refusal.
    async fn drop_rest(&mut self) {
        let mut arrived = std::mem::take(&mut self.bytes).len();
        while arrived <= MAX_BYTES
            && let Ok(Some(Ok(frame))) = timeout_at(self.began + time_to_arrive(arrived), self.body.frame()).await
        {
            arrived += frame.data_ref().map_or(0, Bytes::len);
        }
    }

    /// Reads until the form has ended, or more than `most` bytes of it have arrived: at most one frame more.
    async fn read_to(&mut self, most: usize, mut held: Option<HeldBytes<u64>>) -> Result<Read, Refusal> {
        while self.bytes.len() <= most {
            // A vector grows to twice its length.
            if held.as_mut().is_some_and(|held| !held.grow_to(2 * self.bytes.len())) {
                let detail = "Too many large forms are being sent. Send this one again in a moment.";
                return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "The server is busy", detail));
            }
            let deadline = self.began + time_to_arrive(self.bytes.len());
            let Ok(frame) = timeout_at(deadline, self.body.frame()).await else {
                let detail = "The form did not arrive in time. Send it again.";
                return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "The form did not arrive in time", detail));
            };
            let Some(frame) = frame else { return Ok(Read::End) };
            let cut_off = |_| Refusal::new(StatusCode::BAD_REQUEST, "The form is incomplete", "Send the form again.");
            let Ok(data) = frame.map_err(cut_off)?.into_data() else { continue };
            self.bytes.extend_from_slice(&data);
        }
        Ok(Read::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_may_occur_several_times() {
        let fields = Fields::parse(b"id=a&id=b+&note=+x%0D%0Ay+&on=1");
        assert_eq!((fields.all("id"), fields.text("note"), fields.raw("note")), (vec!["a", "b"], "x\ny", " x\ny "));
        assert_eq!((fields.text("none"), fields.is_ticked("on"), fields.is_ticked("off")), ("", true, false));
    }
}
