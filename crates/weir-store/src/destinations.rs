//! Destinations: created, read, edited, deleted, counted.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use weir_core::{
    Condition, DeliveryState, Destination, DestinationId, RateLimits, Timestamp, access::TenantScope,
    activity::Activity, breaker::Breaker, destination::Settings, limit_group::Home, temporary::Temporary,
};

use crate::{Created, Creation, DestinationLimits, Page, PageRequest, StateCounts, StoreResult};

/// The most homes that a destination has left and that are not closed yet. A run closes all; only a destination that is
/// not run, for example while it is paused, has several.
pub const MAX_LEFT_HOMES: usize = 8;

/// An edit: the new settings in full, applied only if the destination still has `expected_updated_at`.
#[derive(Debug, Clone)]
pub struct DestinationPatch {
    pub id: DestinationId,
    pub expected_updated_at: Timestamp,
    pub settings: Settings,
    /// What holds for a while after the edit. `None`: what does already.
    pub temporary: Option<Temporary>,
    /// Whether the edit closes an open breaker even if it changes no setting.
    pub closes_breaker: bool,
    /// Whether the edit lifts a hold even if it changes no setting.
    pub lifts_hold: bool,
    /// The time of the edit, which becomes `updated_at`. Must be later than the expected one.
    pub now: Timestamp,
    /// The time of the edit by the clock, which is earlier than `now` if the previous edit was made by a clock that was
    /// ahead. Holds that earlier sends asked for end here, if the edit lifts them.
    pub made_at: Timestamp,
}

impl DestinationPatch {
    /// The edited destination; `None` if it was edited meanwhile, or its secrets cannot be read. Its breaker closes if the
    /// edit may have fixed the problem (another URL or way out, another breaker policy, or a resume), or if
    /// [`Self::closes_breaker`] is set. Its hold
    /// is lifted by another URL, by a resume, and if [`Self::lifts_hold`] is set. Also `None` if it has left
    /// [`MAX_LEFT_HOMES`].
    pub fn applied_to(&self, current: &Destination) -> Option<Destination> {
        if current.updated_at != self.expected_updated_at || current.unreadable.is_some() {
            return None;
        }
        let mut edited = Destination { settings: self.settings.clone(), updated_at: self.now, ..current.clone() };
        // A destination keeps its tenant.
        edited.settings.tenant.clone_from(&current.settings.tenant);
        let (before, after) = (&current.settings, &edited.settings);
        // Later than the last one, even if the clocks of two processes differ.
        let after_last_release = current.released_at.map(|last| last + Duration::from_micros(1));
        let is_new = before.url != after.url || (before.paused && !after.paused);
        if is_new || before.egress != after.egress || before.breaker != after.breaker || self.closes_breaker {
            edited.breaker = Breaker::default();
        }
        if is_new || self.lifts_hold {
            (edited.held_until, edited.held_reason) = (None, None);
            edited.released_at = Some(self.made_at).max(after_last_release);
        }
        // What is over is dropped. People hold a destination until they resume or release it, or until the end.
        let mut temporary = self.temporary.as_ref().unwrap_or(&current.temporary).at(self.made_at);
        if self.lifts_hold || (before.paused && !after.paused) {
            temporary.hold = None;
        }
        let ends = |of: &Temporary| of.hold_at(self.made_at).map(|hold| hold.until);
        if ends(&temporary) < ends(&current.temporary) {
            edited.released_at = edited.released_at.max(Some(self.made_at)).max(after_last_release);
        }
        edited.temporary = temporary;
        // The old home may grant slots until a run closes it. It stays in the list until then, because its cursors do not
        // know the sends that the new home grants.
        if before.limit_group != after.limit_group {
            let left = Home::from(before.limit_group);
            edited.left_homes.retain(|home| *home != left);
            edited.left_homes.push(left);
        }
        edited.keyed_at = keyed_at(&edited, self.now);
        if edited.left_homes.len() > MAX_LEFT_HOMES {
            return None;
        }
        // The reason ends with the pause.
        if !edited.settings.paused {
            edited.paused_reason = None;
        }
        Some(edited)
    }
}

/// A deletion of a destination.
#[derive(Debug, Clone, Copy)]
pub struct DestinationDeletion {
    pub id: DestinationId,
    /// Delete it only if this is its version. `None`: any version.
    pub expected_updated_at: Option<Timestamp>,
    pub now: Timestamp,
}

impl DestinationDeletion {
    /// Whether it applies to a destination with this version.
    pub fn applies_to(&self, updated_at: Timestamp) -> bool {
        self.expected_updated_at.is_none_or(|expected| expected == updated_at)
    }
}

/// The result of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    Deleted,
    /// There is no such destination.
    Missing,
    /// It has another version than expected. Nothing was changed.
    Changed,
}

/// A new state of a destination's breaker, applied only if the breaker still has the expected state.
#[derive(Debug, Clone)]
pub struct BreakerChange {
    pub id: DestinationId,
    pub expected: Breaker,
    pub changed: Breaker,
    pub now: Timestamp,
}

impl BreakerChange {
    /// The destination with the new breaker state; `None` if the breaker has another state than expected. `updated_at`
    /// rises, so that caches see the change.
    pub fn applied_to(&self, current: &Destination) -> Option<Destination> {
        if current.breaker != self.expected {
            return None;
        }
        let updated_at = later_than(current, self.now);
        Some(Destination { breaker: self.changed.clone(), updated_at, ..current.clone() })
    }
}

/// A pause of a destination by Weir itself.
#[derive(Debug, Clone)]
pub struct Pause {
    pub id: DestinationId,
    pub reason: String,
    pub now: Timestamp,
}

impl Pause {
    /// The paused destination, with the reason; `None` if it is already paused.
    pub fn applied_to(&self, current: &Destination) -> Option<Destination> {
        if current.settings.paused {
            return None;
        }
        let mut paused = current.clone();
        paused.settings.paused = true;
        paused.paused_reason = Some(self.reason.clone());
        paused.updated_at = later_than(current, self.now);
        Some(paused)
    }
}

/// A hold of a destination: no send may start before `until`.
#[derive(Debug, Clone)]
pub struct Hold {
    pub id: DestinationId,
    pub until: Timestamp,
    pub reason: String,
    /// When the send whose answer asks for the hold started. A hold of a send from before the last release is ignored.
    pub sent_at: Timestamp,
    pub now: Timestamp,
}

impl Hold {
    /// Whether it extends the hold of the destination.
    pub fn extends(&self, current: &Destination) -> bool {
        current.held_until.is_none_or(|held| held < self.until)
            && current.released_at.is_none_or(|released| released <= self.sent_at)
    }
}

/// The `updated_at` of an edit: later than the previous one, even if the clocks of two processes differ. The queue uses
/// it as the version of a destination's terms.
pub fn later_than(current: &Destination, now: Timestamp) -> Timestamp {
    now.max(current.version(now) + Duration::from_micros(1))
}

/// The new deliveries of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arrivals {
    pub count: u64,
    /// When the first of them was stored, to the millisecond.
    pub first_at: Option<Timestamp>,
}

/// The backlog of one destination, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DestinationCounts {
    pub pending: u64,
    pub retrying: u64,
    pub delivering: u64,
    /// When the oldest of these deliveries was created. Waiting ones count as in [`crate::Counters::oldest_waiting`].
    pub oldest_created_at: Option<Timestamp>,
}

impl DestinationCounts {
    pub fn new(counts: StateCounts, oldest_created_at: Option<Timestamp>) -> Self {
        Self {
            pending: counts.of(DeliveryState::Pending),
            retrying: counts.of(DeliveryState::Retrying),
            delivering: counts.of(DeliveryState::Delivering),
            oldest_created_at,
        }
    }
}

/// Limits that applied from an instant until the next change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitChange {
    pub at: Timestamp,
    pub limits: RateLimits,
}

/// When a destination that is stored at `at` first had limit keys. It stays when they are removed.
pub fn keyed_at(destination: &Destination, at: Timestamp) -> Option<Timestamp> {
    destination.keyed_at.or(destination.settings.key_limits.as_ref().map(|_| at))
}

/// The rows of the limits in force that an edit at `at` makes, in place of all later rows. An override ends without
/// anybody, so its begin writes the row of its end too. `None`: the rows stay.
pub fn limit_steps(
    known: &[(Timestamp, RateLimits)],
    mut steps: Vec<(Timestamp, RateLimits)>,
) -> Option<Vec<LimitChange>> {
    if steps == known {
        return None;
    }
    if steps.first() == known.first() {
        steps.remove(0);
    }
    Some(steps.into_iter().map(|(at, limits)| LimitChange { at, limits }).collect())
}

/// A destination after its last edit.
#[derive(Debug, Clone)]
pub struct EditedDestination {
    pub position: EditPosition,
    /// `None` if it was deleted.
    pub destination: Option<Arc<Destination>>,
}

/// The position of an edit among all edits, in the order of their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EditPosition {
    pub updated_at: Timestamp,
    pub id: DestinationId,
}

impl EditPosition {
    /// The position before all edits at and after an instant.
    pub fn at(time: Timestamp) -> Self {
        Self { updated_at: time, id: DestinationId::from_bytes([0; 16]) }
    }
}

/// Which destinations to list.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationFilter {
    pub tenants: TenantScope,
    /// Exactly this name.
    pub name: Option<String>,
    /// Exactly this URL, as it is stored.
    pub url: Option<String>,
    pub condition: Option<Condition>,
    /// A part of the name or of the URL. Upper and lower case are the same.
    pub text: Option<String>,
    /// That take events of this type, without regard to their filters.
    pub event_type: Option<String>,
    /// The time at which [`Condition::Held`] is judged.
    pub now: Timestamp,
}

impl DestinationFilter {
    /// All destinations of these tenants.
    pub fn of(tenants: TenantScope) -> Self {
        Self { tenants, name: None, url: None, condition: None, text: None, event_type: None, now: Timestamp::MIN }
    }

    pub fn matches(&self, destination: &Destination) -> bool {
        let settings = &destination.settings;
        let contains = |text: &str| {
            [settings.name.as_str(), settings.url.as_str()].iter().any(|own| own.to_lowercase().contains(text))
        };
        self.tenants.includes(&settings.tenant)
            && self.name.as_ref().is_none_or(|name| *name == settings.name)
            && self.url.as_ref().is_none_or(|url| *url == settings.url.as_str())
            && self.condition.is_none_or(|condition| destination.is(condition, self.now))
            && self.event_type.as_ref().is_none_or(|kind| settings.event_types.iter().any(|of| of.matches(kind)))
            && self.text.as_ref().is_none_or(|text| contains(&text.to_lowercase()))
    }
}

/// The result of the creation of a destination with a name.
#[derive(Debug, Clone, PartialEq)]
pub enum NamedCreation {
    New(Arc<Destination>),
    /// A destination of the tenant has the name.
    Taken,
    /// The tenant has as many destinations as it may, or the destination may not join its limit group.
    Full,
}

impl NamedCreation {
    pub fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }
}

/// What runs read of destinations, and change.
#[async_trait]
pub trait RunDestinations: Send + Sync {
    /// The current values of these destinations, in the same order; `None` for a deleted one. Must be cheap and must
    /// see every committed edit, because the scheduler calls it before each run.
    async fn destinations(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Arc<Destination>>>>;

    /// Opens or closes the breakers of destinations. For each: `false` if the destination is deleted, or its breaker
    /// has another state than expected. A destination may be in the list once.
    async fn change_breakers(&self, changes: Vec<BreakerChange>) -> StoreResult<Vec<bool>>;

    /// Every change of a destination's limits, oldest first, including the initial limits. Kept after deletion.
    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>>;
}

#[async_trait]
pub trait Destinations: RunDestinations {
    /// Sets the limits of destinations for later creations and events.
    fn limit_destinations(&self, limits: DestinationLimits);

    /// Stores a new destination and its initial limits, unless its tenant has reached its limit of destinations, or it may
    /// not join its limit group: then the answer is [`Created::Full`] too.
    async fn create_destination(
        &self,
        destination: Destination,
        creation: Creation,
    ) -> StoreResult<Created<Arc<Destination>>>;

    /// Stores a new destination if no destination of its tenant has its name. Of two calls at once only one stores its
    /// destination.
    async fn create_named_destination(
        &self,
        destination: Destination,
        activity: Activity,
    ) -> StoreResult<NamedCreation>;

    /// The destinations of a tenant with this name, at most two: names are not unique. Found by an index.
    async fn named_destinations(&self, tenant: &str, name: &str) -> StoreResult<Vec<Arc<Destination>>>;

    /// The destination; `None` if it never existed or was deleted.
    async fn destination(&self, id: DestinationId) -> StoreResult<Option<Arc<Destination>>>;

    /// Newest first. A page may end before it is full and still have a next one.
    async fn list_destinations(
        &self,
        filter: &DestinationFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Arc<Destination>>>;

    /// Applies an edit and records changed limits. Resuming a paused destination clears `paused_reason`. `None` if the
    /// destination is deleted or was edited meanwhile, or may not join its limit group; then no answer is stored.
    async fn patch_destination(
        &self,
        patch: DestinationPatch,
        edit: Creation,
    ) -> StoreResult<Created<Option<Arc<Destination>>>>;

    /// Pauses destinations on behalf of Weir itself. For each: `false` if it is deleted or already paused. A destination
    /// may be in the list once.
    async fn pause_destinations(&self, pauses: Vec<Pause>) -> StoreResult<Vec<bool>>;

    /// Records holds. A hold is only extended here ([`Hold::extends`]). Does not touch `updated_at`. A hold that continues
    /// another one is not recorded in the activity log ([`Activity::is_new_hold`]). A destination may be in the list
    /// once.
    async fn hold_destinations(&self, holds: Vec<Hold>) -> StoreResult<()>;

    /// Deletes a destination. Its waiting deliveries become `cancelled`; the history stays. Deliveries in flight end by
    /// themselves, and a failed one is cancelled instead of retried. The version is compared in the same transaction.
    async fn delete_destination(&self, deletion: DestinationDeletion, activity: Activity) -> StoreResult<Deletion>;

    /// The deliveries of a destination that wait or are in flight, by its counters.
    async fn destination_counts(&self, id: DestinationId) -> StoreResult<DestinationCounts>;

    /// The number of attempts of a destination that started in the `window` before `now`.
    async fn recent_sends(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64>;

    /// The new deliveries of a destination, or of a flow with a limit key, in the `window` before `now`.
    async fn recent_arrivals(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<Arrivals>;

    /// At most `limit` destinations whose last edit is after this position, in the order of their edits.
    async fn edited_after(&self, position: EditPosition, limit: u32) -> StoreResult<Vec<EditedDestination>>;
}
