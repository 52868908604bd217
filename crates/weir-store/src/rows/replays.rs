//! Replays and their figures.

use weir_core::DeliveryState;

use super::{Corrupt, Row, codes};
use crate::{Replay, ReplayFigures, ReplayFilter, ReplayPhase};

/// The columns for [`replay`].
pub const REPLAY_COLUMNS: &str = "id, filter, phase, created_at, ended_at, total, delivered, failed, cancelled";

pub fn replay<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Replay, E> {
    Ok(Replay {
        id: row.replay_id(0)?,
        filter: row.parsed(1, "a filter", ReplayFilter::from_stored)?,
        phase: phase(row, 2)?,
        created_at: row.time(3)?,
        ended_at: row.optional_time(4)?,
        figures: ReplayFigures {
            total: row.count(5)?,
            delivered: row.count(6)?,
            failed: row.count(7)?,
            cancelled: row.count(8)?,
        },
    })
}

pub fn phase<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<ReplayPhase, E> {
    Ok(codes::phase(row.int(column)?).ok_or(Corrupt("a phase"))?)
}

/// From two columns: a state, and the number of a replay's deliveries in it.
pub fn figure<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DeliveryState, u64), E> {
    Ok((row.state(0)?, row.count(1)?))
}
