//! The plans of the activity log and of the answers of idempotency keys.

use weir_store::{ActivityFilter, ActorFilter};

use super::*;
use crate::activity::{PRUNE_ACTIVITY, PRUNE_ANSWERS, page_sql};

#[test]
fn pages_of_the_activity_log_read_one_index_backwards() {
    let connection = database();
    let none = ActivityFilter::default;
    let tenants = Some(["a".to_owned()].into());
    let actor = Some(ActorFilter::Name("ann".to_owned()));
    for (filter, index) in [
        (none(), "PRIMARY KEY (id<?)"),
        (
            ActivityFilter { destination_id: Some(DestinationId::from_bytes([1; 16])), ..none() },
            "activity_of_destination (destination_id=? AND id<?)",
        ),
        (ActivityFilter { actor, ..none() }, "activity_of_actor (actor=? AND id<?)"),
        (ActivityFilter { tenants, ..none() }, "activity_of_tenant (tenant=? AND id<?)"),
    ] {
        let plan = plan(&connection, &page_sql(&filter, AFTER).0);
        assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{filter:?}:\n{plan}");
    }
}

#[test]
fn pruning_the_activity_log_reads_only_what_it_deletes() {
    let connection = database();
    for (sql, old, deleted) in [
        (PRUNE_ACTIVITY, "activity USING PRIMARY KEY (id<?)", "activity USING PRIMARY KEY (id=?)"),
        (
            PRUNE_ANSWERS,
            "keyed_answers USING COVERING INDEX keyed_answers_by_age (at<?)",
            "keyed_answers USING PRIMARY KEY (key=?)",
        ),
    ] {
        let plan = plan(&connection, sql);
        assert!(plan.contains(old) && plan.contains(deleted) && !plan.contains("SCAN"), "{plan}");
    }
}
