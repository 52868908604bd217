//! The publisher: posts events at fixed times, however Weir responds, and keeps the answer to each.
//!
//! The times are fixed before the first post, so a server that stalls is charged for the requests that it kept waiting.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{sync::mpsc, task::JoinSet};
use weir_api_types::AcceptedEvent;

use super::api::Api;
use crate::{
    client::Connection,
    clock::{Timeline, now},
    figures::{data, keyed_data},
    recording::{Event, Outcome},
    scenario::{Publish, seconds},
};

/// The pause before a post that was not answered is repeated.
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// A post without an answer for this long counts as unanswered.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A stream of the scenario and its destinations.
pub(crate) struct Stream {
    pub(crate) publish: Publish,
    pub(crate) event_type: String,
    /// The ids and numbers of the group's destinations.
    pub(crate) destinations: Vec<(String, u32)>,
    /// The number of its first event.
    pub(crate) first: u64,
    /// Makes the idempotency keys unique to this run.
    pub(crate) tag: String,
}

/// Events that are posted in one request.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Post {
    at: Duration,
    first: u64,
    count: u64,
}

/// All posts of a stream, with times counted from the beginning of the run.
fn posts(publish: &Publish, publish_s: f64) -> Vec<Post> {
    let batch = u64::from(publish.batch);
    let from = seconds(publish.from_s);
    if let Some(events) = publish.burst {
        let firsts = (0..events).step_by(publish.batch as usize);
        return firsts.map(|first| Post { at: from, first, count: batch.min(events - first) }).collect();
    }
    let span_s = publish.until_s.unwrap_or(publish_s) - publish.from_s;
    let Some(rate) = publish.per_s else { return Vec::new() };
    let requests = (span_s * rate / batch as f64).ceil() as u64;
    let at = |request: u64| from + seconds((request * batch) as f64 / rate);
    (0..requests).map(|request| Post { at: at(request), first: request * batch, count: batch }).collect()
}

/// How many events a stream has.
pub(crate) fn count(publish: &Publish, publish_s: f64) -> u64 {
    posts(publish, publish_s).iter().map(|post| post.count).sum()
}

impl Stream {
    /// Publishes the whole stream. `events` is indexed by the numbers of the events.
    pub(crate) async fn run(
        self,
        publish_s: f64,
        timeline: Timeline,
        api: Api,
        events: Arc<Mutex<Vec<Event>>>,
        deadline: Instant,
    ) {
        let posts = posts(&self.publish, publish_s);
        // Note all times before the first post, so that they do not depend on how Weir responds.
        {
            let mut events = events.lock();
            for post in &posts {
                let meant = timeline.at(timeline.began() + post.at);
                for number in self.first + post.first..self.first + post.first + post.count {
                    let event = &mut events[number as usize];
                    (event.meant, event.key, event.cost) = (meant, self.key(number), self.cost(number));
                    event.destination = self.destination(number).map(|(_, number)| *number);
                }
            }
        }
        let connections = self.publish.connections as usize;
        let stream = Arc::new(self);
        // Each connection has a task and a queue of its own.
        let mut queues = Vec::new();
        let mut senders = JoinSet::new();
        for _ in 0..connections {
            let (queue, waiting) = mpsc::unbounded_channel::<Post>();
            queues.push(queue);
            senders.spawn(Arc::clone(&stream).send_all(waiting, timeline, api.clone(), Arc::clone(&events), deadline));
        }
        // Pacing has its own thread, because the runtime's timers are only exact to a millisecond, which is as long as
        // a measured latency.
        let is_keyed = stream.publish.ordering_keys.or(stream.publish.coalesce_keys).is_some();
        std::thread::spawn(move || {
            for (number, post) in posts.into_iter().enumerate() {
                std::thread::sleep((timeline.began() + post.at).saturating_duration_since(now()));
                // One connection keeps the order of keyed events.
                let queue = if is_keyed { 0 } else { number % queues.len() };
                if queues[queue].send(post).is_err() {
                    return;
                }
            }
        });
        while senders.join_next().await.is_some() {}
    }

    async fn send_all(
        self: Arc<Self>,
        mut waiting: mpsc::UnboundedReceiver<Post>,
        timeline: Timeline,
        api: Api,
        events: Arc<Mutex<Vec<Event>>>,
        deadline: Instant,
    ) {
        let mut connection = None;
        while let Some(post) = waiting.recv().await {
            let outcomes = self.send(post, &mut connection, timeline, &api, deadline).await;
            let mut events = events.lock();
            for (number, outcome) in (self.first + post.first..).zip(outcomes) {
                events[number as usize].outcome = outcome;
            }
        }
    }

    /// Posts until there is a final answer.
    async fn send(
        &self,
        post: Post,
        connection: &mut Option<Connection>,
        timeline: Timeline,
        api: &Api,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let (path, body) = self.request(post);
        loop {
            let answer = tokio::time::timeout(TIMEOUT, exchange(connection, api, path, body.clone())).await;
            let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in time")));
            // Until the deadline a persistent stream repeats a post. Idempotency keys make this safe.
            let is_final = now() >= deadline || !self.publish.persistent;
            match answer {
                Ok((status, answer)) if (200..300).contains(&status) => {
                    return outcomes(&answer, post.count, timeline.now());
                }
                // Weir may accept the post a moment later.
                Ok((429 | 503, _)) if !is_final => {}
                Ok((status, _)) => return vec![Outcome::Refused(status); post.count as usize],
                Err(_) => {
                    // A connection with an error is not used again.
                    *connection = None;
                    if is_final {
                        return vec![Outcome::Unknown; post.count as usize];
                    }
                }
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    fn request(&self, post: Post) -> (&'static str, Bytes) {
        let mut events = (self.first + post.first..).take(post.count as usize).map(|number| self.event(number));
        match self.publish.batch {
            1 => ("/v1/events", events.next().unwrap_or_default().into()),
            _ => ("/v1/events/batch", format!(r#"{{"events":[{}]}}"#, events.collect::<Vec<_>>().join(",")).into()),
        }
    }

    fn event(&self, number: u64) -> String {
        let limit_key = self.limit_key(number);
        let data = limit_key.as_deref().map_or_else(|| data(number), |key| keyed_data(number, key));
        let mut event = format!(r#"{{"type":"{}","data":{data}"#, self.event_type);
        let mut add = |name: &str, value: String| event += &format!(r#","{name}":{value}"#);
        if let Some((id, _)) = self.destination(number) {
            add("destinations", format!(r#"["{id}"]"#));
        }
        if self.publish.persistent {
            add("idempotency_key", format!(r#""{}-{number}""#, self.tag));
        }
        if let Some(key) = self.key(number) {
            let name = if self.publish.ordering_keys.is_some() { "ordering_key" } else { "coalesce_key" };
            add(name, format!(r#""key-{key}""#));
        }
        if let Some(key) = limit_key.filter(|_| self.publish.names_limit_key) {
            add("limit_key", format!(r#""{key}""#));
        }
        if !self.publish.costs.is_empty() {
            add("cost", self.cost(number).to_string());
        }
        event + "}"
    }

    fn key(&self, number: u64) -> Option<u32> {
        let keys = self.publish.ordering_keys.or(self.publish.coalesce_keys)?;
        Some(((number - self.first) % u64::from(keys.max(1))) as u32)
    }

    fn limit_key(&self, number: u64) -> Option<String> {
        let keys = u64::from(self.publish.limit_keys?);
        Some(format!("{}-{}", self.publish.key_prefix, (number - self.first) % keys))
    }

    fn cost(&self, number: u64) -> u32 {
        let turn = (number - self.first) as usize % self.publish.costs.len().max(1);
        self.publish.costs.get(turn).map_or(1, |cost| cost.get())
    }

    fn destination(&self, number: u64) -> Option<&(String, u32)> {
        self.publish.spread.then(|| &self.destinations[(number - self.first) as usize % self.destinations.len()])
    }
}

async fn exchange(
    connection: &mut Option<Connection>,
    api: &Api,
    path: &str,
    body: Bytes,
) -> anyhow::Result<(u16, Bytes)> {
    let open = match connection.take() {
        Some(open) => open,
        None => api.connect().await?,
    };
    connection.insert(open).exchange(Method::POST, path, body).await
}

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

/// The outcome of each event in an answer; `Unknown` where the answer cannot be parsed.
fn outcomes(answer: &[u8], count: u64, at: weir_core::Timestamp) -> Vec<Outcome> {
    let of = |event: &str| match serde_json::from_str::<AcceptedEvent>(event) {
        Ok(AcceptedEvent { id, deliveries, .. }) => Outcome::Accepted { id, deliveries, at },
        // A refused event of a batch.
        Err(_) if event.contains("\"error\"") => Outcome::Refused(422),
        Err(_) => Outcome::Unknown,
    };
    let mut outcomes: Vec<Outcome> = match serde_json::from_slice::<Batch<'_>>(answer) {
        Ok(batch) => batch.events.into_iter().map(|event| of(event.get())).collect(),
        Err(_) => std::str::from_utf8(answer).map(of).into_iter().collect(),
    };
    outcomes.resize(count as usize, Outcome::Unknown);
    outcomes
}

#[cfg(test)]
mod tests {
    use weir_core::EventId;

    use super::*;

    fn publish(toml: &str) -> Publish {
        toml::from_str(&format!("to = \"a\"\n{toml}")).unwrap()
    }

    fn stream(toml: &str) -> Stream {
        Stream {
            publish: publish(toml),
            event_type: "load.a".to_owned(),
            destinations: vec![("dst_1".to_owned(), 4), ("dst_2".to_owned(), 5)],
            first: 100,
            tag: "run".to_owned(),
        }
    }

    #[test]
    fn the_times_of_an_open_loop_are_fixed_in_advance() {
        let posts = posts(&publish("per_s = 10\nfrom_s = 1\nbatch = 2"), 2.0);
        assert_eq!(posts.len(), 5);
        assert_eq!(posts[1], Post { at: Duration::from_millis(1_200), first: 2, count: 2 });
    }

    #[test]
    fn a_burst_is_posted_at_once_and_its_last_batch_may_be_smaller() {
        let posts = posts(&publish("burst = 25\nbatch = 10"), 2.0);
        assert_eq!(posts.iter().map(|post| post.count).collect::<Vec<_>>(), [10, 10, 5]);
        assert!(posts.iter().all(|post| post.at.is_zero()));
    }

    #[test]
    fn an_event_has_the_destinations_and_keys_of_its_stream() {
        let stream = stream("per_s = 1\nspread = true\npersistent = true\nordering_keys = 2");
        let event: serde_json::Value = serde_json::from_str(&stream.event(103)).unwrap();
        assert_eq!(event["destinations"][0], "dst_2");
        assert_eq!((&event["idempotency_key"], &event["ordering_key"]), (&"run-103".into(), &"key-1".into()));
        assert_eq!(event["data"]["n"], 103);
    }

    #[test]
    fn a_limit_key_is_in_the_data_and_named_only_if_asked() {
        let event = |toml: &str| serde_json::from_str::<serde_json::Value>(&stream(toml).event(104)).unwrap();
        let found = event("per_s = 1\nlimit_keys = 3");
        assert_eq!((&found["data"]["key"], found.get("limit_key")), (&"key-1".into(), None));
        let named = event("per_s = 1\nlimit_keys = 3\nkey_prefix = \"cus\"\nnames_limit_key = true");
        assert_eq!((&named["data"]["key"], &named["limit_key"]), (&"cus-1".into(), &"cus-1".into()));
    }

    #[test]
    fn each_event_of_a_batch_has_its_own_outcome() {
        let at = weir_core::Timestamp::from_secs(1);
        let id = EventId::from_bytes([1; 16]);
        let one = serde_json::to_string(&AcceptedEvent {
            id,
            event_type: "x".to_owned(),
            tenant: "default".to_owned(),
            created_at: at,
            deliver_at: None,
            expires_at: None,
            deliveries: 2,
            filtered: 0,
            duplicate: false,
        })
        .unwrap();
        let accepted = Outcome::Accepted { id, deliveries: 2, at };
        assert_eq!(outcomes(one.as_bytes(), 1, at), [accepted]);
        let batch = format!(r#"{{"events":[{{"error":{{"status":422}}}},{one}]}}"#);
        assert_eq!(outcomes(batch.as_bytes(), 2, at), [Outcome::Refused(422), accepted]);
        assert_eq!(outcomes(b"<html>", 1, at), [Outcome::Unknown]);
    }
}
