//! Plays all receivers at once at one Weir.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use anyhow::Context;
use hyper::Method;
use serde_json::{Value, json};
use weir_core::{RateLimits, Timestamp};
use weir_pace_trials::{
    real::{Class, END_S, LOSES_S, all},
    receiver::{Gate, Receiver, Steps},
};

use crate::{
    client::{MakeBody, Until, closed_loop, open_loop},
    clock::{Timeline, now},
    figures::{batch, event},
    recording::{Destination, Group, LimitChange, Recording},
    run::{
        self,
        api::Api,
        fleet::Fleet,
        receivers::{Arrivals, Receivers, Trial},
    },
    scenario::{Expect, Roles, SetUp, limits_in, seconds},
};

const HOST: &str = "127.0.0.1";
/// Events in one request.
const BATCH: u64 = 500;
const CONNECTIONS: usize = 4;
/// The time in which the load of the backlog ends in Weir and its store.
const SETTLE: Duration = Duration::from_secs(3);
/// More than a pace below the hard limit needs.
const MAX_IN_FLIGHT: u32 = 400;
/// The fixed limit of the neighbours, and how fast events are posted to the one without a backlog.
pub(super) const NEIGHBOUR_PER_S: u32 = 50;
const LIVE_PER_S: u32 = 25;
/// Posts begin after the start of the others and end before the queue loses its state.
const LIVE_FROM_S: f64 = 5.0;
pub(super) const LIVE_UNTIL_S: f64 = LOSES_S - 5.0;

/// What a run has recorded. Its destinations are in this order: one for each class, the neighbour with a backlog, the
/// neighbour without one.
pub(super) struct Run {
    pub(super) classes: Vec<Class>,
    pub(super) recording: Recording,
    pub(super) began: Timestamp,
    /// When the events of the neighbour without a backlog were meant to be posted.
    pub(super) meant: Vec<Timestamp>,
}

pub(super) async fn play(set_up: SetUp, weir: &Path, folder: &Path) -> anyhow::Result<Run> {
    let log = run::log_file(folder, &format!("weir-{}", set_up.as_str()))?;
    let mut fleet = Fleet::start(set_up, weir, Roles::default(), log).await?;
    let api = Api::new(fleet.address(), None);
    let timeline = Timeline::begin();
    let arrivals = Arrivals::new(timeline)?;
    let began = Arc::new(OnceLock::new());
    let classes = all();
    let mut recording = Recording::default();
    let mut destinations = Vec::new();
    // The listeners live as long as these do.
    let mut receivers = Vec::new();
    let mut prepare = async |name: &str, receiver: &Receiver, settings: Value, events: u64| {
        let number = destinations.len();
        let trial = Trial::new(receiver.clone(), number as u64, Arc::clone(&began));
        let receiver = Receivers::of_trial(HOST, trial, &arrivals).await.context("cannot listen")?;
        let event_type = event_type(number);
        let mut settings = settings;
        settings["url"] = json!(format!("http://{HOST}:{}/{number}", receiver.port));
        (settings["name"], settings["event_types"]) = (json!(name), json!([event_type]));
        // Paused until every backlog is there.
        settings["paused"] = json!(true);
        let sent = timeline.now();
        destinations.push(api.create_destination(&settings).await.context("a destination")?);
        let limits = limits_in(&settings)?.unwrap_or(RateLimits::UNLIMITED);
        let change = LimitChange { sent, answered: timeline.now(), limits };
        recording.destinations.push(Destination::alone(number, change));
        // Judged by the trial, and here by its limits only.
        let expect = Expect { delivered: false, ..Expect::default() };
        recording.groups.push(Group { name: name.to_owned(), expect, pauses: Vec::new(), coalesces: false });
        receivers.push(receiver);
        let body: MakeBody = Arc::new(move |part| batch(&event_type, part, BATCH.min(events - part * BATCH)));
        let until = Until::Sent(events.div_ceil(BATCH));
        closed_loop(api.address(), CONNECTIONS, until, "/v1/events/batch", body).await.context("posting events")?;
        anyhow::Ok(())
    };
    for class in &classes {
        let course = &class.scenario.course;
        let settings = json!({
            "rate_limits": [{"limit": course.hard_limit, "period": "second"}],
            "adaptive": {}, "max_in_flight": MAX_IN_FLIGHT,
        });
        let receiver = &class.scenario.receiver;
        prepare(class.scenario.name, receiver, settings, more_than_taken(receiver)).await?;
    }
    let open = Receiver::new(Gate::Open, Steps::always(f64::from(NEIGHBOUR_PER_S)));
    let fixed =
        json!({"rate_limits": [{"limit": NEIGHBOUR_PER_S, "period": "second"}], "max_in_flight": MAX_IN_FLIGHT});
    prepare("a neighbour with a fixed limit and a backlog", &open, fixed.clone(), more_than_taken(&open)).await?;
    prepare("a neighbour with a fixed limit, posted at half of it", &open, fixed, 0).await?;

    tokio::time::sleep(SETTLE).await;
    let timeline = timeline.restarted();
    let start = *began.get_or_init(|| timeline.now());
    for destination in &destinations {
        api.patch(destination, &json!({"paused": false})).await?;
    }
    let live = async {
        tokio::time::sleep(until(timeline, LIVE_FROM_S)).await;
        let type_of_live = event_type(destinations.len() - 1);
        let body: MakeBody = Arc::new(move |number| event(&type_of_live, number).into());
        let total = (LIVE_UNTIL_S - LIVE_FROM_S) as u32 * LIVE_PER_S;
        let every = Duration::from_secs(1) / LIVE_PER_S;
        open_loop(api.address(), CONNECTIONS, every, total, "/v1/events", body).await.context("posting live events")
    };
    let progress = async {
        for at in (30..=LOSES_S as u32).step_by(30) {
            tokio::time::sleep(until(timeline, f64::from(at))).await;
            eprintln!("  {at} s: {} arrivals", arrivals.count());
        }
    };
    let (meant, ()) = tokio::join!(live, progress);
    match set_up {
        // The queue of a single process is lost with it.
        SetUp::Embedded => {
            let member = fleet.kill("serve").await?;
            fleet.start_again(member).await?;
        }
        SetUp::Scaled => fleet.redis()?.ask("FLUSHALL").await.map(drop)?,
    }
    tokio::time::sleep(until(timeline, END_S)).await;

    let arrived = arrivals.all();
    for (destination, id) in recording.destinations.iter_mut().zip(&destinations) {
        destination.audit = Some(api.audit(id).await.context("an audit")?);
        let state: Value = api.ask(Method::GET, &format!("/v1/destinations/{id}"), &Value::Null).await?;
        eprintln!("  {}: {}", recording.groups[destination.group].name, state["adaptive_rate"]);
    }
    recording.sort_in(arrived);
    recording.ended = timeline.now();
    recording.died = fleet.ended()?;
    fleet.stop().await?;
    let meant = meant?.into_iter().map(|at: Instant| timeline.at(at)).collect();
    Ok(Run { classes, recording, began: start, meant })
}

fn event_type(number: usize) -> String {
    format!("adaptive.{number}")
}

fn until(timeline: Timeline, second: f64) -> Duration {
    (timeline.began() + seconds(second)).saturating_duration_since(now())
}

/// So many events that the receiver cannot take all of them: a backlog waits until the end of the run.
fn more_than_taken(receiver: &Receiver) -> u64 {
    let taken: f64 = (0..END_S as u32).map(|second| receiver.rate.at(f64::from(second))).sum();
    // A bucket is full at first, and a pool of whole workers takes a little more than its rate.
    (1.2 * taken) as u64 + 300
}
