//! Recovery after a crash: abandoned claims, and the last sends.

use super::*;
use weir_core::{Limiter, RateLimits};

use crate::{Recovered, SendHistory, SentCounts};

impl Subject {
    pub(super) async fn recover(&self, at: u64, all: bool, limit: u32) -> Recovered {
        self.store.recover_claims(NOW + seconds(at), all, limit).await.expect("recover")
    }

    async fn history(&self, number: u128) -> SendHistory {
        self.store.send_history(&[destination_id(number)]).await.expect("read").remove(0)
    }
}

pub async fn every_claim_is_recovered_at_start(mut subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=3).await;
    subject.post(2, [4]).await;
    subject.claim(1, 2).await;
    subject.claim(2, 1).await;
    subject.reopen().await;
    assert_eq!(subject.recover(11, true, 100).await, Recovered { retried: 3, ..Recovered::default() });
    assert_eq!(subject.recover(11, true, 100).await, Recovered::default());
    assert_eq!(subject.claims(vec![request(1, 9)], NOW + seconds(11)).await[0].deliveries.len(), 3);
}

pub async fn a_claim_that_never_expires_is_recovered_at_start(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1]).await;
    let endless = ClaimRequest { expires_at: Timestamp::MAX, ..request(1, 1) };
    subject.claims(vec![endless], NOW + seconds(10)).await;
    assert_eq!(subject.recover(11, false, 100).await, Recovered::default());
    assert_eq!(subject.recover(11, true, 100).await, Recovered { retried: 1, ..Recovered::default() });
}

pub async fn only_expired_claims_are_recovered_later(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, [1]).await;
    subject.post(2, [2]).await;
    let short = ClaimRequest { expires_at: NOW + seconds(30), ..request(1, 1) };
    let claims = subject.claims(vec![short, request(2, 1)], NOW + seconds(10)).await;
    assert_eq!(subject.recover(29, false, 100).await, Recovered::default());
    assert_eq!(subject.recover(31, false, 100).await.retried, 1);
    assert_eq!(subject.state(claims[0].deliveries[0].claim.delivery_id).await, DeliveryState::Retrying);
    assert_eq!(subject.state(claims[1].deliveries[0].claim.delivery_id).await, DeliveryState::Delivering);
}

impl Subject {
    async fn renew(&self, claimed: &[&ClaimedDelivery], expires_at: Timestamp) -> u64 {
        let claims = claimed.iter().map(|claimed| claimed.claim).collect();
        self.store.renew_claims(claims, expires_at).await.expect("renew")
    }
}

pub async fn a_renewed_claim_does_not_expire(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=2).await;
    let short = ClaimRequest { expires_at: NOW + seconds(30), ..request(1, 2) };
    let claims = subject.claims(vec![short], NOW + seconds(10)).await.remove(0).deliveries;
    assert_eq!(subject.renew(&[&claims[0]], NOW + seconds(60)).await, 1);
    assert_eq!(subject.recover(31, false, 100).await.retried, 1, "the other one has expired");
    assert_eq!(subject.state(claims[0].claim.delivery_id).await, DeliveryState::Delivering);
    assert_eq!(subject.recover(61, false, 100).await.retried, 1, "it was not renewed again");
}

pub async fn a_renewal_never_shortens_a_claim(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1]).await;
    let long = ClaimRequest { expires_at: NOW + seconds(90), ..request(1, 1) };
    let claims = subject.claims(vec![long], NOW + seconds(10)).await.remove(0).deliveries;
    assert_eq!(subject.renew(&[&claims[0]], NOW + seconds(60)).await, 1);
    assert_eq!(subject.recover(61, false, 100).await, Recovered::default());
}

pub async fn a_claim_that_has_ended_is_not_renewed(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=3).await;
    let claimed = subject.claim(1, 3).await;
    subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    subject.store.release(vec![claimed[1].claim], NOW + seconds(11)).await.expect("release");
    let again = subject.claims(vec![request(1, 1)], NOW + seconds(12)).await.remove(0).deliveries;
    assert_eq!(again[0].claim.delivery_id, claimed[1].claim.delivery_id);
    let all = [&claimed[0], &claimed[1], &claimed[2]];
    assert_eq!(subject.renew(&all, NOW + seconds(999)).await, 1, "only the third still holds");
    assert_eq!(subject.state(claimed[0].claim.delivery_id).await, DeliveryState::Delivered);
}

pub async fn a_recovered_attempt_is_unknown_and_counted(subject: Subject) {
    let claimed = subject.one_claimed().await;
    subject.recover(20, true, 100).await;
    let delivery = subject.delivery(claimed.claim.delivery_id).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Retrying, 1));
    assert_eq!(delivery.next_attempt_at, Some(NOW + seconds(20)));
    let attempts = subject.attempts(claimed.claim.delivery_id).await;
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].number, attempts[0].outcome), (1, AttemptOutcome::Unknown));
    assert_eq!((attempts[0].sent_at, attempts[0].status_code), (Some(NOW + seconds(20)), None));
    assert_eq!(subject.settle(result(&claimed, Verdict::Delivered)).await, Settlement::ClaimLost);
    let again = subject.claims(vec![request(1, 1)], NOW + seconds(20)).await.remove(0).deliveries.remove(0);
    assert_eq!(again.attempts, 1);
    subject.recover(21, true, 100).await;
    let attempts = subject.attempts(claimed.claim.delivery_id).await;
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);
    assert_ne!(attempts[0].id, attempts[1].id);
}

pub async fn a_recovered_delivery_without_attempts_left_is_dead(subject: Subject) {
    let mut once = destination(1);
    once.settings.retry.max_attempts = 1;
    subject.create(once).await;
    subject.post(1, [1]).await;
    let claimed = subject.claim(1, 1).await.remove(0);
    assert_eq!(subject.recover(20, true, 100).await, Recovered { dead: 1, ..Recovered::default() });
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Dead);
}

pub async fn a_recovered_delivery_of_a_deleted_destination_is_cancelled(subject: Subject) {
    let claimed = subject.one_claimed().await;
    subject.delete(1).await;
    assert_eq!(subject.recover(20, true, 100).await, Recovered { cancelled: 1, ..Recovered::default() });
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Cancelled);
    assert_eq!(subject.attempts(claimed.claim.delivery_id).await.len(), 1);
}

pub async fn recovery_takes_at_most_its_limit(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=5).await;
    subject.claim(1, 5).await;
    let recovered =
        [subject.recover(20, true, 2).await, subject.recover(20, true, 2).await, subject.recover(20, true, 2).await];
    assert_eq!(recovered.map(|recovered| recovered.retried), [2, 2, 1]);
}

pub async fn the_last_sends_survive_a_restart(mut subject: Subject) {
    subject.create_many(3).await;
    subject.post(1, 1..=2).await;
    subject.post(2, 3..=3).await;
    for (claimed, sent) in subject.claim(1, 2).await.iter().zip([20, 15]) {
        let mut result = result(claimed, Verdict::Delivered);
        result.attempt.sent_at = Some(NOW + seconds(sent));
        subject.settle(result).await;
    }
    subject.claim(2, 1).await;
    subject.recover(30, true, 9).await;
    subject.reopen().await;
    let ids = [2, 3, 1, 9].map(destination_id);
    let last = subject.store.send_history(&ids).await.expect("read").into_iter().map(|history| history.last_sent_at);
    assert!(last.eq([Some(NOW + seconds(30)), None, Some(NOW + seconds(20)), None]));
}

pub async fn sends_are_counted_by_the_buckets_of_a_window(mut subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=6).await;
    let claimed = subject.claim(1, 6).await;
    let limit = RateLimit::new(3, Period::MINUTE).expect("a limit").as_window();
    let millis = |after: u64| NOW + Duration::from_millis(after);
    // One before the window, three in two buckets, one of unknown outcome, and one that is still out.
    for (claimed, sent) in claimed.iter().zip([5_000, 10_000, 10_099, 10_100]) {
        let mut result = result(claimed, Verdict::Delivered);
        result.attempt.sent_at = Some(millis(sent));
        subject.settle(result).await;
    }
    subject.reopen().await;
    let counts = async |number: u128, since: u64| {
        subject.store.sent_counts(&[destination_id(number)], millis(since), limit).await.expect("read")
    };
    let number = |after: u64| millis(after).as_nanos() / 100_000_000 + 1;
    let mut sent = counts(1, 5_000).await;
    sent.buckets.sort_unstable();
    let buckets = vec![(number(10_000), 2), (number(10_100), 1)];
    assert_eq!(sent, SentCounts { buckets, claimed: 2, restored: None, usual_cost: 0 });
    assert_eq!(counts(2, 0).await, SentCounts::default());
    // Of a restored store and an expired claim: all that may have been sent.
    subject.store.mark_restored(millis(20_000)).await.expect("mark");
    subject.recover(30, true, 1).await;
    let sent = counts(1, 10_099).await;
    assert_eq!((sent.claimed, sent.restored, sent.buckets.len()), (1, Some(millis(20_000)), 2));
    let mut limiter = Limiter::recovered(&RateLimits::new(vec![limit]).expect("one limit"), Some(millis(30_000)));
    limiter.recall(sent.ring(limit, millis(31_000), millis(32_000)));
    let next = limiter.next_start(millis(32_000));
    assert!(next >= millis(80_000) && next < millis(80_200), "the third last may have started at 20 s: {next}");
}

pub async fn a_failed_connection_is_not_a_send(subject: Subject) {
    let claimed = subject.one_claimed().await;
    let mut result = result(&claimed, Verdict::Retry { at: NOW + seconds(60) });
    result.attempt.sent_at = None;
    subject.settle(result).await;
    assert_eq!(subject.history(1).await, SendHistory::default());
    assert_eq!(subject.attempts(claimed.claim.delivery_id).await[0].sent_at, None);
    let sends = subject.sends(1, Timestamp::MIN, Timestamp::MAX).await;
    assert!(sends.is_empty());
}

pub async fn outstanding_claims_make_the_history_unsettled(subject: Subject) {
    let claimed = subject.one_claimed().await;
    assert_eq!(subject.history(1).await, SendHistory { last_sent_at: None, unsettled: true });
    subject.settle(result(&claimed, Verdict::Delivered)).await;
    let settled = SendHistory { last_sent_at: Some(NOW + seconds(1)), unsettled: false };
    assert_eq!(subject.history(1).await, settled);
}

pub async fn a_restored_store_accounts_for_unknown_sends(mut subject: Subject) {
    subject.create_many(2).await;
    let claimed = {
        subject.post(1, [1]).await;
        subject.claim(1, 1).await.remove(0)
    };
    subject.settle(result(&claimed, Verdict::Delivered)).await;
    let mark = NOW + seconds(100);
    for sends_until in [NOW + seconds(50), mark] {
        subject.store.mark_restored(sends_until).await.expect("mark");
    }
    subject.reopen().await;
    let ids = [1, 2, 9].map(destination_id);
    let last = subject.store.send_history(&ids).await.expect("read").into_iter().map(|history| history.last_sent_at);
    assert!(last.eq([Some(mark), Some(mark), None]), "with and without recorded sends");
}

pub async fn later_sends_overtake_the_mark_of_a_restore(subject: Subject) {
    subject.store.mark_restored(NOW).await.expect("mark");
    let claimed = subject.one_claimed().await;
    subject.settle(result(&claimed, Verdict::Delivered)).await;
    assert_eq!(subject.history(1).await.last_sent_at, Some(NOW + seconds(1)));
}

pub async fn a_destination_made_after_a_restore_has_no_unknown_sends(subject: Subject) {
    subject.create_many(1).await;
    subject.store.mark_restored(NOW + seconds(100)).await.expect("mark");
    let later = Destination { created_at: NOW + seconds(101), updated_at: NOW + seconds(101), ..destination(2) };
    subject.create(later).await;
    assert_eq!(subject.history(1).await.last_sent_at, Some(NOW + seconds(100)));
    assert_eq!(subject.history(2).await.last_sent_at, None);
}
