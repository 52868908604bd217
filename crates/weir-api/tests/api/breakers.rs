//! Breakers that a request closes.

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{
    Clock as _, DestinationId,
    breaker::{AttemptWindow, Breaker, BreakerPolicy, EndedAttempt},
    delivery::AttemptOutcome,
    outcome::Effect,
};
use weir_store::BreakerChange;

use crate::harness::Server;

impl Server {
    /// Opens the breaker of a destination, as the worker does after ten failures in a row.
    pub(crate) async fn open_breaker(&self, id: DestinationId) {
        let now = self.clock.now();
        let (closed, mut window) = (Breaker::default(), AttemptWindow::default());
        let failure =
            EndedAttempt { outcome: AttemptOutcome::Retryable, effect: Effect::None, refusal: None, began: now, now };
        let open = (0..10).find_map(|_| window.observe(&closed, &BreakerPolicy::default(), &failure)).unwrap();
        let change = BreakerChange { id, expected: closed, changed: open, now };
        assert_eq!(self.store.change_breakers(vec![change]).await.unwrap(), [true]);
    }

    /// The rows of the activity log about resumed destinations.
    async fn resumed(&self) -> Vec<Value> {
        let listed = self.get("/v1/activity").await.expect(StatusCode::OK);
        let rows = listed["data"].as_array().unwrap().iter();
        rows.filter(|row| row["action"] == "destination.resumed").cloned().collect()
    }
}

#[tokio::test]
async fn a_patch_that_says_not_paused_closes_an_open_breaker_and_other_patches_leave_it_open() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": "https://example.com/hooks"})).await;
    let path = format!("/v1/destinations/{id}");
    server.open_breaker(id.parse().unwrap()).await;
    let renamed = server.patch(&path, json!({"name": "b"})).await.expect(StatusCode::OK);
    assert_eq!((&renamed["breaker_state"], &renamed["paused"]), (&json!("open"), &json!(false)));
    assert!(renamed["next_probe_at"].is_string(), "{renamed}");
    server.queue.edited();

    // The destination is not paused: only the breaker changes.
    let closed = server.patch(&path, json!({"paused": false})).await.expect(StatusCode::OK);
    assert_eq!((&closed["breaker_state"], &closed["paused"]), (&json!("closed"), &json!(false)));
    assert_eq!((&closed["breaker_reason"], &closed["next_probe_at"]), (&Value::Null, &Value::Null));
    assert_ne!(closed["updated_at"], renamed["updated_at"], "another version");
    assert_eq!(server.queue.edited().len(), 1, "the queue is told");
    let resumed = server.resumed().await;
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert_eq!(
        (&resumed[0]["before"], &resumed[0]["after"]),
        (&json!({"breaker_state": "open"}), &json!({"breaker_state": "closed"}))
    );

    // With a closed breaker it changes nothing.
    let same = server.patch(&path, json!({"paused": false})).await.expect(StatusCode::OK);
    assert_eq!(same["updated_at"], closed["updated_at"]);
    assert_eq!(server.resumed().await.len(), 1);
}
