//! The catalogue of event types: what producers may send where it is strict, and what people read about it.

use serde_json::Value;

use crate::time::Timestamp;

/// The most types of an installation. A process of the API keeps their names and schemas in memory.
pub const MAX_TYPES: usize = 10_000;
/// The most bytes of all schemas together.
pub const MAX_SCHEMA_BYTES: usize = 16 * 1024 * 1024;

/// Which events are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Mode {
    /// Every type; the catalogue is for people.
    #[default]
    Open,
    /// Only types of the catalogue, and only data that fits the schema of its type.
    Strict,
}

/// A type as people describe it.
#[derive(Debug, Clone, PartialEq)]
pub struct EventType {
    pub name: String,
    pub description: String,
    pub example: Option<Value>,
    pub schema: Option<Value>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The number of the change of the catalogue that made it what it is.
    pub version: u64,
}

/// The most names that are suggested.
const MAX_NEAR: usize = 3;
/// The most names that are compared, at a microsecond each: first those that begin alike.
const MAX_COMPARED: usize = 1_000;

/// The known names that `wanted` may have been meant to be, the nearest first. `known` must be sorted.
pub fn near<'n>(wanted: &str, known: impl Iterator<Item = &'n str> + Clone) -> Vec<&'n str> {
    let most = (wanted.len() / 4).clamp(1, 3);
    let start = wanted.get(..2).unwrap_or(wanted);
    let alike = known.clone().filter(|name| name.starts_with(start)).take(MAX_COMPARED);
    let others = known.filter(|name| !name.starts_with(start)).take(MAX_COMPARED);
    let mut near: Vec<_> = alike
        .chain(others)
        .filter_map(|name| distance(wanted.as_bytes(), name.as_bytes(), most).map(|distance| (distance, name)))
        .collect();
    near.sort_unstable();
    // What is much farther than the nearest was hardly meant.
    let farthest = near.first().map_or(0, |(distance, _)| distance + 1);
    near.into_iter().take(MAX_NEAR).filter(|(distance, _)| *distance <= farthest).map(|(_, name)| name).collect()
}

/// How many edits make one text of the other; `None` for more than `most`. Two neighbouring characters in the wrong order
/// are one edit. Upper and lower case are the same. Only the cells near the diagonal of the table are computed.
fn distance(a: &[u8], b: &[u8], most: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let same = |a: &u8, b: &u8| a.eq_ignore_ascii_case(b);
    let beyond = most + 1;
    let mut rows = [vec![beyond; b.len() + 1], (0..=b.len()).collect::<Vec<_>>(), vec![beyond; b.len() + 1]];
    for (i, left) in a.iter().enumerate() {
        let [before, last, row] = &mut rows;
        row.fill(beyond);
        if i < most {
            row[0] = i + 1;
        }
        for j in i.saturating_sub(most)..b.len().min(i + most + 1) {
            let right = &b[j];
            let mut cell = last[j] + usize::from(!same(left, right));
            cell = cell.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && same(left, &b[j - 1]) && same(&a[i - 1], right) {
                cell = cell.min(before[j - 1] + 1);
            }
            row[j + 1] = cell;
        }
        if row.iter().all(|cell| *cell > most) {
            return None;
        }
        rows.rotate_left(1);
    }
    Some(rows[1][b.len()]).filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_by_a_slip_are_near() {
        let known = ["invoice.paid", "order.cancelled", "order.created", "order.updated", "orders.created"];
        for (wanted, expected) in [
            ("order.craeted", vec!["order.created", "orders.created"]),
            ("Order.Created", vec!["order.created", "orders.created"]),
            ("order_created", vec!["order.created", "orders.created"]),
            ("rdoer.created", vec!["order.created", "orders.created"]),
            ("order.canceled", vec!["order.cancelled"]),
            ("invoice.pay", vec!["invoice.paid"]),
            ("customer.deleted", vec![]),
            ("x", vec![]),
        ] {
            assert_eq!(near(wanted, known.into_iter()), expected, "{wanted}");
        }
    }

    #[test]
    fn edits_are_counted_up_to_a_bound() {
        for (a, b, most, expected) in [
            ("", "", 1, Some(0)),
            ("abc", "abc", 1, Some(0)),
            ("abc", "acb", 1, Some(1)),
            ("abc", "abcd", 1, Some(1)),
            ("abcd", "bcd", 1, Some(1)),
            ("abcdef", "badcfe", 3, Some(3)),
            ("abcdef", "badcfe", 2, None),
            ("abc", "xyz", 2, None),
            ("abc", "abcdef", 2, None),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes(), most), expected, "{a} {b}");
        }
    }
}
