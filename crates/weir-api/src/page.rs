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
    const ALL: [Self; 4] = [Self::Destinations, Self::Events, Self::Deliveries, Self::Replays];

    /// The list at this path of the API.
    pub(crate) fn at(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|listing| path == listing.path())
    }

    fn path(self) -> &'static str {
        match self {
            Self::Destinations => "/v1/destinations",
            Self::Events => "/v1/events",
            Self::Deliveries => "/v1/deliveries",
            Self::Replays => "/v1/replays",
        }
    }

    /// The regular expression of this list's cursors, for the document of the API. The first character of the base64url
    /// belongs to the list, the second one also carries four bits of the id, and the last one carries four bits.
    pub(crate) fn cursor_pattern(self) -> String {
        let first = &self.cursor([0; 16])[..1];
        let second: String = (0..16).map(|bits| self.cursor([bits << 4; 16]).remove(1)).collect();
        format!("^{first}[{second}][A-Za-z0-9_-]{{20}}[AEIMQUYcgkosw048]$")
    }

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

    #[test]
    fn the_pattern_of_a_list_describes_its_cursors() {
        let patterns = Listing::ALL.map(Listing::cursor_pattern);
        for (listing, pattern) in Listing::ALL.into_iter().zip(&patterns) {
            let (first, second) = pattern["^".len()..].split_once(']').unwrap().0.split_once('[').unwrap();
            for id in [[0; 16], [7; 16], [0x80; 16], [0xff; 16]] {
                let cursor = listing.cursor(id);
                assert_eq!(&cursor[..1], first);
                assert!(second.contains(&cursor[1..2]), "{cursor} {pattern}");
                assert_eq!(cursor.len(), 23);
            }
        }
        assert_eq!(patterns.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{patterns:?}");
    }
}
