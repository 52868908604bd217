//! The alert about an outage: a fault of Weir itself that stalls destinations. It has one cause, so one alert tells of it,
//! however many destinations wait. Every tenant with subscribers is told of its own destinations.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use weir_api_types::AlertData;
use weir_core::{
    Destination, DestinationId, Timestamp,
    alert::{AlertRecord, AlertType},
    destination::ALL_TENANTS,
    stall::{Outage, StallReport},
};
use weir_store::{AlertStore, StoreResult};

use super::{
    AlertUpdate, PAGE, Subject,
    recipients::{Said, event},
};

/// The subscribers to tell, by their tenants.
type Recipients<'s> = BTreeMap<&'s str, Vec<DestinationId>>;

/// The alert about the installation, and its new record. `None` if the record does not change.
pub(super) async fn alert_update(
    store: &dyn AlertStore,
    stalls: &StallReport,
    subscribers: &[Arc<Destination>],
    now: Timestamp,
) -> StoreResult<Option<AlertUpdate>> {
    let outage = stalls.outage(now);
    let (version, record) = store.installation_alerts().await?;
    let Some((record, recipients)) = news(record, outage, subscribers) else { return Ok(None) };
    let counts = match outage.flatten() {
        Some(_) => stalled_by_tenant(store, stalls).await?,
        None => HashMap::new(),
    };
    let said = Said { alert_type: alert_type(outage), about: "installation".to_owned(), version };
    let events =
        recipients.into_iter().map(|(tenant, ids)| event(&said, (tenant, ids), &data(outage, tenant, &counts), now));
    Ok(Some(AlertUpdate { subject: Subject::Installation, version, record, events: events.collect() }))
}

fn alert_type(outage: Option<Option<Outage>>) -> AlertType {
    if matches!(outage, Some(Some(_))) { AlertType::InstallationStalled } else { AlertType::InstallationRecovered }
}

/// The record after the alert that is to be raised, and who gets it. As with destinations, an alert goes to its recipients
/// once, which are also those of a later subscriber, and into the history once: that of all tenants.
fn news(
    record: AlertRecord,
    outage: Option<Option<Outage>>,
    subscribers: &[Arc<Destination>],
) -> Option<(AlertRecord, Recipients<'_>)> {
    let mut recipients = Recipients::from([(ALL_TENANTS, Vec::new())]);
    if let Some(history) = record.history().outage_alert(outage) {
        return match tell(&mut recipients, outage, subscribers) {
            true => Some((AlertRecord::new(history, history), recipients)),
            false => Some((AlertRecord::new(record.told, history), recipients)),
        };
    }
    let told = record.told.outage_alert(outage)?;
    let has_recipients = tell(&mut recipients, outage, subscribers);
    has_recipients.then(|| (AlertRecord::new(told, record.history()), recipients))
}

/// Adds the subscribers. Returns whether there are some.
fn tell<'s>(
    recipients: &mut Recipients<'s>,
    outage: Option<Option<Outage>>,
    subscribers: &'s [Arc<Destination>],
) -> bool {
    for subscriber in subscribers {
        let tenant = subscriber.settings.tenant.as_str();
        if subscriber.accepts(tenant, alert_type(outage).as_str()) {
            recipients.entry(tenant).or_default().push(subscriber.id);
        }
    }
    recipients.values().any(|ids| !ids.is_empty())
}

/// What the alert says to a tenant: of its own destinations.
fn data(outage: Option<Option<Outage>>, tenant: &str, counts: &HashMap<String, u64>) -> AlertData {
    let count = match tenant {
        ALL_TENANTS => counts.values().sum(),
        tenant => counts.get(tenant).copied().unwrap_or_default(),
    };
    AlertData::of_outage(outage.flatten(), count)
}

/// How many destinations of each tenant the outage stalls. Read once for an alert.
async fn stalled_by_tenant(store: &dyn AlertStore, stalls: &StallReport) -> StoreResult<HashMap<String, u64>> {
    let ids: Vec<_> = stalls.stalled_by_outage().map(|(id, _)| id).collect();
    let mut counts = HashMap::new();
    for ids in ids.chunks(PAGE) {
        for destination in store.destinations(ids).await?.iter().flatten() {
            *counts.entry(destination.settings.tenant.clone()).or_insert(0) += 1;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use weir_core::stall::{Fault, Late};

    use super::{super::tests::destination, *};

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn ids(recipients: &Recipients<'_>) -> Vec<(String, Vec<DestinationId>)> {
        recipients.iter().map(|(tenant, ids)| ((*tenant).to_owned(), ids.clone())).collect()
    }

    #[test]
    fn one_alert_tells_of_all_destinations_that_a_fault_of_weir_stalls() {
        let late = |number: u128, fault| {
            let since = NOW.before(std::time::Duration::from_secs(20));
            (DestinationId::new(NOW, number), Late { since, fault })
        };
        let mut report = StallReport { at: NOW, is_complete: true, fault: None, ..StallReport::default() };
        report.late = (0..99_903).map(|number| late(number, Fault::StoreSlow)).collect();
        report.late.extend([late(100_000, Fault::NotPublished)]);
        assert_eq!(report.stalled_alone().collect::<Vec<_>>(), [DestinationId::new(NOW, 100_000)]);
        assert_eq!(report.stall_of(DestinationId::new(NOW, 7), NOW), None, "the installation's alert tells of it");

        let (subscriber, other) = (destination(1, "weir.*"), destination(2, "weir.breaker.opened"));
        let tenant = subscriber.settings.tenant.clone();
        let (outage, subscribers) = (report.outage(NOW), [subscriber.clone(), other]);
        let (record, recipients) = news(AlertRecord::default(), outage, &subscribers).unwrap();
        assert_eq!(ids(&recipients), [(ALL_TENANTS.to_owned(), vec![]), (tenant.clone(), vec![subscriber.id])]);
        assert!(news(record, outage, &subscribers).is_none(), "it was told of");
        let counts = HashMap::from([(tenant.clone(), 99_000), ("acme".to_owned(), 903)]);
        let of_all = data(outage, ALL_TENANTS, &counts);
        assert_eq!((of_all.cause.as_deref(), of_all.destinations), (Some("store_slow"), Some(99_903)));
        let reason = "the database does not answer, or answers slowly; 99000 destinations wait";
        assert_eq!(data(outage, &tenant, &counts).reason.as_deref(), Some(reason));

        // It is over when none is stalled by it any more.
        report.late.retain(|_, late| late.fault == Fault::NotPublished);
        let (record, recipients) = news(record, report.outage(NOW), &subscribers).unwrap();
        assert_eq!(
            (ids(&recipients).len(), alert_type(report.outage(NOW)).as_str()),
            (2, "weir.installation.recovered")
        );
        assert!(news(record, report.outage(NOW), &subscribers).is_none());
    }

    #[test]
    fn an_outage_without_subscribers_is_in_the_history_once_and_a_later_subscriber_is_told() {
        let outage = Some(Some(Outage { fault: Fault::NoWorker, since: NOW, obstacle: None }));
        let (record, recipients) = news(AlertRecord::default(), outage, &[]).unwrap();
        assert_eq!(ids(&recipients), [(ALL_TENANTS.to_owned(), vec![])]);
        assert!(news(record, outage, &[]).is_none());
        let subscriber = destination(1, "weir.installation.stalled");
        let subscribers = [subscriber.clone()];
        let (record, recipients) = news(record, outage, &subscribers).unwrap();
        assert_eq!(ids(&recipients)[1].1, [subscriber.id]);
        assert!(news(record, outage, &subscribers).is_none());
        assert!(news(record, None, &subscribers).is_none(), "nothing is known");
    }
}
