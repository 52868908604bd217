//! One run of a scenario: publisher and receivers in this process, Weir in others, and all that happens recorded.

pub(crate) mod api;
pub(crate) mod fleet;
mod progress;
mod publisher;
mod receivers;
pub(crate) mod servers;
mod steps;

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_core::{RateLimits, Timestamp};

use crate::{
    clock::{Timeline, now},
    recording::{Destination, Event, Group, LimitChange, Outcome, Recording},
    scenario::{Scenario, limits_in, seconds},
};
use api::Api;
use fleet::Fleet;
use progress::Progress;
use publisher::Stream;
use receivers::{Arrivals, Receivers};
use steps::Stage;

pub(crate) use receivers::SLACK;

/// Between two looks at whether everything has arrived, or has been drained.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// From an answer to the commit of its record: what is drained may not be recorded yet.
const RECORDED_WITHIN: Duration = Duration::from_millis(250);

/// Where Weir is.
pub(crate) enum Target {
    Running(Api),
    Spawned(Fleet),
}

impl Target {
    pub(crate) fn api(&self) -> Api {
        match self {
            Self::Running(api) => api.clone(),
            Self::Spawned(fleet) => Api::new(fleet.address(), None),
        }
    }
}

/// The host that receivers listen on, and that destinations name.
pub(crate) async fn record(scenario: &Scenario, mut target: Target, host: &str) -> anyhow::Result<Recording> {
    let api = target.api();
    let timeline = Timeline::begin();
    let arrivals = Arrivals::new(timeline);
    let tag = format!("load{}", timeline.now().as_millis());
    let mut recording = Recording::default();
    let mut receivers = Vec::new();
    let mut ids = Vec::new();
    for (number, group) in scenario.destinations.iter().enumerate() {
        let receiver = Receivers::start(host, group.mood, &arrivals).await.context("cannot listen")?;
        let coalesces =
            |publish: &crate::scenario::Publish| publish.to == group.name && publish.coalesce_keys.is_some();
        recording.groups.push(Group {
            name: group.name.clone(),
            expect: group.expect,
            pauses: Vec::new(),
            coalesces: scenario.publish.iter().any(coalesces),
        });
        for _ in 0..group.count {
            let path = recording.destinations.len();
            let mut settings = group.settings.clone();
            settings["url"] = json!(format!("http://{host}:{}/{path}", receiver.port));
            settings["name"] = json!(format!("{} {path}", group.name));
            settings["event_types"] = json!([event_type(&tag, number)]);
            if group.no_breaker {
                settings["breaker"] = Value::Null;
            }
            let sent = timeline.now();
            ids.push(api.create_destination(&settings).await.with_context(|| format!("destinations {}", group.name))?);
            let limits = limits_in(&settings)?.unwrap_or(RateLimits::UNLIMITED);
            let change = LimitChange { sent, answered: timeline.now(), limits };
            recording.destinations.push(Destination { group: number, limits: vec![change], audit: None });
        }
        receivers.push(receiver);
    }

    // Creating a thousand destinations takes a while; the run begins when they stand.
    let timeline = timeline.from_now();
    recording.began = timeline.now();
    let (streams, events) = streams(scenario, &tag, &ids, &recording, timeline);
    let events = Arc::new(Mutex::new(events));
    let deadline = timeline.began() + seconds(scenario.publish_s + scenario.drain_within_s);
    let mut publishing = JoinSet::new();
    for stream in streams {
        publishing.spawn(stream.run(scenario.publish_s, timeline, api.clone(), Arc::clone(&events), deadline));
    }
    let mut stage = Stage { timeline, api: &api, receivers: &receivers, ids: &ids, target: &mut target, recording };
    let progress = Progress::start(&scenario.name, scenario.publish_s, Arc::clone(&arrivals));
    let (steps, published) = tokio::join!(stage.play(&scenario.steps), async {
        while publishing.join_next().await.is_some() {}
        timeline.now()
    });
    steps?;
    let mut recording = stage.recording;
    recording.published = published;
    recording.events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    wait_for_arrivals(&recording, &arrivals, deadline).await;
    recording.drained = drained(&api, &ids, &recording, timeline, deadline).await?;
    tokio::time::sleep(RECORDED_WITHIN).await;
    finish(&api, &ids, &mut recording, &arrivals).await?;
    recording.ended = timeline.now();
    progress.end();
    end_target(target, &api, &ids, &mut recording).await?;
    Ok(recording)
}

fn event_type(tag: &str, group: usize) -> String {
    format!("{tag}.g{group}")
}

/// The streams with the numbers of their events, and a place for each event.
fn streams(
    scenario: &Scenario,
    tag: &str,
    ids: &[String],
    recording: &Recording,
    timeline: Timeline,
) -> (Vec<Stream>, Vec<Event>) {
    let mut events: Vec<Event> = Vec::new();
    let mut streams = Vec::new();
    for publish in &scenario.publish {
        let group = scenario.group(&publish.to).unwrap_or_default();
        let count = publisher::count(publish, scenario.publish_s);
        streams.push(Stream {
            publish: publish.clone(),
            event_type: event_type(tag, group),
            destinations: recording.of_group(group).map(|number| (ids[number as usize].clone(), number)).collect(),
            first: events.len() as u64,
            tag: tag.to_owned(),
        });
        let place = Event { group, destination: None, key: None, meant: timeline.now(), outcome: Outcome::Unknown };
        events.resize(events.len() + count as usize, place);
    }
    (streams, events)
}

/// Until as much has been answered well as is owed. The judge looks closer.
async fn wait_for_arrivals(recording: &Recording, arrivals: &Arrivals, deadline: std::time::Instant) {
    let of = |event: &Event| match event.outcome {
        Outcome::Accepted { deliveries, .. }
            if recording.groups[event.group].expect.delivered && !recording.groups[event.group].coalesces =>
        {
            u64::from(deliveries)
        }
        _ => 0,
    };
    let owed: u64 = recording.events.iter().map(of).sum();
    while arrivals.successes() < owed && now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// When nothing waited or was under way any more at the destinations that answer; `None` when that was not in time.
async fn drained(
    api: &Api,
    ids: &[String],
    recording: &Recording,
    timeline: Timeline,
    deadline: std::time::Instant,
) -> anyhow::Result<Option<Timestamp>> {
    let is_drained = |number: &usize| recording.groups[recording.destinations[*number].group].expect.delivered;
    let mut left: Vec<usize> = (0..ids.len()).filter(is_drained).collect();
    loop {
        let mut connection = api.connect().await?;
        while let Some(number) = left.last() {
            if api.backlog(&mut connection, &ids[*number]).await? > 0 {
                break;
            }
            left.pop();
        }
        if left.is_empty() {
            return Ok(Some(timeline.now()));
        }
        if now() >= deadline {
            return Ok(None);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What Weir recorded, and then what arrived: a send that is under way meanwhile is in both or in the second only, where it
/// can be no more than late.
async fn finish(api: &Api, ids: &[String], recording: &mut Recording, arrivals: &Arrivals) -> anyhow::Result<()> {
    let arrived = arrivals.all();
    let mut connection = api.connect().await?;
    for (destination, id) in recording.destinations.iter_mut().zip(ids) {
        destination.audit = Some(api.audit(&mut connection, id).await.context("audit")?);
    }
    recording.sort_in(arrived);
    Ok(())
}

/// Leaves a Weir that was running as it was found.
async fn end_target(target: Target, api: &Api, ids: &[String], recording: &mut Recording) -> anyhow::Result<()> {
    match target {
        Target::Spawned(mut fleet) => {
            recording.died = fleet.ended()?;
            fleet.stop().await
        }
        Target::Running(_) => {
            let mut connection = api.connect().await?;
            for id in ids {
                api.delete(&mut connection, id).await?;
            }
            Ok(())
        }
    }
}

/// The file that a Weir's own words go to.
pub(crate) fn log_file(folder: &Path, name: &str) -> anyhow::Result<std::fs::File> {
    let path = folder.join(format!("{name}.log"));
    std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}
