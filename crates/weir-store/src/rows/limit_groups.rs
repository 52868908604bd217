//! Limit groups and their members.

use weir_core::{LimitGroupId, destination::ALL_TENANTS, limit_group::LimitGroup};

use super::{
    Corrupt, Row,
    temporary::{Limits, read_limits_column},
};
use crate::Membership;

pub const LIMIT_GROUP_COLUMNS: &str = "id, tenant, name, rate_limits, max_in_flight, created_at, updated_at";

pub fn limit_group<E: From<Corrupt>>(row: &impl Row<E>) -> Result<LimitGroup, E> {
    let Limits { below, temporary, .. } = row.parsed(3, "a rate limit", read_limits_column)?;
    Ok(LimitGroup {
        id: LimitGroupId::from_bytes(row.id(0)?),
        tenant: Some(row.text(1)?).filter(|tenant| tenant != ALL_TENANTS),
        name: row.text(2)?,
        rate_limits: below,
        max_in_flight: row.optional_int(4)?.map(|_| row.small(4)).transpose()?,
        temporary,
        created_at: row.time(5)?,
        updated_at: row.time(6)?,
        keys_of: None,
    })
}

/// From three columns.
pub fn membership<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Membership, E> {
    Ok(Membership { destination_id: row.destination_id(0)?, joined_at: row.time(1)?, left_at: row.optional_time(2)? })
}
