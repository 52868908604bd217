//! Adaptive paces.

use weir_core::{DestinationId, adaptive::Change};

use super::{Corrupt, Row};
use crate::PaceCopy;

/// From three columns: the destination, when the copy was saved, and its state.
pub fn pace_copy<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DestinationId, PaceCopy), E> {
    Ok((row.destination_id(0)?, PaceCopy { saved_at: row.time(1)?, json: row.text(2)? }))
}

/// From two columns: the destination, and a change of its pace. `None`: another version wrote it.
pub fn pace_change<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Option<(DestinationId, Change)>, E> {
    let id = row.destination_id(0)?;
    Ok(serde_json::from_str(&row.text(1)?).ok().map(|change| (id, change)))
}
