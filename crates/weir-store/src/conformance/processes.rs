//! Processes and the claims that they own. Only a store that several processes share can test how one declares another
//! dead.

use super::*;
use crate::{ProcessProfile, Recovered, RunningProcess};

const RESOLVED: Timestamp = Timestamp::from_secs(1_800_000_020);

impl Subject {
    async fn resolve(&self, claimed: &[&ClaimedDelivery]) -> Recovered {
        let claims = claimed.iter().map(|claimed| claimed.claim).collect();
        self.store.resolve_claims(claims, RESOLVED).await.expect("resolve")
    }
}

pub async fn claims_of_a_running_process_or_without_an_owner_are_not_orphaned(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    subject.post(1, [1]).await;
    subject.store.register_process().await.expect("register");
    subject.post(1, [2]).await;
    let mut delayed = event(3);
    delayed.options.deliver_at = Some(event(3).created_at + Duration::from_millis(1));
    subject.ingest(vec![named(delayed, &[1])]).await;
    assert_eq!((fast_path.admitted().len(), subject.claim(1, 9).await.len()), (2, 1));
    assert!(subject.store.beat(None).await.expect("beat"));
    assert_eq!(subject.store.orphaned_claims(9).await.expect("read"), []);
}

pub async fn resolved_claims_have_an_unknown_outcome_and_are_counted(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=3).await;
    subject.store.register_process().await.expect("register");
    let claimed = subject.claim(1, 3).await;
    let resolved = subject.resolve(&[&claimed[2], &claimed[0]]).await;
    assert_eq!(resolved, Recovered { retried: 2, ..Recovered::default() });
    for (claimed, expected) in
        claimed.iter().zip([DeliveryState::Retrying, DeliveryState::Delivering, DeliveryState::Retrying])
    {
        assert_eq!(subject.state(claimed.claim.delivery_id).await, expected);
    }
    let attempts = subject.attempts(claimed[0].claim.delivery_id).await;
    assert_eq!((attempts.len(), attempts[0].outcome), (1, AttemptOutcome::Unknown));
    assert_eq!((attempts[0].number, attempts[0].sent_at), (1, Some(RESOLVED)));
    // The owner of the claims continues too late.
    assert_eq!(subject.settle(result(&claimed[0], Verdict::Delivered)).await, Settlement::ClaimLost);
    assert_eq!(subject.store.release(vec![claimed[2].claim], RESOLVED).await.expect("release"), 0);
    let kept = subject.settle(result(&claimed[1], Verdict::Delivered)).await;
    assert_eq!(kept, Settlement::Settled(DeliveryState::Delivered));
    let again = subject.claims(vec![request(1, 9)], RESOLVED).await.remove(0).deliveries;
    assert_eq!(again.iter().map(|again| again.attempts).collect::<Vec<_>>(), [1, 1]);
}

pub async fn claims_that_ended_meanwhile_are_not_resolved(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=3).await;
    let claimed = subject.claim(1, 3).await;
    subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    let released = claimed[1..].iter().map(|claimed| claimed.claim).collect();
    subject.store.release(released, NOW + seconds(11)).await.expect("release");
    let again = subject.claim(1, 1).await.remove(0);
    assert_eq!(again.claim.delivery_id, claimed[1].claim.delivery_id);
    assert_eq!(subject.resolve(&claimed.iter().collect::<Vec<_>>()).await, Recovered::default());
    let states = [DeliveryState::Delivered, DeliveryState::Delivering, DeliveryState::Pending];
    for (claimed, expected) in claimed.iter().zip(states) {
        assert_eq!(subject.state(claimed.claim.delivery_id).await, expected);
    }
    let settled = subject.settle(result(&again, Verdict::Delivered)).await;
    assert_eq!(settled, Settlement::Settled(DeliveryState::Delivered));
}

pub async fn a_resolved_claim_ends_like_a_recovered_one(subject: Subject) {
    let mut once = destination(1);
    once.settings.retry.max_attempts = 1;
    subject.create(once).await;
    subject.create(destination(2)).await;
    let coalescing = |number| {
        let mut event = event(number);
        event.options.coalesce_key = Some("a".to_owned());
        named(event, &[3])
    };
    subject.create(destination(3)).await;
    subject.post(1, [1]).await;
    subject.post(2, [2]).await;
    subject.ingest(vec![coalescing(3)]).await;
    let mut claimed = Vec::new();
    for number in 1..=3 {
        claimed.extend(subject.claim(number, 1).await);
    }
    subject.delete(2).await;
    subject.ingest(vec![coalescing(4)]).await;
    let resolved = subject.resolve(&claimed.iter().collect::<Vec<_>>()).await;
    assert_eq!(resolved, Recovered { retried: 0, dead: 1, cancelled: 1, superseded: 1 });
}

pub async fn a_registered_process_is_listed_with_what_it_says_of_itself(subject: Subject) {
    let id = subject.store.register_process().await.expect("register");
    let listed = async || subject.store.running_processes().await.expect("read");
    assert_eq!(listed().await, [RunningProcess { id, profile: None, clock_ahead_us: None }]);
    let [role, version, host] = ["worker", "0.1.0", "web-1"].map(str::to_owned);
    let profile = ProcessProfile { role, version, host, started_at: RESOLVED };
    subject.store.describe_process(profile.clone()).await.expect("describe");
    assert_eq!(listed().await, [RunningProcess { id, profile: Some(profile), clock_ahead_us: None }]);
}
