//! The settings of a destination, as clients send them.

use serde_json::{Value, json};
use url::Url;
use weir_core::{
    body::{BINARY_HEADERS, BodyFormat},
    destination::{DEFAULT_MAX_IN_FLIGHT, DEFAULT_TENANT, DEFAULT_TIMEOUT_MS},
    limit_group::DEFAULT_WEIGHT,
};

use super::{
    adaptive::AdaptiveRequest,
    body::BodyRequest,
    breaker::BreakerRequest,
    egress::{ProxyText, TlsRequest},
    filter::FilterRequest,
    headers::Headers,
    key_limits::KeyLimitsRequest,
    rates::{Limits, RateLimitRequest},
    retry::RetryRequest,
    signature::SignatureRequest,
    view::READ_ONLY,
};
use crate::{
    errors::Errors,
    readers::{
        fields::object,
        texts::{AnyTenantText, EventPatternText, LimitGroupIdText, SecretText, check_visible, text},
    },
    resources::alerts::Alerts,
};

const MAX_URL_LEN: usize = 2_048;
const MAX_NAME_CHARS: usize = 200;

text! {
    /// An absolute URL with `https`, or with `http` if the server allows it. Without user name and fragment, and not a
    /// private address. The pattern describes `https` and host names; a public IP address is accepted too.
    #[schema(
        as = DestinationUrl, value_type = String, max_length = 2048, example = "https://example.com/hooks",
        pattern = "^https://([A-Za-z0-9]([A-Za-z0-9_-]{0,20}[A-Za-z0-9])?\\.){1,8}[A-Za-z]{2,20}(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?(\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?$"
    )]
    pub(crate) struct UrlText(Url);
    parse = |text| match text.parse() {
        _ if text.len() > MAX_URL_LEN => Err(format!("must be at most {MAX_URL_LEN} bytes long")),
        Ok(url) => Ok(url),
        Err(error) => Err(format!("must be an absolute URL: {error}")),
    };
}

text! {
    /// A name for people, without control characters and characters that change the direction of text. Empty, or not of spaces only.
    #[schema(
        as = DestinationName, max_length = 200, example = "Acme production",
        pattern = "^([^\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]*[^\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\s][^\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]*)?$",
    )]
    pub(crate) struct NameText(String);
    parse = |text| match text {
        _ if text.chars().count() > MAX_NAME_CHARS => Err(format!("must be at most {MAX_NAME_CHARS} characters long")),
        _ if !text.is_empty() && text.trim().is_empty() => Err("must not consist of spaces only".to_owned()),
        _ => check_visible(text).map(|()| text.to_owned()),
    };
}

object! {
    /// A new destination.
    pub(crate) struct DestinationRequest {
        // Optional here, so that the other fields are checked without it too.
        #[schema(value_type = UrlText)]
        pub(super) url: Option<UrlText>,
        #[schema(default = "")]
        pub(super) name: Option<NameText>,
        /// `*` (role `admin`): the destination of operators, which gets the alerts of all tenants and nothing else.
        #[schema(default = json!(DEFAULT_TENANT))]
        pub(super) tenant: Option<AnyTenantText>,
        /// Exact (`video.created`), a prefix (`video.*`) or `*`. `*` does not include alerts (`weir.*`). With the tenant
        /// `*` only alerts, and by default all of them.
        #[schema(min_items = 1, max_items = 100, default = json!(["*"]))]
        pub(super) event_types: Option<Vec<EventPatternText>>,
        /// Which events of these types the destination takes by their `data`; `null`: all. It counts when an event
        /// comes, and not for alerts, test events and other events that name their destinations.
        pub(super) filter: Option<FilterRequest>,
        /// At most one limit per period; `[]` means unlimited.
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4, default = json!([]))]
        pub(super) rate_limits: Option<Limits>,
        /// The least time between the starts of two sends, exact, beside all limits: for receivers that refuse a
        /// request that comes too soon after another. `null` is none.
        #[schema(minimum = 1, maximum = 60_000)]
        pub(super) min_interval_ms: Option<u32>,
        /// `null`: only the limits bound the pace.
        pub(super) adaptive: Option<AdaptiveRequest>,
        /// The budget that it shares with other destinations, beside its own limits: a limit group of its tenant, or one for
        /// all tenants.
        pub(super) limit_group: Option<LimitGroupIdText>,
        /// Its part of the group's rate beside the weights of the other members that have a backlog.
        #[schema(minimum = 1, maximum = 1_000, default = json!(DEFAULT_WEIGHT))]
        pub(super) weight: Option<u32>,
        /// `null`: its events have no limit keys.
        pub(super) key_limits: Option<KeyLimitsRequest>,
        /// The maximum number of sends that are started and not yet settled at one time.
        #[schema(minimum = 1, maximum = 10_000, default = json!(DEFAULT_MAX_IN_FLIGHT))]
        pub(super) max_in_flight: Option<u32>,
        /// Time limit of one attempt: to connect (name, TCP and TLS), and for the request with the body of its response. The
        /// wait for a slot in between does not count.
        #[schema(minimum = 100, maximum = 120_000, default = json!(DEFAULT_TIMEOUT_MS))]
        pub(super) timeout_ms: Option<u32>,
        pub(super) retry: Option<RetryRequest>,
        /// Whether refusals (429, and 403 or 503 with a used-up quota) count against `retry.max_attempts`. If not, only
        /// the age of a delivery bounds how often it is refused.
        #[schema(default = false)]
        pub(super) refusals_count: Option<bool>,
        /// `null` disables the breaker. If absent, the defaults apply.
        #[schema(value_type = Option<BreakerRequest>)]
        pub(super) breaker: Option<Option<BreakerRequest>>,
        /// Thresholds that override the thresholds of all destinations; `null` disables a threshold.
        pub(super) alerts: Option<Alerts>,
        /// Events with the same `ordering_key` are delivered one after the other, in the order in which they were
        /// stored: the next event waits until the previous one is delivered or has ended otherwise. Events with other
        /// keys or without a key do not wait.
        #[schema(default = false)]
        pub(super) ordered: Option<bool>,
        /// Only with `ordered: true`. After this many failed attempts an event no longer blocks the later events of its
        /// key. It is then retried outside the order. `null`: it blocks them until it has ended.
        #[schema(minimum = 1, maximum = 100)]
        pub(super) skip_after_attempts: Option<u32>,
        /// Headers added to every request. Values are write-only. Names that Weir sets itself are refused.
        pub(super) headers: Option<Headers>,
        /// `whsec_` and the base64 of 16 to 128 bytes, padded or not; for styles whose key is a text, any 16 to 128
        /// printable ASCII characters; for `standard` and `ed25519`, `whsk_` and the base64 of an Ed25519 private key
        /// (its 32 bytes, optionally followed by the public key). If absent, a secret that fits the style is generated.
        pub(super) secret: Option<SecretText>,
        pub(super) signature: Option<SignatureRequest>,
        pub(super) body: Option<BodyRequest>,
        /// How the destination is reached: `null` as the installation reaches it, `direct` without its proxy, or through this
        /// HTTP proxy. The password is write-only. Needs the role `admin` and a key that is not bound to tenants.
        pub(super) proxy: Option<ProxyText>,
        /// Only for https; `null`: the public authorities, and no client certificate.
        pub(super) tls: Option<TlsRequest>,
        /// Nothing is sent while the destination is paused; its deliveries wait.
        #[schema(default = false)]
        pub(super) paused: Option<bool>,
    }
    check = Self::check;
    read_only = &READ_ONLY;
}

impl DestinationRequest {
    /// Each period has at most one limit, `skip_after_attempts` needs an order, and styles need their kind of secret.
    pub(crate) fn keywords() -> Value {
        json!({"allOf": [
            {"properties": {"rate_limits": Limits::keywords()}},
            {"anyOf": [
                {"properties": {"skip_after_attempts": {"type": "null"}}},
                {"properties": {"ordered": {"const": true}}, "required": ["ordered"]},
            ]},
            {"anyOf": [
                {"properties": {"secret": {"type": "null"}}},
                {"properties": {
                    "secret": {"pattern": "^whsec_"},
                    "signature": {"properties": {
                        "style": {"not": {"const": "discord"}}, "algorithm": {"not": {"const": "ed25519"}},
                    }},
                }},
                {"properties": {"signature": {"properties": {"style": {"enum": ["standard", null]}}}}},
            ]},
        ]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        if self.skip_after_attempts.is_some() && self.ordered != Some(true) {
            let detail = "needs `ordered: true`: set it too, or omit `skip_after_attempts`";
            errors.add(format!("{at}/skip_after_attempts"), detail);
        }
        let headers = self.headers.as_ref().map_or(&[][..], |Headers(headers)| headers);
        let is_binary = self.body.as_ref().is_some_and(|body| body.format() == BodyFormat::CloudeventsBinary);
        let is_of_body = |name: &str| is_binary && BINARY_HEADERS.contains(&name);
        for header in headers.iter().filter(|header| is_of_body(&header.name)) {
            errors.add(header.pointer.clone(), "is set by the format `cloudevents-binary` of the `body`: remove it");
        }
        if let Some(signature) = &self.signature {
            let is_own = |name: &str| is_of_body(name) || headers.iter().any(|header| header.name == name);
            signature.check_own(&format!("{at}/signature"), is_own, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use utoipa::{
        PartialSchema,
        openapi::{Schema, schema::Object},
    };
    use weir_core::{
        address::AddressPolicy,
        alert::{AGE_S, COUNTS},
        breaker::{MAX_COUNT, OPEN_MS, PAUSE_AFTER_S},
        destination::{MAX_IN_FLIGHT, TIMEOUT_MS},
        limit::{MAX_LIMIT, MAX_LIMITS, MAX_MARGIN_MS, MIN_INTERVAL_MS},
        limit_group::WEIGHTS,
    };

    use super::*;
    use crate::readers::{
        fields::{object_schema, schema_of},
        texts::{
            Text,
            tests::{assert_pattern_is, assert_pattern_is_accepted},
        },
        values::range,
    };

    #[test]
    fn every_url_and_name_that_a_pattern_describes_is_accepted() {
        let addresses = AddressPolicy::default();
        let is_accepted = |text: &str| UrlText::parse(text).is_ok_and(|url| addresses.check_url(&url.0).is_ok());
        assert_pattern_is(is_accepted, UrlText::schema());
        assert_pattern_is_accepted::<NameText>();
    }

    #[test]
    fn a_name_is_empty_or_can_be_seen() {
        for (name, is_accepted) in [("", true), ("Acme", true), (" a ", true), (" ", false), ("\u{2003}\u{a0}", false)]
        {
            assert_eq!(NameText::parse(name).is_ok(), is_accepted, "{name:?}");
        }
    }

    #[test]
    fn the_ranges_of_the_schema_are_those_of_the_domain() {
        let of = |schema: &Object, name: &str| range(schema_of(schema.properties.get(name)));
        let request = object_schema::<DestinationRequest>();
        let (breaker, alerts) = (object_schema::<BreakerRequest>(), object_schema::<Alerts>());
        let limit = object_schema::<RateLimitRequest>();
        let weights = u32::from(*WEIGHTS.start())..=u32::from(*WEIGHTS.end());
        let key_limits = object_schema::<KeyLimitsRequest>();
        let table: [(&Object, &str, RangeInclusive<u32>); 16] = [
            (&request, "weight", weights.clone()),
            (&key_limits, "weight", weights),
            (&key_limits, "max_in_flight", 1..=MAX_IN_FLIGHT),
            (&request, "min_interval_ms", MIN_INTERVAL_MS),
            (&limit, "margin_ms", 0..=MAX_MARGIN_MS),
            (&request, "max_in_flight", 1..=MAX_IN_FLIGHT),
            (&request, "timeout_ms", TIMEOUT_MS),
            (&breaker, "min_attempts", 1..=MAX_COUNT),
            (&breaker, "consecutive", 1..=MAX_COUNT),
            (&breaker, "open_ms", OPEN_MS),
            (&breaker, "open_max_ms", OPEN_MS),
            (&breaker, "pause_after_s", PAUSE_AFTER_S),
            (&alerts, "backlog_depth", COUNTS),
            (&alerts, "oldest_age_s", AGE_S),
            (&limit, "limit", 1..=MAX_LIMIT),
            (&limit, "burst", 1..=MAX_LIMIT),
        ];
        for (schema, name, expected) in table {
            assert_eq!(of(schema, name), expected, "{name}");
        }
        let Schema::Array(limits) = schema_of(request.properties.get("rate_limits")) else { panic!("no array") };
        assert_eq!(limits.max_items, Some(MAX_LIMITS));
    }
}
