//! The plans of limit keys.

use weir_core::LimitKey;
use weir_store::{KEYLESS_LOOKED_AT, KEYS_LOOKED_AT};

use super::*;
use crate::{
    claims::{CLAIM_KEYLESS, CLAIM_KEYLESS_WITH_BODIES, CLAIM_OF_FLOW, CLAIM_OF_FLOW_WITH_BODIES},
    ingest::RECORD_LIMIT_KEYS,
    limit_keys::{
        DUE_FLOWS, FLOW_KEYS, FLOW_SENDS, KEY_BACKLOGS, SEND_HISTORY_OF_FLOWS, SENT_COSTS_OF_FLOWS,
        SENT_COUNTS_OF_FLOWS,
    },
    purge::PURGES_OF_FLOW,
};

/// Half of the deliveries and attempts get one of 500 keys.
const KEYS: &str = "
UPDATE deliveries SET limit_key = 'k' || number % 500, flow_id = md5((number % 500)::text)::uuid
FROM (SELECT id AS of, row_number() OVER (ORDER BY id) AS number FROM deliveries) n WHERE id = of AND number % 2 = 0;
UPDATE attempts a SET flow_id = d.flow_id FROM deliveries d WHERE d.id = a.delivery_id AND d.flow_id IS NOT NULL";

async fn loaded_with_keys() -> (Database, PgConnection) {
    let (database, mut connection) = loaded().await;
    raw_sql(KEYS).execute(&mut connection).await.unwrap();
    raw_sql("VACUUM ANALYZE").execute(&mut connection).await.unwrap();
    (database, connection)
}

#[tokio::test]
async fn statements_of_limit_keys_use_their_indexes() {
    let (_database, mut connection) = loaded_with_keys().await;
    let (due, of_flow) = ("using deliveries_due_of_flow on deliveries", "using deliveries_of_flow on deliveries");
    let sent = "attempts_20270115_flow_id_sent_at_idx";
    for (name, sql, expected) in [
        ("claim of a flow", CLAIM_OF_FLOW, &[due, "Tid Scan on deliveries d"][..]),
        (
            "claim of a flow with bodies",
            CLAIM_OF_FLOW_WITH_BODIES,
            &[due, "Tid Scan on deliveries d", "events_20270115_pkey"],
        ),
        ("claim without a key", CLAIM_KEYLESS, &["using deliveries_due on deliveries", "Tid Scan on deliveries d"]),
        (
            "claim without a key with bodies",
            CLAIM_KEYLESS_WITH_BODIES,
            &["using deliveries_due on deliveries", "Tid Scan on deliveries d", "events_20270115_pkey"],
        ),
        ("what flows are", FLOW_KEYS, &[of_flow]),
        ("due flows", DUE_FLOWS, &["Index Only Scan using deliveries_due_of_flow", of_flow]),
        ("sends of flows", FLOW_SENDS, &[sent]),
        ("send history of flows", SEND_HISTORY_OF_FLOWS, &[sent, of_flow, "deliveries_claimed"]),
        ("sent counts of flows", SENT_COUNTS_OF_FLOWS, &[sent, of_flow, "deliveries_claimed"]),
        ("sent costs of flows", SENT_COSTS_OF_FLOWS, &[sent, of_flow, "deliveries_claimed", due]),
        ("backlogs of keys", KEY_BACKLOGS, &["using deliveries_due on deliveries"]),
        ("purge of a key", PURGES_OF_FLOW[0], &[due, "Index Scan using deliveries_pkey on deliveries d"]),
        ("purge of a key and a type", PURGES_OF_FLOW[2], &[due, "events_20270115_pkey"]),
        ("record of keys", RECORD_LIMIT_KEYS, &["deliveries_pkey on deliveries d", "events_20270115_pkey"]),
    ] {
        assert_plan(&mut connection, name, sql, expected).await;
    }
}

#[tokio::test]
async fn statements_for_many_flows_compare_no_lists() {
    let (_database, mut connection) = loaded_with_keys().await;
    raw_sql(MANY_DESTINATIONS).execute(&mut connection).await.unwrap();
    for (name, sql) in [
        ("claim of flows", CLAIM_OF_FLOW),
        ("claim without a key", CLAIM_KEYLESS),
        ("what flows are", FLOW_KEYS),
        ("sends", FLOW_SENDS),
        ("send history", SEND_HISTORY_OF_FLOWS),
        ("sent counts", SENT_COUNTS_OF_FLOWS),
        ("sent costs", SENT_COSTS_OF_FLOWS),
    ] {
        assert_compares_no_lists(&mut connection, name, sql).await;
    }
}

#[tokio::test]
async fn lists_of_a_key_read_one_index_in_the_order_of_ids() {
    let (_database, mut connection) = loaded_with_keys().await;
    let page = PageRequest { before: Some([9; 16]), limit: 50 };
    for states in [vec![], vec![DeliveryState::Failed], vec![DeliveryState::Pending]] {
        let filter = DeliveryFilter {
            destination_id: Some(destination_id(1)),
            limit_key: Some(LimitKey::new("k1")),
            states,
            ..DeliveryFilter::default()
        };
        let part = &filter.parts(true)[0];
        for select in [
            deliveries_page(&filter, part, page, None),
            window_end(&filter, part, page, SCANNED_AT_MOST),
            count_of_part(&filter, part, 9),
        ] {
            assert_plan(&mut connection, "list", &select.sql, &["deliveries_of_flow"]).await;
        }
    }
}

/// One destination with this many waiting deliveries, each with a key, and one without a key that is due last.
fn waiting(deliveries: u32) -> String {
    format!(
        "TRUNCATE deliveries;
        INSERT INTO deliveries (id, event_id, destination_id, state, attempts, is_replay, next_attempt_at, created_at,
            updated_at, flow_id, limit_key)
        SELECT gen_random_uuid(), gen_random_uuid(), '{}', 0, 0, false, n, n, n,
            CASE WHEN n <= {deliveries} THEN gen_random_uuid() END, CASE WHEN n <= {deliveries} THEN 'k' || n END
        FROM generate_series(1, {deliveries} + 1) AS n",
        crate::rows::uuid(destination_id(1).as_bytes())
    )
}

#[tokio::test]
async fn the_look_for_deliveries_without_a_key_and_the_list_of_keys_are_bounded() {
    let database = Database::migrated().await;
    let store = Box::pin(PostgresStore::open(&database.url(), NOW)).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    let mut connection = database.connect().await;
    for (deliveries, is_found, is_partial, listed) in [
        (KEYLESS_LOOKED_AT - 1, true, false, KEYS_LOOKED_AT - 1),
        (KEYLESS_LOOKED_AT, false, true, KEYS_LOOKED_AT),
        (KEYLESS_LOOKED_AT + 9, false, true, KEYS_LOOKED_AT),
    ] {
        raw_sql(AssertSqlSafe(waiting(deliveries))).execute(&mut connection).await.unwrap();
        // A limit of 0 asks for the first due time, and claims nothing.
        let asked = weir_store::ClaimRequest { flow: weir_store::ClaimedFlow::Keyless, ..request(1, 0) };
        let next_due = store.claim(vec![asked], NOW).await.unwrap().remove(0).next_due;
        assert_eq!(next_due.is_some(), is_found, "{deliveries}");
        let backlogs = weir_store::LimitKeys::key_backlogs(&store, destination_id(1), None, u32::MAX).await.unwrap();
        assert_eq!((backlogs.is_partial, backlogs.keys.len()), (is_partial, listed as usize));
    }
}

#[tokio::test]
async fn a_delivery_without_a_key_is_in_no_index_of_flows() {
    let (_database, mut connection) = loaded().await;
    let entries = "SELECT coalesce(sum(reltuples), 0)::bigint FROM pg_class
        WHERE relkind = 'i' AND relname ~ '(due_of_flow|deliveries_of_flow|flow_id_sent_at_idx)'";
    let found: i64 = sqlx::query_scalar(entries).fetch_one(&mut connection).await.unwrap();
    assert_eq!(found, 0);
}
