//! The pages of lists, their order, and which events and deliveries to list.

use std::{collections::BTreeSet, fmt, str::FromStr};

use weir_core::{
    DeliveryState, DestinationId, ErrorKind, EventId, LimitKey, Timestamp, access::TenantScope,
    error_kind::InvalidErrorKind, pattern::EventPattern,
};

/// The order of a list, by the times in the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListOrder {
    #[default]
    Newest,
    Oldest,
}

impl ListOrder {
    /// The direction of `ORDER BY`.
    pub const fn sql(self) -> &'static str {
        match self {
            Self::Newest => "DESC",
            Self::Oldest => "ASC",
        }
    }

    /// The comparison of ids that come after another one in this order.
    pub const fn after(self) -> &'static str {
        match self {
            Self::Newest => "<",
            Self::Oldest => ">",
        }
    }

    /// The comparison of ids that come before another one in this order, or are the same.
    pub const fn until(self) -> &'static str {
        match self {
            Self::Newest => ">=",
            Self::Oldest => "<=",
        }
    }
}

/// Where a page begins, and how many rows it has.
#[derive(Debug, Clone, Copy)]
pub struct PageRequest {
    /// The id of the last row of the previous page. The page has the rows after it, in the order of the list.
    pub before: Option<[u8; 16]>,
    /// 1 to 200 for a client. A discard reads larger pages.
    pub limit: u32,
}

/// Rows in the order of the list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// The `before` of the next page; `None` on the last page.
    pub next: Option<[u8; 16]>,
}

impl<T> Page<T> {
    /// A page of `rows`, which were read with a limit of one more than the page. The extra row shows that there is a
    /// next page.
    pub fn of(mut rows: Vec<T>, page: PageRequest, id: impl Fn(&T) -> [u8; 16]) -> Self {
        let limit = page.limit as usize;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(id);
        Self { rows, next }
    }
}

/// A bound below every id made in this millisecond and above every earlier id.
pub fn first_id(millis: i64) -> [u8; 16] {
    let millis = millis.clamp(0, 0xffff_ffff_ffff).unsigned_abs();
    let mut id = [0; 16];
    id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    id
}

/// The range of ids that has the deliveries of an event, which begin with the millisecond of its id: the first id of
/// the range, and the first id after it.
pub fn delivery_ids_of(event: EventId) -> ([u8; 16], [u8; 16]) {
    let millis = event.made_at().as_millis();
    (first_id(millis), first_id(millis + 1))
}

/// Which events to list. Times are of `created_at`, `from` included, `to` excluded.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub event_type: Option<EventPattern>,
    pub tenants: TenantScope,
    /// Needs `tenants`, because a key belongs to its tenant: no index has the keys of all tenants
    /// ([`History::tenants_with_keys`](crate::History::tenants_with_keys)). Without them it is ignored.
    pub idempotency_key: Option<String>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub order: ListOrder,
}

impl EventFilter {
    /// Whether it has terms that no index serves, so that a page ends with its window.
    pub fn is_windowed(&self) -> bool {
        self.event_type.is_some() || self.tenants != TenantScope::All
    }

    /// Whether only Weir's own events match. They have an index, so the window is of them alone: alerts of last week
    /// are found behind a million events of today.
    pub fn is_operational(&self) -> bool {
        self.event_type.as_ref().is_some_and(EventPattern::is_operational)
    }

    /// The tenants and the key, if the events are found by their idempotency key.
    pub fn by_key(&self) -> Option<(&BTreeSet<String>, &str)> {
        Some((self.tenants.tenants()?, self.idempotency_key.as_deref()?))
    }
}

/// The most deliveries or events that a page of a list reads when no index serves its filter. A page that ends at this
/// bound may be short or empty and still have a `next`.
pub const SCANNED_AT_MOST: u32 = 5_000;

/// Which deliveries to list. Times are of `created_at`, `from` included, `to` excluded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeliveryFilter {
    pub destination_id: Option<DestinationId>,
    /// Only deliveries of this limit key. Without `destination_id` nothing matches: a key belongs to a destination.
    pub limit_key: Option<LimitKey>,
    pub event_id: Option<EventId>,
    /// Only deliveries in one of these states. Empty: in any state.
    pub states: Vec<DeliveryState>,
    pub tenants: TenantScope,
    pub event_type: Option<EventPattern>,
    /// The error of the last counted attempt.
    pub error: Option<ErrorFilter>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub order: ListOrder,
}

impl DeliveryFilter {
    /// The flow of the limit key that it asks for.
    pub fn flow_id(&self) -> Option<DestinationId> {
        // No delivery is of a flow of this destination.
        const NONE: DestinationId = DestinationId::from_bytes([0; 16]);
        Some(self.limit_key.as_ref()?.flow_id(self.destination_id.unwrap_or(NONE)))
    }

    /// Whether it has terms on the event or the last attempt, so that a statement must join them.
    pub fn filters_joined(&self) -> bool {
        self.tenants != TenantScope::All || self.event_type.is_some() || self.error.is_some()
    }
}

/// A filter by error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorFilter {
    Kind(ErrorKind),
    /// A response with exactly this status.
    Status(u16),
}

impl fmt::Display for ErrorFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Status(status) => status.fmt(f),
        }
    }
}

/// A kind of error, or the exact status of a response.
impl FromStr for ErrorFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let status = text.parse().ok().filter(|status| matches!(status, 100..=199 | 300..=999));
        status
            .map(Self::Status)
            .or_else(|| text.parse().ok().map(Self::Kind))
            .ok_or_else(|| format!("{InvalidErrorKind}, or a status that is not 2xx, such as 503"))
    }
}
