//! Limit groups: budgets that several destinations share, and which destinations are or were in them.
//!
//! A destination joins and leaves a group in the transaction that creates, edits or deletes it. The store compares again
//! what the API has checked ([`joins`]): an edit that does not fit the group any more is not applied.

use std::sync::Arc;

use async_trait::async_trait;
use weir_core::{
    DestinationId, LimitGroupId, Timestamp,
    access::TenantScope,
    activity::Activity,
    destination::{ALL_TENANTS, Destination},
    limit_group::{Home, LimitGroup, MAX_MEMBERS},
};

use crate::{Creation, KeyedAnswer, LimitChange, Page, PageRequest, SCANNED_AT_MOST, StoreResult};

/// The most groups of a tenant, and of those for all tenants.
pub const MAX_GROUPS: u64 = 1_000;

/// What became of a new group, or of an edit of one.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupChange {
    Made(Arc<LimitGroup>),
    /// The answer to an earlier request with the same idempotency key. Nothing was changed now.
    Before(KeyedAnswer),
    /// Another request has edited or deleted it meanwhile.
    Outdated,
    /// Another group of the tenant has the name.
    Taken,
    /// The tenant has [`MAX_GROUPS`].
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupDeletion {
    Deleted,
    /// Another request has edited or deleted it meanwhile.
    Outdated,
    HasMembers,
}

/// When a destination was in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    pub destination_id: DestinationId,
    pub joined_at: Timestamp,
    /// `None`: it is in the group.
    pub left_at: Option<Timestamp>,
}

/// Whether a destination may join a group of this tenant that has so many members.
pub fn joins(destination: &Destination, tenant: Option<&str>, members: u64) -> bool {
    members < MAX_MEMBERS as u64 && tenant.is_none_or(|tenant| tenant == destination.settings.tenant)
}

/// The tenant of a group as the tables and paths have it.
pub fn tenant_code(tenant: Option<&str>) -> &str {
    tenant.unwrap_or(ALL_TENANTS)
}

/// For the engine.
#[async_trait]
pub trait LimitGroups: Send + Sync {
    /// The current values of these groups, in the same order; `None` for one that does not exist. Sees every committed
    /// edit.
    async fn limit_groups(&self, ids: &[LimitGroupId]) -> StoreResult<Vec<Option<Arc<LimitGroup>>>>;

    /// The destinations whose sends may count in a window of the group that begins at `since` or later: all that were
    /// members at any time since then, deleted ones included. Each is there once.
    async fn group_senders(&self, id: LimitGroupId, since: Timestamp) -> StoreResult<Vec<DestinationId>>;

    /// Forgets homes that are closed: no permit of them gets a slot any more. Only if the destination still has this
    /// `updated_at`, because a later edit may have left one of them again. Does not change it.
    async fn homes_left(&self, id: DestinationId, updated_at: Timestamp, closed: &[Home]) -> StoreResult<()>;
}

/// For the API.
#[async_trait]
pub trait LimitGroupEdits: LimitGroups {
    /// Creates a group, or replaces the version of it that has `expected` as its `updated_at`, and records changed limits.
    /// Its tenant stays.
    async fn set_limit_group(
        &self,
        expected: Option<Timestamp>,
        group: LimitGroup,
        creation: Creation,
    ) -> StoreResult<GroupChange>;

    /// Deletes this version of a group if it has no members.
    async fn delete_limit_group(
        &self,
        id: LimitGroupId,
        expected: Timestamp,
        activity: Activity,
    ) -> StoreResult<GroupDeletion>;

    /// Found by an index. `None`: for all tenants.
    async fn limit_group_named(&self, tenant: Option<&str>, name: &str) -> StoreResult<Option<Arc<LimitGroup>>>;

    /// Newest first. A page may end before it is full and still have a next one.
    async fn list_limit_groups(&self, tenants: &TenantScope, page: PageRequest) -> StoreResult<Page<Arc<LimitGroup>>>;

    /// The destinations that are in a group, and those that left it after `since`.
    async fn memberships(&self, id: LimitGroupId, since: Timestamp) -> StoreResult<Vec<Membership>>;

    /// Every change of a group's limits, oldest first, including the initial limits.
    async fn limit_group_changes(&self, id: LimitGroupId) -> StoreResult<Vec<LimitChange>>;

    /// At most `limit` groups whose last edit is after this one, in the order of their edits.
    async fn limit_groups_edited_after(
        &self,
        after: (Timestamp, LimitGroupId),
        limit: u32,
    ) -> StoreResult<Vec<Arc<LimitGroup>>>;
}

/// The page of a window of [`SCANNED_AT_MOST`] groups.
pub fn page_of_groups(
    mut window: Vec<Arc<LimitGroup>>,
    tenants: &TenantScope,
    page: PageRequest,
) -> Page<Arc<LimitGroup>> {
    let id = |group: &Arc<LimitGroup>| *group.id.as_bytes();
    let end = window.last().filter(|_| window.len() == SCANNED_AT_MOST as usize).map(id);
    window.retain(|group| tenants.includes(tenant_code(group.tenant.as_deref())));
    let page = Page::of(window, page, id);
    Page { next: page.next.or(end), ..page }
}
