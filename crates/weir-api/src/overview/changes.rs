//! What changed between two samples: edits, breakers and replays.
//!
//! Comparing samples finds every change, whichever process made it, without messages between processes.

use std::collections::HashMap;

use weir_core::{DestinationId, ReplayId, Timestamp, access::TenantScope, breaker::BreakerState};

use super::row::Row;

/// A change, with what a viewer must see to be told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) at: Timestamp,
    /// Whose data it is about: a viewer must see all of it.
    pub(crate) scope: TenantScope,
    pub(crate) kind: ChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Destination { id: DestinationId, change: DestinationChange },
    Breaker { id: DestinationId, state: BreakerState, reason: Option<String> },
    Replay { id: ReplayId, is_open: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DestinationChange {
    Created,
    Edited,
    Deleted,
}

/// The open replays with the tenants whose deliveries they send.
pub(super) type OpenReplays = HashMap<ReplayId, TenantScope>;

/// What one sample knows, for the comparison with the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) rows: &'a [Row],
    pub(super) replays: &'a OpenReplays,
    pub(super) at: Timestamp,
}

pub(super) fn between(before: Known<'_>, after: Known<'_>) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut old: HashMap<DestinationId, &Row> = before.rows.iter().map(|row| (row.destination.id, row)).collect();
    for row in after.rows {
        let (id, scope) = (row.destination.id, scope_of(row));
        let mut add = |at, kind| changes.push(Change { at, scope: scope.clone(), kind });
        let Some(old) = old.remove(&id) else {
            add(row.destination.created_at, ChangeKind::Destination { id, change: DestinationChange::Created });
            continue;
        };
        // The breaker is named by its own change: its edits change nothing that people have set.
        let (before_state, state) = (old.destination.breaker.state(before.at), row.destination.breaker.state(after.at));
        if before_state != state {
            let reason = row.destination.breaker.reason().map(str::to_owned);
            add(after.at, ChangeKind::Breaker { id, state, reason });
        }
        let is_edited = old.destination.settings != row.destination.settings;
        if is_edited {
            add(row.destination.updated_at, ChangeKind::Destination { id, change: DestinationChange::Edited });
        }
    }
    for (id, row) in old {
        let kind = ChangeKind::Destination { id, change: DestinationChange::Deleted };
        changes.push(Change { at: after.at, scope: scope_of(row), kind });
    }
    let mut replay = |id: &ReplayId, scope: &TenantScope, is_open| {
        let kind = ChangeKind::Replay { id: *id, is_open };
        changes.push(Change { at: after.at, scope: scope.clone(), kind });
    };
    for (id, scope) in after.replays.iter().filter(|(id, _)| !before.replays.contains_key(id)) {
        replay(id, scope, true);
    }
    for (id, scope) in before.replays.iter().filter(|(id, _)| !after.replays.contains_key(id)) {
        replay(id, scope, false);
    }
    changes
}

fn scope_of(row: &Row) -> TenantScope {
    TenantScope::one(&row.destination.settings.tenant)
}
