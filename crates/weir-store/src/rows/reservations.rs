//! Reservations.

use weir_core::{LimitGroupId, ReservationId, reservation::Reservation};

use super::{Corrupt, Row};

/// From seven columns, in the order of the table.
pub fn reservation<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Reservation, E> {
    Ok(Reservation {
        id: ReservationId::from_bytes(row.id(0)?),
        group: LimitGroupId::from_bytes(row.id(1)?),
        cost: row.small(2)?,
        created_at: row.time(3)?,
        starts_at: row.time(4)?,
        ends_at: row.time(5)?,
        cancelled_at: row.optional_time(6)?,
    })
}
