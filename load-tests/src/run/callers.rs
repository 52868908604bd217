//! Callers outside Weir: each reserves a slot of a limit group, makes a call in it, and begins again.
//!
//! A call is the instant at which the caller starts it. It is a moment of this process, so no network is between it and
//! the judge.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use hyper::Method;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use weir_api_types::ReservedSlot;

use super::{Ids, api::Api};
use crate::{
    client::Connection,
    clock::{Timeline, now},
    recording::{Call, CallOutcome},
    scenario::{Callers, Scenario, seconds},
};

/// The pause before a request is repeated that was refused or not answered.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// Plays all callers of a scenario to their end. Returns their calls in the order of time.
pub(super) async fn play(scenario: &Scenario, ids: &Ids, api: &Api, timeline: Timeline) -> anyhow::Result<Vec<Call>> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let mut playing = JoinSet::new();
    for callers in &scenario.callers {
        let limit_group = scenario.limit_group(&callers.limit_group).context("no such limit group")?;
        let path: Arc<str> = format!("/v1/limit-groups/{}/reservations", ids.limit_groups[limit_group]).into();
        let until = timeline.began() + seconds(callers.until_s.unwrap_or(scenario.publish_s));
        for _ in 0..callers.count {
            let (callers, api) = (callers.clone(), api.clone());
            let caller = Caller { path: Arc::clone(&path), limit_group, timeline, calls: Arc::clone(&calls) };
            playing.spawn(async move { caller.play(&callers, &api, until).await });
        }
    }
    while let Some(ended) = playing.join_next().await {
        ended?.context("a caller")?;
    }
    let mut calls = std::mem::take(&mut *calls.lock());
    calls.sort_by_key(|call| call.at);
    Ok(calls)
}

struct Caller {
    path: Arc<str>,
    limit_group: usize,
    timeline: Timeline,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Caller {
    async fn play(&self, callers: &Callers, api: &Api, until: Instant) -> anyhow::Result<()> {
        let from = self.timeline.began() + seconds(callers.from_s);
        tokio::time::sleep(from.saturating_duration_since(now())).await;
        let body = Bytes::from(json!({"wait_ms": callers.wait_ms, "width_ms": callers.width_ms}).to_string());
        let mut connection: Option<Connection> = None;
        while now() < until {
            let open = match connection.take() {
                Some(open) => open,
                None => match api.connect().await {
                    Ok(open) => open,
                    // A scenario may have stopped the API.
                    Err(_) => {
                        tokio::time::sleep(RETRY_EVERY).await;
                        continue;
                    }
                },
            };
            let asked = now();
            let answer = connection.insert(open).exchange(Method::POST, &self.path, body.clone()).await;
            match answer {
                Ok((201, answer)) => {
                    let slot = serde_json::from_slice(&answer).context("the answer is no slot")?;
                    self.call_in(&slot, asked, now()).await;
                }
                Ok((status @ (429 | 503), _)) => {
                    // 503: load shedding, or a process that ends. Neither is an answer about the slot.
                    if status == 429 {
                        self.note(CallOutcome::NoSlot);
                    }
                    tokio::time::sleep(RETRY_EVERY).await;
                }
                Ok((status, answer)) => {
                    bail!("{} was answered {status}: {}", self.path, String::from_utf8_lossy(&answer))
                }
                Err(_) => {
                    connection = None;
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        }
        Ok(())
    }

    /// Makes the call as a client with another clock does: not before `starts_in_ms` after the answer came, and not later
    /// than `ends_in_ms` after the earliest instant at which it can have been given.
    async fn call_in(&self, slot: &ReservedSlot, asked: Instant, answered: Instant) {
        let from = answered + Duration::from_millis(slot.starts_in_ms);
        let until = asked + Duration::from_millis(slot.took_ms + slot.ends_in_ms);
        tokio::time::sleep(from.saturating_duration_since(now())).await;
        self.note(if now() < until { CallOutcome::Made } else { CallOutcome::TooLate });
    }

    fn note(&self, outcome: CallOutcome) {
        let call = Call { limit_group: self.limit_group, at: self.timeline.now(), outcome };
        self.calls.lock().push(call);
    }
}
