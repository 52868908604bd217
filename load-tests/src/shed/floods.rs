//! Floods of a running Weir: who is refused, and what the others feel.
//!
//! All share one machine, so each figure is a ratio to one of the same run, or a bound that holds on a busy machine too.
//! A refused post is not repeated.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use weir_test_support::SlowLink;

use super::{
    Part,
    cores::Cores,
    producer::{Answers, Producer, Running},
};
use crate::{
    bench::{
        SetUp,
        figure::{Figure, Unit},
        servers::Servers,
        targets::Bound,
        weir::{ONE, Weir},
    },
    clock::now,
    figures::event,
    process::own_cpu_s,
    receiver::Receiver,
    run::api::Api,
};

const LOUD: &str = "the-key-of-the-loud-client";
const QUIET: &str = "the-key-of-the-quiet-client";
const OPERATOR: &str = "the-key-of-the-operator";
/// Clients like the quiet one, among whom the load of the loud one is divided for comparison.
const OTHERS: [&str; 9] = [
    "the-key-of-client-one",
    "the-key-of-client-two",
    "the-key-of-client-three",
    "the-key-of-client-four",
    "the-key-of-client-five",
    "the-key-of-client-six",
    "the-key-of-client-seven",
    "the-key-of-client-eight",
    "the-key-of-client-nine",
];
/// Enough to reach the peak.
const PEAK_CONNECTIONS: u32 = 64;
const FLOOD_CONNECTIONS: u32 = 1_000;
const QUIET_PER_S: f64 = 50.0;

/// A figure and what is asked of it.
pub(super) type Row = (Figure, Option<Bound>);

fn row(what: &str, unit: Unit, seen: f64, asked: Option<Bound>) -> Row {
    (Figure::new("", what, unit, seen), asked)
}

pub(super) struct Bed {
    weir: PathBuf,
    servers: Option<Servers>,
    receiver: Arc<Receiver>,
    /// How long a part of a measurement lasts.
    part: Duration,
    cores: Arc<Cores>,
}

/// A Weir with one unlimited destination for the events of all producers.
struct Engine {
    weir: Weir,
    api: Api,
}

impl Engine {
    fn address(&self) -> SocketAddr {
        self.weir.address()
    }

    async fn set(&self, policy: Value) -> anyhow::Result<()> {
        self.api.ask::<Value>(Method::PUT, "/v1/shedding", &policy).await.map(drop)
    }

    async fn processes(&self) -> anyhow::Result<Value> {
        let shown: Value = self.api.ask(Method::GET, "/v1/shedding", &Value::Null).await?;
        Ok(shown["now"]["processes"].clone())
    }

    fn quiet(&self, lasts: Duration) -> Producer {
        Producer::of_events(self.address(), QUIET, 4, lasts).per_s(QUIET_PER_S)
    }

    fn loud(&self, connections: u32, lasts: Duration) -> Producer {
        Producer::of_events(self.address(), LOUD, connections, lasts)
    }

    /// Asks whether Weir is alive.
    fn health(&self, lasts: Duration) -> Producer {
        let path = "/healthz".to_owned();
        Producer { method: Method::GET, path, body: "".into(), ..self.quiet(lasts) }
    }

    /// Creates destinations that take no events.
    fn control(&self, lasts: Duration) -> Producer {
        let body = json!({"url": "http://127.0.0.1:9/", "event_types": ["none"]}).to_string().into();
        let (key, path) = (OPERATOR.to_owned(), "/v1/destinations".to_owned());
        Producer { key, path, body, ..self.quiet(lasts) }
    }
}

/// Processor time that was used, so that a flood which takes all of that of the client is not taken for one that Weir
/// bounds.
struct Used {
    engine_s: f64,
    client_s: f64,
}

impl Used {
    fn start(engine: &Weir) -> anyhow::Result<Self> {
        Ok(Self { engine_s: engine.cpu_s()?, client_s: own_cpu_s()? })
    }

    /// Since the start, for each second.
    fn of(&self, engine: &Weir, lasted: Duration) -> anyhow::Result<Self> {
        let (now, lasted) = (Self::start(engine)?, lasted.as_secs_f64());
        let [engine_s, client_s] = [now.engine_s - self.engine_s, now.client_s - self.client_s].map(|s| s / lasted);
        Ok(Self { engine_s, client_s })
    }
}

impl Bed {
    pub(super) async fn start(set_up: SetUp, weir: PathBuf, part: Duration, cores: Arc<Cores>) -> anyhow::Result<Self> {
        cores.start_engine()?;
        let servers = match set_up {
            SetUp::Embedded => None,
            SetUp::Scaled | SetUp::Roles => Some(Servers::start().await?),
        };
        cores.be_client()?;
        Ok(Self { weir, servers, receiver: Receiver::start().await?, part, cores })
    }

    /// `link`: on the way to PostgreSQL.
    async fn engine(&self, roles: &[&'static str], link: Option<&SlowLink>) -> anyhow::Result<Engine> {
        let mut settings = match &self.servers {
            Some(servers) => servers.renew().await?.0.to_vec(),
            None => vec![("WEIR_DATABASE_URL", "sqlite://weir.db".to_owned())],
        };
        if let (Some(link), Some(servers)) = (link, &self.servers) {
            let (at, to) = (format!(":{}/", servers.postgres_port()), format!(":{}/", link.port()));
            settings[0].1 = settings[0].1.replace(&at, &to);
        }
        let keys = [&[LOUD, QUIET, OPERATOR][..], &OTHERS].concat().join(",");
        settings.push(("WEIR_API_KEYS", keys));
        self.cores.start_engine()?;
        let weir = Weir::start(&self.weir, roles, None, &settings).await?;
        self.cores.be_client()?;
        let api = Api::new(weir.address(), Some(OPERATOR.to_owned()));
        let destination = json!({"url": self.receiver.url(), "event_types": ["bench"], "max_in_flight": 512});
        api.create_destination(&destination).await?;
        // The first events are slower: connections are opened, and files grow.
        let engine = Engine { weir, api };
        engine.loud(PEAK_CONNECTIONS, self.part / 4).run().await?;
        Ok(engine)
    }

    /// The figures of this set-up.
    pub(super) async fn measure(&self, only: Option<Part>) -> anyhow::Result<Vec<Row>> {
        let has = |part| only.is_none_or(|only| only == part);
        let mut rows = Vec::new();
        if has(Part::Flood) {
            rows.extend(self.flood().await.context("the flood")?);
        }
        if has(Part::Neighbour) {
            rows.extend(self.noisy_neighbour().await.context("the noisy neighbour")?);
        }
        if has(Part::Cost) {
            rows.extend(self.cost().await.context("the cost")?);
        }
        let Some(servers) = &self.servers else { return Ok(rows) };
        if has(Part::SlowStore) {
            rows.extend(self.slow_store(servers).await.context("the slow store")?);
        }
        if has(Part::HangingRedis) {
            rows.extend(self.hanging_redis(servers).await.context("Redis that stands still")?);
        }
        if has(Part::KilledApi) {
            rows.extend(self.killed_api().await.context("the killed process")?);
        }
        Ok(rows)
    }

    /// One key on a thousand connections posts three times the peak.
    async fn flood(&self) -> anyhow::Result<Vec<Row>> {
        let engine = self.engine(ONE, None).await?;
        let alone = engine.quiet(self.part).run().await?;
        // The peak, with the quiet client beside it.
        let (delivered, quiet) = (self.receiver.arrived(), engine.quiet(self.part).start());
        let used = Used::start(&engine.weir)?;
        let peak = engine.loud(PEAK_CONNECTIONS, self.part).run().await?;
        let peak_delivered = (self.receiver.arrived() - delivered) as f64 / peak.lasted.as_secs_f64();
        let beside_peak = quiet.answers().await?;
        let at_peak = used.of(&engine.weir, peak.lasted)?;
        // The flood, with the quiet client, an operator and a health check beside it.
        let lasts = 2 * self.part;
        let delivered = self.receiver.arrived();
        let beside = [engine.quiet(lasts), engine.health(lasts), engine.control(lasts)].map(Producer::start);
        let used = Used::start(&engine.weir)?;
        let flood = engine.loud(FLOOD_CONNECTIONS, lasts).per_s(3.0 * peak.accepted_per_s()).run().await?;
        let flood_delivered = (self.receiver.arrived() - delivered) as f64 / flood.lasted.as_secs_f64();
        let [quiet, health, control] = all(beside).await?;
        let in_flood = used.of(&engine.weir, flood.lasted)?;
        let goodput = (flood.accepted_per_s() + quiet.accepted_per_s()) / peak.accepted_per_s();
        let answered = control.accepted.len() as f64 / control.all() as f64;
        Ok(vec![
            row("3 × overload: offered ÷ the peak", Unit::Share, flood.offered_per_s() / peak.accepted_per_s(), None),
            row("3 × overload: accepted ÷ the peak", Unit::Share, goodput, Some(Bound::AtLeast(0.95))),
            row("3 × overload: accepted, p99", Unit::Ms, flood.p99_ms(), Some(Bound::AtMost(500.0))),
            row("3 × overload: health, p99", Unit::Ms, health.p99_ms(), Some(Bound::AtMost(50.0))),
            row("3 × overload: control, answered", Unit::Share, answered, Some(Bound::AtLeast(0.999))),
            row("3 × overload: not answered", Unit::Count, flood.failed as f64, Some(Bound::AtMost(0.0))),
            row(
                "3 × overload: delivered ÷ delivered at the peak",
                Unit::Share,
                flood_delivered / peak_delivered,
                Some(Bound::AtLeast(0.9)),
            ),
            row(
                "a quiet key beside one on 1,000 connections: refused",
                Unit::Count,
                (quiet.refused + quiet.failed) as f64,
                Some(Bound::AtMost(0.0)),
            ),
            row(
                "a quiet key beside one on 1,000 connections: p99 ÷ beside the peak",
                Unit::Times,
                quiet.p99_ms() / beside_peak.p99_ms(),
                Some(Bound::AtMost(2.0)),
            ),
            row("the peak", Unit::PerSecond, peak.accepted_per_s(), None),
            row("processors of the engine at the peak", Unit::Share, at_peak.engine_s, None),
            row("…in the flood", Unit::Share, in_flood.engine_s, None),
            row("processors of client and receiver at the peak", Unit::Share, at_peak.client_s, None),
            row("…in the flood", Unit::Share, in_flood.client_s, None),
            row("a quiet key alone, p99", Unit::Ms, alone.p99_ms(), None),
            row("a quiet key beside the peak, p99", Unit::Ms, beside_peak.p99_ms(), None),
        ])
    }

    /// Half of the peak, once spread over ten clients, and once with nine tenths of it from one of them, which then holds
    /// more than a tenth of what is in flight.
    async fn noisy_neighbour(&self) -> anyhow::Result<Vec<Row>> {
        let engine = self.engine(ONE, None).await?;
        let peak = engine.loud(PEAK_CONNECTIONS, self.part / 2).run().await?.accepted_per_s();
        let client = |key, connections, per_s| {
            Producer::of_events(engine.address(), key, connections, self.part).per_s(per_s).start()
        };
        let others = OTHERS.map(|key| client(key, 20, peak / 20.0));
        let spread = client(QUIET, 20, peak / 20.0).answers().await?;
        all(others).await?;
        let loud = client(LOUD, 20 * OTHERS.len() as u32, peak / 20.0 * OTHERS.len() as f64);
        let beside = client(QUIET, 20, peak / 20.0).answers().await?;
        loud.answers().await?;
        let (refused, times) = ((beside.refused + beside.failed) as f64, beside.p99_ms() / spread.p99_ms());
        Ok(vec![
            row("a noisy neighbour: others refused", Unit::Count, refused, Some(Bound::AtMost(0.0))),
            row(
                "a noisy neighbour: p99 of others ÷ the same load spread",
                Unit::Times,
                times,
                Some(Bound::AtMost(1.25)),
            ),
        ])
    }

    /// Decisions cost nothing that can be measured from outside, and a refusal little.
    async fn cost(&self) -> anyhow::Result<Vec<Row>> {
        const PAIRS: u32 = 6;
        let engine = self.engine(ONE, None).await?;
        let mut ratios = [0.0; 2];
        // Events that nobody takes, because with `on` deliveries come before events, and with `off` they do not.
        for (ratio, kind) in ratios.iter_mut().zip(["taken-by-nobody", "bench"]) {
            let [mut on, mut off] = [0.0, 0.0];
            for pair in 0..PAIRS {
                // Each is first as often as the other, because the database grows.
                let modes = if pair % 2 == 0 { ["on", "off"] } else { ["off", "on"] };
                for mode in modes {
                    engine.set(json!({"mode": mode})).await?;
                    let loud = engine.loud(PEAK_CONNECTIONS, self.part / 3);
                    let accepted = Producer { body: event(kind, 0).into(), ..loud }.run().await?.accepted_per_s();
                    if mode == "on" { on += accepted } else { off += accepted }
                }
            }
            *ratio = on / off;
        }
        let [without_deliveries, with_deliveries] = ratios;
        let key = json!({"name": "refused", "role": "ingest"});
        let key: Value = engine.api.ask(Method::POST, "/v1/keys", &key).await?;
        engine.set(json!({"mode": "on", "clients": {"overrides": [{"key": key["id"], "in_flight": 0}]}})).await?;
        let key = key["secret"].as_str().context("a secret")?;
        let before = engine.weir.cpu_s()?;
        let posts = Producer::of_events(engine.address(), key, PEAK_CONNECTIONS, self.part / 2);
        let refused = posts.run().await?.refused;
        let cost_us = (engine.weir.cpu_s()? - before) * 1e6 / refused as f64;
        Ok(vec![
            row(
                "events without deliveries, throughput with `on` ÷ `off`, six pairs",
                Unit::Share,
                without_deliveries,
                Some(Bound::AtLeast(0.985)),
            ),
            row("the same beside deliveries, which come first with `on`", Unit::Share, with_deliveries, None),
            row("a refusal, with its HTTP exchange", Unit::CpuUs, cost_us, Some(Bound::AtMost(15.0))),
        ])
    }

    /// The way to PostgreSQL takes 300 ms for a while.
    async fn slow_store(&self, servers: &Servers) -> anyhow::Result<Vec<Row>> {
        let link = SlowLink::to(([127, 0, 0, 1], servers.postgres_port()).into()).await?;
        let engine = self.engine(ONE, Some(&link)).await?;
        let posts = |lasts| engine.loud(400, lasts).per_s(1_000.0);
        let (lasts, health) = (2 * self.part, engine.health(2 * self.part).start());
        let during = posts(lasts).start();
        link.set_round_trip(Duration::from_millis(300));
        sleep(lasts / 2).await;
        link.set_round_trip(Duration::ZERO);
        let (during, health) = (during.answers().await?, health.answers().await?);
        // The posts went on for longer than two seconds after the end.
        let after = posts(self.part).run().await?;
        let accepted = after.accepted.len() as f64 / after.all() as f64;
        Ok(vec![
            row("a slow store: not answered", Unit::Count, during.failed as f64, Some(Bound::AtMost(0.0))),
            row("a slow store: health, p99", Unit::Ms, health.p99_ms(), Some(Bound::AtMost(50.0))),
            row("a slow store: accepted, from 2 s after it", Unit::Share, accepted, Some(Bound::AtLeast(0.999))),
        ])
    }

    async fn hanging_redis(&self, servers: &Servers) -> anyhow::Result<Vec<Row>> {
        let engine = self.engine(ONE, None).await?;
        let posts = || engine.loud(20, self.part).per_s(300.0).run();
        let before = posts().await?;
        servers.redis().signal("STOP").await?;
        let during = posts().await;
        servers.redis().signal("CONT").await?;
        let during = during?;
        let refused = (during.refused + during.failed) as f64;
        let [p50, p99] = [Answers::p50_ms, Answers::p99_ms].map(|of: fn(&Answers) -> f64| of(&during) / of(&before));
        Ok(vec![
            row("Redis stands still: refused", Unit::Count, refused, Some(Bound::AtMost(0.0))),
            row("Redis stands still: p50 ÷ before", Unit::Times, p50, None),
            row("Redis stands still: p99 ÷ before", Unit::Times, p99, Some(Bound::AtMost(1.05))),
        ])
    }

    /// What a killed process had in flight counts until the others forget it.
    async fn killed_api(&self) -> anyhow::Result<Vec<Row>> {
        let mut engine = self.engine(&["serve", "api"], None).await?;
        let posts = engine.quiet(Duration::from_secs(10)).start();
        while engine.processes().await? != 2 {
            sleep(Duration::from_millis(10)).await;
        }
        engine.weir.kill_last().await?;
        let killed = now();
        while engine.processes().await? != 1 {
            sleep(Duration::from_millis(10)).await;
        }
        let forgotten_s = now().duration_since(killed).as_secs_f64();
        posts.answers().await?;
        Ok(vec![row("a killed process is forgotten after", Unit::S, forgotten_s, Some(Bound::AtMost(3.0)))])
    }
}

async fn all<const N: usize>(producers: [Running; N]) -> anyhow::Result<[Answers; N]> {
    let mut answers = Vec::new();
    for producer in producers {
        answers.push(producer.answers().await?);
    }
    answers.try_into().ok().context("as many answers as producers")
}
