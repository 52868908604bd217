//! The activity log, and the answers of idempotency keys.

use std::borrow::Cow;

use serde_json::Value as Json;
use weir_core::{
    ActivityId, ApiKeyId, DestinationId,
    access::Actor,
    activity::{Activity, Origin, Subject},
};

use super::{Corrupt, Row, Value};
use crate::KeyedAnswer;

/// The columns for [`activity`], in the order of [`activity_ids`] and [`activity_values`].
pub const ACTIVITY_COLUMNS: &str = "id, destination_id, key_id, at, action, actor, tenant, subject_kind, subject_id, \
     subject_name, before, after, request_id";

/// The first columns: ids.
pub fn activity_ids(activity: &Activity) -> [Option<&[u8; 16]>; 3] {
    [
        Some(activity.id.as_bytes()),
        activity.destination_id.as_ref().map(DestinationId::as_bytes),
        activity.origin.actor.key_id().map(ApiKeyId::as_bytes),
    ]
}

/// The other columns.
pub fn activity_values(activity: &Activity) -> [Value<'_>; 10] {
    fn text(text: Option<&str>) -> Value<'_> {
        Value::Text(text.map(Cow::Borrowed))
    }
    let json = |json: &Option<Json>| Value::Text(json.as_ref().map(|json| Cow::Owned(json.to_string())));
    let subject = activity.subject.as_ref();
    [
        Value::Int(Some(activity.at.as_nanos())),
        text(Some(activity.action.as_str())),
        text(Some(activity.origin.actor.name())),
        text(activity.tenant.as_deref()),
        text(subject.map(|subject| subject.kind.as_str())),
        text(subject.map(|subject| subject.id.as_str())),
        text(subject.and_then(|subject| subject.name.as_deref())),
        json(&activity.before),
        json(&activity.after),
        text(activity.origin.request_id.as_deref()),
    ]
}

pub fn activity<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Activity, E> {
    let json = |column| row.optionally_parsed(column, "a change", |text| serde_json::from_str(text).ok());
    let key_id = row.optional_id(2)?.map(ApiKeyId::from_bytes);
    let actor = Actor::stored(row.text(5)?, key_id).ok_or(Corrupt("an actor"))?;
    let subject = match (row.optional_text(7)?, row.optional_text(8)?) {
        (Some(kind), Some(id)) => Some(Subject { kind, id, name: row.optional_text(9)? }),
        _ => None,
    };
    Ok(Activity {
        id: ActivityId::from_bytes(row.id(0)?),
        destination_id: row.optional_id(1)?.map(DestinationId::from_bytes),
        at: row.time(3)?,
        action: row.parsed(4, "an action", |name| name.parse().ok())?,
        origin: Origin { actor, request_id: row.optional_text(12)? },
        tenant: row.optional_text(6)?,
        subject,
        before: json(10)?,
        after: json(11)?,
    })
}

/// The columns for [`keyed_answer`].
pub const ANSWER_COLUMNS: &str = "key, request, answer, at";

pub fn keyed_answer<E: From<Corrupt>>(row: &impl Row<E>) -> Result<KeyedAnswer, E> {
    let digest = |column| -> Result<[u8; 32], E> {
        let bytes = row.optional_bytes(column)?.and_then(|bytes| bytes.try_into().ok());
        Ok(bytes.ok_or(Corrupt("a digest"))?)
    };
    Ok(KeyedAnswer { key: digest(0)?, request: digest(1)?, answer: row.text(2)?, at: row.time(3)? })
}
