//! The rows of the catalogue of event types.

use weir_core::event_types::EventType;

use super::{Corrupt, Row};
use crate::{CatalogueTotals, KnownEventType};

pub const EVENT_TYPE_COLUMNS: &str = "name, version, created_at, updated_at, description, example, schema";

pub fn event_type<E: From<Corrupt>>(row: &impl Row<E>) -> Result<EventType, E> {
    let json = |column, what| row.optionally_parsed(column, what, |text| serde_json::from_str(text).ok());
    Ok(EventType {
        name: row.text(0)?,
        version: row.count(1)?,
        created_at: row.time(2)?,
        updated_at: row.time(3)?,
        description: row.text(4)?,
        example: json(5, "the example of an event type")?,
        schema: json(6, "the schema of an event type")?,
    })
}

/// From three columns: the name, the version and the schema.
pub fn known_event_type<E: From<Corrupt>>(row: &impl Row<E>) -> Result<KnownEventType, E> {
    Ok(KnownEventType { name: row.text(0)?, version: row.count(1)?, schema: row.optional_text(2)? })
}

/// From three columns: the version, the types and the bytes of their schemas.
pub fn catalogue_totals<E: From<Corrupt>>(row: &impl Row<E>) -> Result<CatalogueTotals, E> {
    Ok(CatalogueTotals { version: row.count(0)?, types: row.count(1)?, schema_bytes: row.count(2)? })
}

/// From two columns: the version of a type, and the bytes of its schema.
pub fn event_type_size<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(u64, u64), E> {
    Ok((row.count(0)?, row.count(1)?))
}
