//! What follows from the limit groups: those that hold their members back while something waits.

use weir_api_types::LimitGroupRow;

use super::finding::{Finding, Severity::Note, finding, listed};
use crate::{commands::limit_groups::held_back, output::texts::clean};

pub(super) fn groups(found: &mut Vec<Finding>, rows: &[LimitGroupRow]) {
    let held: Vec<_> = rows.iter().filter_map(|row| Some((row, held_back(row)?))).collect();
    let Some((first, _)) = held.first() else { return };
    let text = format!("limit groups hold their members back: {}", listed(held.iter().map(|(_, text)| text.as_str())));
    let next = format!(
        "weir limit-groups show '{}' says which members wait; raise its limits if the receiver allows it, or send less",
        clean(&first.limit_group.name)
    );
    found.push(finding(Note, "limits", text, next));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(name: &str, changes: &Value) -> LimitGroupRow {
        let mut row = json!({
            "id": "lgr_1", "tenant": "default", "name": name, "rate_limits": [], "max_in_flight": null, "override": null,
            "hold": null, "created_at": "2026-11-26T04:30:00.000Z", "updated_at": "2026-11-26T04:30:00.000Z", "members": 2,
            "backlog": 9, "delivering": 0, "oldest_age_s": null, "configured_per_s": 10.0, "binding": null,
            "achieved_per_s": 10.0, "arrivals_per_s": 1.0, "utilisation": 1.0, "drain_eta_s": 90.0, "drains": true,
        });
        row.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn groups_that_hold_their_members_back_are_named_with_what_waits() {
        let hold = json!({"until": "2026-11-26T05:00:00.000Z", "reason": "maintenance"});
        let rows = [
            row("partner", &json!({})),
            row("flooded", &json!({"drains": false, "drain_eta_s": null, "utilisation": 0.5})),
            row("held", &json!({"hold": hold, "backlog": 1, "utilisation": 0.0})),
            row("empty", &json!({"backlog": 0})),
            row("unused", &json!({"utilisation": 0.1})),
        ];
        let mut found = Vec::new();
        groups(&mut found, &rows);
        assert_eq!(
            found[0].found,
            "limit groups hold their members back: partner (9 deliveries wait at 2 members, drained in 1m), flooded (9 \
             deliveries wait at 2 members, more arrives than it may send), held (1 delivery waits at 2 members, held until \
             2026-11-26T05:00:00.000Z: maintenance)"
        );
        assert!(found[0].next_step.starts_with("weir limit-groups show 'partner'") && found.len() == 1);
        groups(&mut found, &rows[3..]);
        assert_eq!(found.len(), 1);
    }
}
