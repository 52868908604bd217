//! The trace of an event is stored and claimed with its body.

use super::{replays::CLAIMED, *};

fn trace_of(claimed: &ClaimedDelivery) -> Option<TraceParent> {
    let ClaimedBody::Inline(body) = &claimed.body else { panic!("a store claims with bodies") };
    body.trace()
}

pub async fn an_event_keeps_its_trace(mut subject: Subject) {
    subject.create_many(1).await;
    let events = [in_trace(event(1), 1), event(2), in_trace(event(3), 3), event(4)];
    subject.ingest(events.iter().cloned().map(matched).collect()).await;
    let expected: Vec<_> = events.iter().map(|event| event.body.trace()).collect();
    // From the body cache, if the store has one, and from the table.
    let mut claimed = subject.claim(1, 2).await;
    subject.reopen().await;
    claimed.extend(subject.claim(1, 2).await);
    assert_eq!(claimed.iter().map(trace_of).collect::<Vec<_>>(), expected);
    for event in &events {
        let stored = subject.store.event(event.id).await.expect("read").expect("an event");
        assert_eq!(stored, *event);
    }
    let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
    let bodies = subject.store.bodies(&ids).await.expect("read");
    assert_eq!(bodies.iter().map(|body| body.as_ref().and_then(EventBody::trace)).collect::<Vec<_>>(), expected);
}

pub async fn a_repeated_idempotency_key_keeps_the_first_trace(subject: Subject) {
    subject.create_many(1).await;
    let first = with_key(in_trace(event(1), 1), "a");
    subject.ingest(vec![matched(first.clone())]).await;
    let again = subject.ingest(vec![matched(with_key(in_trace(event(2), 2), "a"))]).await.remove(0);
    assert!(again.duplicate);
    assert_eq!(again.event, first);
    assert_eq!(subject.claim(1, 9).await.iter().map(trace_of).collect::<Vec<_>>(), [first.body.trace()]);
}

pub async fn a_replay_keeps_the_trace(subject: Subject) {
    subject.create_many(1).await;
    let event = in_trace(event(1), 1);
    subject.ingest(vec![matched(event.clone())]).await;
    let claimed = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&claimed, Verdict::Dead)).await;
    subject.begin(1, replays::all_dead()).await;
    assert_eq!(subject.steps(1).await, 1);
    let requests = vec![ClaimRequest { expires_at: CLAIMED + seconds(60), ..request(1, 1) }];
    let claims = subject.store.claim_replays(requests, CLAIMED).await.expect("claim").remove(0);
    assert_eq!(claims.deliveries.iter().map(trace_of).collect::<Vec<_>>(), [event.body.trace()]);
}
