//! The plans of limit keys.

use weir_core::LimitKey;
use weir_store::{KEYLESS_LOOKED_AT, KEYS_LOOKED_AT};

use super::*;
use crate::{
    claims::{HAS_KEYLESS, OLDEST_DUE_KEYLESS, OLDEST_DUE_OF_FLOW},
    flow_statements::{
        DUE_FLOWS, LIVE_DUE_OF_FLOW, PLACES_OF_FLOW, SEND_HISTORY_OF_FLOWS, SENT_COSTS_OF_FLOWS, SENT_COUNTS_OF_FLOWS,
    },
    limit_keys::{FLOW_KEYS, FLOW_SENDS, KEY_BACKLOGS, KEY_COUNTS},
    purge::{WAITING_OF_FLOW, WAITING_OF_FLOW_WITH_TYPES},
    replays::count_sql,
    sql::values,
};

const SENT: &str = "USING COVERING INDEX attempts_of_flow (flow_id=? AND sent_at>?)";
const OF_FLOW: &str = "deliveries USING COVERING INDEX deliveries_due_of_flow (flow_id=? AND is_replay=?)";
const OUT: &str = "deliveries USING INDEX deliveries_claimed (destination_id=?)";

#[test]
fn flows_are_read_by_their_indexes_at_every_size() {
    let connection = database();
    for size in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
        for (name, batch, indexes) in [
            (
                "what flows are",
                &FLOW_KEYS,
                &["deliveries_of_flow (flow_id=?)", "SEARCH d USING PRIMARY KEY (id=?)"][..],
            ),
            ("places", &PLACES_OF_FLOW, &[OF_FLOW]),
            ("sends", &FLOW_SENDS, &[SENT]),
            ("sent counts", &SENT_COUNTS_OF_FLOWS, &[SENT, OUT]),
            ("sent costs", &SENT_COSTS_OF_FLOWS, &[SENT, OUT, OF_FLOW]),
            (
                "last sends",
                &SEND_HISTORY_OF_FLOWS,
                &["COVERING INDEX attempts_of_flow (flow_id=?", "deliveries_of_flow (flow_id=?)", OUT],
            ),
        ] {
            let plan = plan(&connection, &batch.sql(size));
            for index in indexes {
                assert!(plan.contains(index), "{name} of {size} without {index}:\n{plan}");
            }
            for scan in ["AUTOMATIC", "SCAN deliveries", "SCAN attempts", "SCAN d\n", "SCAN a\n"] {
                assert!(!plan.contains(scan), "{name} of {size}:\n{plan}");
            }
        }
    }
}

#[test]
fn a_claim_of_a_flow_reads_its_part_of_an_index_without_sorting() {
    let connection = database();
    let of_destination = "deliveries USING COVERING INDEX deliveries_due (destination_id=? AND is_replay=?)";
    for (sql, index) in
        [(OLDEST_DUE_OF_FLOW, OF_FLOW), (OLDEST_DUE_KEYLESS, of_destination), (HAS_KEYLESS, of_destination)]
    {
        let plan = plan(&connection, sql);
        assert!(plan.contains(index) && plan.contains("SEARCH d USING PRIMARY KEY (id=?)"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
}

#[test]
fn due_flows_and_backlogs_of_keys_use_their_indexes() {
    let connection = database();
    let due_flows = plan(&connection, DUE_FLOWS);
    for index in [
        "USING COVERING INDEX deliveries_due_of_flow (flow_id>?)",
        OF_FLOW,
        "deliveries_of_flow (flow_id=?)",
        "SEARCH t USING PRIMARY KEY (id=?)",
    ] {
        assert!(due_flows.contains(index), "{due_flows}");
    }
    assert!(!due_flows.contains("TEMP B-TREE"), "{due_flows}");
    let backlogs = plan(&connection, KEY_BACKLOGS);
    let looked = "deliveries USING COVERING INDEX deliveries_due (destination_id=? AND is_replay=?)";
    assert_eq!(backlogs.matches(looked).count(), 2, "live, and of replays: {backlogs}");
    assert!(backlogs.contains("SEARCH d USING PRIMARY KEY (id=?)"), "{backlogs}");
    let due = plan(&connection, LIVE_DUE_OF_FLOW);
    assert!(due.contains("deliveries_due_of_flow (flow_id=? AND is_replay=? AND next_attempt_at<?)"), "{due}");
    let counts = plan(&connection, KEY_COUNTS);
    assert_eq!(counts.matches(OF_FLOW).count(), 2, "live, and of replays: {counts}");
    assert!(counts.contains("SEARCH d USING PRIMARY KEY (id=?)") && counts.contains(OUT), "{counts}");
}

#[test]
fn a_purge_of_a_key_reads_its_parts_of_the_index_from_its_position() {
    for sql in [WAITING_OF_FLOW, WAITING_OF_FLOW_WITH_TYPES] {
        let plan = plan(&database(), sql);
        let searched = "SEARCH deliveries USING COVERING INDEX deliveries_due_of_flow \
            (flow_id=? AND is_replay=? AND (next_attempt_at,id)>(?,?))";
        assert_eq!(plan.matches(searched).count(), 2, "live, and of replays: {plan}");
    }
    let (destination_id, limit_key) = (DestinationId::from_bytes([1; 16]), Some(LimitKey::default()));
    let now = Timestamp::from_secs(9);
    let purge = Purge { destination_id, limit_key, pending: true, retrying: false, event_type: None, before: now, now };
    let plan = plan(&database(), &purge::count_sql(&purge).0);
    assert!(plan.contains("SEARCH d USING INDEX deliveries_due_of_flow (flow_id=?)"), "{plan}");
}

#[test]
fn lists_and_replays_of_a_key_read_one_index_in_the_order_of_ids() {
    let connection = database();
    let base = DeliveryFilter {
        destination_id: Some(DestinationId::from_bytes([1; 16])),
        limit_key: Some(LimitKey::new("cus_1")),
        from: Some(Timestamp::from_secs(9)),
        ..DeliveryFilter::default()
    };
    for states in [vec![], vec![DeliveryState::Dead], vec![DeliveryState::Pending, DeliveryState::Retrying]] {
        let filter = DeliveryFilter { states, ..base.clone() };
        let parts = filter.parts(true);
        let mut plans = list_plans(&connection, &filter, true);
        plans.push(plan(&connection, &window_end(&filter, &parts[0], AFTER, SCANNED_AT_MOST).0));
        plans.push(plan(&connection, &count_of_part(&filter, &parts[0], 9).0));
        for plan in plans {
            assert!(plan.contains("deliveries_of_flow (flow_id=? AND id>?"), "{filter:?}:\n{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{filter:?}:\n{plan}");
        }
    }
    for state in [DeliveryState::Dead, DeliveryState::Delivered] {
        let filter = ReplayFilter { states: vec![state], deliveries: base.clone() };
        let count = plan(&connection, &count_sql(&filter, state, Timestamp::MIN).0);
        assert!(count.contains("deliveries_of_flow (flow_id=? AND id>?"), "{count}");
        let plan = plan(&connection, &candidates(&begun(filter), state, Timestamp::MIN).0);
        assert!(plan.contains("deliveries_of_flow (flow_id=? AND id>?"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
}

/// A database with this many waiting deliveries of the destination `x'01'`, each of a key of its own, and one without a
/// key that is due last.
fn waiting(deliveries: u32) -> Connection {
    let connection = database();
    let sql = format!(
        "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n LIMIT {deliveries} + 1)
        INSERT INTO deliveries (id, event_id, destination_id, state, attempts, is_replay, next_attempt_at, created_at,
            updated_at, flow_id, limit_key)
        SELECT CAST(printf('%016d', n) AS BLOB), randomblob(16), x'01', 0, 0, 0, n, n, n,
            iif(n > {deliveries}, NULL, CAST(printf('%016d', n) AS BLOB)), iif(n > {deliveries}, NULL, 'k' || n)
        FROM n"
    );
    connection.execute_batch(&sql).unwrap();
    connection
}

#[test]
fn the_look_for_deliveries_without_a_key_and_the_list_of_keys_are_bounded() {
    let read = values![&[1], false, KEYLESS_LOOKED_AT];
    let keys = values![&[1], i64::from(KEYS_LOOKED_AT) + 1, "", i64::MAX];
    for (deliveries, keyless, is_partial, listed) in [
        (KEYLESS_LOOKED_AT - 1, 1, false, KEYS_LOOKED_AT - 1),
        (KEYLESS_LOOKED_AT, 0, true, KEYS_LOOKED_AT),
        (KEYLESS_LOOKED_AT + 9, 0, true, KEYS_LOOKED_AT),
    ] {
        let connection = waiting(deliveries);
        assert_eq!(query(&connection, OLDEST_DUE_KEYLESS, &read, |_| Ok(())).unwrap().len(), keyless);
        let rows = query(&connection, KEY_BACKLOGS, &keys, |row| weir_store::rows::key_backlog(row)).unwrap();
        let backlogs = weir_store::rows::key_backlogs(rows);
        assert_eq!((backlogs.is_partial, backlogs.keys.len()), (is_partial, listed as usize));
    }
}

#[test]
fn a_delivery_without_a_key_is_in_no_index_of_flows() {
    const WAITS: &str = weir_store::sql!("state IN ({waiting})");
    let connection = waiting(0);
    for index in ["deliveries_due_of_flow", "deliveries_of_flow"] {
        let sql = format!("SELECT count(*) FROM deliveries INDEXED BY {index} WHERE flow_id IS NOT NULL AND {WAITS}");
        assert_eq!(query(&connection, &sql, &Values::default(), |row| row.int(0)).unwrap(), [0]);
    }
}
