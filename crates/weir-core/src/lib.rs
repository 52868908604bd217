//! The domain of Weir, pure: no I/O, no async, no clock reads, no global randomness.
//!
//! Time, ids and jitter are arguments, so tables and properties can test everything here. The central module is
//! [`limiter`]: its slots and cursors keep every sliding window of a destination within its limits.
//!
//! The nouns have a file each: `destination`, `egress`, `event`, `delivery`, `claim`, `activity`, `retention`, `trace`. What the
//! recent answers of a destination say about its limits is in `answer_history`.

pub mod access;
pub mod activity;
pub mod adaptive;
pub mod address;
pub mod alert;
pub mod answer_history;
pub mod audit;
mod backoff;
pub mod body;
pub mod breaker;
pub mod budget;
pub mod certificate;
pub mod claim;
mod condition;
pub mod delivery;
pub mod destination;
pub mod egress;
pub mod error_kind;
pub mod event;
pub mod event_types;
mod fault;
pub mod filter;
pub mod hints;
pub mod id;
pub mod inbound;
pub mod json_schema;
pub mod limit;
pub mod limit_group;
pub mod limit_key;
pub mod limiter;
pub mod order;
pub mod outcome;
pub mod pattern;
pub mod plan;
pub mod preview;
pub mod refusals;
pub mod refusing;
pub mod replay_share;
pub mod reservation;
pub mod retention;
pub mod retry;
pub mod shares;
pub mod shed;
pub mod signing;
pub mod simulate;
pub mod stall;
pub mod temporary;
pub mod time;
pub mod trace;

pub use backoff::Backoff;
pub use condition::Condition;
pub use delivery::DeliveryState;
pub use destination::Destination;
pub use error_kind::ErrorKind;
pub use id::{
    ActivityId, ApiKeyId, AttemptId, DeliveryId, DestinationId, EventId, IdMap, IdSet, InstallationId, LimitGroupId,
    ReplayId, ReservationId,
};
pub use limit::{Period, RateLimit, RateLimits};
pub use limit_group::LimitGroup;
pub use limit_key::LimitKey;
pub use limiter::{Limiter, Slot};
pub use time::{Clock, Timestamp};
pub use trace::TraceParent;
