//! Limit groups: their edits, and reads.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, postgres::PgRow};
use weir_core::{
    DestinationId, LimitGroupId, Timestamp,
    access::TenantScope,
    activity::Activity,
    limit_group::{Home, LimitGroup},
};
use weir_sealing::Keyring;
use weir_store::{
    Creation, GroupChange, GroupDeletion, LimitChange, LimitGroupEdits, LimitGroups, MAX_GROUPS, Membership, Page,
    PageRequest, SCANNED_AT_MOST, StoreResult, limit_steps, page_of_groups,
    rows::{self, limits_column},
    tenant_code,
};

use crate::{
    PostgresStore,
    activity::{record, record_creation},
    destination_edits::replace_limits,
    destination_rows::{LOCK_LIVE, UPDATE, write_destination},
    destinations::LIMIT_CHANGES,
    edit::change,
    limit_group_members::{lock, members, select},
    rows::{Read, column, uuid},
};

/// Those of now, and those that left later than an instant.
pub(crate) const MEMBERSHIPS: &str = "
SELECT destination_id, joined_at, left_at FROM limit_group_members WHERE group_id = $1 AND left_at IS NULL
UNION ALL
SELECT destination_id, joined_at, left_at FROM limit_group_members WHERE group_id = $1 AND left_at > $2";

/// Edits of groups wait for each other: of two groups with one name, or for the last room of a tenant, one is refused.
const LOCK_NAMES: &str = "LOCK TABLE limit_groups IN SHARE ROW EXCLUSIVE MODE";

const TAKEN: &str = "SELECT count(*) FROM limit_groups WHERE tenant = $1 AND name = $2 AND id <> $3";

const OF_TENANT: &str = "SELECT count(*) FROM limit_groups WHERE tenant = $1";

const INSERT: &str = "
INSERT INTO limit_groups (tenant, name, rate_limits, max_in_flight, created_at, updated_at, id)
VALUES ($1, $2, $3, $4, $5, $6, $7)";

const UPDATE_GROUP: &str = "
UPDATE limit_groups SET tenant = $1, name = $2, rate_limits = $3, max_in_flight = $4, created_at = $5, updated_at = $6
WHERE id = $7";

fn read(row: &PgRow) -> Read<Arc<LimitGroup>> {
    rows::limit_group(row).map(Arc::new)
}

#[async_trait]
impl LimitGroups for PostgresStore {
    async fn limit_groups(&self, ids: &[LimitGroupId]) -> StoreResult<Vec<Option<Arc<LimitGroup>>>> {
        let found = sqlx::query(select("WHERE id = ANY($1)")).bind(column(ids, |id| uuid(id.as_bytes())));
        let found: HashMap<_, _> = self.read(found, read).await?.into_iter().map(|group| (group.id, group)).collect();
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn group_senders(&self, id: LimitGroupId, since: Timestamp) -> StoreResult<Vec<DestinationId>> {
        let all: BTreeSet<_> = self.memberships(id, since).await?.into_iter().map(|one| one.destination_id).collect();
        Ok(all.into_iter().collect())
    }

    async fn homes_left(&self, id: DestinationId, updated_at: Timestamp, closed: &[Home]) -> StoreResult<()> {
        self.edit(|connection| change(forget(connection, id, updated_at, closed, &self.shared.keyring))).await
    }
}

#[async_trait]
impl LimitGroupEdits for PostgresStore {
    async fn set_limit_group(
        &self,
        expected: Option<Timestamp>,
        group: LimitGroup,
        creation: Creation,
    ) -> StoreResult<GroupChange> {
        self.edit(|connection| change(set(connection, expected, &group, &creation))).await
    }

    async fn delete_limit_group(
        &self,
        id: LimitGroupId,
        expected: Timestamp,
        activity: Activity,
    ) -> StoreResult<GroupDeletion> {
        self.edit(|connection| change(delete(connection, id, expected, &activity))).await
    }

    async fn limit_group_named(&self, tenant: Option<&str>, name: &str) -> StoreResult<Option<Arc<LimitGroup>>> {
        let named = sqlx::query(select("WHERE tenant = $1 AND name = $2")).bind(tenant_code(tenant)).bind(name);
        Ok(self.read(named, read).await?.pop())
    }

    async fn list_limit_groups(&self, tenants: &TenantScope, page: PageRequest) -> StoreResult<Page<Arc<LimitGroup>>> {
        let list = sqlx::query(select("WHERE $1::uuid IS NULL OR id < $1 ORDER BY id DESC LIMIT $2"));
        let list = list.bind(page.before.as_ref().map(uuid)).bind(i64::from(SCANNED_AT_MOST));
        Ok(page_of_groups(self.read(list, read).await?, tenants, page))
    }

    async fn memberships(&self, id: LimitGroupId, since: Timestamp) -> StoreResult<Vec<Membership>> {
        let query = sqlx::query(MEMBERSHIPS).bind(uuid(id.as_bytes())).bind(since.as_nanos());
        self.read(query, rows::membership).await
    }

    async fn limit_group_changes(&self, id: LimitGroupId) -> StoreResult<Vec<LimitChange>> {
        self.read(sqlx::query(LIMIT_CHANGES).bind(uuid(id.as_bytes())), rows::limit_change).await
    }

    async fn limit_groups_edited_after(
        &self,
        (at, id): (Timestamp, LimitGroupId),
        limit: u32,
    ) -> StoreResult<Vec<Arc<LimitGroup>>> {
        let edited = select("WHERE (updated_at, id) > ($1, $2) ORDER BY updated_at, id LIMIT $3");
        let edited = sqlx::query(edited).bind(at.as_nanos()).bind(uuid(id.as_bytes())).bind(i64::from(limit));
        self.read(edited, read).await
    }
}

async fn forget(
    connection: &mut PgConnection,
    id: DestinationId,
    updated_at: Timestamp,
    closed: &[Home],
    keyring: &Keyring,
) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let current = sqlx::query(LOCK_LIVE).bind(uuid(id.as_bytes())).fetch_optional(&mut *transaction).await?;
    let current = current.as_ref().map(|row| rows::destination(row, keyring)).transpose()?;
    if let Some(mut edited) = current.filter(|current| current.updated_at == updated_at) {
        edited.left_homes.retain(|home| !closed.contains(home));
        write_destination(UPDATE, &edited, keyring)?.execute(&mut *transaction).await?;
    }
    transaction.commit().await
}

async fn set(
    connection: &mut PgConnection,
    expected: Option<Timestamp>,
    group: &LimitGroup,
    creation: &Creation,
) -> Result<GroupChange, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query(LOCK_NAMES).execute(&mut *transaction).await?;
    let (id, tenant) = (uuid(group.id.as_bytes()), tenant_code(group.tenant.as_deref()));
    let before = lock(&mut transaction, group.id).await?;
    let taken = sqlx::query_scalar(TAKEN).bind(tenant).bind(&group.name).bind(id);
    let taken: i64 = taken.fetch_one(&mut *transaction).await?;
    let of_tenant: i64 = sqlx::query_scalar(OF_TENANT).bind(tenant).fetch_one(&mut *transaction).await?;
    let repeated = record_creation(&mut transaction, creation).await?;
    let refusal = match repeated {
        Some(answer) => Some(GroupChange::Before(answer)),
        _ if before.as_ref().map(|before| before.updated_at) != expected => Some(GroupChange::Outdated),
        _ if taken > 0 => Some(GroupChange::Taken),
        _ if before.is_none() && of_tenant.unsigned_abs() >= MAX_GROUPS => Some(GroupChange::Full),
        None => None,
    };
    if let Some(refusal) = refusal {
        transaction.rollback().await?;
        return Ok(refusal);
    }
    sqlx::query(if before.is_none() { INSERT } else { UPDATE_GROUP })
        .bind(tenant)
        .bind(&group.name)
        .bind(limits_column(&group.rate_limits, &group.temporary, false, None))
        .bind(group.max_in_flight.map(i64::from))
        .bind(group.created_at.as_nanos())
        .bind(group.updated_at.as_nanos())
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    let at = group.updated_at;
    let known = before.map_or_else(Vec::new, |before| before.limits_from(at));
    if let Some(steps) = limit_steps(&known, group.limits_from(at)) {
        replace_limits(&mut transaction, group.id.as_bytes(), at, steps).await?;
    }
    transaction.commit().await?;
    Ok(GroupChange::Made(Arc::new(group.clone())))
}

async fn delete(
    connection: &mut PgConnection,
    id: LimitGroupId,
    expected: Timestamp,
    activity: &Activity,
) -> Result<GroupDeletion, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    // In the order of an edit, which locks the table before the row.
    sqlx::query(LOCK_NAMES).execute(&mut *transaction).await?;
    let current = lock(&mut transaction, id).await?;
    let refusal = match current {
        Some(current) if current.updated_at == expected => {
            (members(&mut transaction, id).await? > 0).then_some(GroupDeletion::HasMembers)
        }
        _ => Some(GroupDeletion::Outdated),
    };
    if let Some(refusal) = refusal {
        transaction.rollback().await?;
        return Ok(refusal);
    }
    sqlx::query("DELETE FROM limit_groups WHERE id = $1").bind(uuid(id.as_bytes())).execute(&mut *transaction).await?;
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    Ok(GroupDeletion::Deleted)
}
