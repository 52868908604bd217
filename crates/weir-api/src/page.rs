//! Pages of lists: `limit`, and a `cursor` that is valid only for its own list.
//!
//! A cursor is the base64url of one byte that names the list and the 16 bytes of the last row's id. It is opaque to
//! clients. The first byte prevents a cursor of another list from silently skipping rows.

use axum::Json;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use weir_store::{Page, PageRequest};

use crate::{query::Query, views::List};

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 200;

/// The list of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    Destinations = b'd' as isize,
    Events = b'e' as isize,
    Deliveries = b'l' as isize,
    Replays = b'r' as isize,
}

impl Listing {
    fn cursor(self, before: [u8; 16]) -> String {
        let mut bytes = [0; 17];
        bytes[0] = self as u8;
        bytes[1..].copy_from_slice(&before);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn position(self, cursor: &str) -> Option<[u8; 16]> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (tag, id) = bytes.split_first()?;
        if *tag != self as u8 {
            return None;
        }
        id.try_into().ok()
    }

    /// Reads `limit` and `cursor`.
    pub(crate) fn request(self, query: &mut Query) -> PageRequest {
        let limit = query.parse("limit", |text| {
            let limit = text.parse::<u32>().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
            limit.ok_or_else(|| format!("must be a whole number from 1 to {MAX_LIMIT}"))
        });
        let before = query.parse("cursor", |text| self.position(text).ok_or("must be a `next_cursor` of this list"));
        PageRequest { before, limit: limit.unwrap_or(DEFAULT_LIMIT) }
    }

    /// The JSON view of a page.
    pub(crate) fn page<T, V>(self, page: Page<T>, view: impl FnMut(T) -> V) -> Json<List<V>> {
        let next_cursor = self.next_cursor(&page);
        Json(List { data: page.rows.into_iter().map(view).collect(), next_cursor })
    }

    pub(crate) fn next_cursor<T>(self, page: &Page<T>) -> Option<String> {
        page.next.map(|before| self.cursor(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_valid_only_for_its_own_list() {
        let id = [7; 16];
        let cursor = Listing::Events.cursor(id);
        assert_eq!(Listing::Events.position(&cursor), Some(id));
        assert_eq!(Listing::Deliveries.position(&cursor), None);
        for forged in ["", "e", "ZQ", "!!!", &cursor[1..], &format!("{cursor}AAAA")] {
            assert_eq!(Listing::Events.position(forged), None, "{forged}");
        }
    }
}
