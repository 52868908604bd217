//! One run of a scenario: publisher and receivers run in this process, Weir in others, and everything is recorded.

pub(crate) mod api;
mod callers;
pub(crate) mod capacity;
pub(crate) mod fleet;
mod progress;
mod publisher;
pub(crate) mod receivers;
mod steps;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_core::{RateLimits, Timestamp};

use crate::{
    clock::{Timeline, now},
    recording::{self, Destination, Event, Group, Home, KeyLimitChange, LimitChange, LimitGroup, Outcome, Recording},
    scenario::{Scenario, key_limits_in, limits_in, seconds},
};
use api::Api;
use fleet::Fleet;
use progress::Progress;
use publisher::Stream;
use receivers::{Arrivals, Receivers};
use steps::StepRunner;

pub(crate) use receivers::SLACK;

/// The time between two checks whether everything has arrived or drained.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// The time from an answer to the commit of its record. When a destination has drained, its last results may not be
/// recorded yet.
const RECORDED_WITHIN: Duration = Duration::from_millis(250);

/// The time after a drain in which unused permits are removed from the queue.
const DROPPED_WITHIN: Duration = Duration::from_secs(15);
const QUEUE_GAUGES: [&str; 3] = ["weir_queued_permits", "weir_in_flight_sends", "weir_delivery_queue_depth"];

/// The Weir under test.
pub(crate) enum Target {
    Running(Api),
    Spawned(Box<Fleet>),
}

impl Target {
    pub(crate) fn api(&self) -> Api {
        match self {
            Self::Running(api) => api.clone(),
            Self::Spawned(fleet) => Api::new(fleet.address(), None),
        }
    }
}

/// Plays a scenario and returns the recording. Receivers listen on `host`, which is also the host in the destinations'
/// URLs.
pub(crate) async fn record(scenario: &Scenario, mut target: Target, host: &str) -> anyhow::Result<Recording> {
    let api = target.api();
    let timeline = Timeline::begin();
    let arrivals = Arrivals::new(timeline)?;
    // The tag is unique to this run, because a running Weir keeps the events and keys of earlier runs.
    let tag = format!("load{}", timeline.now().as_millis());
    let (mut recording, receivers, ids) = prepare(scenario, &api, host, &arrivals, &tag, timeline).await?;
    // The run begins when all destinations exist: creating a thousand takes a while.
    let timeline = timeline.restarted();
    recording.began = timeline.now();
    // Every event has its number and its entry before the first post.
    let (streams, events) = streams(scenario, &tag, &ids, &recording, timeline);
    let of = |stream: &Stream| recording::Stream {
        first: stream.first,
        count: publisher::count(&stream.publish, scenario.publish_s),
        done_within_s: stream.publish.done_within_s,
    };
    recording.streams = streams.iter().map(of).collect();
    let events = Arc::new(Mutex::new(events));
    let deadline = timeline.began() + seconds(scenario.publish_s + scenario.drain_within_s);
    let mut publishing = JoinSet::new();
    for stream in streams {
        publishing.spawn(stream.run(scenario.publish_s, timeline, api.clone(), Arc::clone(&events), deadline));
    }
    // Post the events and run the steps at the same time.
    let mut runner =
        StepRunner { timeline, api: &api, receivers: &receivers, ids: &ids, target: &mut target, recording };
    let progress = Progress::start(&scenario.name, scenario.publish_s, Arc::clone(&arrivals));
    let publish = async {
        while publishing.join_next().await.is_some() {}
        timeline.now()
    };
    let callers = callers::play(scenario, &ids, &api, timeline);
    let (steps, published, calls) = tokio::join!(runner.play(&scenario.steps), publish, callers);
    steps?;
    let mut recording = runner.recording;
    recording.published = published;
    recording.calls = calls?;
    recording.events = std::mem::take(&mut *events.lock());
    // Wait until everything has arrived, drained and been recorded, or until the deadline.
    wait_for_arrivals(&recording, &arrivals, deadline).await;
    recording.drained = drained(&api, &ids.destinations, &recording, timeline, deadline).await?;
    tokio::time::sleep(RECORDED_WITHIN).await;
    collect(&api, &ids, &mut recording, &arrivals).await?;
    // An idle Weir must have no permits left.
    recording.permits_left = permits_left_in_queue(&target, &recording).await?;
    recording.ended = timeline.now();
    progress.end();
    end_target(target, &api, &ids, &mut recording).await?;
    Ok(recording)
}

/// The ids in the order of the recording.
#[derive(Default)]
struct Ids {
    destinations: Vec<String>,
    limit_groups: Vec<String>,
}

/// Starts the receivers and creates their destinations. Returns the destinations' ids too.
async fn prepare(
    scenario: &Scenario,
    api: &Api,
    host: &str,
    arrivals: &Arc<Arrivals>,
    tag: &str,
    timeline: Timeline,
) -> anyhow::Result<(Recording, Vec<Receivers>, Ids)> {
    let mut recording = Recording::default();
    let mut receivers = Vec::new();
    let mut ids = Ids::default();
    for group in &scenario.limit_groups {
        let sent = timeline.now();
        // The name is unique to this run, too.
        let settings = json!({"name": format!("{} {tag}", group.name), "rate_limits": group.rate_limits});
        let id = api.create_limit_group(&settings).await;
        ids.limit_groups.push(id.with_context(|| format!("limit_groups {}", group.name))?);
        let change = LimitChange { sent, answered: timeline.now(), limits: group.limits()? };
        recording.limit_groups.push(LimitGroup {
            name: group.name.clone(),
            expect: group.expect,
            limits: vec![change],
            audit: None,
        });
    }
    for (number, group) in scenario.destinations.iter().enumerate() {
        // A group has receivers of its own, because its behaviour can change.
        let receiver = Receivers::start(host, group.behavior, arrivals).await.context("cannot listen")?;
        // The destinations of the group subscribe to the events of the streams that name it.
        let coalesces =
            |publish: &crate::scenario::Publish| publish.to.contains(&group.name) && publish.coalesce_keys.is_some();
        let streams = (0..).zip(&scenario.publish).filter(|(_, publish)| publish.to.contains(&group.name));
        let event_types: Vec<String> = streams.map(|(stream, _)| event_type(tag, stream)).collect();
        recording.groups.push(Group {
            name: group.name.clone(),
            expect: group.expect,
            pauses: Vec::new(),
            coalesces: scenario.publish.iter().any(coalesces),
        });
        for _ in 0..group.count {
            // The path in the URL is the number of the destination. It tells the arrivals apart.
            let path = recording.destinations.len();
            let mut settings = group.settings.clone();
            settings["url"] = json!(format!("http://{host}:{}/{path}", receiver.port));
            settings["name"] = json!(format!("{} {path}", group.name));
            settings["event_types"] = json!(event_types);
            if group.no_breaker {
                settings["breaker"] = Value::Null;
            }
            let limit_group = group.limit_group.as_deref().and_then(|name| scenario.limit_group(name));
            if let Some(limit_group) = limit_group {
                settings["limit_group"] = json!(ids.limit_groups[limit_group]);
            }
            // The limit came into force at some time between the request and its answer.
            let sent = timeline.now();
            let id = api.create_destination(&settings).await;
            ids.destinations.push(id.with_context(|| format!("destinations {}", group.name))?);
            let limits = limits_in(&settings)?.unwrap_or(RateLimits::UNLIMITED);
            let answered = timeline.now();
            let change = |limits| KeyLimitChange { sent, answered, settings: settings.clone(), limits };
            let key_limits = key_limits_in(&settings)?.map(change);
            let weight = settings["weight"].as_u64().and_then(|weight| u32::try_from(weight).ok());
            recording.destinations.push(Destination {
                homes: vec![Home { sent, answered, limit_group }],
                key_limits: key_limits.into_iter().collect(),
                weight: weight.unwrap_or(1),
                ..Destination::alone(number, LimitChange { sent, answered, limits })
            });
        }
        receivers.push(receiver);
    }
    Ok((recording, receivers, ids))
}

fn event_type(tag: &str, stream: usize) -> String {
    format!("{tag}.s{stream}")
}

/// The streams with the numbers of their events, and an entry for each event.
fn streams(
    scenario: &Scenario,
    tag: &str,
    ids: &Ids,
    recording: &Recording,
    timeline: Timeline,
) -> (Vec<Stream>, Vec<Event>) {
    let mut events: Vec<Event> = Vec::new();
    let mut streams = Vec::new();
    for (stream, publish) in scenario.publish.iter().enumerate() {
        // The groups that the stream names, and their destinations.
        let groups: Arc<[usize]> = publish.to.iter().filter_map(|name| scenario.group(name)).collect();
        let destinations = groups.iter().flat_map(|group| recording.of_group(*group));
        // The numbers of the events continue those of the last stream.
        let count = publisher::count(publish, scenario.publish_s);
        streams.push(Stream {
            publish: publish.clone(),
            event_type: event_type(tag, stream),
            destinations: destinations.map(|number| (ids.destinations[number as usize].clone(), number)).collect(),
            first: events.len() as u64,
            tag: tag.to_owned(),
        });
        // The publisher completes the entries.
        let entry =
            Event { groups, destination: None, key: None, cost: 1, meant: timeline.now(), outcome: Outcome::Unknown };
        events.resize(events.len() + count as usize, entry);
    }
    (streams, events)
}

/// Waits until the number of 2xx answers reaches the number of deliveries owed. The judge later checks each event.
async fn wait_for_arrivals(recording: &Recording, arrivals: &Arrivals, deadline: std::time::Instant) {
    let must_arrive = |group: usize| recording.groups[group].expect.delivered && !recording.groups[group].coalesces;
    let of = |event: &Event| match event.outcome {
        Outcome::Accepted { deliveries, .. } if event.groups.iter().all(|group| must_arrive(*group)) => {
            u64::from(deliveries)
        }
        _ => 0,
    };
    let owed: u64 = recording.events.iter().map(of).sum();
    while arrivals.successes() < owed && now() < deadline {
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// The time at which the destinations that answer had no delivery waiting or in flight; `None` when the deadline came
/// first.
async fn drained(
    api: &Api,
    ids: &[String],
    recording: &Recording,
    timeline: Timeline,
    deadline: std::time::Instant,
) -> anyhow::Result<Option<Timestamp>> {
    // Only destinations that answer can drain.
    let is_drained = |number: &usize| recording.groups[recording.destinations[*number].group].expect.delivered;
    let mut left: Vec<usize> = (0..ids.len()).filter(is_drained).collect();
    loop {
        // Ask each destination until it has drained. Nothing is posted any more, so it need not be asked again.
        while let Some(number) = left.last() {
            if api.backlog(&ids[*number]).await? > 0 {
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
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Unused permits that are still in the queue. Weir removes the permits of dead workers every ten seconds.
async fn permits_left_in_queue(target: &Target, recording: &Recording) -> anyhow::Result<u64> {
    let is_idle = recording.drained.is_some() && recording.groups.iter().all(|group| group.expect.delivered);
    let fleet = match target {
        Target::Spawned(fleet) if is_idle => fleet,
        // A running Weir may have other users, whose permits cannot be told apart.
        Target::Spawned(_) | Target::Running(_) => return Ok(0),
    };
    let scheduler = Api::new(fleet.scheduler_address()?, None);
    let deadline = now() + DROPPED_WITHIN;
    loop {
        let left = scheduler.gauges(&QUEUE_GAUGES).await?;
        if left == Some(0) || now() >= deadline {
            // A process that has just started may not have read its gauges yet.
            return left.with_context(|| format!("/metrics lacks one of {QUEUE_GAUGES:?}"));
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Reads the arrivals first and Weir's record after them: every arrival must be in the record.
async fn collect(api: &Api, ids: &Ids, recording: &mut Recording, arrivals: &Arrivals) -> anyhow::Result<()> {
    let arrived = arrivals.all();
    for (destination, id) in recording.destinations.iter_mut().zip(&ids.destinations) {
        destination.audit = Some(api.audit(id).await.context("audit")?);
    }
    for (group, id) in recording.limit_groups.iter_mut().zip(&ids.limit_groups) {
        group.audit = Some(api.audit_of_limit_group(id).await.context("audit of a limit group")?);
    }
    recording.limit_keys = arrivals.limit_keys();
    recording.sort_in(arrived);
    Ok(())
}

/// Stops a Weir that the harness started. In a running Weir it deletes the destinations and limit groups of this run.
async fn end_target(target: Target, api: &Api, ids: &Ids, recording: &mut Recording) -> anyhow::Result<()> {
    match target {
        Target::Spawned(mut fleet) => {
            recording.died = fleet.ended()?;
            fleet.stop().await
        }
        Target::Running(_) => {
            for id in &ids.destinations {
                api.delete(id).await?;
            }
            for id in &ids.limit_groups {
                api.delete_limit_group(id).await?;
            }
            Ok(())
        }
    }
}

/// Creates the log file of a Weir.
pub(crate) fn log_file(folder: &Path, name: &str) -> anyhow::Result<std::fs::File> {
    let path = folder.join(format!("{name}.log"));
    std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}
