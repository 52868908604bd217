//! The metrics of the API: their names and descriptions, and the counters that handlers increment.

use metrics::{counter, describe_counter, describe_histogram};

pub(crate) const REQUESTS: &str = "weir_http_requests_total";
pub(crate) const DURATION: &str = "weir_http_request_duration_seconds";
const SHED: &str = "weir_http_shed_total";
const INGESTED: &str = "weir_events_ingested_total";
const FILTERED: &str = "weir_events_filtered_total";
const FILTERED_OUT: &str = "weir_events_filtered_out_total";
const KEYS_REFUSED: &str = "weir_http_keys_refused_total";

/// Registers the descriptions of the metrics. The recorder must be installed before.
pub(crate) fn describe() {
    describe_counter!(REQUESTS, "API requests by route, method and status; alert on the rate of errors");
    describe_histogram!(DURATION, "Time to answer an API request, in seconds; producers wait this long");
    describe_counter!(
        SHED,
        "API requests refused because a resource was used up, by resource; raise its limit or add processes"
    );
    for reason in ["body_budget", "audits", "heavy_reads", "streams"] {
        counter!(SHED, "reason" => reason).increment(0);
    }
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
    describe_counter!(INGESTED, "Events stored, without duplicates: the incoming load");
}

/// Counts a request that was refused because this resource was used up.
pub(crate) fn shed(resource: &'static str) {
    counter!(SHED, "reason" => resource).increment(1);
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

/// Counts stored events.
pub(crate) fn ingested(events: u64) {
    if events > 0 {
        counter!(INGESTED).increment(events);
    }
}
