//! How a list is read, in both stores: the parts of a filter with several states, counts, and groups of
//! failures.
//!
//! A statement reads one index in the order of ids. No index has several states in that order, so a list of several
//! states is read in [`ListPart`]s, one statement each, and merged ([`Page::merged`]).

use std::{cmp::Reverse, collections::HashMap};

use weir_core::{
    DeliveryId, DeliveryState, DestinationId, ErrorKind, Timestamp, delivery::AttemptOutcome, outcome::Failure,
};

use crate::{DeliveryFilter, ErrorFilter, ListOrder, Page, PageRequest, SCANNED_AT_MOST};

/// The most deliveries that a count or the groups of failures examine. Each of them costs a look-up of its event and of
/// its last attempt, so this bounds the time of a request. More than this is shown as `10,000+`.
pub const EXAMINED_AT_MOST: u32 = 10_000;

/// How one statement finds its deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// In the order of ids until the page is full: an index serves the filter.
    ById,
    /// In the order of ids to the end of a window of this many rows, because many of them may not match.
    Window(u32),
    /// All deliveries in these states, sorted: there are few.
    Sorted,
}

impl Scan {
    /// How one statement reads all states: without other terms every row that it reads matches.
    fn of(unfiltered: bool) -> Self {
        if unfiltered { Self::ById } else { Self::Window(SCANNED_AT_MOST) }
    }
}

/// What one statement of a list reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPart {
    /// Only deliveries in one of these states. Empty: in any state.
    pub states: Vec<DeliveryState>,
    pub scan: Scan,
}

impl ListPart {
    /// The only state of this part, if an index has the deliveries in this state in the order of ids.
    pub fn indexed_state(&self) -> Option<DeliveryState> {
        match *self.states {
            [state] if self.scan != Scan::Sorted && is_ended_undelivered(state) => Some(state),
            _ => None,
        }
    }
}

/// Deliveries that ended undelivered are rare, and are those that people search for: they have an index.
fn is_ended_undelivered(state: DeliveryState) -> bool {
    state.is_terminal() && state != DeliveryState::Delivered
}

impl DeliveryFilter {
    /// The statements that read this list. Together they read at most about [`SCANNED_AT_MOST`] rows that do not match.
    /// `is_backlog_small`: the waiting deliveries are few enough to be read and sorted for one page.
    pub fn parts(&self, is_backlog_small: bool) -> Vec<ListPart> {
        let mut states = self.states.clone();
        states.sort_unstable();
        states.dedup();
        // An event has few deliveries.
        if self.event_id.is_some() {
            return vec![ListPart { states, scan: Scan::ById }];
        }
        // One index has the deliveries of a flow in the order of ids, whatever their states.
        if self.limit_key.is_some() {
            let unfiltered = states.is_empty() && !self.filters_joined();
            return vec![ListPart { scan: Scan::of(unfiltered), states }];
        }
        // There are only as many claims as sends in flight. A few waiting deliveries may be anywhere in a long history.
        let is_few =
            |state: &DeliveryState| *state == DeliveryState::Delivering || (state.is_waiting() && is_backlog_small);
        let indexed: Vec<_> = states.iter().copied().filter(|&state| is_ended_undelivered(state)).collect();
        if states.is_empty() || states.iter().any(|state| !is_ended_undelivered(*state) && !is_few(state)) {
            // Other states have no index of their own: one read of all states, in the order of ids.
            let unfiltered = states.is_empty() && !self.filters_joined();
            return vec![ListPart { scan: Scan::of(unfiltered), states }];
        }
        // The parts share one window.
        let scan = match u32::try_from(indexed.len()) {
            Ok(parts @ 1..) if self.filters_joined() => Scan::Window(SCANNED_AT_MOST / parts),
            _ => Scan::ById,
        };
        let mut parts: Vec<_> = indexed.into_iter().map(|state| ListPart { states: vec![state], scan }).collect();
        let (waiting, claimed): (Vec<_>, Vec<_>) =
            states.into_iter().filter(is_few).partition(|state| state.is_waiting());
        let few = [waiting, claimed].into_iter().filter(|states| !states.is_empty());
        parts.extend(few.map(|states| ListPart { states, scan: Scan::Sorted }));
        parts
    }

    /// Whether a waiting state is among those of the filter.
    pub fn includes_waiting(&self) -> bool {
        self.states.iter().any(|state| state.is_waiting())
    }
}

impl<T> Page<T> {
    /// One page from pages of several lists, each read with this request. The merged page ends where the first of them
    /// ends, because the rows beyond that position are not known for all.
    pub fn merged(pages: Vec<Self>, request: PageRequest, order: ListOrder, id: impl Fn(&T) -> [u8; 16]) -> Self {
        let ends = pages.iter().filter_map(|page| page.next);
        let end = match order {
            ListOrder::Newest => ends.max(),
            ListOrder::Oldest => ends.min(),
        };
        let is_known = |row: &[u8; 16]| match (order, end) {
            (_, None) => true,
            (ListOrder::Newest, Some(end)) => *row >= end,
            (ListOrder::Oldest, Some(end)) => *row <= end,
        };
        let mut rows: Vec<T> = pages.into_iter().flat_map(|page| page.rows).filter(|row| is_known(&id(row))).collect();
        match order {
            ListOrder::Newest => rows.sort_by_key(|row| Reverse(id(row))),
            ListOrder::Oldest => rows.sort_by_key(|row| id(row)),
        }
        let mut page = Self::of(rows, request, &id);
        page.next = page.next.or(end);
        page
    }
}

/// How many deliveries match a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListCount {
    /// At most [`EXAMINED_AT_MOST`].
    pub value: u64,
    /// There may be more: not all deliveries were examined.
    pub capped: bool,
}

impl ListCount {
    /// Adds the counts of one part. The store examined at most `left + 1` deliveries of it. Returns how many deliveries
    /// may still be examined, or `None` if the limit is reached.
    pub fn add(&mut self, left: u64, (examined, matching): (u64, u64)) -> Option<u64> {
        self.value += matching.min(left);
        self.capped = examined > left;
        left.checked_sub(examined)
    }
}

/// One examined delivery that failed.
#[derive(Debug, Clone)]
pub struct FailedDelivery {
    pub id: DeliveryId,
    pub destination_id: DestinationId,
    /// The name of the destination, which may be deleted.
    pub destination_name: String,
    pub state: DeliveryState,
    pub created_at: Timestamp,
    /// The outcome of the last counted attempt. The next three fields belong to the same attempt.
    pub outcome: Option<AttemptOutcome>,
    pub failure: Option<Failure>,
    pub status_code: Option<u16>,
    pub error: Option<String>,
    /// Whether it matches the filter.
    pub matches: bool,
}

/// Deliveries of one destination that failed in the same way.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureGroup {
    pub destination_id: DestinationId,
    pub destination_name: String,
    pub state: DeliveryState,
    /// The filter that finds the deliveries of this group. `None` if the last attempt is not recorded.
    pub error: Option<ErrorFilter>,
    /// The error of the newest delivery, in words.
    pub last_error: Option<String>,
    pub deliveries: u64,
    pub newest_at: Timestamp,
    pub oldest_at: Timestamp,
    /// The newest delivery.
    pub example_id: DeliveryId,
}

/// What failed, largest group first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FailureGroups {
    pub groups: Vec<FailureGroup>,
    /// How many deliveries were examined.
    pub scanned: u64,
    /// Not all deliveries were examined: the groups have the newest of them only.
    pub capped: bool,
}

impl FailureGroups {
    /// Groups the deliveries that match.
    pub fn of(examined: impl IntoIterator<Item = FailedDelivery>, capped: bool) -> Self {
        let mut scanned = 0;
        let mut groups: HashMap<_, FailureGroup> = HashMap::new();
        for delivery in examined {
            scanned += 1;
            if !delivery.matches {
                continue;
            }
            let error = delivery.error_filter();
            let (id, created_at) = (delivery.id, delivery.created_at);
            let group = groups.entry((delivery.destination_id, delivery.state, error)).or_insert(FailureGroup {
                destination_id: delivery.destination_id,
                destination_name: delivery.destination_name,
                state: delivery.state,
                error,
                last_error: None,
                deliveries: 0,
                newest_at: created_at,
                oldest_at: created_at,
                example_id: id,
            });
            if group.deliveries == 0 || group.example_id < id {
                (group.example_id, group.last_error) = (id, delivery.error);
            }
            group.newest_at = group.newest_at.max(created_at);
            group.oldest_at = group.oldest_at.min(created_at);
            group.deliveries += 1;
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| (Reverse(group.deliveries), Reverse(group.example_id)));
        Self { groups, scanned, capped }
    }
}

impl FailedDelivery {
    /// The exact status of an answer, else the kind of error.
    fn error_filter(&self) -> Option<ErrorFilter> {
        match (ErrorKind::of(self.outcome?, self.failure, self.status_code)?, self.status_code) {
            (ErrorKind::Answer(_), Some(status)) => Some(ErrorFilter::Status(status)),
            (kind, _) => Some(ErrorFilter::Kind(kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use DeliveryState::{Cancelled, Dead, Delivered, Delivering, Failed, Pending, Retrying};
    use weir_core::LimitKey;

    use super::*;

    fn parts(states: &[DeliveryState], error: Option<&str>, is_backlog_small: bool) -> Vec<ListPart> {
        let error = error.and_then(|error| error.parse().ok());
        DeliveryFilter { states: states.to_vec(), error, ..DeliveryFilter::default() }.parts(is_backlog_small)
    }

    fn part(states: &[DeliveryState], scan: Scan) -> ListPart {
        ListPart { states: states.to_vec(), scan }
    }

    #[test]
    fn each_state_with_an_index_is_a_part_and_the_others_are_read_together() {
        assert_eq!(parts(&[], None, true), [part(&[], Scan::ById)]);
        assert_eq!(parts(&[Dead, Failed, Dead], None, true), [part(&[Failed], Scan::ById), part(&[Dead], Scan::ById)]);
        let half = Scan::Window(SCANNED_AT_MOST / 2);
        assert_eq!(parts(&[Failed, Dead], Some("5xx"), true), [part(&[Failed], half), part(&[Dead], half)]);
        assert_eq!(
            parts(&[Retrying, Delivering, Cancelled, Pending], None, true),
            [
                part(&[Cancelled], Scan::ById),
                part(&[Pending, Retrying], Scan::Sorted),
                part(&[Delivering], Scan::Sorted)
            ]
        );
        let together = |states: &[DeliveryState]| [part(states, Scan::Window(SCANNED_AT_MOST))];
        assert_eq!(parts(&[Retrying, Cancelled], None, false), together(&[Retrying, Cancelled]));
        assert_eq!(parts(&[Delivered, Dead], None, true), together(&[Delivered, Dead]));
        assert_eq!(parts(&[], Some("timeout"), true), together(&[]));
        let of_key = |states: &[DeliveryState]| DeliveryFilter {
            limit_key: Some(LimitKey::default()),
            states: states.to_vec(),
            ..DeliveryFilter::default()
        };
        assert_eq!(of_key(&[]).parts(true), [part(&[], Scan::ById)]);
        assert_eq!(of_key(&[Dead, Failed]).parts(true), together(&[Failed, Dead]));
    }

    #[test]
    fn a_merged_page_ends_where_the_first_of_its_pages_ends() {
        let id = |number: &u8| [*number; 16];
        let page = |rows: &[u8], next: Option<u8>| Page { rows: rows.to_vec(), next: next.map(|next| [next; 16]) };
        let merged = |pages, limit, order| {
            let merged = Page::merged(pages, PageRequest { before: None, limit }, order, id);
            (merged.rows, merged.next.map(|next| next[0]))
        };
        // The second list is known down to 5 only.
        let both = || vec![page(&[9, 7, 2], None), page(&[8, 6], Some(5))];
        assert_eq!(merged(both(), 9, ListOrder::Newest), (vec![9, 8, 7, 6], Some(5)));
        assert_eq!(merged(both(), 2, ListOrder::Newest), (vec![9, 8], Some(8)));
        let ascending = vec![page(&[1, 4], Some(4)), page(&[2, 3, 6], None)];
        assert_eq!(merged(ascending, 9, ListOrder::Oldest), (vec![1, 2, 3, 4], Some(4)));
        assert_eq!(merged(vec![page(&[2], None), page(&[1], None)], 2, ListOrder::Oldest), (vec![1, 2], None));
    }

    #[test]
    fn failures_are_grouped_by_destination_state_and_error_with_the_newest_as_the_example() {
        let failed = |id: u8, to: u8, status_code: Option<u16>, failure: Option<Failure>| FailedDelivery {
            id: DeliveryId::from_bytes([id; 16]),
            destination_id: DestinationId::from_bytes([to; 16]),
            destination_name: format!("destination {to}"),
            state: Dead,
            created_at: Timestamp::from_secs(id.into()),
            outcome: Some(AttemptOutcome::Retryable),
            failure,
            status_code,
            error: Some(format!("error {id}")),
            matches: true,
        };
        let refused = FailedDelivery { matches: false, ..failed(9, 1, Some(503), None) };
        let unrecorded = FailedDelivery { outcome: None, error: None, ..failed(1, 2, None, None) };
        let examined = [
            refused,
            failed(5, 1, Some(503), None),
            failed(4, 1, None, Some(Failure::Timeout)),
            failed(7, 1, Some(503), None),
            failed(6, 1, Some(500), None),
            unrecorded,
        ];
        let found = FailureGroups::of(examined, true);
        let shown: Vec<_> = found
            .groups
            .iter()
            .map(|group| (group.error.map(|error| error.to_string()), group.deliveries, group.last_error.as_deref()))
            .collect();
        let some = |text: &str| Some(text.to_owned());
        let expected = [
            (some("503"), 2, Some("error 7")),
            (some("500"), 1, Some("error 6")),
            (some("timeout"), 1, Some("error 4")),
            (None, 1, None),
        ];
        assert_eq!((&shown[..], found.scanned, found.capped), (&expected[..], 6, true));
        let first = &found.groups[0];
        assert_eq!((first.newest_at, first.oldest_at), (Timestamp::from_secs(7), Timestamp::from_secs(5)));
    }
}
