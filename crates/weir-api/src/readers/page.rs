//! Pages of lists: `limit`, and a `cursor` that is valid only for its own list.
//!
//! A cursor is the base64url of one byte that names the list and the 16 bytes of the last row's id. It is opaque to
//! clients. The first byte prevents a cursor of another list from silently skipping rows.

use std::{io, marker::PhantomData, sync::LazyLock};

use axum::Json;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Serialize;
use utoipa::{
    IntoParams,
    openapi::{
        RefOr, Schema,
        path::{Parameter, ParameterIn},
    },
};
pub(crate) use weir_api_types::List;
use weir_store::{Page, PageRequest};

use super::{
    query::{Pairs, Parameters, described},
    texts::Text,
};

/// A list with pages.
pub(crate) trait Listing {
    /// The byte of its cursors; every list has its own.
    const TAG: u8;

    /// The regular expression of this list's cursors, for the document. A cursor is base64url. Its first character
    /// belongs to the list, its second character also carries four bits of the id, and its last one only four bits.
    fn cursor_pattern() -> String {
        let first = &Self::cursor([0; 16])[..1];
        let second: String = (0..16).map(|bits| Self::cursor([bits << 4; 16]).remove(1)).collect();
        // A `-` between two characters would be a range.
        let second = second.replace('-', r"\-");
        format!("^{first}[{second}][A-Za-z0-9_-]{{20}}[AEIMQUYcgkosw048]$")
    }

    fn cursor(before: [u8; 16]) -> String {
        encode(Self::TAG, before)
    }

    fn position(cursor: &str) -> Option<[u8; 16]> {
        let (tag, id) = decode(cursor)?;
        (tag == Self::TAG).then_some(id)
    }
}

/// The cursor of a list's byte and an id.
pub(super) fn encode(tag: u8, id: [u8; 16]) -> String {
    let mut bytes = [0; 17];
    bytes[0] = tag;
    bytes[1..].copy_from_slice(&id);
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(super) fn decode(cursor: &str) -> Option<(u8, [u8; 16])> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (tag, id) = bytes.split_first()?;
    Some((*tag, id.try_into().ok()?))
}

/// The most bytes of a page. A page of larger rows ends early, with its cursor.
pub(crate) const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// The JSON view of a page of the list `L`.
pub(crate) fn view<L: Listing, T, V: Serialize>(
    page: Page<T>,
    id: impl Fn(&T) -> [u8; 16],
    mut view: impl FnMut(T) -> V,
) -> Json<List<V>> {
    let mut next = page.next;
    let mut room = Room::default();
    let mut data = Vec::with_capacity(page.rows.len());
    let mut last = None;
    for row in page.rows {
        let (id, view) = (id(&row), view(row));
        if !room.takes(json_length(&view)) {
            next = last;
            break;
        }
        data.push(view);
        last = Some(id);
    }
    Json(List { data, next_cursor: next.map(L::cursor) })
}

/// The room that is left on a page.
#[derive(Debug, Default)]
pub(crate) struct Room {
    taken: usize,
}

impl Room {
    /// Takes the room for a row of this size, if there is enough. Every page has room for its first row.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        let fits = self.taken == 0 || self.taken + bytes <= MAX_PAGE_BYTES;
        if fits {
            self.taken += bytes.max(1);
        }
        fits
    }
}

/// The length of a value as JSON.
fn json_length(value: &impl Serialize) -> usize {
    struct Length(usize);

    impl io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut length = Length(0);
    // A value that cannot be written is refused when the page is.
    let _ = serde_json::to_writer(&mut length, value);
    length.0
}

/// The page of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the parameters of every list")]
struct Described {
    /// The maximum number of rows of the page.
    #[param(minimum = 1, maximum = 200, default = json!(DEFAULT_LIMIT))]
    limit: Option<u32>,
    /// The `next_cursor` of the previous page of the same list.
    cursor: Option<String>,
}

pub(crate) const DEFAULT_LIMIT: u32 = 50;

/// The parameters `limit` and `cursor` of the list `L`.
pub(crate) struct PageParameters<L> {
    pub(crate) request: PageRequest,
    list: PhantomData<L>,
}

impl<L: Listing> IntoParams for PageParameters<L> {
    fn into_params(parameter_in: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut parameters = Described::into_params(parameter_in);
        for parameter in parameters.iter_mut().filter(|parameter| parameter.name == "cursor") {
            if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema {
                schema.pattern = Some(L::cursor_pattern());
            }
        }
        parameters
    }
}

impl<L: Listing> Parameters for PageParameters<L> {
    fn read(pairs: &mut Pairs) -> Self {
        static DESCRIBED: LazyLock<Vec<Parameter>> = LazyLock::new(described::<Described>);
        let limit: Option<u32> = pairs.take("limit", &DESCRIBED);
        let cursor: Option<Cursor<L>> = pairs.take("cursor", &DESCRIBED);
        let request = PageRequest { before: cursor.map(|cursor| cursor.before), limit: limit.unwrap_or(DEFAULT_LIMIT) };
        Self { request, list: PhantomData }
    }
}

struct Cursor<L> {
    before: [u8; 16],
    list: PhantomData<L>,
}

impl<L: Listing> Text for Cursor<L> {
    fn parse(text: &str) -> Result<Self, String> {
        let before = L::position(text).ok_or("must be a `next_cursor` of this list")?;
        Ok(Self { before, list: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Events {}
    impl Listing for Events {
        const TAG: u8 = b'e';
    }

    enum Deliveries {}
    impl Listing for Deliveries {
        const TAG: u8 = b'l';
    }

    #[test]
    fn a_cursor_is_valid_only_for_its_own_list() {
        let id = [7; 16];
        let cursor = Events::cursor(id);
        assert_eq!(Events::position(&cursor), Some(id));
        assert_eq!(Deliveries::position(&cursor), None);
        for forged in ["", "e", "ZQ", "!!!", &cursor[1..], &format!("{cursor}AAAA")] {
            assert_eq!(Events::position(forged), None, "{forged}");
        }
    }

    #[test]
    fn a_page_of_large_rows_ends_early_with_its_cursor() {
        let page = |sizes: &[usize]| {
            let rows = sizes.iter().zip(1..).map(|(&size, number)| ([number; 16], "x".repeat(size))).collect();
            let Json(list) = view::<Events, _, _>(Page { rows, next: Some([9; 16]) }, |(id, _)| *id, |(_, text)| text);
            let (rows, next) = (list.data.len(), list.next_cursor.unwrap());
            (rows, Events::position(&next).unwrap()[0])
        };
        assert_eq!(page(&[1, 1, 1]), (3, 9));
        assert_eq!(page(&[MAX_PAGE_BYTES / 2, MAX_PAGE_BYTES / 3, MAX_PAGE_BYTES / 3, 1]), (2, 2));
        // The first row is shown, whatever its size. Otherwise the list would never go on.
        assert_eq!(page(&[MAX_PAGE_BYTES * 2, 1]), (1, 1));
    }

    #[test]
    fn the_pattern_of_a_list_describes_its_cursors() {
        fn check<L: Listing>() -> String {
            let pattern = L::cursor_pattern();
            let (first, second) = pattern["^".len()..].split_once(']').unwrap().0.split_once('[').unwrap();
            for id in [[0; 16], [7; 16], [0x80; 16], [0xff; 16]] {
                let cursor = L::cursor(id);
                assert_eq!(&cursor[..1], first);
                assert!(second.contains(&cursor[1..2]), "{cursor} {pattern}");
                assert_eq!(second.replace(r"\-", "").find('-'), None, "{pattern}");
                assert_eq!(cursor.len(), 23);
            }
            pattern
        }
        assert_ne!(check::<Events>(), check::<Deliveries>());
    }
}
