//! Destinations and events for the tests, from the builders of the conformance suite.

use std::time::Duration;

use weir_core::{Destination, RateLimits, Timestamp};
use weir_store::{NewEvent, conformance};

pub(crate) use weir_store::conformance::{NOW, creation, destination_id, request, result};

pub(crate) fn destination(number: u128) -> Destination {
    let mut destination = conformance::destination(number);
    destination.settings.rate_limits = RateLimits::UNLIMITED;
    destination
}

/// The `number`-th event, created `number` milliseconds after [`NOW`], for every destination.
pub(crate) fn event(number: u64) -> NewEvent {
    event_at(number, NOW + Duration::from_millis(number))
}

pub(crate) fn event_at(number: u64, created_at: Timestamp) -> NewEvent {
    conformance::matched(conformance::event_at(number, created_at))
}
