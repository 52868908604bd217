//! `weir demo`: rate-limited deliveries over real HTTP, in one process with a temporary database.
//!
//! Four destinations get far more events at once than their limits allow. One limit is edited while the backlog drains.
//! At the end, the audit of the API over the recorded send starts is compared with the requests that the receiver
//! counted. With `--dashboard` the server can be looked at in a browser, also afterwards.

mod client;
mod progress;
mod receiver;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::Context as _;
use serde_json::{Value, json};
use weir_core::{Clock, Timestamp, audit::AuditReport};

use self::{
    client::Client,
    progress::{Progress, ProgressLine},
    receiver::Receiver,
};
use weir_cli::{
    commands::audit::{Audited, draw, table},
    output::Screen,
};

use super::serve::StopSignals;
use crate::{
    cli::DemoArgs,
    clock::SystemClock,
    config::{DatabaseUrl, LogFormat, ProcessRole, Settings},
    engine::Engine,
    exit::Exit,
    logs,
    metrics::Metrics,
};

const FRAME: Duration = Duration::from_millis(200);
/// How much longer than the requested time the backlog may take before the demo fails.
const EXTRA_TIME: Duration = Duration::from_secs(15);
/// The share of the requested time in which the backlog should drain.
const DRAIN_SHARE: f64 = 0.9;
/// The response time of the slow destination, and its `max_in_flight`.
const SLOW_RESPONSE: Duration = Duration::from_millis(250);
const SLOW_IN_FLIGHT: u32 = 8;

/// The demo itself sends requests, and perhaps a browser with a few open pages.
const MAX_CONNECTIONS: usize = 64;

/// A destination of the demo.
struct DemoDestination {
    name: &'static str,
    path: &'static str,
    cap: String,
    limits: Value,
    max_in_flight: u32,
    response_delay: Duration,
    total: usize,
    id: String,
}

impl DemoDestination {
    fn new(name: &'static str, path: &'static str, limit: Option<(u32, &str)>, total: f64) -> Self {
        Self {
            name,
            path,
            cap: limit.map_or("none".to_owned(), |(limit, period)| format!("{limit}/{period}")),
            limits: limit.map_or(json!([]), |(limit, period)| json!([{"limit": limit, "period": period}])),
            max_in_flight: 64,
            response_delay: Duration::ZERO,
            total: (total as usize).max(1),
            id: String::new(),
        }
    }
}

/// The index of the destination whose limit is edited, its new limit, and the time of the edit as a share of the
/// duration.
const EDITED: (usize, u32, f64) = (1, 100, 0.5);

fn demo_destinations(seconds: f64) -> Vec<DemoDestination> {
    let time = seconds * DRAIN_SHARE;
    let (_, faster, when) = EDITED;
    let edited = 50.0 * seconds * when + f64::from(faster) * (time - seconds * when);
    let slow = f64::from(SLOW_IN_FLIGHT) / SLOW_RESPONSE.as_secs_f64() * time * 0.8;
    vec![
        DemoDestination::new("Small partner", "/small", Some((5, "second")), 5.0 * time),
        DemoDestination::new("Growing partner", "/growing", Some((50, "second")), edited),
        DemoDestination::new("Careful partner", "/careful", Some((90, "minute")), 1.5 * time),
        DemoDestination {
            max_in_flight: SLOW_IN_FLIGHT,
            response_delay: SLOW_RESPONSE,
            ..DemoDestination::new("Slow, unlimited", "/slow", None, slow)
        },
    ]
}

pub(super) async fn run(arguments: &DemoArgs) -> anyhow::Result<Exit> {
    // Only warnings and errors are logged, because the demo draws its progress on the terminal.
    let _ = logs::start("demo", "warn", LogFormat::Text);
    // Only with the dashboard: otherwise Ctrl-C ends the demo at once.
    let stop = arguments.dashboard.then(StopSignals::handle).transpose()?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder for the demo's database")?;
    // The engine of `weir serve`, on a free port of loopback and with a temporary database.
    let settings = Settings {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        database_url: DatabaseUrl::Sqlite(folder.path().join("demo.db")),
        dashboard: arguments.dashboard,
        // The receiver of the demo listens on loopback, over plain HTTP.
        allow_http: true,
        allow_networks: vec!["127.0.0.0/8".parse()?],
        max_connections: MAX_CONNECTIONS,
        // The demo is the only client.
        max_connections_per_address: Some(MAX_CONNECTIONS),
        shutdown_grace_s: 2,
        ..Settings::defaults()?
    };
    let engine = Engine::start(ProcessRole::Serve, &settings, None, Metrics::install()?).await?;

    // Stop the engine even after an error, before the folder of its database is removed.
    let exit = run_on(&engine, arguments, stop).await;
    engine.stop().await;
    exit
}

/// Plays the demo. With the dashboard it then waits for a signal, so that there is time to look. A signal during the
/// demo ends the demo too.
async fn run_on(engine: &Engine, arguments: &DemoArgs, stop: Option<StopSignals>) -> anyhow::Result<Exit> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    // The receiver answers until the command ends, so that test events of the dashboard arrive.
    let receiver = Receiver::start(clock.clone()).await.context("cannot start the demo's receiver")?;
    let Some(mut stop) = stop else { return play(engine, &*clock, &receiver, arguments).await };

    println!("Open the dashboard in a browser: http://{}\n", engine.address());
    let exit = tokio::select! {
        exit = play(engine, &*clock, &receiver, arguments) => exit?,
        _ = stop.received() => return Ok(Exit::Done),
    };
    println!("\nThe dashboard stays at http://{} until Ctrl-C.", engine.address());
    stop.received().await;
    Ok(exit)
}

async fn play(engine: &Engine, clock: &dyn Clock, receiver: &Receiver, arguments: &DemoArgs) -> anyhow::Result<Exit> {
    let client = Client::new(engine.address())?;
    let mut destinations = demo_destinations(f64::from(arguments.seconds));
    for destination in &mut destinations {
        let (id, secret) = client.create(destination, &receiver.url(destination.path)).await?;
        destination.id = id;
        receiver.open(destination.path, secret, destination.response_delay);
    }
    let total: usize = destinations.iter().map(|destination| destination.total).sum();
    let mut progress = Progress::quiet_if(arguments.json);
    progress.say(&format!("Weir at http://{}: {total} events at once, for four destinations\n", engine.address()));
    for destination in &destinations {
        client.burst(&destination.id, destination.total).await?;
    }
    let drained = drain(clock, &client, receiver, &mut destinations, &mut progress, arguments.seconds).await?;
    let reports = reports(&client, &destinations).await?;
    let complete = drained & all_arrived_once(receiver, &destinations, &reports, &mut progress);
    conclude(&destinations, reports, complete, arguments)
}

/// Shows how the backlog drains, and edits one limit meanwhile. Returns whether every event arrived in time.
async fn drain(
    clock: &dyn Clock,
    client: &Client,
    receiver: &Receiver,
    destinations: &mut [DemoDestination],
    progress: &mut Progress,
    seconds: u32,
) -> anyhow::Result<bool> {
    let (edited, limit, when) = EDITED;
    let started = clock.now();
    // When the limit is edited, and when the demo fails.
    let edit_at = started + Duration::from_secs_f64(f64::from(seconds) * when);
    let give_up_at = started + Duration::from_secs(seconds.into()) + EXTRA_TIME;
    let mut edit_pending = true;
    loop {
        let now = clock.now();
        // The progress is what the receiver has counted, not what Weir reports.
        let arrivals: Vec<Vec<Timestamp>> =
            destinations.iter().map(|destination| receiver.tally(destination.path).arrivals).collect();
        let lines: Vec<_> = destinations
            .iter()
            .zip(&arrivals)
            .map(|(destination, arrivals)| ProgressLine {
                name: destination.name,
                cap: &destination.cap,
                total: destination.total,
                arrivals,
            })
            .collect();
        let drained =
            destinations.iter().zip(&arrivals).all(|(destination, arrivals)| arrivals.len() >= destination.total);
        progress.draw(now, started, &lines, drained);
        if drained || now > give_up_at {
            return Ok(drained);
        }

        // Edit one limit once, while the backlog of its destination drains.
        if edit_pending && now >= edit_at {
            edit_pending = false;
            let destination = &mut destinations[edited];
            client.edit(&destination.id, &json!([{"limit": limit, "period": "second"}])).await?;
            // The next frames show the new limit.
            let before = std::mem::replace(&mut destination.cap, format!("{limit}/second"));
            progress.say(&format!(
                "\n{}: {before} edited to {} while its backlog drains\n",
                destination.name, destination.cap
            ));
        }
        tokio::time::sleep(FRAME).await;
    }
}

async fn reports(client: &Client, destinations: &[DemoDestination]) -> anyhow::Result<Vec<AuditReport>> {
    let mut reports = Vec::new();
    for destination in destinations {
        client.wait_until_settled(&destination.id).await?;
        reports.push(client.audit(&destination.id).await?);
    }
    Ok(reports)
}

/// Compares the requests that the receiver counted with the audit. Returns whether every event was sent once and
/// arrived once, with a valid signature.
fn all_arrived_once(
    receiver: &Receiver,
    destinations: &[DemoDestination],
    reports: &[AuditReport],
    progress: &mut Progress,
) -> bool {
    let mut complete = true;
    for (destination, report) in destinations.iter().zip(reports) {
        let tally = receiver.tally(destination.path);
        // Three counts must agree: the events, the sends that Weir recorded, and the requests that arrived.
        if tally.forged > 0 || tally.arrivals.len() != destination.total || report.sends != destination.total as u64 {
            complete = false;
            progress.say(&format!(
                "{}: {} events, {} sends recorded, {} requests received, {} with a bad signature",
                destination.name,
                destination.total,
                report.sends,
                tally.arrivals.len(),
                tally.forged
            ));
        }
    }
    complete
}

/// Prints the audit and the verdict, and writes the chart.
fn conclude(
    destinations: &[DemoDestination],
    reports: Vec<AuditReport>,
    complete: bool,
    arguments: &DemoArgs,
) -> anyhow::Result<Exit> {
    // The limits were kept if no audit found a violation.
    let kept = reports.iter().all(|report| report.violations() == 0);
    let audited: Vec<_> = destinations
        .iter()
        .zip(reports)
        .map(|(destination, report)| Audited {
            name: destination.name.to_owned(),
            id: destination.id.clone(),
            limit_key: None,
            report,
        })
        .collect();
    if let Some(file) = &arguments.svg {
        draw(file, "weir demo: sends per second", &audited)?;
    }

    // With `--json` only JSON goes to standard output, so that another program can read it.
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&audited)?);
    } else {
        println!("\n{}", table(&audited, Screen::of_stdout_or_usual()));
        let verdict = match (kept, complete) {
            (true, true) => "Every cap held in every sliding window.\nEvery event arrived once, with a good signature.",
            (false, _) => "A cap was exceeded: see the violations above.",
            (true, false) => "Every cap held, but not every event arrived exactly once: see above.",
        };
        println!("{verdict}");
    }
    Ok(if kept && complete { Exit::Done } else { Exit::Failure })
}
