//! Tests of the query plans: the index that each statement must use, with a backlog and current statistics.
//!
//! Plans are checked twice. With sequential scans allowed, the cost must lead to the index on tables with rows. With
//! the settings of every connection, the plan must use the index on empty tables too: an empty table is cheap to scan,
//! and the server would keep a generic plan that was made then.

mod activity;
mod limit_keys;
mod reservations;

use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};
use weir_core::{DeliveryState, ErrorKind, EventId, Timestamp, access::TenantScope, outcome::Verdict};
use weir_store::{
    DeliveryFilter, Destinations as _, ErrorFilter, EventFilter, Ingest as _, ListOrder, Outbox as _, PageRequest,
    Purge, ReplayFilter, Results as _, SCANNED_AT_MOST, Scan, rows::ALL_WAITING,
};

use crate::{
    PostgresStore,
    alerting::{CONDITIONS, GROUP_ALERTS},
    claims::{BODIES, CLAIM, CLAIM_WITH_BODIES},
    counters::{COUNTS, FOLD, OLDEST_IN_FLIGHT, OLDEST_WAITING},
    database::Database,
    deliveries::{count_of_part, deliveries_page, failures_of_part, large_backlog, window_end},
    destination_edits::CANCEL_SOME,
    destination_rows::LOOK_UP,
    destinations::{RECENT_ARRIVALS, RECENT_SENDS},
    discard::DISCARD,
    fixtures::{NOW, creation, destination, destination_id, event, request, result},
    flow_statements::{DUE_DESTINATIONS, LIVE_DUE, PLACES, SEND_HISTORY, SENT_COSTS, SENT_COUNTS},
    history::{
        HASHED, IN_ORDER, SENDS, Select, TENANTS_WITH_KEYS, event_deliveries, events_page, events_window_end, past,
        past_attempts, past_deliveries,
    },
    ingest::KNOWN_KEYS,
    limit_group_members::MEMBERS,
    limit_groups::MEMBERSHIPS,
    message_groups::{DISSOLVE, MESSAGE_GROUPS},
    open,
    outbox::{EXPIRE, RELEASE},
    own_changes::{CHANGE, HOLD},
    processes::{ORPHANED, RENEW},
    prune::DELETE_DELIVERIES,
    prune_days::{DELETE_ATTEMPTS, DELETE_EVENTS, DELETE_KEYS, EVENTS_OF_DAY, KEPT},
    purge::{PURGES, count_sql},
    recovery::{EXPIRED, NAMED},
    replay_steps::{FIGURES, IS_UNFINISHED, PUT_BACK, step_of},
    results::SETTLE,
};

const STORE_EVENTS: &str = include_str!("../../../migrations/postgres/functions/store_events_with_limit_keys.sql");
const ADVANCE_MESSAGE_GROUPS: &str = include_str!("../../../migrations/postgres/functions/advance_message_groups.sql");

/// Ten thousand events for four destinations: most deliveries are delivered, some failed, some are in flight, and some
/// wait.
async fn loaded() -> (Database, PgConnection) {
    let database = Database::migrated().await;
    let store = Box::pin(PostgresStore::open(&database.url(), NOW)).await.unwrap();
    for number in 1..=4 {
        store.create_destination(destination(number), creation()).await.unwrap();
    }
    // Each event has an idempotency key, so that the table of the keys is large too.
    for first in (0..10_000).step_by(2_500) {
        let keyed = (first..first + 2_500).map(|number| {
            let mut new = event(number);
            new.event.idempotency_key = Some(number.to_string());
            new
        });
        store.ingest(keyed.collect()).await.unwrap();
    }
    // The claims of the first round stay outstanding, those of the second fail, and the others are delivered.
    let requests = || (1..=4).map(|number| request(number, 1_000)).collect();
    for round in 0..6 {
        let claims = store.claim(requests(), NOW + Duration::from_secs(60)).await.unwrap();
        let claimed = claims.iter().flat_map(|claims| &claims.deliveries);
        let verdict = match round {
            0 => continue,
            1 => Verdict::Failed,
            _ => Verdict::Delivered,
        };
        store.settle(claimed.map(|claimed| Arc::new(result(claimed, verdict))).collect()).await.unwrap();
    }
    // Plan with the settings of the store's connections, on vacuumed tables with current statistics.
    store.close().await;
    let options = open::options(&database.url()).unwrap();
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    raw_sql("VACUUM ANALYZE").execute(&mut connection).await.unwrap();
    (database, connection)
}

/// The generic plan of a statement, which is the one that every connection uses.
async fn plan(connection: &mut PgConnection, sql: &str) -> String {
    let parameters = (1..).take_while(|number| sql.contains(&format!("${number}"))).count();
    let nulls = vec!["NULL"; parameters].join(", ");
    let prepare = format!("DEALLOCATE ALL; PREPARE statement AS {sql}");
    raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
    let arguments = if nulls.is_empty() { nulls } else { format!("({nulls})") };
    let explain = format!("EXPLAIN (COSTS OFF) EXECUTE statement{arguments}");
    let rows = sqlx::query_scalar(AssertSqlSafe(explain)).persistent(false).fetch_all(connection).await;
    let plan: Vec<String> = rows.unwrap();
    plan.join("\n")
}

async fn assert_plan(connection: &mut PgConnection, name: &str, sql: &str, expected: &[&str]) {
    let with_rows = ["deliveries", "events_20270115", "attempts_20270115"];
    for (scans, tables) in [("on", with_rows), ("off", ["deliveries", "events", "attempts"])] {
        assert_plan_with(scans, connection, name, sql, expected, tables).await;
    }
}

async fn assert_plan_with(
    scans: &str,
    connection: &mut PgConnection,
    name: &str,
    sql: &str,
    expected: &[&str],
    unscanned: [&str; 3],
) {
    raw_sql(AssertSqlSafe(format!("SET enable_seqscan = {scans}"))).execute(&mut *connection).await.unwrap();
    let plan = plan(connection, sql).await;
    for part in expected {
        assert!(plan.contains(part), "{name} without {part}, scans {scans}:\n{plan}");
    }
    for table in unscanned {
        assert!(!plan.contains(&format!("Seq Scan on {table}")), "{name} scans {table}, scans {scans}:\n{plan}");
    }
}

/// Thousands of destinations in one call: a join with a filter instead of an index would compare each with each.
async fn assert_compares_no_lists(connection: &mut PgConnection, name: &str, sql: &str) {
    raw_sql("SET enable_seqscan = off").execute(&mut *connection).await.unwrap();
    let plan = plan(connection, sql).await;
    assert!(!plan.contains("Join Filter"), "{name} compares two lists:\n{plan}");
}

/// Two thousand more destinations, so that their index is cheaper than a scan.
const MANY_DESTINATIONS: &str = "
INSERT INTO destinations
SELECT (jsonb_populate_record(NULL::destinations, to_jsonb(one)
    || jsonb_build_object('id', gen_random_uuid(), 'version', 1000000 + number))).*
FROM (SELECT * FROM destinations LIMIT 1) one, generate_series(1, 2000) AS number;
ANALYZE destinations";

#[tokio::test]
async fn statements_for_many_destinations_compare_no_lists() {
    let (_database, mut connection) = loaded().await;
    raw_sql(MANY_DESTINATIONS).execute(&mut connection).await.unwrap();
    for (name, sql) in [
        ("look-up", LOOK_UP),
        ("claim", CLAIM),
        ("settle", SETTLE),
        ("release", RELEASE),
        ("hold", HOLD),
        ("change of breakers", CHANGE),
    ] {
        assert_compares_no_lists(&mut connection, name, sql).await;
    }
    raw_sql(AssertSqlSafe(format!("BEGIN; {HASHED}"))).execute(&mut connection).await.unwrap();
    assert_compares_no_lists(&mut connection, "conditions", CONDITIONS).await;
}

/// A hundred groups with two hundred stays each, of which a third have ended.
const MANY_MEMBERS: &str = "
INSERT INTO limit_group_members
SELECT md5((number % 100)::text)::uuid, gen_random_uuid(), number, CASE WHEN number % 3 = 0 THEN number END
FROM generate_series(1, 20000) AS number;
ANALYZE limit_group_members";

#[tokio::test]
async fn members_of_limit_groups_are_found_by_their_indexes() {
    let database = Database::migrated().await;
    let mut connection = PgConnection::connect_with(&open::options(&database.url()).unwrap()).await.unwrap();
    raw_sql(MANY_MEMBERS).execute(&mut connection).await.unwrap();
    let present = "limit_group_members_present";
    for (name, sql, expected) in
        [("members", MEMBERS, &[present][..]), ("memberships", MEMBERSHIPS, &[present, "limit_group_members_left"])]
    {
        assert_plan_with("on", &mut connection, name, sql, expected, ["limit_group_members"; 3]).await;
    }
}

const MANY_RECORDS_OF_ALERTS: &str = "
INSERT INTO limit_groups SELECT gen_random_uuid(), '*', number, '[]', NULL, number, number
FROM generate_series(1, 20) AS number;
INSERT INTO alert_states (destination_id, version, state) SELECT gen_random_uuid(), 1, '{}' FROM generate_series(1, 20000);
ANALYZE limit_groups; ANALYZE alert_states";

/// Few groups, and a record for each of many destinations.
#[tokio::test]
async fn alerts_of_limit_groups_are_found_by_their_ids() {
    let database = Database::migrated().await;
    let mut connection = PgConnection::connect_with(&open::options(&database.url()).unwrap()).await.unwrap();
    raw_sql(MANY_RECORDS_OF_ALERTS).execute(&mut connection).await.unwrap();
    let expected = ["Index Scan using alert_states_pkey on alert_states s"];
    assert_plan_with("on", &mut connection, "alerts of groups", GROUP_ALERTS, &expected, ["alert_states"; 3]).await;
}

#[tokio::test]
async fn hot_statements_use_their_indexes() {
    let (_database, mut connection) = loaded().await;
    let by_id = "Index Scan using deliveries_pkey on deliveries d";
    for (name, sql, expected) in [
        ("claim", CLAIM, &["using deliveries_due on deliveries", "Tid Scan on deliveries d"][..]),
        (
            "claim with bodies",
            CLAIM_WITH_BODIES,
            &[
                "using deliveries_due on deliveries",
                "Tid Scan on deliveries d",
                "events_20270115_pkey",
                "Index Only Scan using deliveries_due",
            ],
        ),
        ("bodies", BODIES, &["events_20270115_pkey"]),
        ("settle", SETTLE, &[by_id]),
        ("cancel", CANCEL_SOME, &["using deliveries_due on deliveries", by_id]),
        ("expire", EXPIRE, &["Index Scan using deliveries_expiring on deliveries", by_id]),
        ("discard", DISCARD, &[by_id]),
        ("purge", PURGES[0], &["using deliveries_due on deliveries", by_id]),
        ("purge of a type", PURGES[2], &["using deliveries_due on deliveries", by_id, "events_20270115_pkey"]),
        ("purge of a prefix", PURGES[3], &["using deliveries_due on deliveries", by_id, "events_20270115_pkey"]),
        ("prune deliveries", DELETE_DELIVERIES, &["Only Scan using deliveries_pkey on deliveries", by_id]),
        (
            "prune events",
            DELETE_EVENTS,
            &[
                "using deliveries_pkey on deliveries d",
                "events_20270115_pkey on events_20270115",
                "idempotency_keys_pkey",
            ],
        ),
        ("prune attempts", DELETE_ATTEMPTS, &["attempts_20270115_pkey on attempts_20270115", "using deliveries_pkey"]),
        ("prune keys", DELETE_KEYS, &["using deliveries_pkey on deliveries d", "idempotency_keys_pkey"]),
        ("kept", KEPT, &["Only Scan using deliveries_pkey on deliveries"]),
        ("events of a day", EVENTS_OF_DAY, &[]),
        ("figures of a replay", FIGURES, &["Index Only Scan using deliveries_replayed"]),
        ("unfinished deliveries of a replay", IS_UNFINISHED, &["Index Scan using deliveries_replayed"]),
        ("put back", PUT_BACK, &["using deliveries_replayed on deliveries", by_id]),
        ("release", RELEASE, &[by_id]),
        ("renew", RENEW, &[by_id]),
        ("named claims", NAMED, &[by_id]),
        ("due destinations", DUE_DESTINATIONS, &["Index Only Scan using deliveries_due"]),
        ("send history", SEND_HISTORY, &["Only Scan Backward using attempts_20270115_destination_id_sent_at_idx"]),
        ("sent counts", SENT_COUNTS, &["attempts_20270115_destination_id_sent_at_idx", "deliveries_claimed"]),
        (
            "sent costs",
            SENT_COSTS,
            &["attempts_20270115_destination_id_sent_at_idx", by_id, "deliveries_claimed", "deliveries_due"],
        ),
        ("tenants with keys", TENANTS_WITH_KEYS, &["idempotency_keys_pkey"]),
        ("known keys", KNOWN_KEYS, &["idempotency_keys_pkey", "events_20270115_pkey"]),
        ("counts", COUNTS, &["count_changes"]),
        ("oldest waiting", OLDEST_WAITING, &["using deliveries_due", "using deliveries_retrying"]),
        ("places", PLACES, &["using deliveries_due on deliveries"]),
        ("live due", LIVE_DUE, &["Index Only Scan using deliveries_due on deliveries"]),
        ("oldest in flight", OLDEST_IN_FLIGHT, &["deliveries_claimed"]),
        ("recent arrivals", RECENT_ARRIVALS, &["Index Only Scan using deliveries_of_destination"]),
        ("recent sends", RECENT_SENDS, &["attempts_20270115_destination_id_sent_at_idx"]),
    ] {
        assert_plan(&mut connection, name, sql, expected).await;
    }
    for (name, sql, expected) in [
        ("message groups", MESSAGE_GROUPS, &["using deliveries_message_groups on deliveries"][..]),
        ("dissolve", DISSOLVE, &["using deliveries_message_groups on deliveries", by_id]),
        ("advance", &first_of_groups(), &["using deliveries_message_groups on deliveries", by_id]),
        ("join", &is_behind_a_head(), &["using deliveries_message_groups on deliveries d"]),
    ] {
        assert_plan(&mut connection, name, sql, expected).await;
    }
    // Part of the backlog, not all of it: each scan of the index has a LIMIT of its own.
    let limited = "->  Limit\n                      ->  Index Scan using deliveries_due";
    for sql in [PURGES[0], PURGES[2], PURGES[3]] {
        assert_plan(&mut connection, "purge", sql, &[limited]).await;
    }
    let coalescing = ["Index Scan using deliveries_coalescing on deliveries d"];
    assert_plan(&mut connection, "coalescing", &superseded_by_coalescing(), &coalescing).await;
    assert_plan(&mut connection, "backlog", ALL_WAITING, &["count_changes"]).await;
    // Its cost for one destination is weighed with a scan of the few destinations here.
    let waiting = ["Only Scan using deliveries_due", "deliveries_retrying", "deliveries_of_destination"];
    assert_plan_with("off", &mut connection, "conditions", CONDITIONS, &waiting, ["deliveries"; 3]).await;
    raw_sql("BEGIN").execute(&mut connection).await.unwrap();
    raw_sql(IN_ORDER).execute(&mut connection).await.unwrap();
    let in_order = ["Presorted Key: a.sent_at", "attempts_20270115_destination_id_sent_at_idx", by_id];
    assert_plan_with("off", &mut connection, "sends", SENDS, &in_order, ["deliveries", "events", "attempts"]).await;
    let newest_first = ["Presorted Key: d.id", "Backward using deliveries_of_destination", "attempts_20270115_pkey"];
    assert_plan_with("off", &mut connection, "past", &past(), &newest_first, ["deliveries", "events", "attempts"])
        .await;
    let alone = ["Backward using deliveries_of_destination"];
    assert_plan_with("off", &mut connection, "past deliveries", &past_deliveries(), &alone, ["deliveries"; 3]).await;
    raw_sql("ROLLBACK").execute(&mut connection).await.unwrap();
    // Without values no partition is left; no other is scanned.
    let range = ["Subplans Removed"];
    assert_plan_with("off", &mut connection, "past attempts", &past_attempts(), &range, ["attempts"; 3]).await;
    let claimed = ["deliveries_claimed"];
    for (name, sql) in [("expired claims", EXPIRED), ("orphaned claims", ORPHANED)] {
        assert_plan_with("off", &mut connection, name, sql, &claimed, ["deliveries", "events", "attempts"]).await;
    }
    // The tables of changes have no index. The changes that a fold takes are found by their addresses.
    let by_address = ["Tid Scan on count_changes", "Tid Scan on traffic_changes"];
    assert_plan_with("off", &mut connection, "fold", FOLD, &by_address, ["deliveries", "events", "attempts"]).await;
}

/// 16,000 deliveries wait, and all of them expire.
#[tokio::test]
async fn the_conditions_of_destinations_read_a_bounded_part_of_their_backlogs() {
    let (_database, mut connection) = loaded().await;
    let expiring =
        weir_store::sql!("UPDATE deliveries SET expires_at = created_at + 1000000 WHERE state IN ({waiting})");
    raw_sql(AssertSqlSafe(format!("{expiring}; ANALYZE deliveries"))).execute(&mut connection).await.unwrap();
    let analyze = CONDITIONS.replace("$1", "ARRAY(SELECT tenant FROM destinations)");
    let analyze = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {analyze}");
    let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(analyze)).fetch_all(&mut connection).await.unwrap();
    let reads = plan.iter().filter(|line| line.contains(" on deliveries "));
    let rows = reads.map(|line| {
        let (_, actual) = line.split_once("(actual rows=").unwrap_or((line, "0 loops=0)"));
        let (rows, loops) = actual.trim_end_matches(')').split_once(" loops=").unwrap();
        rows.parse::<f64>().unwrap() * loops.parse::<f64>().unwrap()
    });
    let rows: f64 = rows.sum();
    // At each of the four: the oldest, the newest 201, and the 201 that are due last.
    assert_eq!(rows, 4.0 * 403.0 + 1.0, "{}", plan.join("\n"));
}

#[tokio::test]
async fn a_purge_count_reads_only_the_waiting_deliveries_of_its_destination() {
    let (_database, mut connection) = loaded().await;
    let purge = Purge {
        destination_id: destination_id(1),
        pending: true,
        retrying: false,
        event_type: None,
        limit_key: None,
        before: NOW,
        now: NOW,
    };
    let of_a_type = Purge { event_type: Some("video.*".parse().unwrap()), ..purge.clone() };
    let sql = |purge: &Purge| count_sql(purge).into_parts().0;
    assert_plan(&mut connection, "count of a purge", &sql(&purge), &["deliveries_due"]).await;
    let expected = ["deliveries_due", "events_20270115_pkey"];
    assert_plan(&mut connection, "count of a purge of a type", &sql(&of_a_type), &expected).await;
}

#[tokio::test]
async fn a_step_of_a_replay_reads_one_index_in_a_window_of_ids() {
    let (_database, mut connection) = loaded().await;
    let of_one = Some(destination_id(1));
    for (state, destination_id, index) in [
        (DeliveryState::Failed, None, "using deliveries_ended on"),
        (DeliveryState::Failed, of_one, "using deliveries_ended_of_destination on"),
        (DeliveryState::Delivered, None, "using deliveries_pkey on"),
        (DeliveryState::Delivered, of_one, "using deliveries_of_destination on"),
    ] {
        for event_type in [None, Some("video.*".parse().unwrap())] {
            let deliveries = DeliveryFilter { destination_id, event_type, ..DeliveryFilter::default() };
            let filter = ReplayFilter { states: vec![state], deliveries };
            let expected = [index, "Index Scan using deliveries_pkey on deliveries d"];
            assert_plan(&mut connection, "a step of a replay", &step_of(filter, state), &expected).await;
        }
    }
}

/// The query for the deliveries that a new one supersedes, from the function `store_events`.
fn superseded_by_coalescing() -> String {
    let (_, function) = STORE_EVENTS.split_once("WITH older").unwrap();
    let (statement, _) = function.split_once("END IF").unwrap();
    let parameters = "unnest($1::uuid[], $2::text[], $3::boolean[], $4::bigint[])";
    let named = "unnest(delivery_destinations, delivery_coalesce_keys, delivery_superseded, delivery_times)";
    assert!(statement.contains(named));
    let statement = statement.replace(" INTO freed_destinations, freed_keys", "");
    format!("WITH older{}", statement.replace(named, parameters).trim_end_matches([' ', '\n', ';']))
}

/// The query for the first delivery of each message group, from the function `advance_message_groups`.
fn first_of_groups() -> String {
    let (_, function) = ADVANCE_MESSAGE_GROUPS.split_once("WITH foremost").unwrap();
    let (statement, _) = function.split_once(';').unwrap();
    let named = "unnest(destination_ids, ordering_keys)";
    assert!(statement.contains(named));
    format!("WITH foremost{}", statement.replace(named, "unnest($1::uuid[], $2::text[])"))
}

/// The query for whether a new delivery is behind another one, from the function `store_events`.
fn is_behind_a_head() -> String {
    let (_, function) = STORE_EVENTS.split_once("(r.follows OR (").unwrap();
    let (subquery, _) = function.split_once(")) THEN").unwrap();
    format!(
        "SELECT CASE WHEN r.follows THEN true ELSE ({subquery}) END
        FROM unnest($1::uuid[], $2::text[], $3::boolean[]) AS r (destination_id, ordering_key, follows)"
    )
}

fn sql(select: Select) -> String {
    select.into_parts().0
}

#[tokio::test]
async fn lists_read_one_index() {
    let (_database, mut connection) = loaded().await;
    let page = PageRequest { before: Some([7; 16]), limit: 50 };
    let destination_id = Some(destination_id(1));
    let base = DeliveryFilter { from: Some(Timestamp::from_secs(9)), ..DeliveryFilter::default() };
    let failed = DeliveryFilter { states: vec![DeliveryState::Failed], ..base.clone() };
    let several = DeliveryFilter { states: vec![DeliveryState::Failed, DeliveryState::Dead], ..base.clone() };
    let waiting = DeliveryFilter { states: vec![DeliveryState::Pending, DeliveryState::Retrying], ..base.clone() };
    let claimed = DeliveryFilter { states: vec![DeliveryState::Delivering], ..base.clone() };
    let oldest = |filter: &DeliveryFilter| DeliveryFilter { order: ListOrder::Oldest, ..filter.clone() };
    let to_one = |filter: &DeliveryFilter| DeliveryFilter { destination_id, ..filter.clone() };
    for (filter, index) in [
        (base.clone(), "Backward using deliveries_pkey"),
        (oldest(&base), "Scan using deliveries_pkey"),
        (to_one(&base), "Backward using deliveries_of_destination"),
        (oldest(&to_one(&base)), "Scan using deliveries_of_destination"),
        (failed.clone(), "using deliveries_ended"),
        (several.clone(), "using deliveries_ended"),
        (oldest(&several), "using deliveries_ended"),
        (to_one(&failed), "using deliveries_ended_of_destination"),
        (oldest(&to_one(&failed)), "using deliveries_ended_of_destination"),
        (to_one(&waiting), "using deliveries_due"),
        (claimed, "deliveries_claimed"),
    ] {
        for part in filter.parts(true) {
            let sql = sql(deliveries_page(&filter, &part, page, None));
            assert_plan(&mut connection, "list", &sql, &[index]).await;
        }
    }
    let window_end = |filter: &DeliveryFilter| sql(window_end(filter, &filter.parts(false)[0], page, SCANNED_AT_MOST));
    // EXPLAIN binds NULL to every parameter, and no partition has ids below NULL.
    let first = PageRequest { before: None, limit: 50 };
    let tenants = TenantScope::Only(["acme", "globex"].map(str::to_owned).into());
    let of_tenants = EventFilter { tenants, ..EventFilter::default() };
    let oldest_of_tenants = EventFilter { order: ListOrder::Oldest, ..of_tenants.clone() };
    let by_key = EventFilter { idempotency_key: Some("order-1".to_owned()), ..of_tenants.clone() };
    let operational = EventFilter { event_type: Some("weir.*".parse().unwrap()), ..of_tenants.clone() };
    for (sql, index) in [
        (sql(large_backlog(destination_id)), "Index Only Scan using deliveries_due"),
        (sql(large_backlog(None)), "Index Only Scan using deliveries_due"),
        (window_end(&base), "Backward using deliveries_pkey"),
        (window_end(&oldest(&base)), "Scan using deliveries_pkey"),
        (window_end(&to_one(&base)), "Backward using deliveries_of_destination"),
        (window_end(&to_one(&failed)), "using deliveries_ended_of_destination"),
        (sql(event_deliveries(EventId::new(NOW, 1))), "deliveries_pkey"),
        (sql(events_page(&EventFilter::default(), first, None)), "Backward using events_20270115_pkey"),
        (sql(events_page(&of_tenants, first, None)), "Backward using events_20270115_pkey"),
        (sql(events_page(&oldest_of_tenants, first, None)), "Scan using events_20270115_pkey"),
        (sql(events_window_end(&of_tenants, first)), "Backward using events_20270115_pkey"),
        (sql(events_window_end(&oldest_of_tenants, first)), "Scan using events_20270115_pkey"),
        (sql(events_page(&by_key, first, None)), "idempotency_keys_pkey"),
        (sql(events_page(&operational, first, None)), "Backward using events_20270115_id_idx"),
        (sql(events_window_end(&operational, first)), "Backward using events_20270115_id_idx"),
    ] {
        assert_plan(&mut connection, "list", &sql, &[index]).await;
    }
    // Filters on joined tables are lookups per row, in a window of ids.
    let error = Some(ErrorFilter::Kind(ErrorKind::Answer(5)));
    let pattern = Some("video.*".parse().unwrap());
    let (one, mixed) = (vec![DeliveryState::Delivered], vec![DeliveryState::Pending, DeliveryState::Dead]);
    for states in [vec![], one, mixed] {
        for (destination_id, index) in [(None, "deliveries_pkey"), (destination_id, "deliveries_of_destination")] {
            let (states, tenants) = (states.clone(), TenantScope::one("acme"));
            let filter =
                DeliveryFilter { destination_id, states, tenants, event_type: pattern.clone(), error, ..base.clone() };
            let parts = filter.parts(false);
            assert_eq!(parts.iter().map(|part| part.scan).collect::<Vec<_>>(), [Scan::Window(SCANNED_AT_MOST)]);
            let sql = sql(deliveries_page(&filter, &parts[0], page, Some([1; 16])));
            let expected = [index, "events_20270115_pkey", "attempts_20270115_pkey"];
            assert_plan(&mut connection, "list with joined filters", &sql, &expected).await;
        }
    }
}

#[tokio::test]
async fn counts_and_groups_examine_one_index_and_look_up_rows_one_by_one() {
    let (_database, mut connection) = loaded().await;
    let of_one = Some(destination_id(1));
    let error = Some(ErrorFilter::Status(503));
    let failed = DeliveryFilter { states: vec![DeliveryState::Failed], error, ..DeliveryFilter::default() };
    let delivered = DeliveryFilter { states: vec![DeliveryState::Delivered], ..DeliveryFilter::default() };
    for (filter, index) in [
        (failed.clone(), "using deliveries_ended"),
        (DeliveryFilter { destination_id: of_one, ..failed }, "using deliveries_ended_of_destination"),
        (DeliveryFilter { destination_id: of_one, ..delivered.clone() }, "using deliveries_of_destination"),
        (delivered, "using deliveries_pkey"),
    ] {
        let part = &filter.parts(true)[0];
        let look_ups = ["events_20270115_pkey", "attempts_20270115_pkey"];
        let joined = if filter.filters_joined() { &look_ups[..] } else { &[] };
        let count = [&[index], joined].concat();
        assert_plan(&mut connection, "count", &sql(count_of_part(&filter, part, 9)), &count).await;
        let groups = [&[index], &look_ups[..]].concat();
        assert_plan(&mut connection, "groups", &sql(failures_of_part(&filter, part, 9)), &groups).await;
    }
}
