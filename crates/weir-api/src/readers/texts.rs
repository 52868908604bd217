//! Strings of a certain form: ids, tenants, event types, times. The document describes each form by a regular
//! expression, so a client can check a value before it sends the value. A test of the document checks that the server
//! accepts every value that such an expression describes.

mod checks;

use serde_json::Value;
use utoipa::openapi::Schema;
use weir_core::{
    ApiKeyId, Condition, DeliveryId, DeliveryState, DestinationId, EventId, LimitGroupId, LimitKey, Period, ReplayId,
    ReservationId, Timestamp,
    destination::ALL_TENANTS,
    limit::{Shape, Unit},
    pattern::EventPattern,
    signing::Secret,
};
use weir_store::{ErrorFilter, ListOrder, REPLAYABLE};

pub(crate) use self::checks::{
    check_event_key, check_idempotency_key, check_limit_key, check_new_type, check_tenant, check_visible,
};
use super::fields::Read;
use crate::errors::{Errors, type_name};

/// A string of a certain form.
pub(crate) trait Text: Sized {
    /// As [`Read::PLURAL`].
    const PLURAL: &'static str = "values";

    fn parse(text: &str) -> Result<Self, String>;

    /// Parses the value of a query parameter.
    fn parse_parameter(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl<T: Text> Read for T {
    const PLURAL: &'static str = <T as Text>::PLURAL;

    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::String(text) = &value else {
            errors.add(at, format!("must be a string, not {}", type_name(&value)));
            return None;
        };
        T::parse(text).map_err(|detail| errors.add(at, detail)).ok()
    }
}

/// Declares a string: a type with its schema, and the function that parses it.
macro_rules! text {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident($value:ty);
        parse = $parse:expr;
        $(plural = $plural:expr;)?
        $(parameter = $parameter:expr;)?
    ) => {
        #[derive(utoipa::ToSchema)]
        $(#[$meta])*
        $visibility struct $name($visibility $value);

        impl $crate::readers::texts::Text for $name {
            $(const PLURAL: &'static str = $plural;)?

            fn parse(text: &str) -> Result<Self, String> {
                let parse: fn(&str) -> Result<$value, String> = $parse;
                parse(text).map(Self)
            }

            $(fn parse_parameter(text: &str) -> Result<Self, String> {
                let parse: fn(&str) -> Result<Self, String> = $parameter;
                parse(text)
            })?
        }
    };
}
pub(crate) use text;

/// One of these names.
pub(crate) fn one_of<'n>(text: &str, mut names: impl Iterator<Item = &'n str> + Clone) -> Result<String, String> {
    let all = names.clone();
    let found = names.find(|name| *name == text).map(str::to_owned);
    found.ok_or_else(|| {
        let all: Vec<_> = all.map(|name| format!("`{name}`")).collect();
        format!("must be one of {}", all.join(", "))
    })
}

/// Parses a type of the domain; its error is the refusal.
pub(crate) fn parsed<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

text! {
    /// The id of a destination.
    #[schema(as = DestinationId, value_type = String, pattern = "^dst_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct DestinationIdText(DestinationId);
    parse = parsed;
    plural = "destinations";
}

text! {
    /// The id of an event.
    #[schema(as = EventId, value_type = String, pattern = "^evt_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "evt_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct EventIdText(EventId);
    parse = parsed;
}

text! {
    /// The id of a delivery.
    #[schema(as = DeliveryId, value_type = String, pattern = "^dlv_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "dlv_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct DeliveryIdText(DeliveryId);
    parse = parsed;
}

text! {
    /// The id of an API key.
    #[schema(as = ApiKeyId, value_type = String, pattern = "^key_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "key_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct ApiKeyIdText(ApiKeyId);
    parse = parsed;
}

text! {
    /// The id of a replay.
    #[schema(as = ReplayId, value_type = String, pattern = "^rpl_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "rpl_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct ReplayIdText(ReplayId);
    parse = parsed;
}

text! {
    /// The id of a limit group.
    #[schema(as = LimitGroupId, value_type = String, pattern = "^lgr_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "lgr_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct LimitGroupIdText(LimitGroupId);
    parse = parsed;
}

text! {
    /// The id of a reservation.
    #[schema(as = ReservationId, value_type = String, pattern = "^rsv_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "rsv_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct ReservationIdText(ReservationId);
    parse = parsed;
}

text! {
    /// An instant (RFC 3339).
    #[schema(as = Time, value_type = String, format = DateTime, example = "2026-11-21T07:30:00.000Z")]
    pub(crate) struct TimeText(Timestamp);
    parse = parsed;
    // Form decoding turns an unescaped `+` of an offset into a space. A valid time contains no space.
    parameter = |text| Self::parse(&text.replace(' ', "+"));
}

text! {
    /// The name of a tenant.
    #[schema(as = Tenant, pattern = "^[A-Za-z0-9_.:-]{1,128}$", example = "acme")]
    pub(crate) struct TenantText(String);
    parse = |text| check_tenant(text).map(|()| text.to_owned()).map_err(str::to_owned);
}

text! {
    /// The name of a tenant, or `*`: operators, whose destinations get the alerts of all tenants.
    #[schema(as = AnyTenant, pattern = "^([A-Za-z0-9_.:-]{1,128}|\\*)$", example = "acme")]
    pub(crate) struct AnyTenantText(String);
    parse = |text| match text {
        ALL_TENANTS => Ok(text.to_owned()),
        _ => check_tenant(text).map(|()| text.to_owned()).map_err(|error| format!("{error}, or `*` (operators)")),
    };
}

text! {
    /// Dot-separated words of letters, digits, `_` and `-`. The prefix `weir.` is reserved for alerts.
    #[schema(
        as = NewEventType, pattern = "^(?!weir\\.)[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$", max_length = 128,
        example = "video.created"
    )]
    pub(crate) struct NewEventTypeText(String);
    parse = |text| check_new_type(text).map(|()| text.to_owned());
}

text! {
    /// An exact event type (`video.created`), a prefix (`video.*`) or `*`. `*` does not include alerts (`weir.*`).
    #[schema(
        as = EventPattern, value_type = String, pattern = "^([A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*(\\.\\*)?|\\*)$",
        max_length = 128, example = "video.*"
    )]
    pub(crate) struct EventPatternText(EventPattern);
    parse = parsed;
    plural = "patterns";
}

text! {
    /// 1 to 255 printable ASCII characters.
    #[schema(as = IdempotencyKey, pattern = "^[ -~]{1,255}$")]
    pub(crate) struct IdempotencyKeyText(String);
    parse = |text| check_idempotency_key(text).map(|()| text.to_owned()).map_err(str::to_owned);
}

text! {
    /// A text of 1 to 255 bytes in UTF-8, without control characters.
    #[schema(as = EventKey, pattern = "^([ -~]{1,255}|[^\\x00-\\x1f\\x7f-\\x9f]{1,63})$", example = "account-42")]
    #[expect(dead_code, reason = "the hot path keeps its own copy of the text")]
    pub(crate) struct EventKeyText(String);
    parse = |text| check_event_key(text).map(|()| text.to_owned()).map_err(str::to_owned);
}

text! {
    /// A limit key: at most 2048 characters, without control characters. One of more than 128 bytes counts as its SHA-256 in
    /// hexadecimal. `""`: the events without a key.
    #[schema(as = LimitKey, value_type = String, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]{0,2048}$", example = "cus_1")]
    pub(crate) struct LimitKeyText(LimitKey);
    parse = |text| check_limit_key(text).map(|()| LimitKey::new(text)).map_err(str::to_owned);
}

impl LimitKeyText {
    /// The pattern of the schema above, for names of members.
    pub(crate) const PATTERN: &'static str = r"^[^\x00-\x1f\x7f-\x9f]{0,2048}$";
}

text! {
    /// States of deliveries, separated by commas.
    #[schema(
        as = DeliveryStates, value_type = String,
        pattern = "^(pending|delivering|retrying|delivered|failed|dead|cancelled|superseded|expired)(,(pending|delivering|retrying|delivered|failed|dead|cancelled|superseded|expired))*$",
        example = "dead,failed"
    )]
    pub(crate) struct DeliveryStatesText(Vec<DeliveryState>);
    parse = |text| {
        let states = text.split(',').map(DeliveryState::parse).collect::<Option<_>>();
        states.ok_or_else(|| {
            let all = DeliveryState::ALL.map(DeliveryState::as_str).join(", ");
            format!("must be one of {all}, or several of them separated by commas")
        })
    };
}

text! {
    /// States of deliveries that failed, separated by commas.
    #[schema(
        as = FailureStates, value_type = String, pattern = "^(dead|failed)(,(dead|failed))*$",
        example = "dead,failed"
    )]
    pub(crate) struct FailureStatesText(Vec<DeliveryState>);
    parse = |text| {
        let failure = |name| {
            DeliveryState::parse(name).filter(|state| matches!(state, DeliveryState::Dead | DeliveryState::Failed))
        };
        let states = text.split(',').map(failure).collect::<Option<_>>();
        states.ok_or_else(|| "must be `dead`, `failed` or `dead,failed`".to_owned())
    };
}

text! {
    /// The order of a list.
    #[schema(as = ListOrder, value_type = String, pattern = "^(newest|oldest)$", example = "oldest")]
    pub(crate) struct ListOrderText(ListOrder);
    parse = |text| match text {
        "newest" => Ok(ListOrder::Newest),
        "oldest" => Ok(ListOrder::Oldest),
        _ => Err("must be `newest` or `oldest`".to_owned()),
    };
}

text! {
    /// Whether attempts that failed fail again: `as_recorded`; or `none`, and then each delivery is sent once.
    #[schema(as = SimulatedFailures, value_type = String, pattern = "^(as_recorded|none)$", example = "as_recorded")]
    pub(crate) struct FailuresText(bool);
    parse = |text| match text {
        "as_recorded" => Ok(true),
        "none" => Ok(false),
        _ => Err("must be `as_recorded` or `none`".to_owned()),
    };
}

text! {
    /// What keeps a destination from being sent to.
    #[schema(as = DestinationCondition, value_type = String, pattern = "^(active|paused|held|breaker)$", example = "paused")]
    pub(crate) struct DestinationConditionText(Condition);
    parse = |text| {
        let found = Condition::ALL.into_iter().find(|condition| condition.as_str() == text);
        found.ok_or_else(|| "must be `active`, `paused`, `held` or `breaker`".to_owned())
    };
}

text! {
    /// Why something is done, in words: 1 to 500 characters, as a name.
    #[schema(
        as = ReasonText, example = "sent by hand on 21 November",
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]{1,500}$"
    )]
    pub(crate) struct ReasonText(String);
    parse = |text| match text.chars().count() {
        1..=500 => check_visible(text).map(|()| text.to_owned()),
        _ => Err("must be 1 to 500 characters long".to_owned()),
    };
}

text! {
    /// A text to look for: 1 to 2048 characters, without control characters.
    #[schema(as = ListSearchText, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]{1,2048}$", example = "acme")]
    pub(crate) struct SearchText(String);
    parse = |text| {
        let fits = (1..=2_048).contains(&text.chars().count()) && !text.contains(char::is_control);
        if fits { Ok(text.to_owned()) } else { Err("must be 1 to 2048 characters without control characters".to_owned()) }
    };
}

text! {
    /// Any text.
    #[schema(as = RawBody, value_type = String, example = "{}")]
    pub(crate) struct RawBodyText(String);
    parse = |text| Ok(text.to_owned());
}

text! {
    /// Why an attempt failed: a kind of error, a class of statuses (`3xx`, `4xx`, `5xx`) or one status (`503`).
    #[schema(
        as = AttemptError, value_type = String,
        pattern = "^(dns|connect|tls|timeout|broken|forbidden|unknown|[345]xx|1[0-9]{2}|[3-9][0-9]{2})$",
        example = "timeout"
    )]
    pub(crate) struct AttemptErrorText(ErrorFilter);
    parse = parsed;
}

text! {
    /// The state of a waiting delivery.
    #[schema(as = WaitingState, value_type = String, pattern = "^(pending|retrying)$", example = "pending")]
    pub(crate) struct WaitingStateText(DeliveryState);
    parse = |text| DeliveryState::parse(text).filter(|state| state.is_waiting()).ok_or_else(|| {
        "must be `pending` or `retrying`: only waiting deliveries can be purged".to_owned()
    });
    plural = "`pending` and `retrying`";
}

text! {
    /// The state of an ended delivery that can be sent again.
    #[schema(
        as = ReplayableState, value_type = String, pattern = "^(failed|dead|cancelled|delivered)$", example = "dead"
    )]
    pub(crate) struct ReplayableStateText(DeliveryState);
    parse = |text| DeliveryState::parse(text).filter(|state| REPLAYABLE.contains(state)).ok_or_else(|| {
        format!("must be one of {}", REPLAYABLE.map(|state| format!("`{}`", state.as_str())).join(", "))
    });
    plural = "`failed`, `dead`, `cancelled`, `delivered`";
}

text! {
    /// The window of a limit.
    #[schema(as = Period, value_type = String, pattern = "^(second|minute|hour|day|([1-9][0-9]{0,3}|[1-7][0-9]{4}|8[0-5][0-9]{3}|86[0-3][0-9]{2}|86400)s)$", example = "second")]
    pub(crate) struct PeriodText(Period);
    parse = |text| Period::parse(text)
        .ok_or_else(|| "must be `second`, `minute`, `hour`, `day`, or 1 to 86400 seconds such as `10s`".to_owned());
}

text! {
    /// How the sends of a limit may lie in its window. `even`, as where it is absent: a spacing apart. `window`: at any time,
    /// all at once too, and never more than `limit` in any window.
    #[schema(as = Shape, value_type = String, pattern = "^(even|window)$", example = "window")]
    pub(crate) struct ShapeText(Shape);
    parse = |text| Shape::parse(text).ok_or_else(|| "must be `even` or `window`".to_owned());
}

text! {
    /// What a limit counts. `request`, as where it is absent: each send as one. `cost`: each send as the `cost` of its
    /// event; such a limit has the shape `window`.
    #[schema(as = LimitUnit, value_type = String, pattern = "^(request|cost)$", example = "cost")]
    pub(crate) struct UnitText(Unit);
    parse = |text| Unit::parse(text).ok_or_else(|| "must be `request` or `cost`".to_owned());
}

text! {
    /// A shared secret: `whsec_` and the base64 of 16 to 128 bytes, padded or not, or for styles whose key is a text any
    /// 16 to 128 printable ASCII characters. Or `whsk_` and the base64 of the 32 bytes of an Ed25519 private key. The
    /// pattern describes the commonest of them.
    #[schema(
        as = SigningSecret, value_type = String,
        pattern = "^(whsec_(([A-Za-z0-9+/]{4}){8,20}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)?|([A-Za-z0-9+/]{4}){21}([A-Za-z0-9+/][AQgw]==)?)|whsk_([A-Za-z0-9+/]{4}){10}[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)$"
    )]
    pub(crate) struct SecretText(Secret);
    parse = parsed;
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::{strategy::Strategy, string::string_regex, test_runner::TestRunner};
    use utoipa::{PartialSchema, openapi::RefOr};

    use super::*;

    /// Asserts that the server accepts every text that the pattern of `T` describes.
    pub(crate) fn assert_pattern_is_accepted<T: Text + PartialSchema>() {
        assert_pattern_is(|text| T::parse(text).is_ok(), T::schema());
    }

    pub(crate) fn assert_pattern_is(accepted: impl Fn(&str) -> bool, schema: RefOr<Schema>) {
        let RefOr::T(Schema::Object(schema)) = schema else { panic!("the schema of a text is a reference") };
        let pattern = schema.pattern.unwrap();
        let pattern = pattern.strip_prefix('^').unwrap().strip_suffix('$').unwrap();
        // The generator knows no lookahead. It excludes too few texts to be generated by chance.
        let pattern = pattern.strip_prefix("(?!").map_or(pattern, |rest| rest.split_once(')').unwrap().1);
        let max_length = schema.max_length.unwrap_or(usize::MAX);
        let texts = string_regex(pattern).unwrap();
        let texts = texts.prop_filter("too long", |text| text.chars().count() <= max_length);
        let check = |text: String| {
            proptest::prop_assert!(accepted(&text), "{} {}", pattern, text);
            Ok(())
        };
        TestRunner::deterministic().run(&texts, check).unwrap();
        if let Some(too_long) = max_length.checked_add(1) {
            assert!(!accepted(&"x".repeat(too_long)), "{pattern} with more than {max_length} characters");
        }
    }

    #[test]
    fn every_text_that_a_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<DestinationIdText>();
        assert_pattern_is_accepted::<EventIdText>();
        assert_pattern_is_accepted::<DeliveryIdText>();
        assert_pattern_is_accepted::<ReplayIdText>();
        assert_pattern_is_accepted::<LimitGroupIdText>();
        assert_pattern_is_accepted::<ReservationIdText>();
        assert_pattern_is_accepted::<TenantText>();
        assert_pattern_is_accepted::<AnyTenantText>();
        assert_pattern_is_accepted::<NewEventTypeText>();
        assert_pattern_is_accepted::<EventPatternText>();
        assert_pattern_is_accepted::<IdempotencyKeyText>();
        assert_pattern_is_accepted::<EventKeyText>();
        assert_pattern_is_accepted::<LimitKeyText>();
        assert_pattern_is_accepted::<DeliveryStatesText>();
        assert_pattern_is_accepted::<FailureStatesText>();
        assert_pattern_is_accepted::<ListOrderText>();
        assert_pattern_is_accepted::<DestinationConditionText>();
        assert_pattern_is_accepted::<SearchText>();
        assert_pattern_is_accepted::<ReasonText>();
        assert_pattern_is_accepted::<WaitingStateText>();
        assert_pattern_is_accepted::<ReplayableStateText>();
        assert_pattern_is_accepted::<AttemptErrorText>();
        assert_pattern_is_accepted::<PeriodText>();
        assert_pattern_is_accepted::<ShapeText>();
        assert_pattern_is_accepted::<UnitText>();
        assert_pattern_is_accepted::<SecretText>();
    }
}
