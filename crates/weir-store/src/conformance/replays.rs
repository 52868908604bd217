//! Replays: ended deliveries are sent again.

use weir_core::ReplayId;

use super::*;
use crate::{DeliveryAction, NewReplay, Purge, Recovered, Replay, ReplayFigures, ReplayFilter, ReplayPhase};

/// When the replays of this suite begin, and when their deliveries are claimed.
pub(super) const BEGUN: Timestamp = Timestamp::from_secs(1_800_000_060);
pub(super) const CLAIMED: Timestamp = Timestamp::from_secs(1_800_000_070);

pub(super) fn all_dead() -> ReplayFilter {
    ReplayFilter { states: vec![DeliveryState::Dead, DeliveryState::Failed], deliveries: DeliveryFilter::default() }
}

pub(super) fn replay_id(number: u128) -> ReplayId {
    ReplayId::new(BEGUN, number)
}

impl Subject {
    /// Stores events with these numbers for destination `to`, and ends their deliveries with this verdict.
    async fn ended(&self, to: u128, numbers: std::ops::Range<u64>, verdict: Verdict) {
        let count = numbers.end - numbers.start;
        self.post(to, numbers).await;
        let mut remaining = count as usize;
        while remaining > 0 {
            let claimed = self.claim(to, 1_000).await;
            remaining -= claimed.len();
            let results = claimed.iter().map(|one| Arc::new(result(one, verdict))).collect();
            self.store.settle(results).await.expect("settle");
        }
    }

    pub(super) async fn begin(&self, number: u128, filter: ReplayFilter) -> u64 {
        let total = self.store.count_replay(&filter, BEGUN).await.expect("count");
        let replay = NewReplay { id: replay_id(number), filter, created_at: BEGUN };
        self.store.create_replay(replay, total, creation()).await.expect("create");
        total
    }

    /// Takes steps until the next one can do nothing at once. Returns the number of moved deliveries.
    pub(super) async fn steps(&self, number: u128) -> u64 {
        let mut moved = 0;
        loop {
            let step = self.store.step_replay(replay_id(number), BEGUN + seconds(1)).await.expect("a step");
            moved += step.moved;
            if !step.more {
                return moved;
            }
        }
    }

    async fn replay(&self, number: u128) -> Replay {
        self.store.replay(replay_id(number)).await.expect("read").expect("a replay")
    }

    pub(super) async fn figures(&self, number: u128) -> ReplayFigures {
        self.replay(number).await.figures
    }

    /// Claims deliveries of replays for destination `number`.
    pub(super) async fn claim_replay(&self, number: u128, limit: u32) -> Claims {
        let request = ClaimRequest { expires_at: CLAIMED + seconds(60), ..request(number, limit) };
        self.store.claim_replays(vec![request], CLAIMED).await.expect("claim").remove(0)
    }

    pub(super) async fn settle_later(&self, claimed: &ClaimedDelivery, verdict: Verdict) {
        let mut result = AttemptResult { now: CLAIMED + seconds(1), ..result(claimed, verdict) };
        result.attempt.sent_at = Some(CLAIMED);
        self.settle(result).await;
    }

    pub(super) async fn in_state(&self, number: u128, state: DeliveryState) -> usize {
        let filter =
            DeliveryFilter { destination_id: Some(destination_id(number)), states: vec![state], ..Default::default() };
        self.delivery_ids(&filter, 200).await.len()
    }
}

/// No attempt of the replay was made, so the delivery is not `retrying`.
pub async fn a_released_delivery_of_a_replay_is_pending(subject: Subject) {
    subject.create_many(1).await;
    subject.ended(1, 1..2, Verdict::Dead).await;
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    let claimed = subject.claim_replay(1, 1).await.deliveries.remove(0);
    assert_eq!(subject.store.release(vec![claimed.claim], CLAIMED + seconds(1)).await.expect("release"), 1);
    assert_eq!(subject.delivery(claimed.claim.delivery_id).await.state, DeliveryState::Pending);
}

pub async fn ended_deliveries_are_replayed_apart_from_live_ones(subject: Subject) {
    subject.create_many(2).await;
    for (numbers, verdict) in [(1..3, Verdict::Dead), (3..5, Verdict::Failed), (5..7, Verdict::Delivered)] {
        subject.ended(1, numbers, verdict).await;
    }
    subject.ended(2, 7..8, Verdict::Dead).await;
    subject.post(1, [8]).await;
    let of_one = DeliveryFilter { destination_id: Some(destination_id(1)), ..DeliveryFilter::default() };
    assert_eq!(subject.begin(1, ReplayFilter { deliveries: of_one, ..all_dead() }).await, 4);
    assert_eq!(subject.replay(1).await.phase, ReplayPhase::Moving);
    assert_eq!(subject.store.open_replays().await.expect("open"), [replay_id(1)]);
    assert_eq!(subject.steps(1).await, 4);
    assert_eq!(subject.store.replay_destinations().await.expect("read"), [destination_id(1)]);
    assert_eq!(
        (subject.in_state(1, DeliveryState::Pending).await, subject.in_state(1, DeliveryState::Dead).await),
        (5, 0)
    );

    // Live deliveries and replays are claimed separately, each the oldest first.
    let live = subject.claims(vec![request(1, 9)], CLAIMED).await.remove(0);
    assert_eq!((numbers_of(&live), live.next_due), (vec![8], None));
    let first = subject.claim_replay(1, 3).await;
    assert_eq!((numbers_of(&first), first.next_due), (vec![1, 2, 3], None));
    let second = subject.claim_replay(1, 3).await;
    assert_eq!((numbers_of(&second), second.next_due), (vec![4], None));
    assert!(subject.claim_replay(2, 3).await.deliveries.is_empty());
    let one = &first.deliveries[0];
    assert_eq!(
        (one.attempts, one.attempts_before, one.event_created_at),
        (1, 1, BEGUN),
        "a replay starts the retries again"
    );
    assert!(one.is_replay && !live.deliveries[0].is_replay);
    assert_eq!((live.deliveries[0].attempts_before, live.deliveries[0].event_created_at), (0, event(8).created_at));

    for (claimed, verdict) in first.deliveries.iter().chain(&second.deliveries).zip([
        Verdict::Delivered,
        Verdict::Delivered,
        Verdict::Dead,
        Verdict::Failed,
    ]) {
        assert_eq!(subject.steps(1).await, 0, "the replay has not ended");
        subject.settle_later(claimed, verdict).await;
    }
    let figures = ReplayFigures { total: 4, delivered: 2, failed: 2, cancelled: 0 };
    assert_eq!(subject.figures(1).await, figures);
    subject.steps(1).await;
    let replay = subject.replay(1).await;
    assert_eq!(
        (replay.phase, replay.figures, replay.ended_at),
        (ReplayPhase::Completed, figures, Some(BEGUN + seconds(1)))
    );
    assert!(subject.store.open_replays().await.expect("open").is_empty());
    assert!(subject.store.replay_destinations().await.expect("read").is_empty());
    // A later retry by hand does not change the figures of the ended replay.
    let again =
        subject.store.retry_delivery(first.deliveries[2].claim.delivery_id, CLAIMED + seconds(2), activity()).await;
    assert!(matches!(again, Ok(DeliveryAction::Done { .. })));
    assert_eq!(subject.figures(1).await, figures);
    assert_eq!(subject.attempts(one.claim.delivery_id).await.len(), 2, "attempt numbers continue");
    let sends = subject.sends(1, CLAIMED, Timestamp::MAX).await;
    let begun: Vec<_> = sends.iter().filter_map(|send| send.delivered.map(|(from, _)| from)).collect();
    assert_eq!(begun, [BEGUN; 2], "the age counts from the start of the replay");
    let sends = subject.sends(1, NOW, BEGUN).await;
    assert!(sends.iter().filter_map(|send| send.delivered).all(|(from, _)| from < BEGUN));
}

pub async fn a_retry_of_a_replay_waits_among_the_replays(subject: Subject) {
    subject.create_many(1).await;
    subject.ended(1, 1..3, Verdict::Dead).await;
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    let at = CLAIMED + seconds(30);
    let claimed = subject.claim_replay(1, 1).await.deliveries.remove(0);
    subject.settle_later(&claimed, Verdict::Retry { at }).await;
    assert_eq!(subject.delivery(claimed.claim.delivery_id).await.next_attempt_at, Some(at));
    let rest = subject.claim_replay(1, 9).await;
    assert_eq!((numbers_of(&rest), rest.next_due), (vec![2], Some(at)));
    let live = subject.claims(vec![request(1, 9)], at).await.remove(0);
    assert_eq!((live.deliveries.len(), live.next_due), (0, None), "a live claim takes no replays");
    let due = subject.store.due_destinations(at + seconds(1), None, 9).await.expect("due");
    assert_eq!(due, [crate::DueDestination { destination_id: destination_id(1), due: at, limit_group: None }]);
    // A released replay waits among the replays again.
    subject.store.release(vec![rest.deliveries[0].claim], CLAIMED).await.expect("release");
    assert_eq!(numbers_of(&subject.claim_replay(1, 9).await), [2]);
    assert_eq!(subject.figures(1).await.remaining(), 2);
}

pub async fn a_due_replay_is_found_beside_a_live_retry_that_is_due_later(subject: Subject) {
    subject.create_many(1).await;
    subject.ended(1, 1..2, Verdict::Dead).await;
    subject.post(1, [2]).await;
    let retried = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&retried, Verdict::Retry { at: CLAIMED + seconds(600) })).await;
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    let due = subject.store.due_destinations(CLAIMED, None, 9).await.expect("due");
    assert_eq!(due, [crate::DueDestination { destination_id: destination_id(1), due: BEGUN, limit_group: None }]);
}

pub async fn a_long_replay_continues_after_a_crash_and_moves_nothing_twice(mut subject: Subject) {
    const COUNT: u64 = 2_500;
    subject.create_many(1).await;
    subject.ended(1, 0..COUNT, Verdict::Dead).await;
    assert_eq!(subject.begin(1, all_dead()).await, COUNT);
    let (mut moved, mut steps) = (0, 0);
    loop {
        let step = subject.store.step_replay(replay_id(1), BEGUN + seconds(1)).await.expect("a step");
        assert!(step.moved <= 1_000, "a step is short");
        (moved, steps) = (moved + step.moved, steps + 1);
        assert_eq!(subject.figures(1).await.remaining(), COUNT, "deliveries that are not moved yet count as well");
        if !step.more {
            break;
        }
        subject.reopen().await;
        if steps == 1 {
            // A delivery that fails again before all are moved is not taken a second time.
            let claimed = subject.claim_replay(1, 1).await.deliveries.remove(0);
            subject.settle(result(&claimed, Verdict::Failed)).await;
            let figures = subject.figures(1).await;
            assert_eq!((figures.failed, figures.remaining()), (1, COUNT - 1));
            let again = subject.store.retry_delivery(claimed.claim.delivery_id, CLAIMED, activity()).await;
            assert!(matches!(again, Ok(DeliveryAction::Done { .. })));
        }
    }
    assert_eq!(moved, COUNT);
    assert_eq!(subject.figures(1).await.total, COUNT);
}

pub async fn a_cancelled_replay_puts_its_unsent_deliveries_back(subject: Subject) {
    subject.create_many(1).await;
    subject.ended(1, 1..4, Verdict::Dead).await;
    subject.ended(1, 4..6, Verdict::Failed).await;
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    let claimed = subject.claim_replay(1, 2).await.deliveries;
    let cancelling = subject.store.cancel_replay(replay_id(1), CLAIMED, activity()).await.expect("cancel");
    assert_eq!(cancelling, Some(ReplayPhase::Cancelling));
    assert_eq!(subject.steps(1).await, 3);
    assert_eq!(
        (subject.in_state(1, DeliveryState::Dead).await, subject.in_state(1, DeliveryState::Failed).await),
        (1, 2)
    );
    assert!(subject.claim_replay(1, 9).await.deliveries.is_empty());
    assert_eq!(subject.replay(1).await.phase, ReplayPhase::Cancelling, "two are in flight");
    // Deliveries in flight end by themselves and do not wait again.
    subject.settle_later(&claimed[0], Verdict::Delivered).await;
    subject.settle_later(&claimed[1], Verdict::Retry { at: CLAIMED + seconds(9) }).await;
    assert_eq!(subject.steps(1).await, 1);
    assert_eq!(subject.state(claimed[1].claim.delivery_id).await, DeliveryState::Dead);
    let replay = subject.replay(1).await;
    assert_eq!((replay.phase, replay.ended_at), (ReplayPhase::Cancelled, Some(CLAIMED)));
    assert_eq!((replay.figures.delivered, replay.figures.remaining()), (1, 4));
    // Another replay can take the deliveries.
    assert_eq!(subject.store.count_replay(&all_dead(), CLAIMED + seconds(9)).await.expect("count"), 4);
    assert_eq!(subject.store.cancel_replay(replay_id(3), CLAIMED, activity()).await.expect("cancel"), None);
    let again = subject.store.cancel_replay(replay_id(1), CLAIMED, activity()).await.expect("cancel");
    assert_eq!(again, Some(ReplayPhase::Cancelled));
}

pub async fn a_replay_cancelled_before_its_first_step_changes_nothing(subject: Subject) {
    subject.create_many(1).await;
    subject.ended(1, 1..4, Verdict::Dead).await;
    subject.begin(1, all_dead()).await;
    subject.store.cancel_replay(replay_id(1), CLAIMED, activity()).await.expect("cancel");
    assert_eq!(subject.steps(1).await, 0);
    let replay = subject.replay(1).await;
    assert_eq!((replay.phase, replay.figures.remaining()), (ReplayPhase::Cancelled, 3));
    assert_eq!(subject.in_state(1, DeliveryState::Dead).await, 3);
}

pub async fn a_replay_leaves_out_unsendable_deliveries_and_those_of_other_replays(subject: Subject) {
    subject.create_many(2).await;
    subject.ended(1, 1..4, Verdict::Dead).await;
    subject.ended(2, 4..6, Verdict::Dead).await;
    let short = DeliveryOptions { expires_at: Some(BEGUN), ..DeliveryOptions::default() };
    subject.ingest(vec![named(Event { options: short, ..event(6) }, &[1])]).await;
    let claimed = subject.claim(1, 9).await.remove(0);
    subject.settle(result(&claimed, Verdict::Dead)).await;
    subject.delete(2).await;
    assert_eq!(subject.begin(1, all_dead()).await, 3, "neither expired nor of a deleted destination");
    assert_eq!(subject.steps(1).await, 3);
    let claimed = subject.claim_replay(1, 1).await.deliveries.remove(0);
    subject.settle(result(&claimed, Verdict::Dead)).await;
    assert_eq!(subject.begin(2, all_dead()).await, 0, "they belong to the first replay");
    assert_eq!(subject.steps(2).await, 0);
    assert_eq!(subject.replay(2).await.phase, ReplayPhase::Completed);
    assert_eq!(subject.figures(1).await, ReplayFigures { total: 3, delivered: 0, failed: 1, cancelled: 0 });
}

pub async fn a_replay_takes_the_deliveries_that_match_its_filter(subject: Subject) {
    subject.create_many(1).await;
    let types = ["video.created", "video.clip.cut", "order.paid"];
    let events = (0..6).map(|number| Event { event_type: types[number as usize % 3].to_owned(), ..event(number) });
    subject.ingest(events.map(|event| named(event, &[1])).collect()).await;
    for (index, claimed) in subject.claim(1, 9).await.iter().enumerate() {
        let mut result = result(claimed, Verdict::Dead);
        result.attempt.status_code = Some(if index < 3 { 503 } else { 500 });
        subject.settle(result).await;
    }
    let base = DeliveryFilter::default();
    let of_type = |pattern: &str| Some(pattern.parse().expect("a pattern"));
    for (deliveries, expected) in [
        (base.clone(), 6),
        (DeliveryFilter { event_type: of_type("video.*"), ..base.clone() }, 4),
        (DeliveryFilter { event_type: of_type("order.paid"), error: "503".parse().ok(), ..base.clone() }, 1),
        (DeliveryFilter { tenants: TenantScope::one("other"), ..base.clone() }, 0),
        (DeliveryFilter { from: Some(event(2).created_at), to: Some(event(4).created_at), ..base.clone() }, 2),
        (DeliveryFilter { destination_id: Some(destination_id(2)), ..base }, 0),
    ] {
        let number = 10 + expected;
        let filter = ReplayFilter { deliveries: deliveries.clone(), ..all_dead() };
        let id = ReplayId::new(BEGUN, u128::from(number) << 8 | rand_of(&deliveries));
        let total = subject.store.count_replay(&filter, BEGUN).await.expect("count");
        assert_eq!(total, expected, "{deliveries:?}");
        subject
            .store
            .create_replay(NewReplay { id, filter, created_at: BEGUN }, total, creation())
            .await
            .expect("create");
        let mut moved = 0;
        while let step = subject.store.step_replay(id, BEGUN).await.expect("a step")
            && step.more
        {
            moved += step.moved;
        }
        assert_eq!(moved, expected, "{deliveries:?}");
        subject.store.cancel_replay(id, BEGUN, activity()).await.expect("cancel");
        while subject.store.step_replay(id, BEGUN).await.expect("a step").more {}
    }
}

/// A number that differs between the filters, for distinct replay ids.
fn rand_of(filter: &DeliveryFilter) -> u128 {
    format!("{filter:?}").len() as u128 & 0xff
}

pub async fn counts_lists_and_purges_include_waiting_replays(subject: Subject) {
    subject.create_many(2).await;
    subject.ended(1, 1..6, Verdict::Dead).await;
    subject.ended(2, 6..8, Verdict::Dead).await;
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("counts");
    assert_eq!((counts.pending, counts.retrying, counts.delivering), (5, 0, 0));
    let claimed = subject.claim_replay(1, 1).await.deliveries.remove(0);
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("counts");
    assert_eq!((counts.pending, counts.retrying, counts.delivering), (4, 0, 1));
    let waiting = DeliveryFilter {
        destination_id: Some(destination_id(1)),
        states: vec![DeliveryState::Pending],
        ..DeliveryFilter::default()
    };
    let waiting = subject.deliveries(waiting).await;
    assert_eq!(waiting[0].next_attempt_at, Some(BEGUN));
    // One delivery is cancelled by hand, one is retried by hand and so becomes live, and the others are purged.
    let cancelled = subject.store.cancel_delivery(waiting[0].id, CLAIMED, activity()).await.expect("cancel");
    assert!(matches!(cancelled, DeliveryAction::Done { .. }));
    let retried = subject.store.retry_delivery(waiting[1].id, CLAIMED, activity()).await.expect("retry");
    assert!(matches!(retried, DeliveryAction::Done { .. }));
    let live = subject.claims(vec![request(1, 9)], CLAIMED).await.remove(0).deliveries;
    assert_eq!(live.iter().map(|live| live.claim.delivery_id).collect::<Vec<_>>(), [waiting[1].id]);
    let (destination_id, now) = (destination_id(1), CLAIMED);
    let purge =
        Purge { destination_id, pending: true, retrying: true, event_type: None, limit_key: None, before: now, now };
    assert_eq!(subject.store.purge(&purge, activity()).await.expect("purge"), 2);
    subject.settle_later(&claimed, Verdict::Delivered).await;
    subject.settle_later(&live[0], Verdict::Delivered).await;
    subject.delete(2).await;
    assert_eq!(subject.figures(1).await, ReplayFigures { total: 7, delivered: 2, failed: 0, cancelled: 5 });
    subject.steps(1).await;
    assert_eq!(subject.replay(1).await.phase, ReplayPhase::Completed);
}

pub async fn unknown_attempts_of_a_replay_count_from_its_start(mut subject: Subject) {
    let mut twice = destination(1);
    twice.settings.retry.max_attempts = 2;
    subject.create(twice).await;
    subject.ended(1, 1..2, Verdict::Dead).await;
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    for (counted, expected) in
        [(2, Recovered { retried: 1, ..Recovered::default() }), (3, Recovered { dead: 1, ..Recovered::default() })]
    {
        let claimed = subject.claim_replay(1, 1).await.deliveries.remove(0);
        subject.reopen().await;
        assert_eq!(subject.store.recover_claims(CLAIMED, true, 9).await.expect("recover"), expected);
        assert_eq!(subject.delivery(claimed.claim.delivery_id).await.attempts, counted);
        assert!(subject.claims(vec![request(1, 9)], CLAIMED).await[0].deliveries.is_empty(), "it is still a replay");
    }
    assert_eq!(subject.figures(1).await, ReplayFigures { total: 1, delivered: 0, failed: 1, cancelled: 0 });
}

pub async fn replays_are_listed_newest_first(subject: Subject) {
    for number in 1..=3 {
        subject.begin(number, all_dead()).await;
    }
    let listed = subject.store.list_replays(page(2)).await.expect("list");
    let ids = |page: &crate::Page<Replay>| page.rows.iter().map(|replay| replay.id).collect::<Vec<_>>();
    assert_eq!(ids(&listed), [replay_id(3), replay_id(2)]);
    let rest = PageRequest { before: listed.next, limit: 2 };
    assert_eq!(ids(&subject.store.list_replays(rest).await.expect("list")), [replay_id(1)]);
    let filter = ReplayFilter {
        states: vec![DeliveryState::Cancelled],
        deliveries: DeliveryFilter { from: Some(NOW + Duration::from_nanos(1)), ..DeliveryFilter::default() },
    };
    subject.begin(4, filter.clone()).await;
    assert_eq!(subject.replay(4).await.filter, filter);
    assert!(subject.store.replay(replay_id(5)).await.expect("read").is_none());
}
