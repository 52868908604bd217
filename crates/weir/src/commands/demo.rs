//! `weir demo`: the main job on real HTTP, in one process that leaves nothing behind.
//!
//! Four destinations get far more than their caps allow at once; while the backlog drains, one limit is edited. The audit at
//! the end comes from the API, over the recorded send starts, and is held against what the receiver counted.

mod client;
mod progress;
mod receiver;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::Context as _;
use serde_json::{Value, json};
use weir_api::{ApiKeys, BodyBudget, DEFAULT_BODY_BUDGET_BYTES, DEFAULT_MAX_EVENT_BYTES, Hosts};
use weir_core::{Clock, Timestamp, address::AddressPolicy, audit::AuditReport, retention::Retention};

use self::{
    client::Client,
    progress::{Line, Progress},
    receiver::Receiver,
};
use super::audit::{Audited, draw, table};
use crate::{
    cli::{DemoArgs, Exit},
    clock::SystemClock,
    config::{Backing, LogFormat, Role},
    engine::{Engine, EngineSettings},
    logs,
    metrics::Metrics,
};

const FRAME: Duration = Duration::from_millis(200);
/// How long the backlog may take beyond the asked time before the demo counts as failed.
const PATIENCE: Duration = Duration::from_secs(15);
/// The share of the time after which the planned backlog should be gone.
const FILL: f64 = 0.9;
/// How long the slow destination takes to answer, and how many it takes at once.
const SLOW_ANSWER: Duration = Duration::from_millis(250);
const SLOW_IN_FLIGHT: u32 = 8;

/// Nobody but the demo itself asks.
const MAX_CONNECTIONS: usize = 64;

/// A destination of the demo.
struct Part {
    name: &'static str,
    path: &'static str,
    cap: String,
    limits: Value,
    max_in_flight: u32,
    answers_after: Duration,
    total: usize,
    id: String,
}

impl Part {
    fn new(name: &'static str, path: &'static str, limit: Option<(u32, &str)>, total: f64) -> Self {
        Self {
            name,
            path,
            cap: limit.map_or("none".to_owned(), |(limit, period)| format!("{limit}/{period}")),
            limits: limit.map_or(json!([]), |(limit, period)| json!([{"limit": limit, "period": period}])),
            max_in_flight: 64,
            answers_after: Duration::ZERO,
            total: (total as usize).max(1),
            id: String::new(),
        }
    }
}

/// The index of the part whose limit is edited, its new limit, and when, as a share of the time.
const EDITED: (usize, u32, f64) = (1, 100, 0.5);

fn parts(seconds: f64) -> Vec<Part> {
    let time = seconds * FILL;
    let (_, faster, when) = EDITED;
    let edited = 50.0 * seconds * when + f64::from(faster) * (time - seconds * when);
    let slow = f64::from(SLOW_IN_FLIGHT) / SLOW_ANSWER.as_secs_f64() * time * 0.8;
    vec![
        Part::new("Small partner", "/small", Some((5, "second")), 5.0 * time),
        Part::new("Growing partner", "/growing", Some((50, "second")), edited),
        Part::new("Careful partner", "/careful", Some((90, "minute")), 1.5 * time),
        Part {
            max_in_flight: SLOW_IN_FLIGHT,
            answers_after: SLOW_ANSWER,
            ..Part::new("Slow, unlimited", "/slow", None, slow)
        },
    ]
}

pub(super) async fn run(arguments: &DemoArgs) -> anyhow::Result<Exit> {
    logs::start("warn", LogFormat::Text);
    let folder = tempfile::tempdir().context("cannot make a temporary folder for the demo's database")?;
    let engine = Engine::start(
        Role::Serve,
        EngineSettings {
            backing: Backing::Embedded { database: folder.path().join("demo.db") },
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            metrics_listen: None,
            api_keys: ApiKeys::new::<String>([]),
            hosts: Hosts::default(),
            addresses: AddressPolicy {
                allow_http: true,
                allow_networks: vec!["127.0.0.0/8".parse()?],
                ..AddressPolicy::default()
            },
            max_event_bytes: DEFAULT_MAX_EVENT_BYTES,
            bodies: BodyBudget::new(DEFAULT_BODY_BUDGET_BYTES),
            max_connections: MAX_CONNECTIONS,
            worker_capacity: None,
            shutdown_grace: Duration::from_secs(2),
            retention: Retention::default(),
            // Its output is for reading on the spot.
            traces: None,
        },
        Metrics::install()?,
    )
    .await?;
    let exit = show(&engine, arguments).await;
    engine.stop().await;
    exit
}

async fn show(engine: &Engine, arguments: &DemoArgs) -> anyhow::Result<Exit> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let receiver = Receiver::start(clock.clone()).await.context("cannot start the demo's receiver")?;
    let client = Client::new(engine.address())?;
    let mut parts = parts(f64::from(arguments.seconds));
    for part in &mut parts {
        let (id, secret) = client.create(part, &receiver.url(part.path)).await?;
        part.id = id;
        receiver.open(part.path, secret, part.answers_after);
    }
    let total: usize = parts.iter().map(|part| part.total).sum();
    let mut progress = Progress::quiet_if(arguments.json);
    progress.say(&format!("Weir at http://{}: {total} events at once, for four destinations\n", engine.address()));
    for part in &parts {
        client.burst(&part.id, part.total).await?;
    }
    let drained = watch(&*clock, &client, &receiver, &mut parts, &mut progress, arguments.seconds).await?;
    let reports = reports(&client, &parts).await?;
    let sound = drained & received_what_was_sent(&receiver, &parts, &reports, &mut progress);
    conclude(&parts, reports, sound, arguments)
}

/// Shows the backlog drain, and edits one limit on the way. Whether everything arrived.
async fn watch(
    clock: &dyn Clock,
    client: &Client,
    receiver: &Receiver,
    parts: &mut [Part],
    progress: &mut Progress,
    seconds: u32,
) -> anyhow::Result<bool> {
    let (edited, limit, when) = EDITED;
    let started = clock.now();
    let edit_at = started + Duration::from_secs_f64(f64::from(seconds) * when);
    let give_up_at = started + Duration::from_secs(seconds.into()) + PATIENCE;
    let mut edit_due = true;
    loop {
        let now = clock.now();
        let arrivals: Vec<Vec<Timestamp>> = parts.iter().map(|part| receiver.tally(part.path).arrivals).collect();
        let lines: Vec<_> = parts
            .iter()
            .zip(&arrivals)
            .map(|(part, arrivals)| Line { name: part.name, cap: &part.cap, total: part.total, arrivals })
            .collect();
        let drained = parts.iter().zip(&arrivals).all(|(part, arrivals)| arrivals.len() >= part.total);
        progress.draw(now, started, &lines, drained);
        if drained || now > give_up_at {
            return Ok(drained);
        }
        if edit_due && now >= edit_at {
            edit_due = false;
            let part = &mut parts[edited];
            client.edit(&part.id, &json!([{"limit": limit, "period": "second"}])).await?;
            let before = std::mem::replace(&mut part.cap, format!("{limit}/second"));
            progress.say(&format!("\n{}: {before} edited to {} while its backlog drains\n", part.name, part.cap));
        }
        tokio::time::sleep(FRAME).await;
    }
}

async fn reports(client: &Client, parts: &[Part]) -> anyhow::Result<Vec<AuditReport>> {
    let mut reports = Vec::new();
    for part in parts {
        client.settled(&part.id).await?;
        reports.push(client.audit(&part.id).await?);
    }
    Ok(reports)
}

/// Holds the receiver's count against the audit: every recorded send arrived once, signed.
fn received_what_was_sent(
    receiver: &Receiver,
    parts: &[Part],
    reports: &[AuditReport],
    progress: &mut Progress,
) -> bool {
    let mut sound = true;
    for (part, report) in parts.iter().zip(reports) {
        let tally = receiver.tally(part.path);
        if tally.forged > 0 || tally.arrivals.len() != part.total || report.sends != part.total as u64 {
            sound = false;
            progress.say(&format!(
                "{}: {} events, {} sends recorded, {} requests received, {} with a bad signature",
                part.name,
                part.total,
                report.sends,
                tally.arrivals.len(),
                tally.forged
            ));
        }
    }
    sound
}

fn conclude(parts: &[Part], reports: Vec<AuditReport>, sound: bool, arguments: &DemoArgs) -> anyhow::Result<Exit> {
    let kept = reports.iter().all(|report| report.violations() == 0);
    let audited: Vec<_> = parts
        .iter()
        .zip(reports)
        .map(|(part, report)| Audited { name: part.name.to_owned(), id: part.id.clone(), report })
        .collect();
    if let Some(file) = &arguments.svg {
        draw(file, "weir demo: sends per second", &audited)?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&audited)?);
    } else {
        println!("\n{}", table(&audited));
        let verdict = match (kept, sound) {
            (true, true) => "Every cap held in every sliding window; every event arrived once, with a good signature.",
            (false, _) => "A cap was exceeded: see the violations above.",
            (true, false) => "Every cap held, but not every event arrived once: see above.",
        };
        println!("{verdict}");
    }
    Ok(if kept && sound { Exit::Done } else { Exit::Failure })
}
