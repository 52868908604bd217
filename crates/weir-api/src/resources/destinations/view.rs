//! The JSON view of a destination.

use serde_json::Value;
use weir_api_types as types;
use weir_core::{
    Destination, Timestamp,
    destination::Settings,
    limit::MinInterval,
    temporary::{Hold, Override},
};

use super::{adaptive, body, breaker, egress, headers::MASK, key_limits, rates, retry, signature};
use crate::{
    event_types::EventTypes,
    problem::{self, ApiResult},
};

/// Fields of a destination that are shown but cannot be set.
pub(crate) const READ_ONLY: [&str; 18] = [
    "id",
    "created_at",
    "updated_at",
    "paused_reason",
    "held_until",
    "held_reason",
    "breaker_state",
    "breaker_reason",
    "next_probe_at",
    "previous_secret_valid_until",
    "signature_format",
    "public_key",
    "public_key_hex",
    "adaptive_rate",
    "tls_certificates",
    "unknown_event_types",
    "override",
    "hold",
];

/// A hold that has ended is not shown. The pace is added by [`shown`](super::shown).
pub(crate) fn view(destination: &Destination, now: Timestamp, catalogue: &EventTypes) -> types::Destination {
    let settings = &destination.settings;
    let (held_until, held_reason) = destination.held();
    let held_until = held_until.filter(|until| *until > now);
    let public_key = settings.signing.secret.public_key();
    types::Destination {
        id: destination.id.to_string(),
        settings: self::settings(settings),
        created_at: destination.created_at,
        updated_at: destination.updated_at,
        paused_reason: destination.paused_reason.clone(),
        held_until,
        held_reason: held_until.and(held_reason),
        breaker_state: destination.breaker.state(now).as_str().to_owned(),
        breaker_reason: destination.breaker.reason().map(str::to_owned),
        next_probe_at: destination.breaker.next_probe_at(),
        previous_secret_valid_until: settings.signing.previous_at(now).map(|previous| previous.valid_until),
        signature_format: signature::format(&settings.signing.style),
        public_key: public_key.map(|key| key.to_string()),
        public_key_hex: public_key.map(|key| key.to_hex()),
        adaptive_rate: None,
        tls_certificates: egress::certificates_view(&settings.egress.tls, now),
        unknown_event_types: catalogue.unknown(&settings.event_types),
        overridden: destination.temporary.override_at(now).map(override_view),
        hold: destination.temporary.hold_at(now).map(hold_view),
    }
}

pub(crate) fn created(destination: &Destination, now: Timestamp, catalogue: &EventTypes) -> types::CreatedDestination {
    types::CreatedDestination {
        destination: view(destination, now, catalogue),
        secret: destination.settings.signing.secret.reveal(),
    }
}

pub(crate) fn settings(settings: &Settings) -> types::DestinationSettings {
    types::DestinationSettings {
        url: settings.url.to_string(),
        name: settings.name.clone(),
        tenant: settings.tenant.clone(),
        event_types: settings.event_types.iter().map(ToString::to_string).collect(),
        filter: settings.filter.as_ref().map(|filter| filter.json().clone()),
        rate_limits: settings.rate_limits.as_slice().iter().map(rates::view).collect(),
        min_interval_ms: settings.rate_limits.min_interval().map(MinInterval::as_millis),
        adaptive: settings.adaptive.as_ref().map(adaptive::view),
        limit_group: settings.limit_group.map(|id| id.to_string()),
        weight: settings.weight,
        key_limits: settings.key_limits.as_deref().map(key_limits::view),
        max_in_flight: settings.max_in_flight,
        timeout_ms: settings.timeout_ms,
        retry: retry::view(&settings.retry),
        refusals_count: settings.retry.refusals_count,
        breaker: settings.breaker.as_ref().map(breaker::view),
        alerts: settings.alerts,
        ordered: settings.order.is_by_key(),
        skip_after_attempts: settings.order.skip_after_attempts(),
        headers: settings.headers.iter().map(|(name, _)| (name.clone(), MASK.to_owned())).collect(),
        signature: signature::view(&settings.signing.style),
        body: body::view(settings),
        proxy: settings.egress.proxy.masked(),
        tls: egress::tls_view(&settings.egress.tls),
        paused: settings.paused,
    }
}

/// The settings as the API shows them.
pub(crate) fn settings_value(settings: &Settings) -> ApiResult<Value> {
    serde_json::to_value(self::settings(settings))
        .map_err(|error| problem::internal("cannot serialise the settings of a destination", &error))
}

pub(crate) fn override_view(overridden: &Override) -> types::Override {
    types::Override {
        rate_limits: overridden.limits.as_ref().map(|limits| limits.as_slice().iter().map(rates::view).collect()),
        max_in_flight: overridden.max_in_flight,
        until: overridden.until,
        reason: overridden.reason.clone(),
    }
}

pub(crate) fn hold_view(hold: &Hold) -> types::Hold {
    types::Hold { until: hold.until, reason: hold.reason.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn the_read_only_fields_are_those_that_the_view_adds_to_the_settings() {
        let schema = serde_json::to_value(types::Destination::schema()).unwrap();
        let parts = schema["allOf"].as_array().unwrap().iter().filter_map(|part| part["properties"].as_object());
        let mut added: Vec<&String> = parts.flat_map(|part: &serde_json::Map<String, Value>| part.keys()).collect();
        let mut read_only = READ_ONLY;
        added.sort();
        read_only.sort_unstable();
        assert_eq!(added, read_only);
    }
}
