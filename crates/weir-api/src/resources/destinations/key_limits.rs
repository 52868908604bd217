//! The limits of each limit key of a destination, as they are set and shown.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, Ref, RefOr, Schema,
        schema::{OneOfBuilder, Type},
    },
};
use weir_api_types as types;
use weir_core::{
    LimitKey, RateLimits,
    destination::Settings,
    limit_group::DEFAULT_WEIGHT,
    limit_key::{KeyLimits, KeyOverride, MAX_OVERRIDES, MAX_POINTER_BYTES, MAX_POINTER_NAMES},
};

use super::rates::{self, Limits, RateLimitRequest};
use crate::{
    errors::{Errors, escape, type_name},
    problem::{ApiResult, Problem},
    readers::{
        fields::{Read, object},
        texts::{LimitKeyText, Text, text},
    },
};

text! {
    /// A JSON pointer (RFC 6901) into the `data` of events, of at most 256 bytes. `~1` stands for a `/` in a name, `~0` for a `~`.
    #[schema(
        as = LimitKeyPointer, value_type = String, max_length = 256, example = "/customer/id",
        pattern = "^(/([!-.0-}]|~[01])*){1,8}$"
    )]
    pub(crate) struct PointerText(String);
    parse = |text| match is_pointer(text) {
        _ if text.len() > MAX_POINTER_BYTES => Err(format!("must be at most {MAX_POINTER_BYTES} bytes long")),
        _ if text.split('/').count() > MAX_POINTER_NAMES + 1 => Err(format!("must have at most {MAX_POINTER_NAMES} names")),
        true => Ok(text.to_owned()),
        false => Err("must be a JSON pointer into `data`, such as `/customer/id` (`~1` is a `/` in a name, `~0` a `~`)".to_owned()),
    };
}

/// The whole of `data` is no key.
fn is_pointer(text: &str) -> bool {
    let is_escaped = |part: &str| part.starts_with(['0', '1']);
    text.starts_with('/') && !text.contains(char::is_control) && text.split('~').skip(1).all(is_escaped)
}

object! {
    /// A budget for each value of a limit key, for example for each customer, inside the limits of the destination, which
    /// all keys share; in a limit group each send counts in that, too. Not together with `adaptive` or `ordered`.
    pub(crate) struct KeyLimitsRequest {
        /// Must be given, except in a patch that keeps it. It finds a string, number or boolean in `data`; events without one
        /// have the key `""`. A `limit_key` of the event wins.
        key: Option<PointerText>,
        /// Of each key by itself. `[]`: the keys only take turns.
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4, default = json!([]))]
        rate_limits: Option<Limits>,
        /// The most sends of one key in flight; `null`: as many as the destination may have.
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
        /// The part of each key in what the destination may send, beside the weights of the other keys with a backlog.
        #[schema(minimum = 1, maximum = 1_000, default = json!(DEFAULT_WEIGHT))]
        weight: Option<u32>,
        /// What is different for single keys, by key.
        overrides: Option<Overrides>,
    }
    check = Self::check;
}

object! {
    /// What is different for one limit key. What is absent or null is as for the others.
    pub(crate) struct KeyOverrideRequest {
        /// `[]`: no limits of its own.
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4)]
        rate_limits: Option<Limits>,
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
        #[schema(minimum = 1, maximum = 1_000)]
        weight: Option<u32>,
        /// Nothing of this key is sent; its deliveries wait.
        #[schema(default = false)]
        paused: Option<bool>,
    }
}

/// Each period has at most one limit.
pub(crate) fn keywords() -> Value {
    json!({"allOf": [{"properties": {"rate_limits": Limits::keywords()}}]})
}

/// A weight in its range.
fn weight(given: Option<u32>) -> Option<u16> {
    given.and_then(|weight| u16::try_from(weight).ok())
}

impl KeyLimitsRequest {
    fn check(&self, at: &str, errors: &mut Errors) {
        let at = format!("{at}/key");
        if self.key.is_none() && !errors.has(&at) {
            errors.add(at, "must be given: a JSON pointer into `data`, such as `/customer/id`");
        }
    }

    /// The same with the overrides of the present limits, if the request names none.
    pub(crate) fn keeping_overrides(self, present: Option<&KeyLimits>) -> Option<Arc<KeyLimits>> {
        let has_own = self.overrides.is_some();
        let mut limits = self.limits()?;
        if let Some(present) = present.filter(|_| !has_own) {
            Arc::make_mut(&mut limits).overrides.clone_from(&present.overrides);
        }
        Some(limits)
    }

    /// `None` without a key, which is refused.
    pub(crate) fn limits(self) -> Option<Arc<KeyLimits>> {
        Some(Arc::new(KeyLimits {
            pointer: self.key?.0,
            rate_limits: self.rate_limits.map(RateLimits::from).unwrap_or_default(),
            max_in_flight: self.max_in_flight,
            weight: weight(self.weight).unwrap_or(DEFAULT_WEIGHT),
            overrides: self.overrides.unwrap_or_default().0,
        }))
    }
}

impl From<KeyOverrideRequest> for KeyOverride {
    fn from(request: KeyOverrideRequest) -> Self {
        Self {
            rate_limits: request.rate_limits.map(RateLimits::from),
            max_in_flight: request.max_in_flight,
            weight: weight(request.weight),
            paused: request.paused.unwrap_or(false),
        }
    }
}

/// The overrides by key. One that changes nothing is none.
#[derive(Default)]
pub(crate) struct Overrides(BTreeMap<LimitKey, KeyOverride>);

impl Read for Overrides {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Object(members) = value else {
            errors.add(
                at,
                format!("must be an object of keys and what is different for them, not {}", type_name(&value)),
            );
            return None;
        };
        // A null member of a patch removes an override.
        if members.values().filter(|value| !value.is_null()).count() > MAX_OVERRIDES {
            errors.add(at, format!("must contain at most {MAX_OVERRIDES} keys: remove those that are not needed"));
            return None;
        }
        let mut overrides = BTreeMap::new();
        for (given, value) in members {
            let at = format!("{at}/{}", escape(&given));
            let key = match LimitKeyText::parse(&given) {
                Ok(LimitKeyText(key)) => key,
                Err(detail) => {
                    errors.add(at, format!("is no limit key, which {detail}"));
                    continue;
                }
            };
            if value.is_null() {
                continue;
            }
            let read = KeyOverrideRequest::read(value, &Schema::default(), &at, errors).map(KeyOverride::from);
            if read.is_some_and(|special| !special.is_none() && overrides.insert(key, special).is_some()) {
                errors.add(at, "is given twice: a key of more than 128 bytes is the same as its SHA-256");
            }
        }
        Some(Self(overrides))
    }
}

impl ToSchema for Overrides {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((KeyOverrideRequest::name().into_owned(), KeyOverrideRequest::schema()));
        KeyOverrideRequest::schemas(schemas);
    }
}

impl PartialSchema for Overrides {
    fn schema() -> RefOr<Schema> {
        let special = OneOfBuilder::new()
            .item(ObjectBuilder::new().schema_type(Type::Null))
            .item(Ref::from_schema_name(KeyOverrideRequest::name()));
        let overrides = ObjectBuilder::new()
            .schema_type(Type::Object)
            .property_names(Some(
                ObjectBuilder::new().schema_type(Type::String).pattern(Some(LimitKeyText::PATTERN)).build(),
            ))
            .additional_properties(Some(Schema::OneOf(special.build())))
            .max_properties(Some(MAX_OVERRIDES));
        RefOr::T(Schema::Object(overrides.build()))
    }
}

/// Refuses what limit keys cannot be combined with. `had_keys`: the destination has once had limit keys, so its deliveries
/// may still be of flows (`Destination::keyed_at`).
pub(crate) fn check_alone(settings: &Settings, had_keys: bool) -> ApiResult<()> {
    let is_keyed = settings.key_limits.is_some();
    if !is_keyed && !had_keys {
        return Ok(());
    }
    let mend = match is_keyed {
        true => "remove one of the two",
        false => "it has had `key_limits`, whose deliveries may still wait; create another destination for this",
    };
    let others = [("adaptive", settings.adaptive.is_some()), ("ordered", settings.order.is_by_key())];
    let mut errors = Errors::default();
    for (name, _) in others.into_iter().filter(|(_, is_set)| *is_set) {
        errors.add(format!("/{name}"), format!("cannot be combined with `key_limits` yet: {mend}"));
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors.into_vec())) }
}

pub(crate) fn view(limits: &KeyLimits) -> types::KeyLimits {
    let special = |(key, special): (&LimitKey, &KeyOverride)| (key.to_string(), override_view(special));
    types::KeyLimits {
        key: limits.pointer.clone(),
        rate_limits: limits_view(&limits.rate_limits),
        max_in_flight: limits.max_in_flight,
        weight: limits.weight,
        overrides: limits.overrides.iter().map(special).collect(),
    }
}

fn override_view(special: &KeyOverride) -> types::KeyOverride {
    types::KeyOverride {
        rate_limits: special.rate_limits.as_ref().map(limits_view),
        max_in_flight: special.max_in_flight,
        weight: special.weight,
        paused: special.paused,
    }
}

pub(crate) fn limits_view(limits: &RateLimits) -> Vec<types::RateLimit> {
    limits.as_slice().iter().map(rates::view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::texts::tests::assert_pattern_is_accepted;

    #[test]
    fn every_pointer_that_the_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<PointerText>();
    }

    #[test]
    fn a_pointer_names_a_part_of_the_data() {
        for (text, is_accepted) in [
            ("/customer/id", true),
            ("/a~1b", true),
            ("/", true),
            ("", false),
            ("customer", false),
            ("/a~2", false),
            ("/a~", false),
        ] {
            assert_eq!(PointerText::parse(text).is_ok(), is_accepted, "{text:?}");
        }
    }
}
