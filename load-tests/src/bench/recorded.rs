//! Destinations whose arrivals are all recorded, for the judge of the scenarios.

use std::sync::Arc;

use anyhow::Context;
use serde_json::{Value, json};
use weir_core::{RateLimits, Timestamp};

use super::rig::Running;
use crate::{
    clock::Timeline,
    judge::caps::{self, LimitJudgement},
    recording::{Destination, Group, LimitChange, Recording},
    run::{
        api::Api,
        receivers::{Arrivals, Receivers},
    },
    scenario::{Expect, ReceiverBehavior, limits_in},
};

pub(crate) struct Recorder {
    timeline: Timeline,
    arrivals: Arc<Arrivals>,
    receivers: Receivers,
    recording: Recording,
    ids: Vec<String>,
}

impl Recorder {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let timeline = Timeline::begin();
        let arrivals = Arrivals::new(timeline)?;
        let receivers = Receivers::start("127.0.0.1", ReceiverBehavior::Ok, &arrivals).await?;
        Ok(Self { timeline, arrivals, receivers, recording: Recording::default(), ids: Vec::new() })
    }

    /// Creates a paused destination with a limit per second and returns the type of its events.
    pub(crate) async fn destination(&mut self, running: &Running<'_>, limit: u32) -> anyhow::Result<String> {
        let number = self.ids.len();
        let event_type = format!("recorded.{number}");
        let mut settings = limits(limit);
        settings["url"] = json!(format!("http://127.0.0.1:{}/{number}", self.receivers.port));
        settings["event_types"] = json!([event_type]);
        settings["max_in_flight"] = json!(super::rig::MAX_IN_FLIGHT);
        settings["paused"] = json!(true);
        let sent = self.timeline.now();
        let change = LimitChange { sent, answered: sent, limits: parsed(&settings)? };
        self.ids.push(running.engine.create_destination(settings).await?);
        self.recording.destinations.push(Destination::alone(number, change));
        self.recording.groups.push(Group {
            name: format!("{limit}/s"),
            expect: Expect::default(),
            pauses: Vec::new(),
            coalesces: false,
        });
        Ok(event_type)
    }

    pub(crate) async fn pause(&self, running: &Running<'_>, paused: bool) -> anyhow::Result<()> {
        for id in &self.ids {
            running.patch(id, json!({"paused": paused})).await?;
        }
        Ok(())
    }

    /// Sets another limit and returns the times of the request and of its answer.
    pub(crate) async fn edit(
        &mut self,
        running: &Running<'_>,
        number: usize,
        limit: u32,
    ) -> anyhow::Result<(Timestamp, Timestamp)> {
        let settings = limits(limit);
        let limits = parsed(&settings)?;
        let sent = self.timeline.now();
        running.patch(&self.ids[number], settings).await?;
        let answered = self.timeline.now();
        self.recording.destinations[number].limits.push(LimitChange { sent, answered, limits });
        Ok((sent, answered))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.timeline.now()
    }

    /// The number of arrivals so far.
    pub(crate) fn arrived(&self) -> usize {
        self.arrivals.count()
    }

    /// All arrivals, and Weir's own audit.
    pub(crate) async fn finish(mut self, running: &Running<'_>) -> anyhow::Result<Recorded> {
        let api = Api::new(running.engine.address(), None);
        for (destination, id) in self.recording.destinations.iter_mut().zip(&self.ids) {
            destination.audit = Some(api.audit(id).await.context("the audit")?);
        }
        self.recording.sort_in(self.arrivals.all());
        Ok(Recorded { recording: self.recording })
    }
}

pub(crate) struct Recorded {
    recording: Recording,
}

impl Recorded {
    /// The times of the arrivals at a destination, in order.
    pub(crate) fn arrivals(&self, number: usize) -> Vec<Timestamp> {
        self.recording.at(number as u32).iter().map(|arrival| arrival.at).collect()
    }

    /// The judgement on a destination's limit per second, and its breaches.
    pub(crate) fn judge(&self, number: usize) -> anyhow::Result<(LimitJudgement, Vec<String>)> {
        let mut breaches = Vec::new();
        let judged = caps::judge(&self.recording, number, &mut breaches).into_iter().next();
        Ok((judged.context("a destination without a limit")?, breaches))
    }
}

fn limits(limit: u32) -> Value {
    json!({"rate_limits": [{"limit": limit, "period": "second"}]})
}

fn parsed(settings: &Value) -> anyhow::Result<RateLimits> {
    limits_in(settings)?.context("a limit")
}
