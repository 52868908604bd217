//! The plans of limit keys.

use weir_core::LimitKey;

use super::*;
use crate::{
    claims::{CLAIM_FLOWS, CLAIM_FLOWS_WITH_BODIES},
    destinations::RECENT_ARRIVALS_OF_FLOW,
    flow_statements::{
        DUE_FLOWS, LIVE_DUE_OF_FLOW, PLACES_OF_FLOW, SEND_HISTORY_OF_FLOWS, SENT_COSTS_OF_FLOWS, SENT_COUNTS_OF_FLOWS,
    },
    history::SENDS_OF_FLOW,
    limit_keys::{FLOW_KEYS, FLOW_SENDS, KEY_BACKLOGS, KEY_COUNTS},
    outbox::WITHOUT_KEYLESS,
    purge::PURGES_OF_FLOW,
};

const SIZES_OF_INDEXES: &str = "
SELECT count(*), sum(pg_relation_size(i.indexrelid))::bigint FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relkind = 'i' AND pg_get_indexdef(c.oid) LIKE '%(flow_id%'";

/// Half of the destinations get 500 keys each.
const WITH_KEYS: &str = "
UPDATE deliveries d SET limit_key = number % 500,
    flow_id = md5(d.destination_id::text || number % 500)::uuid
FROM (SELECT id, row_number() OVER (ORDER BY id) AS number FROM deliveries) one
WHERE one.id = d.id AND d.destination_id IN (SELECT id FROM destinations ORDER BY id LIMIT 2);
UPDATE attempts a SET flow_id = d.flow_id FROM deliveries d WHERE d.id = a.delivery_id";

#[tokio::test]
async fn statements_of_flows_use_the_indexes_of_flows() {
    let (_database, mut connection) = loaded().await;
    // An index has one page, which says that it is empty: rows without a key have no entries.
    let sizes: (i64, i64) = sqlx::query_as(SIZES_OF_INDEXES).fetch_one(&mut connection).await.unwrap();
    assert_eq!(sizes.1, sizes.0 * 8_192);
    raw_sql(WITH_KEYS).execute(&mut connection).await.unwrap();
    raw_sql("VACUUM ANALYZE").execute(&mut connection).await.unwrap();
    raw_sql(MANY_DESTINATIONS).execute(&mut connection).await.unwrap();
    let by_id = "Index Scan using deliveries_pkey on deliveries d";
    let attempts = "attempts_20270115_flow_id_sent_at_idx";
    let claim = ["using deliveries_due_of_flow on deliveries", "using deliveries_due on", "Tid Scan on deliveries d"];
    for (name, sql, expected) in [
        ("claim of flows", CLAIM_FLOWS, &claim[..]),
        ("claim of flows with bodies", CLAIM_FLOWS_WITH_BODIES, &[&claim[..], &["events_20270115_pkey"]].concat()),
        ("destinations without a delivery without a key", WITHOUT_KEYLESS, &["using deliveries_due on deliveries"]),
        ("keys of flows", FLOW_KEYS, &["Scan Backward using deliveries_of_flow on deliveries"]),
        (
            "due flows",
            DUE_FLOWS,
            &["Index Only Scan using deliveries_due_of_flow", "Backward using deliveries_of_flow"],
        ),
        ("backlogs of keys", KEY_BACKLOGS, &["Index Only Scan using deliveries_due on", by_id]),
        (
            "counts of a key",
            KEY_COUNTS,
            &["Index Only Scan using deliveries_due_of_flow", "Scan using deliveries_claimed on"],
        ),
        ("places of a key", PLACES_OF_FLOW, &["using deliveries_due_of_flow on deliveries"]),
        ("due of a key", LIVE_DUE_OF_FLOW, &["using deliveries_due_of_flow on deliveries"]),
        ("recent arrivals of a key", RECENT_ARRIVALS_OF_FLOW, &["Index Only Scan using deliveries_of_flow on"]),
        ("sends of flows", FLOW_SENDS, &[attempts]),
        ("send history of flows", SEND_HISTORY_OF_FLOWS, &[attempts, "Scan using deliveries_claimed on"]),
        ("sent counts of flows", SENT_COUNTS_OF_FLOWS, &[attempts, "Scan using deliveries_claimed on"]),
        (
            "sent costs of flows",
            SENT_COSTS_OF_FLOWS,
            &[attempts, "Scan using deliveries_claimed on", by_id, "using deliveries_due_of_flow"],
        ),
        ("purge of a flow", PURGES_OF_FLOW[0], &["using deliveries_due_of_flow on deliveries", by_id]),
    ] {
        assert_plan(&mut connection, name, sql, expected).await;
        assert_compares_no_lists(&mut connection, name, sql).await;
    }
    raw_sql("BEGIN").execute(&mut connection).await.unwrap();
    raw_sql(IN_ORDER).execute(&mut connection).await.unwrap();
    let in_order = ["Presorted Key: a.sent_at", attempts, by_id];
    assert_plan_with("off", &mut connection, "sends of a key", SENDS_OF_FLOW, &in_order, ["deliveries"; 3]).await;
    raw_sql("ROLLBACK").execute(&mut connection).await.unwrap();
    // The flows are hashed, not searched for each claim.
    let verbose = |sql: &str| format!("EXPLAIN (COSTS OFF, VERBOSE) {}", sql.replace("$1", "ARRAY[gen_random_uuid()]"));
    for sql in [SEND_HISTORY_OF_FLOWS, SENT_COUNTS_OF_FLOWS, SENT_COSTS_OF_FLOWS] {
        let sql = verbose(sql).replace("$2", "7").replace("$3", "7");
        let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
        assert!(plan.join("\n").contains("hashed SubPlan"), "{}", plan.join("\n"));
    }
}

#[tokio::test]
async fn lists_and_replays_of_a_limit_key_read_its_deliveries() {
    let (_database, mut connection) = loaded().await;
    raw_sql(WITH_KEYS).execute(&mut connection).await.unwrap();
    raw_sql("VACUUM ANALYZE").execute(&mut connection).await.unwrap();
    let page = PageRequest { before: Some([7; 16]), limit: 50 };
    let of_key = DeliveryFilter {
        destination_id: Some(destination_id(1)),
        limit_key: Some(LimitKey::new("7")),
        ..DeliveryFilter::default()
    };
    let failed = DeliveryFilter { states: vec![DeliveryState::Failed], ..of_key.clone() };
    let oldest = DeliveryFilter { order: ListOrder::Oldest, ..of_key.clone() };
    for filter in [&of_key, &failed, &oldest] {
        let part = &filter.parts(false)[0];
        for select in [
            deliveries_page(filter, part, page, None),
            window_end(filter, part, page, SCANNED_AT_MOST),
            count_of_part(filter, part, 9),
            failures_of_part(filter, part, 9),
        ] {
            assert_plan(&mut connection, "list of a key", &sql(select), &["using deliveries_of_flow on"]).await;
        }
    }
    for state in [DeliveryState::Failed, DeliveryState::Delivered] {
        let filter = ReplayFilter { states: vec![state], deliveries: of_key.clone() };
        let expected = ["using deliveries_of_flow on", "Index Scan using deliveries_pkey on deliveries d"];
        assert_plan(&mut connection, "a step of a replay of a key", &step_of(filter, state), &expected).await;
    }
    let purge = Purge {
        destination_id: destination_id(1),
        limit_key: Some(LimitKey::new("7")),
        pending: true,
        retrying: true,
        event_type: None,
        before: NOW,
        now: NOW,
    };
    let count = sql(count_sql(&purge));
    assert_plan(&mut connection, "count of a purge of a key", &count, &["of_flow on deliveries"]).await;
}
