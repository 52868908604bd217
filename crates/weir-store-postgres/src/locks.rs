//! The locks of tenants, which separate fan-out from edits.
//!
//! An edit that changes which destinations get which events (creation, patch, pause, deletion) holds the lock of its
//! tenant exclusively until its commit. Ingest holds the lock shared, from before it reads the tenant's destinations
//! until its own commit. So an event is fanned out either by the destinations from before the edit, and committed
//! before it, or by those from after the edit; ingest.rs describes the consequences. These are advisory locks: in
//! memory, and released with the transaction.

use sqlx::AssertSqlSafe;

/// How many locks all tenants share, and how many all coalesce and ordering keys share. A group of events takes at most
/// this many of each kind.
const LOCKS: u64 = 256;
/// Distinguishes these advisory locks from others in the database: "weir" in ASCII.
pub(crate) const LOCK_SPACE: i32 = 0x7765_6972;
/// The space of the locks of coalesce and ordering keys, which serialize groups of events with the same key: "weik" in
/// ASCII.
pub(crate) const KEY_LOCK_SPACE: i32 = 0x7765_696b;

/// Tenants that share a lock wait for each other's edits, and keys that share a lock wait for each other's events,
/// which is acceptable. The hash is FNV-1a, because every process must choose the same lock.
fn lock_of(name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash % LOCKS
}

/// The locks of some tenants or keys, in the order in which every transaction takes them.
pub(crate) fn locks_of<'t>(names: impl Iterator<Item = &'t str>) -> Vec<i32> {
    let mut locks: Vec<i32> = names.map(|name| lock_of(name) as i32).collect();
    locks.sort_unstable();
    locks.dedup();
    locks
}

/// Begins a transaction with the shared locks of some tenants. It is sent as one text, so that the locks cost no round
/// trip of their own, and each later statement sees every commit from before the locks were granted.
pub(crate) fn begin_beside_edits<'t>(tenants: impl Iterator<Item = &'t str>) -> AssertSqlSafe<String> {
    let take_locks = locks_of(tenants)
        .into_iter()
        .map(|lock| format!("; SELECT pg_advisory_xact_lock_shared({LOCK_SPACE}, {lock})"));
    AssertSqlSafe(format!("BEGIN{}", take_locks.collect::<String>()))
}

/// Begins a transaction with the exclusive locks of some tenants: no event of these tenants is fanned out until it ends.
pub(crate) fn begin_to_edit<'t>(tenants: impl IntoIterator<Item = &'t str>) -> AssertSqlSafe<String> {
    let take_locks = locks_of(tenants.into_iter())
        .into_iter()
        .map(|lock| format!("; SELECT pg_advisory_xact_lock({LOCK_SPACE}, {lock})"));
    AssertSqlSafe(format!("BEGIN{}", take_locks.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_many_tenants_take_each_lock_once_in_order() {
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
