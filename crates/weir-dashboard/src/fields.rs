//! The fields of a submitted form. A field may occur several times, such as the ticked rows of a table.

use axum::{
    body::to_bytes,
    extract::{FromRequest, Request},
};
use http::StatusCode;
use url::form_urlencoded;

use crate::refusal::Refusal;

/// Larger than every form of the dashboard, also with a pasted request body.
const MAX_BYTES: usize = 2 * 1024 * 1024;

#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        // Browsers send line breaks in text areas as CR LF.
        let pairs = form_urlencoded::parse(bytes);
        Self(pairs.map(|(name, value)| (name.into_owned(), value.replace("\r\n", "\n"))).collect())
    }

    pub(crate) fn of(pairs: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
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

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let refused =
            |_| Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "The form is too large", "The form is too large.");
        to_bytes(request.into_body(), MAX_BYTES).await.map(|bytes| Self::parse(&bytes)).map_err(refused)
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
