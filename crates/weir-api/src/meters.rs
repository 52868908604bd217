//! The metrics of the API: their names and descriptions, and the counters that handlers increment.

use metrics::{Counter, counter, describe_counter, describe_gauge, describe_histogram};
use strum::IntoEnumIterator as _;
use weir_core::shed::{Class, Reason};

pub(crate) const REQUESTS: &str = "weir_http_requests_total";
pub(crate) const DURATION: &str = "weir_http_request_duration_seconds";
const SHED: &str = "weir_shed_requests_total";
pub(crate) const SHED_IN_FLIGHT: &str = "weir_shed_in_flight";
pub(crate) const SHED_LIMIT: &str = "weir_shed_limit";
pub(crate) const SHED_LEVEL: &str = "weir_shed_level";
pub(crate) const SHED_BLIND: &str = "weir_shed_blind";
pub(crate) const SHED_OVERHEAD: &str = "weir_shed_overhead_seconds";
pub(crate) const SHED_SYNC: &str = "weir_shed_sync_seconds";
const INGESTED: &str = "weir_events_ingested_total";
const FILTERED: &str = "weir_events_filtered_total";
const FILTERED_OUT: &str = "weir_events_filtered_out_total";
const EVENTS_REFUSED: &str = "weir_events_refused_total";
const KEYS_REFUSED: &str = "weir_http_keys_refused_total";

/// Registers the descriptions of the metrics. The recorder must be installed before.
pub(crate) fn describe() {
    describe_counter!(REQUESTS, "API requests by route, method and status; alert on the rate of errors");
    describe_histogram!(DURATION, "Time to answer an API request, in seconds; producers wait this long");
    describe_counter!(
        SHED,
        "API requests of each class by decision: admitted, refused, or would_refuse in a dry run, with the reason; where \
         many are refused, see the page on overload"
    );
    for class in Class::iter() {
        for reason in Reason::iter() {
            decision(class, reason.as_str(), "refused").increment(0);
        }
    }
    describe_gauge!(SHED_IN_FLIGHT, "Requests of each class in flight in this process");
    describe_gauge!(
        SHED_LIMIT,
        "How many requests of each class may be in flight in this process now; 0 while refused"
    );
    describe_gauge!(
        SHED_LEVEL,
        "Pressure on the store: from 1 heavy requests are refused, from 2 reads, at 3 events are bounded; add capacity"
    );
    describe_gauge!(
        SHED_BLIND,
        "1 while the records of other processes are too old, so that this process counts its own requests only"
    );
    describe_histogram!(SHED_OVERHEAD, "Time to decide about a request, in seconds, measured for one in 64");
    describe_histogram!(
        SHED_SYNC,
        "Time to exchange records with other processes, in seconds; no request waits for it"
    );
    describe_counter!(
        KEYS_REFUSED,
        "API keys that were not valid, by where they were sent and the answer; alert on many: somebody guesses, or a \
         producer has an old key"
    );
    for from in ["login", "request"] {
        for answer in ["refused", "throttled"] {
            counter!(KEYS_REFUSED, "from" => from, "answer" => answer).increment(0);
        }
    }
    counter!(INGESTED).increment(0);
    counter!(FILTERED).increment(0);
    describe_counter!(
        FILTERED,
        "Deliveries not made because the filter of the destination did not match, summed over events"
    );
    counter!(FILTERED_OUT).increment(0);
    describe_counter!(
        FILTERED_OUT,
        "Events that reached no destination because of filters; if it rises with all events, a filter is wrong or the \
         data has changed"
    );
    describe_counter!(
        EVENTS_REFUSED,
        "Events refused by the catalogue of event types, by reason: unknown_type, or schema where the data does not fit; \
         these events are lost unless their producer is corrected"
    );
    for reason in ["unknown_type", "schema"] {
        counter!(EVENTS_REFUSED, "reason" => reason).increment(0);
    }
    describe_counter!(INGESTED, "Events stored, without duplicates: the incoming load");
}

fn decision(class: Class, reason: &'static str, decision: &'static str) -> Counter {
    counter!(SHED, "class" => class.as_str(), "reason" => reason, "decision" => decision)
}

/// Counts a request that was let in by its class, and refused later because there was no room for it.
pub(crate) fn no_room(class: Class, reason: Reason) {
    decision(class, reason.as_str(), "refused").increment(1);
}

/// The counters of decisions. Those of admitted requests are kept, because a look-up costs more than the decision.
pub(crate) struct ShedMeters(Vec<(Class, Counter)>);

impl ShedMeters {
    pub(crate) fn new() -> Self {
        Self(Class::iter().map(|class| (class, decision(class, "none", "admitted"))).collect())
    }

    pub(crate) fn admitted(&self, class: Class, would_refuse: Option<Reason>) {
        match would_refuse {
            Some(reason) => decision(class, reason.as_str(), "would_refuse").increment(1),
            None => self.0.iter().filter(|(of, _)| *of == class).for_each(|(_, counter)| counter.increment(1)),
        }
    }

    pub(crate) fn refused(&self, class: Class, reason: Reason) {
        no_room(class, reason);
    }
}

/// Counts a key that was not valid.
pub(crate) fn key_refused(from: &'static str, answer: &'static str) {
    counter!(KEYS_REFUSED, "from" => from, "answer" => answer).increment(1);
}

/// Counts the deliveries that filters prevented, and the events that reached nobody because of them.
pub(crate) fn filtered(deliveries: u64, unwanted: u64) {
    for (name, count) in [(FILTERED, deliveries), (FILTERED_OUT, unwanted)] {
        if count > 0 {
            counter!(name).increment(count);
        }
    }
}

/// Counts an event that the catalogue of event types refuses.
pub(crate) fn event_refused(reason: &'static str) {
    counter!(EVENTS_REFUSED, "reason" => reason).increment(1);
}

/// Counts stored events.
pub(crate) fn ingested(events: u64) {
    if events > 0 {
        counter!(INGESTED).increment(events);
    }
}
