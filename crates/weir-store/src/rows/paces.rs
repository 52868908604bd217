//! Adaptive paces.

use weir_core::{
    DestinationId,
    adaptive::{Change, Status},
};

use super::{Corrupt, Row};
use crate::SavedPace;

/// From two columns: when it was saved, and its state. `None`: another version wrote it.
pub fn saved_pace<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Option<SavedPace>, E> {
    let saved_at = row.time(0)?;
    Ok(serde_json::from_str(&row.text(1)?).ok().map(|state| SavedPace { saved_at, state }))
}

/// From two columns: the destination and the status of its pace. `None`: another version wrote it.
pub fn pace_status<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Option<(DestinationId, Status)>, E> {
    let id = row.destination_id(0)?;
    Ok(serde_json::from_str(&row.text(1)?).ok().map(|status| (id, status)))
}

/// From two columns: the destination, and a change of its pace. `None`: another version wrote it.
pub fn pace_change<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Option<(DestinationId, Change)>, E> {
    let id = row.destination_id(0)?;
    Ok(serde_json::from_str(&row.text(1)?).ok().map(|change| (id, change)))
}
