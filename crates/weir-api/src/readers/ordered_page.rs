//! Pages of lists that can also be read oldest first: `order` beside `limit` and `cursor`.
//!
//! The byte of a cursor names the list and the order: the letter of the list, in upper case for the order `oldest`. So a
//! cursor stays valid when `order` is left out, and never continues a list in the other order.

use std::{marker::PhantomData, sync::LazyLock};

use utoipa::{
    IntoParams,
    openapi::{
        RefOr, Schema,
        path::{Parameter, ParameterIn},
    },
};
use weir_store::{ListOrder, PageRequest};

use super::{
    page::{DEFAULT_LIMIT, Listing, decode, encode},
    query::{Pairs, Parameters, described},
    texts::{ListOrderText, Text},
};

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the parameters of these lists")]
struct Described {
    /// `newest` (the default) or `oldest`: which come first. With a cursor, the order of that cursor.
    order: Option<ListOrderText>,
    /// The maximum number of rows of the page.
    #[param(minimum = 1, maximum = 200, default = json!(DEFAULT_LIMIT))]
    limit: Option<u32>,
    /// The `next_cursor` of the previous page of the same list in the same order.
    cursor: Option<String>,
}

/// The parameters `order`, `limit` and `cursor` of the list `L`.
pub(crate) struct OrderedPage<L> {
    pub(crate) request: PageRequest,
    pub(crate) order: ListOrder,
    list: PhantomData<L>,
}

impl<L: Listing> OrderedPage<L> {
    /// The cursor of the next page.
    pub(crate) fn cursor(&self, next: [u8; 16]) -> String {
        encode(tag::<L>(self.order), next)
    }

    /// The cursor of the next page, for a caller from whom rows are hidden. `end` is the last row that was examined,
    /// which may be one of them. `last_shown`: the last row of this page.
    pub(crate) fn cursor_beside(&self, end: [u8; 16], last_shown: Option<[u8; 16]>) -> String {
        self.cursor(beside(end, last_shown, self.request.before, self.order))
    }
}

/// The random bits of an id (RFC 9562, section 5.7).
const RANDOM: u128 = 0xfff << 64 | 0x3fff_ffff_ffff_ffff;

/// The position in a list from which the next page is read, without the id of a hidden row: where the millisecond of `end`
/// begins, in the order of the list. The rows from this position to `end` are examined again, and none is shown twice.
fn beside(end: [u8; 16], last_shown: Option<[u8; 16]>, begin: Option<[u8; 16]>, order: ListOrder) -> [u8; 16] {
    let id = u128::from_be_bytes(end);
    let (position, moves_on) = match order {
        ListOrder::Newest => {
            let position = (id | RANDOM).to_be_bytes();
            let position = last_shown.map_or(position, |last| position.min(last));
            (position, begin.is_none_or(|begin| position < begin))
        }
        ListOrder::Oldest => {
            let position = (id & !RANDOM).to_be_bytes();
            let position = last_shown.map_or(position, |last| position.max(last));
            (position, begin.is_none_or(|begin| position > begin))
        }
    };
    // With more rows in one millisecond than a page examines, the next page would examine the same rows for ever.
    if moves_on { position } else { end }
}

impl<L: Listing> IntoParams for OrderedPage<L> {
    fn into_params(parameter_in: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut parameters = Described::into_params(parameter_in);
        for parameter in parameters.iter_mut().filter(|parameter| parameter.name == "cursor") {
            if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema {
                schema.pattern = Some(cursor_pattern::<L>());
            }
        }
        parameters
    }
}

impl<L: Listing> Parameters for OrderedPage<L> {
    fn read(pairs: &mut Pairs) -> Self {
        static DESCRIBED: LazyLock<Vec<Parameter>> = LazyLock::new(described::<Described>);
        let order: Option<ListOrderText> = pairs.take("order", &DESCRIBED);
        let limit: Option<u32> = pairs.take("limit", &DESCRIBED);
        let cursor: Option<Cursor<L>> = pairs.take("cursor", &DESCRIBED);
        let (named, of_cursor) = (order.map(|order| order.0), cursor.as_ref().map(|cursor| cursor.order));
        if named.is_some() && of_cursor.is_some() && named != of_cursor {
            pairs.refuse("cursor", "belongs to the other `order`");
        }
        let request =
            PageRequest { before: cursor.map(|cursor| cursor.position), limit: limit.unwrap_or(DEFAULT_LIMIT) };
        Self { request, order: of_cursor.or(named).unwrap_or_default(), list: PhantomData }
    }
}

/// The first byte of the cursors of a list in this order.
fn tag<L: Listing>(order: ListOrder) -> u8 {
    match order {
        ListOrder::Newest => L::TAG,
        ListOrder::Oldest => L::TAG.to_ascii_uppercase(),
    }
}

/// The pattern of [`Listing::cursor_pattern`] for the cursors of both orders: upper and lower case differ in one of the
/// six bits that the first character carries.
fn cursor_pattern<L: Listing>() -> String {
    let newest = L::cursor_pattern();
    let oldest = encode(tag::<L>(ListOrder::Oldest), [0; 16]);
    format!("^[{}{}]{}", &newest[1..2], &oldest[..1], &newest[2..])
}

struct Cursor<L> {
    order: ListOrder,
    position: [u8; 16],
    list: PhantomData<L>,
}

impl<L: Listing> Text for Cursor<L> {
    fn parse(text: &str) -> Result<Self, String> {
        let refused = || "must be a `next_cursor` of this list".to_owned();
        let (found, position) = decode(text).ok_or_else(refused)?;
        let order = [ListOrder::Newest, ListOrder::Oldest].into_iter().find(|order| tag::<L>(*order) == found);
        Ok(Self { order: order.ok_or_else(refused)?, position, list: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use utoipa::openapi::ObjectBuilder;

    use super::*;
    use crate::readers::texts::tests::assert_pattern_is;

    enum Events {}
    impl Listing for Events {
        const TAG: u8 = b'e';
    }

    #[test]
    fn a_cursor_has_the_order_of_its_list() {
        for order in [ListOrder::Newest, ListOrder::Oldest] {
            let page =
                OrderedPage::<Events> { request: PageRequest { before: None, limit: 1 }, order, list: PhantomData };
            let read = Cursor::<Events>::parse(&page.cursor([7; 16])).ok().unwrap();
            assert_eq!((read.order, read.position), (order, [7; 16]));
        }
        assert!(Cursor::<Events>::parse(&encode(b'l', [7; 16])).is_err());
    }

    /// An id of this millisecond with these random bits.
    fn id(millis: u128, random: u128) -> [u8; 16] {
        (millis << 80 | 0x7 << 76 | 0b10 << 62 | random).to_be_bytes()
    }

    #[test]
    fn a_place_beside_a_hidden_row_hides_its_id_repeats_no_row_and_moves_on() {
        use ListOrder::{Newest, Oldest};

        let (first, last) = (0, 0x3fff_ffff_ffff_ffff);
        let full = id(9, last | 0xfff << 64);
        for (order, end, shown, begin, expected) in [
            (Newest, id(9, 5), None, None, full),
            (Newest, id(9, 5), Some(id(10, 1)), Some(id(11, 1)), full),
            (Oldest, id(9, 5), None, None, id(9, first)),
            (Oldest, id(9, 5), Some(id(8, 1)), Some(id(7, 1)), id(9, first)),
            // A row of this page in the same millisecond is not shown again.
            (Newest, id(9, 5), Some(id(9, 7)), None, id(9, 7)),
            (Oldest, id(9, 5), Some(id(9, 3)), None, id(9, 3)),
            // The last row of a full page.
            (Newest, id(9, 5), Some(id(9, 5)), Some(id(9, 8)), id(9, 5)),
            // The whole page is in one millisecond.
            (Newest, id(9, 5), None, Some(full), id(9, 5)),
            (Oldest, id(9, 5), None, Some(id(9, first)), id(9, 5)),
        ] {
            assert_eq!(beside(end, shown, begin, order), expected, "{order:?} {end:?} {shown:?} {begin:?}");
        }
    }

    #[test]
    fn every_cursor_that_the_pattern_describes_is_accepted() {
        let schema = ObjectBuilder::new().pattern(Some(cursor_pattern::<Events>())).build();
        assert_pattern_is(|text| Cursor::<Events>::parse(text).is_ok(), RefOr::T(Schema::Object(schema)));
    }
}
