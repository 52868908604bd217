//! Limit groups, and which destinations are in them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    Destination, DestinationId, LimitGroupId, Timestamp,
    access::TenantScope,
    activity::Activity,
    limit_group::{Home, LimitGroup},
};
use weir_store::{
    Created, Creation, GroupChange, GroupDeletion, LimitChange, LimitGroupEdits, LimitGroups, MAX_GROUPS, Membership,
    Page, PageRequest, SCANNED_AT_MOST, StoreResult, joins, limit_steps, page_of_groups,
    rows::{self, Corrupt, LIMIT_GROUP_COLUMNS, Row as _, limits_column},
    tenant_code,
};

use crate::{
    SqliteStore,
    destinations::LIMIT_CHANGES,
    edit::Durable,
    error::Result,
    sql::{Batch, MAX_ROWS, Values, execute, fetch, query, values},
    transaction::Transaction,
};

static BY_ID: Batch = Batch::new(
    "SELECT id, tenant, name, rate_limits, max_in_flight, created_at, updated_at FROM limit_groups WHERE id IN (",
    "?",
    ")",
);

/// Those of now, and those that left later than an instant.
pub(crate) const MEMBERSHIPS: &str = "
SELECT destination_id, joined_at, left_at FROM limit_group_members INDEXED BY limit_group_members_present
WHERE group_id = ?1 AND left_at IS NULL
UNION ALL
SELECT destination_id, joined_at, left_at FROM limit_group_members INDEXED BY limit_group_members_left
WHERE group_id = ?1 AND left_at > ?2";

pub(crate) const MEMBERS: &str = "SELECT count(*) FROM limit_group_members INDEXED BY limit_group_members_present WHERE group_id = ? AND left_at IS NULL";

const JOIN: &str = "INSERT INTO limit_group_members (group_id, destination_id, joined_at) VALUES (?, ?, ?)";

const LEAVE: &str =
    "UPDATE limit_group_members SET left_at = ? WHERE group_id = ? AND destination_id = ? AND left_at IS NULL";

const INSERT: &str = "
INSERT INTO limit_groups (tenant, name, rate_limits, max_in_flight, created_at, updated_at, id)
VALUES (?, ?, ?, ?, ?, ?, ?)";

const UPDATE: &str = "
UPDATE limit_groups SET tenant = ?, name = ?, rate_limits = ?, max_in_flight = ?, created_at = ?, updated_at = ?
WHERE id = ?";

const OF_TENANT: &str = "SELECT count(*) FROM limit_groups WHERE tenant = ?";

fn read(row: &SqliteRow) -> Result<Arc<LimitGroup>> {
    rows::limit_group(row).map(Arc::new)
}

#[async_trait]
impl LimitGroups for SqliteStore {
    async fn limit_groups(&self, ids: &[LimitGroupId]) -> StoreResult<Vec<Option<Arc<LimitGroup>>>> {
        let mut found = HashMap::new();
        for part in ids.chunks(MAX_ROWS) {
            let (sql, values) = BY_ID.of(Values::default(), part, |values, id| {
                values.bind(id.as_bytes());
            });
            found.extend(fetch(&self.readers, sql, values, read).await?.into_iter().map(|one| (one.id, one)));
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn group_senders(&self, id: LimitGroupId, since: Timestamp) -> StoreResult<Vec<DestinationId>> {
        let all: BTreeSet<_> = self.memberships(id, since).await?.into_iter().map(|one| one.destination_id).collect();
        Ok(all.into_iter().collect())
    }

    async fn homes_left(&self, id: DestinationId, updated_at: Timestamp, closed: &[Home]) -> StoreResult<()> {
        let closed = closed.to_vec();
        self.edit(Durable::Yes, move |transaction| {
            let Some(current) = transaction.destinations.get(id).filter(|found| found.updated_at == updated_at) else {
                return Ok(());
            };
            let mut edited = (*current).clone();
            edited.left_homes.retain(|home| !closed.contains(home));
            transaction.update_destination(edited).map(drop)
        })
        .await
    }
}

#[async_trait]
impl LimitGroupEdits for SqliteStore {
    async fn set_limit_group(
        &self,
        expected: Option<Timestamp>,
        group: LimitGroup,
        creation: Creation,
    ) -> StoreResult<GroupChange> {
        self.edit(Durable::Yes, move |transaction| {
            if let Some(refusal) = transaction.refuses_limit_group(expected, &group)? {
                return Ok(transaction.stored_answer(&creation)?.map_or(refusal, GroupChange::Before));
            }
            match transaction.create_once(&creation, |this| this.set_limit_group(&group))? {
                Created::New(made) => Ok(GroupChange::Made(made)),
                Created::Before(answer) => Ok(GroupChange::Before(answer)),
                Created::Full => Ok(GroupChange::Full),
            }
        })
        .await
    }

    async fn delete_limit_group(
        &self,
        id: LimitGroupId,
        expected: Timestamp,
        activity: Activity,
    ) -> StoreResult<GroupDeletion> {
        self.edit(Durable::Yes, move |transaction| {
            let deletion = transaction.delete_limit_group(id, expected)?;
            transaction.recorded(deletion, |deletion| *deletion == GroupDeletion::Deleted, &activity)
        })
        .await
    }

    async fn limit_group_named(&self, tenant: Option<&str>, name: &str) -> StoreResult<Option<Arc<LimitGroup>>> {
        let sql = format!("SELECT {LIMIT_GROUP_COLUMNS} FROM limit_groups WHERE tenant = ? AND name = ?");
        Ok(fetch(&self.readers, sql, values![tenant_code(tenant), name], read).await?.pop())
    }

    async fn list_limit_groups(&self, tenants: &TenantScope, page: PageRequest) -> StoreResult<Page<Arc<LimitGroup>>> {
        let values = values![page.before.unwrap_or([0xff; 16]), SCANNED_AT_MOST];
        let sql = format!("SELECT {LIMIT_GROUP_COLUMNS} FROM limit_groups WHERE id < ? ORDER BY id DESC LIMIT +?");
        Ok(page_of_groups(fetch(&self.readers, sql, values, read).await?, tenants, page))
    }

    async fn memberships(&self, id: LimitGroupId, since: Timestamp) -> StoreResult<Vec<Membership>> {
        Ok(fetch(&self.readers, MEMBERSHIPS, values![id.as_bytes(), since], rows::membership).await?)
    }

    async fn limit_group_changes(&self, id: LimitGroupId) -> StoreResult<Vec<LimitChange>> {
        Ok(fetch(&self.readers, LIMIT_CHANGES, values![id.as_bytes()], rows::limit_change).await?)
    }

    async fn limit_groups_edited_after(
        &self,
        after: (Timestamp, LimitGroupId),
        limit: u32,
    ) -> StoreResult<Vec<Arc<LimitGroup>>> {
        let values = values![after.0, after.1.as_bytes(), limit];
        let sql = format!(
            "SELECT {LIMIT_GROUP_COLUMNS} FROM limit_groups WHERE (updated_at, id) > (?, ?)
             ORDER BY updated_at, id LIMIT +?"
        );
        Ok(fetch(&self.readers, sql, values, read).await?)
    }
}

impl Transaction<'_, '_> {
    fn limit_group(&self, id: LimitGroupId) -> Result<Option<LimitGroup>> {
        let (sql, id) = (BY_ID.sql(1), *id.as_bytes());
        Ok(query(self.connection, &sql, &values![&id], |row| rows::limit_group(row))?.pop())
    }

    fn counted(&self, sql: &str, values: &Values<'_>) -> Result<u64> {
        Ok(query(self.connection, sql, values, |row| row.count(0))?.pop().ok_or(Corrupt("a count"))?)
    }

    /// Whether a destination that is not in its group yet may join it.
    pub(crate) fn may_join(&self, destination: &Destination) -> Result<bool> {
        let Some(id) = destination.settings.limit_group else { return Ok(true) };
        let Some(group) = self.limit_group(id)? else { return Ok(false) };
        let members = self.counted(MEMBERS, &values![id.as_bytes()])?;
        Ok(joins(destination, group.tenant.as_deref(), members))
    }

    pub(crate) fn join(&self, destination: &Destination, at: Timestamp) -> Result<()> {
        let Some(id) = destination.settings.limit_group else { return Ok(()) };
        execute(self.connection, JOIN, &values![id.as_bytes(), destination.id.as_bytes(), at]).map(drop)
    }

    pub(crate) fn leave(&self, destination: &Destination, at: Timestamp) -> Result<()> {
        let Some(id) = destination.settings.limit_group else { return Ok(()) };
        execute(self.connection, LEAVE, &values![at, id.as_bytes(), destination.id.as_bytes()]).map(drop)
    }

    /// Why a new group, or an edit of one, does not apply.
    fn refuses_limit_group(&self, expected: Option<Timestamp>, group: &LimitGroup) -> Result<Option<GroupChange>> {
        let before = self.limit_group(group.id)?;
        if before.map(|before| before.updated_at) != expected {
            return Ok(Some(GroupChange::Outdated));
        }
        let tenant = tenant_code(group.tenant.as_deref());
        let taken = "SELECT count(*) FROM limit_groups WHERE tenant = ? AND name = ? AND id <> ?";
        if self.counted(taken, &values![tenant, &group.name, group.id.as_bytes()])? > 0 {
            return Ok(Some(GroupChange::Taken));
        }
        let is_full = expected.is_none() && self.counted(OF_TENANT, &values![tenant])? >= MAX_GROUPS;
        Ok(is_full.then_some(GroupChange::Full))
    }

    fn set_limit_group(&mut self, group: &LimitGroup) -> Result<Arc<LimitGroup>> {
        let before = self.limit_group(group.id)?;
        let mut values = Values::default();
        values.bind(tenant_code(group.tenant.as_deref())).bind(&group.name);
        values.bind(limits_column(&group.rate_limits, &group.temporary, false, None));
        values.bind(group.max_in_flight.map(i64::from));
        values.bind(group.created_at).bind(group.updated_at).bind(group.id.as_bytes());
        execute(self.connection, if before.is_none() { INSERT } else { UPDATE }, &values)?;
        let at = group.updated_at;
        let known = before.map_or_else(Vec::new, |before| before.limits_from(at));
        if let Some(steps) = limit_steps(&known, group.limits_from(at)) {
            self.replace_limits(group.id.as_bytes(), at, &steps)?;
        }
        Ok(Arc::new(group.clone()))
    }

    fn delete_limit_group(&mut self, id: LimitGroupId, expected: Timestamp) -> Result<GroupDeletion> {
        if self.limit_group(id)?.is_none_or(|current| current.updated_at != expected) {
            return Ok(GroupDeletion::Outdated);
        }
        if self.counted(MEMBERS, &values![id.as_bytes()])? > 0 {
            return Ok(GroupDeletion::HasMembers);
        }
        execute(self.connection, "DELETE FROM limit_groups WHERE id = ?", &values![id.as_bytes()])?;
        Ok(GroupDeletion::Deleted)
    }
}
