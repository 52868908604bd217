//! Alerts about limit groups. One alert tells of all members that a group holds back.

use std::{collections::HashMap, sync::Arc};

use weir_api_types::AlertData;
use weir_core::{
    Destination, DestinationId, Timestamp,
    alert::{AlertPolicy, AlertRecord, GroupAlert},
};
use weir_store::{
    AlertStore, GroupBacklog, GroupTraffic, Rates, RecentTraffic, StoreResult, TRAFFIC_BUCKET, tenant_code,
};

use super::{
    AlertUpdate, PAGE, Subject,
    recipients::{Recipients, Said},
};

/// The alert about a group, and its new record. `None` if the record does not change. As with destinations, an alert goes to
/// its recipients once and into the history once.
pub(super) fn alert_update(
    backlog: &GroupBacklog,
    policy: &AlertPolicy,
    subscribers: &[Arc<Destination>],
    now: Timestamp,
) -> Option<AlertUpdate> {
    let GroupBacklog { group, status, record, version } = backlog;
    let mut events = Vec::new();
    let mut publish = |alert: &GroupAlert, recipients: Recipients| {
        let data = AlertData::of_group(group, alert, status, policy, now);
        let said = Said { alert_type: alert.alert_type(), about: group.id.to_string(), version: *version };
        events.extend(recipients.events(&said, tenant_code(group.tenant.as_deref()), &data, now));
    };
    let (mut told, mut history) = (record.told, record.history());
    match told.group_alert(status, now) {
        (after, None) => told = after,
        (after, Some(alert)) => {
            let recipients = Recipients::of_group(group, alert.alert_type(), subscribers);
            // Without recipients a later subscriber still gets it.
            if !recipients.is_empty() {
                publish(&alert, recipients);
                (told, history) = (after, after);
            }
        }
    }
    let (history, alert) = history.group_alert(status, now);
    if let Some(alert) = alert {
        publish(&alert, Recipients::default());
    }
    let is_same = (told, history) == (record.told, record.history());
    let (subject, version) = (Subject::Group(group.id), *version);
    (!is_same).then(|| AlertUpdate { subject, version, record: AlertRecord::new(told, history), events })
}

/// The traffic of limit groups, from that of all destinations since `from`.
pub(super) async fn traffic(
    store: &dyn AlertStore,
    recent: &HashMap<DestinationId, RecentTraffic>,
    from: Timestamp,
    now: Timestamp,
) -> StoreResult<GroupTraffic> {
    let span = now.since(from.floor(TRAFFIC_BUCKET)).max(TRAFFIC_BUCKET).as_secs_f64();
    let per_s = |count: u64| count as f64 / span;
    let (mut traffic, ids) = (GroupTraffic::default(), recent.keys().copied().collect::<Vec<_>>());
    for ids in ids.chunks(PAGE) {
        for destination in store.destinations(ids).await?.iter().flatten() {
            let sum = recent.get(&destination.id).map(|recent| recent.sum).unwrap_or_default();
            traffic.add(destination, Rates { arrivals_per_s: per_s(sum.arrivals), sends_per_s: per_s(sum.sends) });
        }
    }
    Ok(traffic)
}
