//! Destinations and their limits.

use std::{borrow::Cow, num::NonZeroU32, sync::Arc};

use weir_core::{
    Destination, DestinationId, Timestamp,
    destination::{Settings, Unreadable},
    egress::Egress,
    filter::Filter,
    limit::MinInterval,
    limit_group::{DEFAULT_WEIGHT, Home},
    order::DeliveryOrder,
    pattern::EventPattern,
    signing::{SECRET_LEN, Secret, Signing},
};
use weir_sealing::{Column, EGRESS_SECRETS, HEADERS, Keyring, SIGNING, Unopened};

use super::{
    Corrupt, Row,
    codes::{interval_code, limits},
    temporary::{Keyed, Limits, limits_column, read_limits_column},
};
use crate::LimitChange;

/// The columns that an edit writes, in the order of [`destination_values`].
#[macro_export]
macro_rules! edited_columns {
    () => {
        "updated_at, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, signing, paused,
        paused_reason, held_until, held_reason, breaker, breaker_state, alerts, ordered, skip_after_attempts,
        min_interval_ms, released_at, body, egress, egress_secrets, event_filter, adaptive, limit_group, weight,
        left_homes"
    };
}

/// The columns for [`destination`]: those that never change, and those of an edit.
#[macro_export]
macro_rules! destination_columns {
    () => {
        concat!("id, tenant, created_at, ", $crate::edited_columns!())
    };
}

/// The number of the columns that never change: those in front of the columns of an edit.
const CONSTANT: usize = 3;

/// The sealed columns, with their positions in [`destination_columns!`](crate::destination_columns).
const SEALED: [(&Column, usize); 3] = [(&HEADERS, 11), (&SIGNING, 12), (&EGRESS_SECRETS, 26)];

/// The position of what is no secret of the way out.
const EGRESS: usize = 25;

/// The texts of the [`SEALED`] columns.
type Sealed = [Option<String>; SEALED.len()];

fn opened(keyring: &Keyring, id: DestinationId, stored: &Sealed) -> Result<Sealed, Unopened> {
    let mut opened = stored.clone();
    for (text, (column, _)) in opened.iter_mut().zip(SEALED) {
        *text = text.take().map(|text| keyring.open_text(column, id.as_bytes(), text)).transpose()?;
    }
    Ok(opened)
}

/// If its secrets cannot be opened, it is paused ([`Unreadable`]).
pub fn destination<E: From<Corrupt>>(row: &impl Row<E>, keyring: &Keyring) -> Result<Destination, E> {
    // The numbers are positions in `destination_columns!`.
    let id = row.destination_id(0)?;
    let mut stored = Sealed::default();
    for (text, (_, at)) in stored.iter_mut().zip(SEALED) {
        *text = row.optional_text(at)?;
    }
    let opened = opened(keyring, id, &stored);
    let (headers, signing, egress) = match &opened {
        Ok([headers, signing, egress_secrets]) => {
            let headers = headers.as_deref().and_then(|text| serde_json::from_str(text).ok()).ok_or(Corrupt("headers"));
            let signing = signing.as_deref().and_then(Signing::from_stored).ok_or(Corrupt("signing settings"));
            (headers?, signing?, egress(row, EGRESS, egress_secrets.as_deref())?)
        }
        // Nothing is signed with this secret, because nothing is sent.
        Err(_) => (
            Vec::new(),
            Signing::new(Secret::from_bytes(vec![0; *SECRET_LEN.start()]).map_err(|_| Corrupt("a secret"))?),
            Egress::default(),
        ),
    };
    let Limits { below, temporary, keyed_at, key_limits } = row.parsed(7, "a rate limit", read_limits_column)?;
    let settings = Settings {
        tenant: row.text(1)?,
        name: row.text(4)?,
        url: row.parsed(5, "a URL", |text| text.parse().ok())?,
        event_types: row.parsed(6, "event types", event_types)?,
        filter: match row.optional_text(27)? {
            Some(text) => Some(Filter::from_stored(&text).map(Arc::new).ok_or(Corrupt("a filter"))?),
            None => None,
        },
        rate_limits: below.with_min_interval(min_interval(row, 22)?),
        limit_group: row.optionally_parsed(29, "a limit group", |text| text.parse().ok())?,
        weight: weight(row, 30)?,
        key_limits: key_limits.map(Arc::new),
        adaptive: row.optionally_parsed(28, "the bounds of a pace", |text| serde_json::from_str(text).ok())?,
        max_in_flight: row.small(8)?,
        timeout_ms: row.small(9)?,
        retry: row.parsed(10, "a retry policy", |text| serde_json::from_str(text).ok())?,
        headers,
        signing,
        paused: row.flag(13)?,
        breaker: row.parsed(17, "a breaker policy", |text| serde_json::from_str(text).ok())?,
        alerts: row.parsed(19, "alerts", |text| serde_json::from_str(text).ok())?,
        order: DeliveryOrder::new(row.flag(20)?, skip_after_attempts(row, 21)?),
        body: row.parsed(24, "the form of a body", |text| serde_json::from_str(text).ok())?,
        egress,
    };
    let mut destination = Destination {
        id,
        created_at: row.time(2)?,
        updated_at: row.time(3)?,
        settings,
        temporary,
        paused_reason: row.optional_text(14)?,
        held_until: row.optional_time(15)?,
        held_reason: row.optional_text(16)?,
        released_at: row.optional_time(23)?,
        breaker: row.parsed(18, "the state of a breaker", |text| serde_json::from_str(text).ok())?,
        left_homes: row.optionally_parsed(31, "homes", homes)?.unwrap_or_default(),
        keyed_at,
        unreadable: None,
    };
    if let Err(error) = opened {
        let reason = destination.paused_reason.replace(format!("Weir cannot read its secrets: {error}"));
        let paused = std::mem::replace(&mut destination.settings.paused, true);
        destination.unreadable = Some(Unreadable {
            sealed: stored.into(),
            egress: row.optional_text(EGRESS)?,
            paused,
            paused_reason: reason,
        });
    }
    Ok(destination)
}

/// The way out from its column, with its opened secrets.
fn egress<E: From<Corrupt>>(row: &impl Row<E>, column: usize, secrets: Option<&str>) -> Result<Egress, E> {
    Ok(Egress::from_stored(row.optional_text(column)?.as_deref(), secrets)
        .ok_or(Corrupt("the way out of a destination"))?)
}

/// The two columns that [`egress`] reads.
fn egress_values(egress: &Egress) -> Result<[Value<'static>; 2], serde_json::Error> {
    let (stored, secrets) = (egress.to_stored()?, egress.secrets_to_stored()?);
    Ok([stored, secrets].map(|text| Value::Text(text.map(Cow::Owned))))
}

fn min_interval<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<Option<MinInterval>, E> {
    let Some(millis) = row.optional_int(column)? else { return Ok(None) };
    let interval = u32::try_from(millis).ok().and_then(MinInterval::from_millis);
    Ok(Some(interval.ok_or(Corrupt("a minimum interval"))?))
}

fn homes(text: &str) -> Option<Vec<Home>> {
    let homes: Vec<String> = serde_json::from_str(text).ok()?;
    homes.iter().map(|home| home.parse().ok()).collect()
}

fn weight<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<u16, E> {
    let Some(weight) = row.optional_int(column)? else { return Ok(DEFAULT_WEIGHT) };
    Ok(u16::try_from(weight).map_err(|_| Corrupt("a weight"))?)
}

fn event_types(text: &str) -> Option<Vec<EventPattern>> {
    let patterns: Vec<String> = serde_json::from_str(text).ok()?;
    patterns.iter().map(|pattern| pattern.parse().ok()).collect()
}

fn skip_after_attempts<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<Option<NonZeroU32>, E> {
    let Some(attempts) = row.optional_int(column)? else { return Ok(None) };
    let attempts = u32::try_from(attempts).ok().and_then(NonZeroU32::new);
    Ok(Some(attempts.ok_or(Corrupt("a number of attempts"))?))
}

/// A value that a store binds to a parameter of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'v> {
    Int(Option<i64>),
    Text(Option<Cow<'v, str>>),
    Flag(bool),
}

/// The values of [`edited_columns!`](crate::edited_columns).
pub fn destination_values<'d>(
    destination: &'d Destination,
    keyring: &Keyring,
) -> Result<[Value<'d>; 29], serde_json::Error> {
    let int = |value: i64| Value::Int(Some(value));
    let optional_time = |time: Option<Timestamp>| Value::Int(time.map(Timestamp::as_nanos));
    fn text<'v>(value: impl Into<Cow<'v, str>>) -> Value<'v> {
        Value::Text(Some(value.into()))
    }
    fn optional_text(value: Option<&String>) -> Value<'_> {
        Value::Text(value.map(Into::into))
    }
    let settings = &destination.settings;
    let patterns: Vec<String> = settings.event_types.iter().map(ToString::to_string).collect();
    let (paused, paused_reason) = destination.stored_pause();
    let [mut egress, egress_secrets] = egress_values(&settings.egress)?;
    if let Some(unreadable) = &destination.unreadable {
        egress = Value::Text(unreadable.egress.as_deref().map(Cow::Borrowed));
    }
    let left_homes = Some(&destination.left_homes).filter(|homes| !homes.is_empty());
    let names = |homes: &Vec<Home>| homes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let left_homes = left_homes.map(|homes| serde_json::to_string(&names(homes))).transpose()?;
    let keyed = destination.keyed_at.map(|since| Keyed { since, limits: settings.key_limits.as_deref() });
    let is_grouped = settings.limit_group.is_some() || left_homes.is_some();
    // The stores bind the values by position, so the order is that of the columns.
    let mut values = [
        int(destination.updated_at.as_nanos()),
        text(&settings.name),
        text(settings.url.as_str()),
        text(serde_json::to_string(&patterns)?),
        text(limits_column(&settings.rate_limits, &destination.temporary, is_grouped, keyed)),
        int(settings.max_in_flight.into()),
        int(settings.timeout_ms.into()),
        text(serde_json::to_string(&settings.retry)?),
        text(serde_json::to_string(&settings.headers)?),
        text(settings.signing.to_stored()?),
        Value::Flag(paused),
        optional_text(paused_reason),
        optional_time(destination.held_until),
        optional_text(destination.held_reason.as_ref()),
        text(serde_json::to_string(&settings.breaker)?),
        text(serde_json::to_string(&destination.breaker)?),
        text(serde_json::to_string(&settings.alerts)?),
        Value::Flag(settings.order.is_by_key()),
        Value::Int(settings.order.skip_after_attempts().map(|attempts| attempts.get().into())),
        Value::Int(interval_code(&settings.rate_limits)),
        optional_time(destination.released_at),
        text(serde_json::to_string(&settings.body)?),
        egress,
        egress_secrets,
        Value::Text(settings.filter.as_ref().map(|filter| filter.json().to_string().into())),
        Value::Text(settings.adaptive.as_ref().map(serde_json::to_string).transpose()?.map(Cow::Owned)),
        Value::Text(settings.limit_group.map(|id| id.to_string().into())),
        Value::Int(Some(settings.weight.into()).filter(|weight| *weight != i64::from(DEFAULT_WEIGHT))),
        Value::Text(left_homes.map(Cow::Owned)),
    ];
    for (n, (column, at)) in SEALED.into_iter().enumerate() {
        let Value::Text(text) = &mut values[at - CONSTANT] else { continue };
        *text = match &destination.unreadable {
            // It stays as it is stored.
            Some(unreadable) => unreadable.sealed.get(n).cloned().flatten().map(Cow::Owned),
            None => text.take().map(|text| keyring.seal_text(column, destination.id.as_bytes(), text)),
        };
    }
    Ok(values)
}

/// From three columns: an instant, and the limits and the minimum interval that apply from then on.
pub fn limit_change<E: From<Corrupt>>(row: &impl Row<E>) -> Result<LimitChange, E> {
    let limits = row.parsed(1, "a rate limit", limits)?.with_min_interval(min_interval(row, 2)?);
    Ok(LimitChange { at: row.time(0)?, limits })
}

#[cfg(test)]
mod tests {
    use weir_sealing::key_of;

    use super::*;

    /// A row as a store has kept it.
    struct Kept(Vec<Value<'static>>);

    impl Row<Corrupt> for Kept {
        fn optional_int(&self, column: usize) -> Result<Option<i64>, Corrupt> {
            match &self.0[column] {
                Value::Int(value) => Ok(*value),
                _ => Err(Corrupt("a number")),
            }
        }

        fn optional_text(&self, column: usize) -> Result<Option<String>, Corrupt> {
            match &self.0[column] {
                Value::Text(text) => Ok(text.as_ref().map(ToString::to_string)),
                _ => Err(Corrupt("a text")),
            }
        }

        fn optional_bytes(&self, _: usize) -> Result<Option<&[u8]>, Corrupt> {
            Ok(Some(&[7; 16]))
        }

        fn flag(&self, column: usize) -> Result<bool, Corrupt> {
            Ok(self.0[column] == Value::Flag(true))
        }
    }

    fn owned(value: Value<'_>) -> Value<'static> {
        match value {
            Value::Text(text) => Value::Text(text.map(|text| Cow::Owned(text.into_owned()))),
            Value::Int(value) => Value::Int(value),
            Value::Flag(value) => Value::Flag(value),
        }
    }

    fn kept(destination: &Destination, keyring: &Keyring) -> Kept {
        let tenant = Value::Text(Some(destination.settings.tenant.clone().into()));
        let constant = [Value::Int(None), tenant, Value::Int(Some(destination.created_at.as_nanos()))];
        let edited = destination_values(destination, keyring).unwrap();
        Kept(constant.into_iter().chain(edited.into_iter().map(owned)).collect())
    }

    fn written() -> Destination {
        let json = |text: &str| Value::Text(Some(text.to_owned().into()));
        let signing = Signing::new(Secret::from_bytes(vec![9; 32]).unwrap()).to_stored().unwrap();
        let row = vec![
            Value::Int(None),
            json("acme"),
            Value::Int(Some(1)),
            Value::Int(Some(2)),
            json("orders"),
            json("https://receiver.example/"),
            json(r#"["order.*"]"#),
            json("[]"),
            Value::Int(Some(64)),
            Value::Int(Some(15_000)),
            json(&serde_json::to_string(&weir_core::retry::RetryPolicy::default()).unwrap()),
            json(r#"[["x-token","hush"]]"#),
            json(&signing),
            Value::Flag(false),
            Value::Text(None),
            Value::Int(None),
            Value::Text(None),
            json("null"),
            json(&serde_json::to_string(&weir_core::breaker::Breaker::default()).unwrap()),
            json(&serde_json::to_string(&weir_core::alert::AlertOverrides::default()).unwrap()),
            Value::Flag(false),
            Value::Int(None),
            Value::Int(None),
            Value::Int(None),
            json("{}"),
            json(r#"{"proxy":"http://weir@proxy.example:3128","ca":null,"client_certificate":null}"#),
            json(r#"{"proxy_password":"p","client_key":null}"#),
            Value::Text(None),
            json(r#"{"min_per_s":0.5,"max_per_s":null,"latency":true}"#),
            Value::Text(None),
            Value::Int(None),
            Value::Text(None),
        ];
        destination(&Kept(row), &Keyring::default()).unwrap()
    }

    fn keyring(byte: u8) -> Keyring {
        let keys = ["BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=", "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg="];
        keys[usize::from(byte)].parse().unwrap()
    }

    #[test]
    fn every_sealed_column_is_sealed_and_read_as_it_was_written() {
        let written = written();
        let sealed = kept(&written, &keyring(0));
        for (column, at) in SEALED {
            let stored = sealed.optional_text(at).unwrap().unwrap();
            assert_eq!(key_of(column, stored.as_bytes()), keyring(0).first_id(), "{}", column.name);
        }
        assert_eq!(destination(&sealed, &keyring(0)).unwrap(), written);
    }

    /// Its breaker may open, and the whole row is written then.
    #[test]
    fn a_destination_whose_key_is_missing_is_paused_in_memory_and_stays_as_it_is_stored() {
        let sealed = kept(&written(), &keyring(0));
        let unreadable = destination(&sealed, &keyring(1)).unwrap();
        assert!(unreadable.settings.paused && unreadable.settings.headers.is_empty());
        assert!(unreadable.paused_reason.as_ref().unwrap().contains("does not have"), "{unreadable:?}");
        assert_eq!(kept(&unreadable, &keyring(1)).0, sealed.0);
    }
}
