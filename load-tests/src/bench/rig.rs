//! The test bed: a set-up, its servers, the receiver, and the sizes of measurements.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    SetUp,
    machine::sqlite_version,
    servers::Servers,
    weir::{ONE, ROLES, Weir},
};
use crate::{
    client::{Connection, Driven, MakeBody, Until, closed_loop},
    figures::{BODY_BYTES, batch, event},
    process::own_cpu_s,
    receiver::Receiver,
};

pub(super) const CONNECTIONS: usize = 64;
/// Fewer connections than for single posts, because each request carries a hundred events.
pub(super) const BATCH_CONNECTIONS: usize = 16;
pub(super) const BATCH: u64 = 100;
pub(super) const MAX_IN_FLIGHT: u32 = 512;
/// The time in which background work after a burst (commits, checkpoints, freeing memory) ends.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// The time from the last arrival to the commit of its record.
pub(super) const RECORDED_WITHIN: Duration = Duration::from_millis(300);

/// The divisor of counts in a brief run, which only checks that a topic works.
const BRIEF: u64 = 20;
const CEILING_S: u64 = 2;

pub(crate) struct Rig {
    pub(crate) set_up: SetUp,
    pub(crate) weir: PathBuf,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) brief: bool,
    /// PostgreSQL and Redis of the set-ups that use them.
    pub(crate) servers: Option<Servers>,
    pub(crate) receiver: Arc<Receiver>,
}

/// An engine on a fresh database. It is killed when dropped.
pub(crate) struct Running<'a> {
    pub(crate) engine: Weir,
    /// The servers and the name of the database.
    pub(crate) on: Option<(&'a Servers, String)>,
}

/// CPU seconds used so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) weir_s: f64,
    /// With PostgreSQL and Redis.
    pub(crate) all_s: f64,
}

/// The figures of the bare client and receiver.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct BareCeiling {
    pub(crate) per_s: f64,
    /// CPU time of client and receiver for each request.
    pub(crate) cpu_us: f64,
}

impl Rig {
    pub(crate) async fn start(
        set_up: SetUp,
        weir: PathBuf,
        folder: Option<PathBuf>,
        brief: bool,
    ) -> anyhow::Result<Self> {
        let servers = match set_up {
            SetUp::Embedded => None,
            SetUp::Scaled | SetUp::Roles => Some(Servers::start().await?),
        };
        Ok(Self { set_up, weir, folder, brief, servers, receiver: Receiver::start().await? })
    }

    /// The count, reduced in a brief run.
    pub(crate) fn count(&self, full: u64) -> u64 {
        if self.brief { (full / BRIEF).max(1) } else { full }
    }

    pub(crate) fn seconds(&self, full: u64) -> u64 {
        if self.brief { full.div_ceil(4) } else { full }
    }

    pub(crate) fn span(&self, full: u64) -> Duration {
        Duration::from_secs(self.seconds(full))
    }

    pub(crate) fn repeats(&self, full: usize) -> usize {
        if self.brief { full.min(2) } else { full }
    }

    pub(crate) async fn engine(&self) -> anyhow::Result<Running<'_>> {
        self.start_engine(false).await
    }

    /// An engine whose SQL statements are counted, if the server can count them.
    pub(crate) async fn counted_engine(&self) -> anyhow::Result<Running<'_>> {
        self.start_engine(true).await
    }

    async fn start_engine(&self, is_counted: bool) -> anyhow::Result<Running<'_>> {
        let folder = self.folder.as_deref();
        let Some(servers) = &self.servers else {
            let on_sqlite = [("WEIR_DATABASE_URL", "sqlite://weir.db".to_owned())];
            return Ok(Running { engine: Weir::start(&self.weir, ONE, folder, &on_sqlite).await?, on: None });
        };
        let (settings, database) = servers.renew().await?;
        if is_counted && servers.counts_statements() {
            servers.track(&database).await?;
        }
        let roles = if self.set_up == SetUp::Roles { ROLES } else { ONE };
        let engine = Weir::start(&self.weir, roles, folder, &settings).await?;
        Ok(Running { engine, on: Some((servers, database)) })
    }

    /// Measures the same client and receiver without Weir.
    pub(crate) async fn ceiling(&self) -> anyhow::Result<BareCeiling> {
        self.receiver.reset(false);
        let body: MakeBody = Arc::new(|_| Bytes::from_static(&[b'x'; BODY_BYTES]));
        let before_s = own_cpu_s()?;
        let until = Until::Elapsed(self.span(CEILING_S));
        let driven = closed_loop(self.receiver.address(), CONNECTIONS, until, "/hook", body).await?;
        let cpu_us = (own_cpu_s()? - before_s) * 1e6 / driven.answered as f64;
        Ok(BareCeiling { per_s: driven.per_second(), cpu_us })
    }

    /// Posts requests of `size` events for a while, as fast as they are answered. Also returns the events a second, from
    /// the first post to the last arrival.
    pub(crate) async fn post(
        &self,
        running: &Running<'_>,
        size: u64,
        connections: usize,
        span: Duration,
    ) -> anyhow::Result<(Driven, f64)> {
        let (path, body) = requests(size);
        let driven = closed_loop(running.engine.address(), connections, Until::Elapsed(span), path, body).await?;
        let events = driven.answered * size;
        let last = self.receiver.all_arrived(events).await?;
        Ok((driven, events as f64 / last.duration_since(driven.started).as_secs_f64()))
    }

    /// Settings of an unlimited destination for events of type `bench`.
    pub(crate) fn unlimited(&self) -> Value {
        json!({"url": self.receiver.url(), "event_types": ["bench"], "max_in_flight": MAX_IN_FLIGHT})
    }

    /// The versions of the servers, for the head of the page.
    pub(crate) async fn versions(&self) -> anyhow::Result<Vec<String>> {
        if let Some(servers) = &self.servers {
            return Ok(servers.versions().await?.to_vec());
        }
        let running = self.engine().await?;
        let version = sqlite_version(&running.engine.folder().join("weir.db"));
        running.end().await?;
        Ok(version.into_iter().collect())
    }
}

impl Running<'_> {
    pub(crate) fn cpu(&self) -> anyhow::Result<Cpu> {
        let weir_s = self.engine.cpu_s()?;
        let servers_s = self.on.as_ref().map_or(Ok(0.0), |(servers, _)| servers.cpu_s())?;
        Ok(Cpu { weir_s, all_s: weir_s + servers_s })
    }

    /// Runs maintenance after a large load.
    pub(crate) async fn tidy(&self) -> anyhow::Result<()> {
        match &self.on {
            Some((servers, database)) => servers.tidy(database).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn end(self) -> anyhow::Result<()> {
        self.engine.kill().await?;
        match self.on {
            Some((servers, database)) => servers.drop_database(&database).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn patch(&self, destination: &str, settings: Value) -> anyhow::Result<()> {
        self.engine.ask(Method::PATCH, &format!("/v1/destinations/{destination}"), settings).await?;
        Ok(())
    }

    /// Creates many destinations in parallel and returns their ids.
    pub(crate) async fn create_many(
        &self,
        count: u64,
        settings: impl Fn(u64) -> Value + Clone + Send + 'static,
    ) -> anyhow::Result<Vec<String>> {
        let connections = (CONNECTIONS as u64).min(count);
        let mut creating = JoinSet::new();
        // Every connection creates an equal share, at regular distances in the sequence of numbers.
        for first in 0..connections {
            let mut connection = Connection::open(self.engine.address()).await?;
            let settings = settings.clone();
            creating.spawn(async move {
                let mut ids = Vec::new();
                for number in (first..count).step_by(connections as usize) {
                    let body = settings(number).to_string().into();
                    let answer = connection.send(Method::POST, "/v1/destinations", body).await?;
                    let answer: Value = serde_json::from_slice(&answer)?;
                    ids.push(answer["id"].as_str().unwrap_or_default().to_owned());
                }
                anyhow::Ok(ids)
            });
        }
        // The ids are not in the order of the numbers.
        let mut ids = Vec::new();
        while let Some(created) = creating.join_next().await {
            ids.extend(created??);
        }
        Ok(ids)
    }

    /// Posts `count` events in batches of a thousand; the last batch may be smaller.
    pub(crate) async fn load(&self, event_type: &str, count: u64) -> anyhow::Result<Driven> {
        const AT_ONCE: u64 = 1_000;
        let event_type = event_type.to_owned();
        let body: MakeBody =
            Arc::new(move |part| batch(&event_type, part, AT_ONCE.min(count.saturating_sub(part * AT_ONCE))));
        let until = Until::Sent(count.div_ceil(AT_ONCE));
        // The numbers of a smaller last batch overlap with others, but the numbers of loaded events are not used.
        closed_loop(self.engine.address(), 8, until, "/v1/events/batch", body).await
    }
}

/// The path and the bodies of requests with `size` events each.
pub(super) fn requests(size: u64) -> (&'static str, MakeBody) {
    match size {
        1 => ("/v1/events", Arc::new(|number| event("bench", number).into())),
        size => ("/v1/events/batch", Arc::new(move |number| batch("bench", number, size))),
    }
}
