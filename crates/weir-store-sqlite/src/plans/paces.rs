//! The plans of the changes of paces.

use super::*;
use crate::paces::{CHANGES, PRUNE, RECENT};

#[test]
fn changes_of_paces_are_read_and_deleted_by_an_index() {
    let connection = database();
    for (sql, index) in [
        (CHANGES, "pace_changes USING PRIMARY KEY (destination_id=? AND at>? AND at<?)"),
        (RECENT, "pace_changes USING INDEX pace_changes_by_time (at>?)"),
        (PRUNE, "pace_changes USING COVERING INDEX pace_changes_by_time (at<?)"),
    ] {
        let plan = plan(&connection, sql);
        assert!(plan.contains(index) && !plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{plan}");
    }
}
