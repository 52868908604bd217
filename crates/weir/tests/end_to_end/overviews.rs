//! Previews and the live overview, against real drains: of one process, and of several that share a store.

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::support::{Answer, App, Fleet, Receiver, cases::limit, machine::Machine, now};

const SECOND: Duration = Duration::from_secs(1);

/// The snapshots of an open stream.
struct Snapshots {
    response: Response,
    text: String,
}

impl Snapshots {
    async fn of(app: &App, query: &str) -> Self {
        let response = app.http.get(format!("{}/v1/stream{query}", app.url)).send().await.unwrap();
        assert_eq!(response.status(), 200);
        Self { response, text: String::new() }
    }

    /// The next snapshot; `None`: the stream has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data =
                    event.strip_prefix("event: snapshot\ndata: ").map(|data| serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                if data.is_some() {
                    return data;
                }
                continue;
            }
            let part = self.response.chunk().await.unwrap()?;
            self.text.push_str(std::str::from_utf8(&part).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_stream_does_not_delay_the_end_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let mut snapshots = Snapshots::of(&app, "").await;
    assert_eq!(snapshots.next().await.unwrap()["totals"]["destinations"], 0);
    let began = now();
    assert!(app.terminate().await.success());
    let took = now() - began;
    assert!(took < SECOND * 3, "the process ended after {took:?}");
    while snapshots.next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_of_a_process_shows_what_the_others_do() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    receiver.script("/shared", [Answer::status(200)]);
    let (api, other) = (fleet.launch("api").await, fleet.launch("api").await);
    let (_scheduler, _worker) = (fleet.launch("scheduler").await, fleet.launch("worker").await);
    let settings = json!({"url": receiver.url("/shared"), "rate_limits": limit(20, "second")});
    let id = other.destination(settings).await;
    other.events("shared", 100).await;
    let mut snapshots = Snapshots::of(&api, &format!("?destination={id}")).await;
    let mut backlogs = Vec::new();
    while backlogs.last() != Some(&0) {
        let snapshot = snapshots.next().await.unwrap();
        let row = &snapshot["destinations"][0];
        assert_eq!(row["destination"]["id"], json!(id));
        backlogs.push(row["backlog"].as_u64().unwrap());
        assert!(backlogs.len() < 60, "{backlogs:?}");
    }
    // It falls from sample to sample, by less than all at once.
    assert!(backlogs.len() >= 3 && backlogs.is_sorted_by(|a, b| a >= b), "{backlogs:?}");
    let overview = api.get("/v1/overview").await;
    assert_eq!((&overview["totals"]["backlog"], &overview["data"][0]["destination"]["id"]), (&json!(0), &json!(id)));
}

/// It judges a time.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_saved_limit_drains_a_backlog_in_the_time_that_its_preview_said() {
        let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
        let app = App::start(folder.path()).await;
        receiver.script("/preview", [Answer::status(200)]);
        let settings = json!({"url": receiver.url("/preview"), "rate_limits": limit(20, "second")});
        let id = app.destination(settings).await;
        app.events("preview", 600).await;
        // It drains at 20 a second when the limit is edited.
        receiver.wait_for("/preview", 60, SECOND * 20).await;
        let machine = Machine::watched();
        let edit = json!({"rate_limits": [{"limit": 50, "period": "second"}, {"limit": 2_700, "period": "minute"}]});
        let path = format!("/v1/destinations/{id}/preview");
        let (status, preview) = app.request(Method::POST, &path, Some(edit.clone())).await;
        assert_eq!((status, &preview["drains"]), (200, &json!(true)), "{preview}");
        assert_eq!(preview["binding"], json!({"limit": 2_700, "period": "minute"}));
        let eta = |shown: &Value| shown["drain_eta_s"].as_f64().unwrap();
        assert!(eta(&preview["now"]) > 2.0 * eta(&preview), "{preview}");
        app.patch(&id, edit).await;
        let edited = now();
        let arrivals = receiver.wait_for("/preview", 600, SECOND * 60).await;
        let took = (now() - edited).as_secs_f64();
        let apart = (took - eta(&preview)).abs() / took;
        machine.judge(apart <= 0.05, &format!("the drain took {took:.2} s, the preview said {:.2} s", eta(&preview)));
        assert_eq!(arrivals.len(), 600);
        app.assert_audit_clean(&id).await;
    }
}
