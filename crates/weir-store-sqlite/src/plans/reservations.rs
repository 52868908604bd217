//! The plans of reservations.

use super::*;
use crate::reservations::{AFTER, COUNTS, HAS_RESERVED, LIST, PRUNE};

#[test]
fn reservations_are_read_and_deleted_by_an_index() {
    let connection = database();
    let of_group = "reservations USING COVERING INDEX reservations_of_group (group_id=? AND ends_at>?";
    for (sql, index) in [
        (LIST, "reservations USING INDEX reservations_of_group (group_id=? AND ends_at>? AND (ends_at,id)<(?,?))"),
        (AFTER, "reservations USING INDEX reservations_of_group (group_id=? AND "),
        (HAS_RESERVED, of_group),
        (COUNTS, "reservations USING INDEX reservations_of_group (group_id=? AND ends_at>?)"),
        (PRUNE, "reservations USING PRIMARY KEY (id<?)"),
    ] {
        let plan = plan(&connection, sql);
        assert!(plan.contains(index) && !plan.contains("SCAN reservations"), "{plan}");
    }
    for sql in [LIST, AFTER] {
        let plan = plan(&connection, sql);
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
}
