//! The id in the path of a page.

use axum::{
    RequestPartsExt as _,
    extract::{FromRequestParts, Path},
};
use http::request::Parts;

use crate::refusal::Refusal;

/// An id such as `dlv_01h2xcejqtf2nbrexx3vqjhp41`. Any other text names no page: as a part of a path of the API it could
/// name another resource, such as `groups` in `/v1/deliveries/groups`.
pub(crate) struct PathId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let id = parts.extract::<Path<String>>().await.ok().map(|Path(id)| id).filter(|id| is_id(id));
        id.map(Self).ok_or_else(|| Refusal::not_found("There is no such page."))
    }
}

/// A word, an underscore, and letters and digits.
pub(crate) fn is_id(text: &str) -> bool {
    let parts = text.split_once('_');
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    parts.is_some_and(|(kind, rest)| is_word(kind) && is_word(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_are_ids() {
        assert!(is_id("dst_01h2xcejqtf2nbrexx3vqjhp41") && is_id("dlv_1"));
        for text in ["", "groups", "by-name", "_", "dst_", "_1", "dst_1/..", "dst_1\r\nx", "dst_\u{e9}", "a_b_c"] {
            assert!(!is_id(text), "{text:?}");
        }
    }
}
