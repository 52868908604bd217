//! Reservations.

use weir_core::{LimitGroupId, ReservationId, reservation::Reservation};

use super::{Corrupt, Row};

/// The columns of [`reservation`], in statements as `reservation_columns`.
pub(crate) const RESERVATION_COLUMNS: &str = "id, group_id, cost, created_at, starts_at, ends_at, cancelled_at";

/// From the `RESERVATION_COLUMNS`.
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
