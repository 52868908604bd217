//! Tests of SQLite's query plans: each statement uses its index, so its cost does not depend on the backlog.

mod activity;
mod limit_keys;
mod paces;
mod reservations;

use rusqlite::Connection;
use weir_core::{DeliveryState, DestinationId, ErrorKind, EventId, Timestamp, access::TenantScope};
use weir_store::{
    DeliveryFilter, ErrorFilter, EventFilter, ListOrder, PageRequest, Purge, ReplayFilter, SCANNED_AT_MOST, Scan,
    conformance::begun,
    rows::{ALL_WAITING, Row as _},
};

use crate::{
    alerting::{BACKLOGS, GROUP_ALERTS},
    claims::{BODY, CLAIM, OLDEST_DUE},
    counters::{OLDEST_IN_FLIGHT, OLDEST_WAITING},
    deliveries::{count_of_part, deliveries_page, failures_of_part, window_end},
    destinations::{RECENT_ARRIVALS_OF_FLOW, RECENT_SENDS, WAITING_BY_STATE},
    discard::{DEAD_LETTERS, DISCARD},
    flow_statements::{DUE_DESTINATIONS, LIVE_DUE, PLACES, SEND_HISTORY, SENT_COSTS, SENT_COUNTS},
    history::{SENDS, SENDS_OF_FLOW, TENANTS_WITH_KEYS, events_page, events_window_end, past},
    ingest::{COALESCING, INSERT_DELIVERIES, INSERT_INTO_GROUPS, KNOWN_KEYS},
    limit_groups::{MEMBERS, MEMBERSHIPS},
    message_groups::{DESTINATIONS_WITH_GROUPS, FIRST_OF_GROUP, MESSAGE_GROUPS, SOME_OF_GROUPS},
    outbox::{ABANDONED, EXPIRING},
    purge::{self, CANCEL, WAITING_OF_ANY_TYPE, WAITING_WITH_TYPES},
    replay_steps::{IS_UNFINISHED, IS_UNFINISHED_IN_REPLAY, MOVE, PUT_BACK, WAITING_OF_REPLAY, candidates},
    replays::{FIGURES, OPEN},
    results::{END, HELD_CLAIMS, RETRY},
    schema::MIGRATIONS,
    sql::{Values, query},
    traffic::TRAFFIC_OF,
};

fn database() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    for migration in MIGRATIONS.0 {
        connection.execute_batch(migration.sql).unwrap();
    }
    connection
}

fn plan(connection: &Connection, sql: &str) -> String {
    let read = |row: &rusqlite::Row<'_>| row.text(3);
    query(connection, &format!("EXPLAIN QUERY PLAN {sql}"), &Values::default(), read).unwrap().join("\n")
}

const SENT: &str = "USING COVERING INDEX attempts_of_destination (destination_id=? AND sent_at>?)";

#[test]
fn alerts_of_limit_groups_are_found_by_their_ids() {
    let plan = plan(&database(), GROUP_ALERTS);
    assert!(plan.contains("SEARCH s USING PRIMARY KEY (destination_id=?)"), "{plan}");
}

#[test]
fn hot_statements_use_their_indexes_at_every_size() {
    let connection = database();
    // Each size is a statement of its own, with a plan of its own.
    for size in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
        for (name, batch, index) in [
            ("claim", &CLAIM, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("held", &HELD_CLAIMS, "SEARCH d USING PRIMARY KEY (id=?)"),
            ("end", &END, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("retry", &RETRY, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("purge", &CANCEL, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("dead letters", &DEAD_LETTERS, "SEARCH d USING PRIMARY KEY (id=?)"),
            ("discard", &DISCARD, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("move", &MOVE, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("put back", &PUT_BACK, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("known keys", &KNOWN_KEYS, "SEARCH e USING INDEX events_idempotency (tenant=? AND idempotency_key=?)"),
            ("last sends", &SEND_HISTORY, "USING COVERING INDEX attempts_of_destination (destination_id=?"),
            ("oldest", &OLDEST_WAITING, "USING COVERING INDEX deliveries_due (destination_id=? AND is_replay=?)"),
            ("places", &PLACES, "USING COVERING INDEX deliveries_due (destination_id=? AND is_replay=?)"),
            ("oldest retry", &OLDEST_WAITING, "USING COVERING INDEX deliveries_retrying (destination_id=?)"),
            (
                "recent traffic",
                &TRAFFIC_OF,
                "SEARCH traffic USING INDEX traffic_of_destination (destination_id=? AND at>?)",
            ),
            ("sent counts", &SENT_COUNTS, SENT),
            ("sent costs", &SENT_COSTS, SENT),
            ("claims out", &SEND_HISTORY, "USING COVERING INDEX deliveries_claimed (destination_id=?"),
        ] {
            let plan = plan(&connection, &batch.sql(size));
            assert!(plan.contains(index), "{name} of {size}:\n{plan}");
            assert!(!plan.contains("AUTOMATIC"), "{name} of {size}:\n{plan}");
            assert!(!plan.contains("SCAN deliveries"), "{name} of {size}:\n{plan}");
        }
    }
}

#[test]
fn writing_a_delivery_builds_no_table_for_index_predicates() {
    let connection = database();
    // `UPDATE … FROM` builds one table for the joined rows, and `IN` one for its list. An update that does not change
    // rows where it finds them would build another.
    for (name, batch, own) in [
        ("insert", &INSERT_DELIVERIES, 0),
        ("insert into groups", &INSERT_INTO_GROUPS, 0),
        ("claim", &CLAIM, 1),
        ("end", &END, 1),
        ("retry", &RETRY, 1),
    ] {
        let sql = format!("EXPLAIN {}", batch.sql(2));
        let opcodes = query(&connection, &sql, &Values::default(), |row| row.text(1)).unwrap();
        let made = opcodes.iter().filter(|opcode| *opcode == "OpenEphemeral").count();
        assert_eq!(made, own, "{name}");
    }
}

#[test]
fn a_claim_reads_its_part_of_the_due_index_without_sorting() {
    let plan = plan(&database(), OLDEST_DUE);
    let searched = "SEARCH deliveries USING COVERING INDEX deliveries_due (destination_id=? AND is_replay=?)";
    assert!(plan.contains(searched), "{plan}");
    assert!(plan.contains("SEARCH d USING PRIMARY KEY (id=?)"), "{plan}");
    assert!(!plan.contains("TEMP B-TREE"), "{plan}");
}

#[test]
fn a_purge_reads_its_parts_of_the_due_index_from_its_position() {
    for sql in [WAITING_OF_ANY_TYPE, WAITING_WITH_TYPES] {
        let plan = plan(&database(), sql);
        let searched = "SEARCH deliveries USING COVERING INDEX deliveries_due \
            (destination_id=? AND is_replay=? AND (next_attempt_at,id)>(?,?))";
        assert_eq!(plan.matches(searched).count(), 2, "live, and of replays: {plan}");
    }
}

#[test]
fn a_purge_count_reads_only_the_waiting_deliveries_of_its_destination() {
    for event_type in [None, Some("video.*".parse().unwrap())] {
        let destination_id = DestinationId::from_bytes([1; 16]);
        let now = Timestamp::from_secs(9);
        let purge =
            Purge { destination_id, pending: true, retrying: false, event_type, limit_key: None, before: now, now };
        let plan = plan(&database(), &purge::count_sql(&purge).0);
        assert!(plan.contains("SEARCH d USING INDEX deliveries_due (destination_id=?)"), "{plan}");
        assert_eq!(plan.contains("SEARCH e USING INDEX events_id (id=?)"), purge.event_type.is_some(), "{plan}");
    }
}

#[test]
fn reads_use_their_indexes() {
    let connection = database();
    for (name, sql, index) in [
        ("waiting by state", WAITING_BY_STATE, "USING COVERING INDEX deliveries_due (destination_id=?)"),
        (
            "live due",
            LIVE_DUE,
            "USING COVERING INDEX deliveries_due (destination_id=? AND is_replay=? AND next_attempt_at<?)",
        ),
        ("oldest in flight", OLDEST_IN_FLIGHT, "USING COVERING INDEX deliveries_claimed (destination_id=?)"),
        ("abandoned claims", ABANDONED, "USING INDEX deliveries_claimed"),
        ("recent sends", RECENT_SENDS, "USING COVERING INDEX attempts_of_destination (destination_id=? AND sent_at>?"),
        ("sends", SENDS, "USING INDEX attempts_of_destination (destination_id=? AND sent_at>?"),
        ("sends of a key", SENDS_OF_FLOW, "USING INDEX attempts_of_flow (flow_id=? AND sent_at>?"),
        (
            "recent arrivals of a key",
            RECENT_ARRIVALS_OF_FLOW,
            "USING COVERING INDEX deliveries_of_flow (flow_id=? AND id>?",
        ),
        ("body", BODY, "USING INDEX events_id (id=?)"),
        ("coalescing", COALESCING, "USING INDEX deliveries_coalescing (destination_id=? AND coalesce_key=?)"),
        (
            "first of group",
            FIRST_OF_GROUP,
            "USING INDEX deliveries_message_groups (destination_id=? AND ordering_key=?)",
        ),
        ("some of groups", SOME_OF_GROUPS, "USING INDEX deliveries_message_groups (destination_id=?"),
        (
            "destinations with groups",
            DESTINATIONS_WITH_GROUPS,
            "USING COVERING INDEX deliveries_message_groups (destination_id>?",
        ),
        ("message groups", MESSAGE_GROUPS, "USING COVERING INDEX deliveries_message_groups"),
        ("expiring", EXPIRING, "USING INDEX deliveries_expiring (expires_at>? AND expires_at<?)"),
        ("figures of a replay", FIGURES, "USING COVERING INDEX deliveries_replayed (replay_id=?)"),
        ("waiting of a replay", WAITING_OF_REPLAY, "USING INDEX deliveries_replayed (replay_id=? AND state<?)"),
        (
            "unfinished in a replay",
            IS_UNFINISHED_IN_REPLAY,
            "USING INDEX deliveries_replayed (replay_id=? AND state<?)",
        ),
        ("unfinished of a replay", IS_UNFINISHED, "USING COVERING INDEX deliveries_replayed (replay_id=? AND state<?)"),
        ("open replays", OPEN, "USING INDEX replays_open"),
        ("members", MEMBERS, "USING INDEX limit_group_members_present (group_id=?)"),
        ("present members", MEMBERSHIPS, "USING INDEX limit_group_members_present (group_id=?)"),
        ("former members", MEMBERSHIPS, "USING COVERING INDEX limit_group_members_left (group_id=? AND left_at>?)"),
        ("due", DUE_DESTINATIONS, "USING COVERING INDEX deliveries_due (destination_id>?)"),
        ("first due", DUE_DESTINATIONS, "USING COVERING INDEX deliveries_due (destination_id=? AND is_replay=?)"),
    ] {
        let plan = plan(&connection, sql);
        assert!(plan.contains(index), "{name}:\n{plan}");
    }
    let plan_of_past = plan(&connection, &past());
    for part in [
        "SEARCH d USING INDEX deliveries_of_destination (destination_id=? AND id<?)",
        "SEARCH a USING PRIMARY KEY (delivery_id=?)",
        "SEARCH p USING PRIMARY KEY (id=?)",
    ] {
        assert!(plan_of_past.contains(part), "{plan_of_past}");
    }
    // The attempts of a delivery come in the order of their key.
    assert!(!plan_of_past.contains("TEMP B-TREE"), "{plan_of_past}");
    // These need the order of their index: no sort.
    for sql in [SENDS, SENDS_OF_FLOW, FIRST_OF_GROUP, MESSAGE_GROUPS, DESTINATIONS_WITH_GROUPS] {
        let plan = plan(&connection, sql);
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
}

const AFTER: PageRequest = PageRequest { before: Some([7; 16]), limit: 50 };

/// The plans of the statements that read a page of this list.
fn list_plans(connection: &Connection, filter: &DeliveryFilter, is_backlog_small: bool) -> Vec<String> {
    let parts = filter.parts(is_backlog_small);
    parts.iter().map(|part| plan(connection, &deliveries_page(filter, part, AFTER, Some([1; 16])).0)).collect()
}

#[test]
fn lists_read_one_index_without_sorting() {
    let connection = database();
    let destination_id = Some(DestinationId::from_bytes([1; 16]));
    let base = DeliveryFilter { from: Some(Timestamp::from_secs(9)), ..DeliveryFilter::default() };
    let failed = vec![DeliveryState::Failed];
    // A range of ids in one index, already in the order of the list.
    for (filter, index) in [
        (base.clone(), "USING PRIMARY KEY (id>? AND id<?)"),
        (DeliveryFilter { states: failed.clone(), ..base.clone() }, "deliveries_ended (state=? AND id>? AND id<?)"),
        (
            DeliveryFilter { destination_id, ..base.clone() },
            "deliveries_of_destination (destination_id=? AND id>? AND id<?)",
        ),
        (
            DeliveryFilter { destination_id, states: failed, ..base.clone() },
            "deliveries_ended_of_destination (destination_id=? AND state=? AND id>? AND id<?)",
        ),
    ] {
        for order in [ListOrder::Newest, ListOrder::Oldest] {
            let filter = DeliveryFilter { order, ..filter.clone() };
            for plan in list_plans(&connection, &filter, true) {
                assert!(plan.contains(index), "{filter:?}:\n{plan}");
                assert!(!plan.contains("TEMP B-TREE"), "{filter:?}:\n{plan}");
            }
        }
    }
    // Each state with an index of its own is read by itself.
    let several = DeliveryFilter { states: vec![DeliveryState::Dead, DeliveryState::Failed], ..base.clone() };
    let plans = list_plans(&connection, &several, true);
    assert_eq!(plans.len(), 2);
    for plan in plans {
        assert!(plan.contains("deliveries_ended (state=? AND id>? AND id<?)"), "{plan}");
    }
    // These plans sort, but only the deliveries in flight, or a small backlog.
    let waiting = vec![DeliveryState::Pending, DeliveryState::Retrying];
    for (states, index) in [
        (vec![DeliveryState::Delivering], "deliveries_claimed (destination_id=?)"),
        (waiting, "deliveries_due (destination_id=?)"),
    ] {
        let filter = DeliveryFilter { states, destination_id, ..base.clone() };
        for plan in list_plans(&connection, &filter, true) {
            assert!(plan.contains(index), "{plan}");
        }
    }
    let of_event = DeliveryFilter { event_id: Some(EventId::from_bytes([1; 16])), ..base };
    for plan in list_plans(&connection, &of_event, true) {
        assert!(plan.contains("USING PRIMARY KEY (id>? AND id<?)"), "{plan}");
    }
}

#[test]
fn lists_of_events_read_one_index_without_sorting() {
    let connection = database();
    let tenants = || TenantScope::Only(["a", "b"].map(str::to_owned).into());
    let by_tenant = EventFilter { tenants: tenants(), ..EventFilter::default() };
    let by_type = |pattern: &str| EventFilter { event_type: Some(pattern.parse().unwrap()), ..EventFilter::default() };
    let operational = ["weir.*", "weir.test"].map(|pattern| (by_type(pattern), "events_operational"));
    let others = [EventFilter::default(), by_tenant.clone(), by_type("a"), by_type("a.*"), by_type("*")];
    for (filter, index) in others.map(|filter| (filter, "events_id")).into_iter().chain(operational) {
        for (order, range) in [(ListOrder::Newest, "(id<?)"), (ListOrder::Oldest, "(id>?)")] {
            let (filter, range) = (EventFilter { order, ..filter.clone() }, format!("{index} {range}"));
            for sql in [events_page(&filter, AFTER, None).0, events_window_end(&filter, AFTER).0] {
                let plan = plan(&connection, &sql);
                assert!(plan.contains(&range), "{filter:?}:\n{plan}");
                assert!(!plan.contains("TEMP B-TREE"), "{filter:?}:\n{plan}");
            }
        }
    }
    let by_key = EventFilter { idempotency_key: Some("order-1".to_owned()), ..by_tenant };
    let plan = plan(&connection, &events_page(&by_key, AFTER, None).0);
    assert!(plan.contains("events_idempotency (tenant=? AND idempotency_key=?)"), "{plan}");
    let next_tenant = self::plan(&connection, TENANTS_WITH_KEYS);
    assert!(next_tenant.contains("USING COVERING INDEX events_idempotency (tenant>?)"), "{next_tenant}");
    assert!(!next_tenant.contains("TEMP B-TREE"), "{next_tenant}");
}

#[test]
fn filters_on_joined_tables_look_up_rows_one_by_one_in_a_window_of_ids() {
    let connection = database();
    let error = Some(ErrorFilter::Kind(ErrorKind::Answer(5)));
    let (one, mixed) = (vec![DeliveryState::Delivered], vec![DeliveryState::Pending, DeliveryState::Dead]);
    for states in [vec![], one, mixed] {
        for (destination_id, index) in [
            (None, "USING PRIMARY KEY (id>? AND id<?)"),
            (
                Some(DestinationId::from_bytes([1; 16])),
                "deliveries_of_destination (destination_id=? AND id>? AND id<?)",
            ),
        ] {
            let (tenants, event_type) = (TenantScope::one("a"), Some("video.*".parse().unwrap()));
            let states = states.clone();
            let filter =
                DeliveryFilter { destination_id, states, tenants, event_type, error, ..DeliveryFilter::default() };
            let parts = filter.parts(false);
            assert_eq!(parts.iter().map(|part| part.scan).collect::<Vec<_>>(), [Scan::Window(SCANNED_AT_MOST)]);
            // The end of the window comes from the index alone. The page then looks up each event and each last
            // attempt.
            let end = plan(&connection, &window_end(&filter, &parts[0], AFTER, SCANNED_AT_MOST).0);
            assert!(end.contains("id<?)") && !end.contains("TEMP B-TREE"), "{end}");
            for plan in list_plans(&connection, &filter, false) {
                for part in [
                    index,
                    "SEARCH e USING INDEX events_id (id=?)",
                    "SEARCH a USING PRIMARY KEY (delivery_id=? AND number=?)",
                ] {
                    assert!(plan.contains(part), "{filter:?} without {part}:\n{plan}");
                }
                assert!(!plan.contains("TEMP B-TREE") && !plan.contains("AUTOMATIC"), "{filter:?}:\n{plan}");
            }
        }
    }
}

#[test]
fn counts_and_groups_examine_one_index_and_look_up_rows_one_by_one() {
    let connection = database();
    let destination_id = Some(DestinationId::from_bytes([1; 16]));
    let error = Some(ErrorFilter::Status(503));
    let event_type = Some("video.*".parse().unwrap());
    let dead = DeliveryFilter { states: vec![DeliveryState::Dead], event_type, error, ..DeliveryFilter::default() };
    let delivered = DeliveryFilter { states: vec![DeliveryState::Delivered], ..DeliveryFilter::default() };
    for (filter, index) in [
        (dead.clone(), "deliveries_ended (state=?)"),
        (DeliveryFilter { destination_id, ..dead }, "deliveries_ended_of_destination (destination_id=? AND state=?)"),
        (DeliveryFilter { destination_id, ..delivered.clone() }, "deliveries_of_destination (destination_id=?)"),
        (delivered, "SCAN d"),
    ] {
        let part = &filter.parts(true)[0];
        let joined =
            ["SEARCH e USING INDEX events_id (id=?)", "SEARCH a USING PRIMARY KEY (delivery_id=? AND number=?)"];
        let joined = if filter.filters_joined() { &joined[..] } else { &[] };
        let count = plan(&connection, &count_of_part(&filter, part, 9).0);
        let groups = plan(&connection, &failures_of_part(&filter, part, 9).0);
        for plan in [count, groups] {
            assert!(plan.contains(index) && joined.iter().all(|look_up| plan.contains(look_up)), "{filter:?}:\n{plan}");
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("AUTOMATIC"), "{filter:?}:\n{plan}");
        }
    }
}

#[test]
fn a_step_of_a_replay_reads_one_index_in_a_window_of_ids() {
    let connection = database();
    for (state, destination_id, index) in [
        (DeliveryState::Dead, None, "deliveries_ended (state=? AND id>?)"),
        (
            DeliveryState::Failed,
            Some(DestinationId::from_bytes([1; 16])),
            "deliveries_ended_of_destination (destination_id=? AND state=? AND id>?)",
        ),
        (DeliveryState::Delivered, None, "USING PRIMARY KEY (id>?)"),
        (
            DeliveryState::Delivered,
            Some(DestinationId::from_bytes([1; 16])),
            "deliveries_of_destination (destination_id=? AND id>?)",
        ),
    ] {
        // A filter on the events does not change the index: they are joined after the window was read.
        for event_type in [None, Some("video.*".parse().unwrap())] {
            let deliveries = DeliveryFilter { destination_id, event_type, ..DeliveryFilter::default() };
            let filter = ReplayFilter { states: vec![state], deliveries };
            let open = begun(filter);
            let (sql, _) = candidates(&open, state, Timestamp::MIN);
            let plan = plan(&connection, &sql);
            assert!(plan.contains(index), "{:?} without {index}:\n{plan}", open.filter);
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("AUTOMATIC"), "{:?}:\n{plan}", open.filter);
        }
    }
}

/// The steps of SQLite's machine for the conditions of a destination with so many deliveries of each kind: due, to retry,
/// of a replay, and dead.
fn steps_of_conditions(deliveries: u32) -> i32 {
    let connection = database();
    let insert = |state: u8, is_replay: u8| {
        let sql = format!(
            "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n LIMIT {deliveries})
            INSERT INTO deliveries (id, event_id, destination_id, state, attempts, is_replay, next_attempt_at, created_at,
                updated_at, expires_at)
            SELECT CAST(printf('%012d-{state}-{is_replay}', n) AS BLOB), x'01', x'01', {state}, 0, {is_replay}, n, n, n, n
            FROM n"
        );
        connection.execute_batch(&sql).unwrap();
    };
    for (state, is_replay) in [(0, 0), (2, 0), (0, 1), (5, 0)] {
        insert(state, is_replay);
    }
    let totals = format!(
        "INSERT INTO destination_totals (destination_id, pending, retrying, dead)
        VALUES (x'01', 2 * {deliveries}, {deliveries}, {deliveries})"
    );
    connection.execute_batch(&totals).unwrap();
    let mut statement = connection.prepare(BACKLOGS).unwrap();
    let read = |row: &rusqlite::Row<'_>| Ok([row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]);
    let found: Vec<[u32; 4]> = statement.query_map([], read).unwrap().map(Result::unwrap).collect();
    // Live deliveries are counted only up to 10,000. With more of them, what replays have above 10,000 is included.
    assert_eq!(found, [[3 * deliveries - 10_000, 1, deliveries, deliveries]]);
    statement.get_status(rusqlite::StatementStatus::VmStep)
}

#[test]
fn the_conditions_of_destinations_cost_the_same_with_a_backlog_twice_as_long() {
    assert_eq!(steps_of_conditions(11_000), steps_of_conditions(22_000));
    assert!(!plan(&database(), ALL_WAITING).contains("deliveries"));
}

#[test]
fn the_bundled_sqlite_has_the_fix_of_the_wal_reset_bug() {
    let connection = database();
    let read = |row: &rusqlite::Row<'_>| row.text(0);
    let version = query(&connection, "SELECT sqlite_version()", &Values::default(), read).unwrap().remove(0);
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers >= vec![3, 51, 3], "{version}");
}
