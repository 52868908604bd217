//! The activity log: who changed what, and when.
//!
//! A row is stored in the transaction of its change. `before` and `after` have only what changed, and never a secret: a
//! secret and the value of a header are shown as [`MASK`].

use std::{fmt, str::FromStr, time::Duration};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    access::Actor,
    destination::Destination,
    id::{ActivityId, ApiKeyId, DeliveryId, DestinationId, LimitGroupId, ReplayId},
    time::Timestamp,
};

/// Stands for a secret and for the value of a header.
pub const MASK: &str = "•••";
/// A hold that begins this soon after the last one has ended continues it, and gets no row of its own. A receiver that
/// answers `429` all the time would otherwise fill the log.
pub const HOLDS_APART: Duration = Duration::from_secs(60);

macro_rules! actions {
    ($($(#[$doc:meta])* $action:ident = $name:literal,)*) => {
        /// What was done.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $($(#[$doc])* $action,)*
        }

        impl Action {
            pub const ALL: &'static [Self] = &[$(Self::$action,)*];

            /// The name in JSON and in the store.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$action => $name,)*
                }
            }
        }
    };
}

actions! {
    DestinationCreated = "destination.created",
    DestinationEdited = "destination.edited",
    DestinationDeleted = "destination.deleted",
    DestinationPaused = "destination.paused",
    DestinationResumed = "destination.resumed",
    SecretRotated = "destination.secret_rotated",
    SecretShown = "destination.secret_shown",
    DestinationPurged = "destination.purged",
    /// A test event was sent.
    DestinationTested = "destination.tested",
    DestinationHeld = "destination.held",
    /// Its hold was lifted.
    DestinationReleased = "destination.released",
    BreakerOpened = "destination.breaker_opened",
    BreakerClosed = "destination.breaker_closed",
    DeliveryRetried = "delivery.retried",
    DeliveryCancelled = "delivery.cancelled",
    /// A dead letter was settled.
    DeliveryDiscarded = "delivery.discarded",
    /// Dead letters were settled in bulk.
    DeadLettersDiscarded = "dead_letters.discarded",
    ReplayCreated = "replay.created",
    ReplayCancelled = "replay.cancelled",
    AlertsChanged = "alerts.changed",
    SheddingChanged = "shedding.changed",
    LimitGroupCreated = "limit_group.created",
    LimitGroupEdited = "limit_group.edited",
    LimitGroupDeleted = "limit_group.deleted",
    LimitGroupOverridden = "limit_group.overridden",
    LimitGroupOverrideEnded = "limit_group.override_ended",
    LimitGroupHeld = "limit_group.held",
    LimitGroupReleased = "limit_group.released",
    EventTypeSet = "event_type.set",
    EventTypeDeleted = "event_type.deleted",
    KeyCreated = "key.created",
    KeyDeleted = "key.deleted",
    /// Its limits were overridden for a while.
    DestinationOverridden = "destination.overridden",
    /// An override was ended before its end.
    OverrideEnded = "destination.override_ended",
}

/// The text is not the name of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an action such as \"destination.edited\"")]
pub struct InvalidAction;

impl FromStr for Action {
    type Err = InvalidAction;

    fn from_str(name: &str) -> Result<Self, InvalidAction> {
        Self::ALL.iter().copied().find(|action| action.as_str() == name).ok_or(InvalidAction)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who asks for a change, and in which request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub actor: Actor,
    /// `None`: Weir itself.
    pub request_id: Option<String>,
}

impl Origin {
    pub fn weir() -> Self {
        Self { actor: Actor::Weir, request_id: None }
    }
}

/// What an activity is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// `destination`, `delivery`, `replay`, `key`, `limit_group` or `event_type`.
    pub kind: String,
    /// The id in its text form; the name of an event type.
    pub id: String,
    /// The name at that time, if the subject has one.
    pub name: Option<String>,
}

impl Subject {
    fn new(kind: &str, id: impl fmt::Display, name: Option<&str>) -> Self {
        Self { kind: kind.to_owned(), id: id.to_string(), name: name.map(str::to_owned) }
    }
}

/// One row of the activity log.
#[derive(Debug, Clone, PartialEq)]
pub struct Activity {
    pub id: ActivityId,
    pub at: Timestamp,
    pub origin: Origin,
    pub action: Action,
    /// Whose data was changed. `None`: what belongs to no tenant, such as the alert policy.
    pub tenant: Option<String>,
    /// The destination that it is about, also if the subject is one of its deliveries or replays.
    pub destination_id: Option<DestinationId>,
    pub subject: Option<Subject>,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

impl Activity {
    /// An activity without a subject. `at` is the time of the change.
    pub fn new(origin: Origin, action: Action, at: Timestamp) -> Self {
        let blank = ActivityId::new(at, 0);
        let (tenant, destination_id, subject, before, after) = (None, None, None, None, None);
        Self { id: blank, at, origin, action, tenant, destination_id, subject, before, after }.identified()
    }

    #[must_use]
    pub fn of_destination(self, destination: &Destination) -> Self {
        let subject = Subject::new("destination", destination.id, Some(&destination.settings.name));
        Self {
            tenant: Some(destination.settings.tenant.clone()),
            destination_id: Some(destination.id),
            subject: Some(subject),
            ..self
        }
        .identified()
    }

    /// About a delivery. `tenant` is that of its destination.
    #[must_use]
    pub fn of_delivery(self, id: DeliveryId, destination_id: DestinationId, tenant: Option<String>) -> Self {
        let subject = Some(Subject::new("delivery", id, None));
        Self { tenant, destination_id: Some(destination_id), subject, ..self }.identified()
    }

    /// About a replay, which may be limited to a destination and to a tenant.
    #[must_use]
    pub fn of_replay(self, id: ReplayId, destination_id: Option<DestinationId>, tenant: Option<String>) -> Self {
        Self { tenant, destination_id, subject: Some(Subject::new("replay", id, None)), ..self }.identified()
    }

    /// About an API key. `tenant` is its only tenant, if it has exactly one.
    #[must_use]
    pub fn of_key(self, id: ApiKeyId, name: &str, tenant: Option<String>) -> Self {
        Self { tenant, subject: Some(Subject::new("key", id, Some(name))), ..self }.identified()
    }

    /// About a limit group. Without a tenant, its members may be of any.
    #[must_use]
    pub fn of_limit_group(self, id: LimitGroupId, name: &str, tenant: Option<String>) -> Self {
        Self { tenant, subject: Some(Subject::new("limit_group", id, Some(name))), ..self }.identified()
    }

    /// About a type of the catalogue, which belongs to no tenant.
    #[must_use]
    pub fn of_event_type(self, name: &str) -> Self {
        Self { subject: Some(Subject::new("event_type", name, Some(name))), ..self }.identified()
    }

    /// Adds the values before and after the change.
    #[must_use]
    pub fn changing(self, before: Option<Value>, after: Option<Value>) -> Self {
        Self { before, after, ..self }
    }

    /// Sets the number of cancelled deliveries. Each step of a purge raises this number in the row of the purge.
    #[must_use]
    pub fn with_cancelled(mut self, cancelled: u64) -> Self {
        let mut after = self.after.take().unwrap_or_else(|| json!({}));
        after["cancelled"] = cancelled.into();
        self.after = Some(after);
        self
    }

    /// Sets the number of discarded dead letters, as [`Self::with_cancelled`].
    #[must_use]
    pub fn with_discarded(mut self, discarded: u64) -> Self {
        let mut after = self.after.take().unwrap_or_else(|| json!({}));
        after["discarded"] = discarded.into();
        self.after = Some(after);
        self
    }

    /// The settlement of the dead letters of a deleted destination.
    pub fn of_abandoned(destination_id: DestinationId, now: Timestamp) -> Self {
        let activity = Self {
            destination_id: Some(destination_id),
            subject: Some(Subject::new("destination", destination_id, None)),
            ..Self::new(Origin::weir(), Action::DeadLettersDiscarded, now)
        };
        activity.changing(None, Some(json!({"reason": "the destination is deleted"}))).identified()
    }

    /// The same activity with an id that is computed from its content. Ids sort by time. So a repeated transaction
    /// writes the same row, and the stores need no random numbers.
    fn identified(mut self) -> Self {
        let mut digest = Sha256::new();
        let subject = self.subject.as_ref().map_or("", |subject| &subject.id);
        let actor = self.origin.actor.name();
        for part in [subject, self.action.as_str(), actor, self.origin.request_id.as_deref().unwrap_or_default()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
        digest.update(self.at.as_nanos().to_be_bytes());
        let mut hash = [0; 8];
        hash.copy_from_slice(&digest.finalize()[..8]);
        // The id sorts by the exact time: the nanoseconds within the millisecond are its first 20 random bits, 12
        // before and 8 after the variant of the UUID.
        let nanos = self.at.as_nanos().rem_euclid(1_000_000) as u128;
        let hash = u128::from(u64::from_be_bytes(hash) >> 10);
        self.id = ActivityId::new(self.at, nanos >> 8 << 64 | (nanos & 0xff) << 54 | hash);
        self
    }

    /// The pause of a destination by Weir itself.
    pub fn of_pause(paused: &Destination) -> Self {
        let after = json!({"paused": true, "paused_reason": paused.paused_reason});
        Self::new(Origin::weir(), Action::DestinationPaused, paused.updated_at)
            .of_destination(paused)
            .changing(Some(json!({"paused": false})), Some(after))
    }

    /// A breaker that has opened or closed. `None` for a breaker that stays open: each failed probe would be a row.
    pub fn of_breaker(before: &Destination, after: &Destination) -> Option<Self> {
        let is_open = |destination: &Destination| destination.breaker.reason().is_some();
        let action = match (is_open(before), is_open(after)) {
            (false, true) => Action::BreakerOpened,
            (true, false) => Action::BreakerClosed,
            _ => return None,
        };
        let shown = |destination: &Destination| {
            let state = if is_open(destination) { "open" } else { "closed" };
            json!({"breaker_state": state, "breaker_reason": destination.breaker.reason()})
        };
        let activity = Self::new(Origin::weir(), action, after.updated_at).of_destination(after);
        Some(activity.changing(Some(shown(before)), Some(shown(after))))
    }

    /// A hold of a destination, if [`Self::is_new_hold`]. The store adds the name and the tenant.
    pub fn of_hold(destination_id: DestinationId, until: Timestamp, reason: &str, now: Timestamp) -> Self {
        let after = json!({"held_until": until, "held_reason": reason});
        let activity = Self {
            destination_id: Some(destination_id),
            subject: Some(Subject::new("destination", destination_id, None)),
            ..Self::new(Origin::weir(), Action::DestinationHeld, now)
        };
        activity.changing(None, Some(after)).identified()
    }

    /// Whether a hold that begins `now` has a row of its own: if it does not continue the last hold of the destination,
    /// which ended or ends at `last`.
    pub fn is_new_hold(last: Option<Timestamp>, now: Timestamp) -> bool {
        last.is_none_or(|last| last <= now.before(HOLDS_APART))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[test]
    fn every_action_is_read_back_by_its_name() {
        for action in Action::ALL {
            assert_eq!(action.to_string().parse(), Ok(*action));
        }
        assert_eq!("destination.painted".parse::<Action>(), Err(InvalidAction));
    }

    #[test]
    fn the_id_follows_from_what_was_done_by_whom_and_when() {
        let by = |request: &str| Origin { actor: Actor::Anonymous, request_id: Some(request.to_owned()) };
        let of = |request, action, at, delivery: u8| {
            let (delivery, destination) = (DeliveryId::from_bytes([delivery; 16]), DestinationId::from_bytes([1; 16]));
            Activity::new(by(request), action, at).of_delivery(delivery, destination, None).id
        };
        let id = of("a", Action::DeliveryRetried, NOW, 1);
        assert_eq!(id, of("a", Action::DeliveryRetried, NOW, 1));
        assert_eq!(id.made_at(), NOW);
        for other in [
            of("b", Action::DeliveryRetried, NOW, 1),
            of("a", Action::DeliveryCancelled, NOW, 1),
            of("a", Action::DeliveryRetried, NOW + Duration::from_nanos(1), 1),
            of("a", Action::DeliveryRetried, NOW, 2),
        ] {
            assert_ne!(id, other);
        }
    }

    #[test]
    fn ids_sort_by_the_exact_time() {
        let at = |nanos| Activity::new(Origin::weir(), Action::AlertsChanged, NOW + Duration::from_nanos(nanos)).id;
        for (earlier, later) in [(0, 1), (255, 256), (256, 257), (999_998, 999_999), (999_999, 1_000_000)] {
            assert!(at(earlier) < at(later), "{earlier} {later}");
        }
    }

    #[test]
    fn a_hold_that_continues_another_has_no_row() {
        for (last, is_new) in [
            (None, true),
            (Some(NOW.before(HOLDS_APART)), true),
            (Some(NOW.before(HOLDS_APART) + Duration::from_nanos(1)), false),
            (Some(NOW + HOLDS_APART), false),
        ] {
            assert_eq!(Activity::is_new_hold(last, NOW), is_new, "{last:?}");
        }
    }

    #[test]
    fn a_purge_counts_in_its_row() {
        let activity = Activity::new(Origin::weir(), Action::DestinationPurged, NOW);
        let activity = activity.changing(None, Some(json!({"states": ["pending"]}))).with_cancelled(3);
        assert_eq!(activity.with_cancelled(5).after, Some(json!({"states": ["pending"], "cancelled": 5})));
    }
}
