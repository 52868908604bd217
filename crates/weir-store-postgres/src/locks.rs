//! The locks of tenants, which keep fan-out and edits apart.
//!
//! An edit that changes who gets which events (creation, patch, pause, deletion) holds the lock of its tenant exclusively
//! until its commit; ingest holds it shared, from before it reads the tenant's destinations until its own commit. So an
//! event is fanned out either as before an edit and committed before it, or as after it; see ingest.rs for what follows.
//! They are advisory locks: in memory, and gone with the transaction.

use sqlx::AssertSqlSafe;

/// How many locks the tenants share, and the coalesce keys: a group of events takes no more, however many it is for.
const LOCKS: u64 = 256;
/// Tells these advisory locks from others in the database: "weir" in ASCII.
pub(crate) const LOCK_SPACE: i32 = 0x7765_6972;
/// And the locks of coalesce keys, which keep two groups of events with the same key one after the other: "weik".
pub(crate) const KEY_LOCK_SPACE: i32 = 0x7765_696b;

/// Tenants of one lock wait for each other's edits, and keys for each other's events, which is no harm. FNV-1a, because every process must choose alike.
fn lock_of(name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash % LOCKS
}

/// The locks of some tenants or keys, in the order in which everyone takes them.
pub(crate) fn locks_of<'t>(names: impl Iterator<Item = &'t str>) -> Vec<i32> {
    let mut locks: Vec<i32> = names.map(|name| lock_of(name) as i32).collect();
    locks.sort_unstable();
    locks.dedup();
    locks
}

/// Begins a transaction under the locks of some tenants, shared with other writers of events. Sent as one text, so that the
/// locks cost no round trip, and each statement after it sees what was committed before the locks were given.
pub(crate) fn begin_beside_edits<'t>(tenants: impl Iterator<Item = &'t str>) -> AssertSqlSafe<String> {
    let taken = locks_of(tenants)
        .into_iter()
        .map(|lock| format!("; SELECT pg_advisory_xact_lock_shared({LOCK_SPACE}, {lock})"));
    AssertSqlSafe(format!("BEGIN{}", taken.collect::<String>()))
}

/// Begins a transaction that no event of the tenant is fanned out beside.
pub(crate) fn begin_to_edit(tenant: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK_SPACE}, {})", lock_of(tenant)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_many_tenants_take_each_lock_once_and_in_order() {
        let tenants: Vec<String> = (0..10_000).map(|number| format!("tenant {number}")).collect();
        let AssertSqlSafe(begin) = begin_beside_edits(tenants.iter().map(String::as_str));
        let expected: String =
            (0..LOCKS).map(|lock| format!("; SELECT pg_advisory_xact_lock_shared({LOCK_SPACE}, {lock})")).collect();
        assert_eq!(begin, format!("BEGIN{expected}"));
    }

    #[test]
    fn the_lock_of_a_tenant_is_the_same_in_every_version() {
        assert_eq!(["default", "acme"].map(lock_of), [254, 15]);
    }
}
