//! What a decision about a request costs, of three designs side by side, at the same rate in one run.
//!
//! - Weir's, in the process.
//! - Two windows of a minute in Redis with a Lua script, as a much-read article describes it: the count of this minute,
//!   and that of the last one in proportion. A request takes a place before it runs and gives it back afterwards.
//! - The reactive limiter of Grafana Mimir: a queue up to twice the limit, everything refused at three times, in between
//!   by a threshold that is computed once a second.
//!
//! The other two are written here from their descriptions, so only their cost is measured, not their quality.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, interval, sleep},
};
use weir_core::{
    Timestamp,
    shed::{Class, Client, ClientId, Decision, Mode, Sender, Shedder, Ticket},
};
use weir_test_support::Redis;

/// How long a request runs.
const RUNS: Duration = Duration::from_millis(5);
/// The clients, one request after the other.
const CLIENTS: u64 = 20;
/// No design refuses anything at the rate of the measurement.
const LIMIT: u32 = 1_000;

/// KEYS: the count of this minute and of the last one. ARGV: the part of the last minute that still counts, in percent;
/// the limit. Answers 1 if the request may run.
const TAKE: &str = "local now = redis.call('INCR', KEYS[1]) redis.call('EXPIRE', KEYS[1], 120) \
    local last = tonumber(redis.call('GET', KEYS[2]) or '0') \
    if now + last * ARGV[1] / 100 > tonumber(ARGV[2]) then redis.call('DECR', KEYS[1]) return 0 end return 1";

/// The table of the three designs.
pub(super) async fn table(rate: u32, seconds: u32) -> anyhow::Result<String> {
    let mut table = "| design | decisions/s | median | p99 | highest | refused | commands of Redis a second |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    let redis = Redis::start().await?;
    for design in [Design::weir(), Design::article(&redis).await?, Design::mimir()] {
        let before = commands(&redis).await?;
        let design = Arc::new(design);
        let (times, refused) = measure(&design, rate, seconds).await?;
        let commands = commands(&redis).await?.saturating_sub(before) / u64::from(seconds.max(1));
        let micros = |nanos: u64| format!("{:.2} µs", nanos as f64 / 1_000.0);
        table += &format!(
            "| {} | {} | {} | {} | {} | {refused} | {commands} |\n",
            design.name(),
            times.len() / u64::from(seconds.max(1)),
            micros(times.value_at_quantile(0.5)),
            micros(times.value_at_quantile(0.99)),
            micros(times.max()),
        );
    }
    Ok(table)
}

/// Begins so many requests a second, and returns the times of the decisions and how many were refused.
async fn measure(design: &Arc<Design>, rate: u32, seconds: u32) -> anyhow::Result<(Histogram<u64>, u64)> {
    let times = Arc::new(Mutex::new(Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?));
    let refused = Arc::new(Mutex::new(0));
    let (mut ticks, mut requests) = (interval(Duration::from_millis(1)), JoinSet::new());
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < Duration::from_secs(seconds.into()) {
        ticks.tick().await;
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        for number in sent..due {
            let (design, times, refused) = (Arc::clone(design), Arc::clone(&times), Arc::clone(&refused));
            requests.spawn(async move {
                let began = Instant::now();
                let place = design.take(number % CLIENTS, began).await?;
                let took = began.elapsed();
                times.lock().saturating_record(took.as_nanos() as u64);
                match place {
                    Some(place) => {
                        sleep(RUNS).await;
                        design.give_back(place, Instant::now()).await
                    }
                    None => {
                        *refused.lock() += 1;
                        Ok(())
                    }
                }
            });
        }
        sent = due;
        while let Some(ended) = requests.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = requests.join_next().await {
        ended??;
    }
    let (times, refused) = (times.lock().clone(), *refused.lock());
    Ok((times, refused))
}

enum Design {
    Weir { shedder: Box<Mutex<Shedder>>, senders: Vec<Sender>, began: Instant },
    Article { redis: RedisLine, take: String, began: Instant },
    Mimir(Mutex<Reactive>),
}

enum Place {
    Ticket(Ticket),
    /// The key that counts it.
    Key(String),
    Reactive,
}

impl Design {
    fn weir() -> Self {
        let sender = |number: u64| {
            let name = format!("client {number}");
            Sender { key: Client { id: ClientId::of("key", &name), name: name.into() }, tenant: None }
        };
        let shedder = Box::new(Mutex::new(Shedder::new(Mode::On, false, Timestamp::MIN)));
        Self::Weir { shedder, senders: (0..CLIENTS).map(sender).collect(), began: Instant::now() }
    }

    async fn article(redis: &Redis) -> anyhow::Result<Self> {
        let take = redis.ask(&format!("SCRIPT LOAD \"{TAKE}\"")).await?;
        Ok(Self::Article { redis: RedisLine::open(redis).await?, take, began: Instant::now() })
    }

    fn mimir() -> Self {
        Self::Mimir(Mutex::new(Reactive::default()))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Weir { .. } => "Weir",
            Self::Article { .. } => "two windows in Redis (Lua)",
            Self::Mimir(_) => "reactive limiter of Mimir",
        }
    }

    async fn take(&self, client: u64, now: Instant) -> anyhow::Result<Option<Place>> {
        Ok(match self {
            Self::Weir { shedder, senders, began } => {
                let sender = senders.get(client as usize).context("a client")?;
                let at = Timestamp::MIN + (now - *began);
                match shedder.lock().admit(Class::Ingest, sender, at, rand::random()) {
                    Decision::Admitted { ticket, .. } => Some(Place::Ticket(ticket)),
                    Decision::Refused(_) => None,
                }
            }
            Self::Article { redis, take, began } => {
                let at = now - *began;
                let (minute, part) = (at.as_secs() / 60, 100 - at.as_secs() % 60 * 100 / 60);
                let key = |minute: u64| format!("{{{client}}}:events:{minute}");
                let (this, last) = (key(minute + 1), key(minute));
                // No limit of a count that does not end within two minutes can be as low as that of places.
                let limit = u64::from(LIMIT) * 1_000;
                let may = redis.ask(format!("EVALSHA {take} 2 {this} {last} {part} {limit}\r\n")).await?;
                (may == ":1").then_some(Place::Key(this))
            }
            Self::Mimir(reactive) => reactive.lock().take(now).then_some(Place::Reactive),
        })
    }

    async fn give_back(&self, place: Place, now: Instant) -> anyhow::Result<()> {
        match (self, place) {
            (Self::Weir { shedder, began, .. }, Place::Ticket(ticket)) => {
                shedder.lock().release(ticket, true, Timestamp::MIN + (now - *began));
            }
            (Self::Article { redis, .. }, Place::Key(key)) => {
                redis.ask(format!("DECR {key}\r\n")).await?;
            }
            (Self::Mimir(reactive), _) => reactive.lock().give_back(),
            _ => {}
        }
        Ok(())
    }
}

/// One connection to Redis, on which many requests wait for their answers in order.
struct RedisLine(mpsc::UnboundedSender<(String, oneshot::Sender<String>)>);

impl RedisLine {
    async fn open(redis: &Redis) -> anyhow::Result<Self> {
        let address = redis.url();
        let stream = TcpStream::connect(address.trim_start_matches("redis://")).await?;
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        let (sender, commands) = mpsc::unbounded_channel();
        let (to_reader, waiting) = mpsc::unbounded_channel();
        tokio::spawn(write_commands(write, commands, to_reader));
        tokio::spawn(read_answers(read, waiting));
        Ok(Self(sender))
    }

    async fn ask(&self, command: String) -> anyhow::Result<String> {
        let (sender, answer) = oneshot::channel();
        self.0.send((command, sender)).ok().context("the connection is closed")?;
        answer.await.context("no answer")
    }
}

async fn write_commands(
    mut write: OwnedWriteHalf,
    mut commands: mpsc::UnboundedReceiver<(String, oneshot::Sender<String>)>,
    to_reader: mpsc::UnboundedSender<oneshot::Sender<String>>,
) {
    let mut batch = Vec::new();
    while commands.recv_many(&mut batch, 1_024).await > 0 {
        let mut text = String::new();
        for (command, waiting) in batch.drain(..) {
            text += &command;
            let _ = to_reader.send(waiting);
        }
        if write.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_answers(read: OwnedReadHalf, mut waiting: mpsc::UnboundedReceiver<oneshot::Sender<String>>) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(waiting) = waiting.recv().await else { return };
        let _ = waiting.send(line);
    }
}

/// The commands that Redis has run, those of scripts included.
async fn commands(redis: &Redis) -> anyhow::Result<u64> {
    let text = redis.ask("INFO commandstats").await?;
    let calls = text.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    Ok(calls.sum())
}

/// The limiter of requests in flight with a queue before it. Its limit moves with the latencies of a window; here it
/// stays, because the requests of the measurement always take the same time.
#[derive(Default)]
struct Reactive {
    in_flight: u32,
    queued: u32,
    /// Requests with a lower priority than this are refused.
    threshold: u32,
    recomputed: Option<Instant>,
    /// The priorities of the last requests.
    priorities: VecDeque<u32>,
}

impl Reactive {
    fn take(&mut self, now: Instant) -> bool {
        if self.recomputed.is_none_or(|at| now - at >= Duration::from_secs(1)) {
            self.recomputed = Some(now);
            self.recompute();
        }
        // Writes come before reads: here half of each, in levels.
        let priority = rand::random_range(0..500);
        if self.priorities.len() == 1_000 {
            self.priorities.pop_front();
        }
        self.priorities.push_back(priority);
        if self.in_flight < LIMIT {
            self.in_flight += 1;
            return true;
        }
        let queues = self.queued < 2 * LIMIT || (self.queued < 3 * LIMIT && priority >= self.threshold);
        self.queued += u32::from(queues);
        queues
    }

    fn recompute(&mut self) {
        let excess = f64::from(self.queued.saturating_sub(2 * LIMIT)) / f64::from(LIMIT);
        let mut sorted: Vec<u32> = self.priorities.iter().copied().collect();
        sorted.sort_unstable();
        let place = (excess.min(1.0) * sorted.len() as f64) as usize;
        self.threshold = if excess > 0.0 { sorted.get(place).copied().unwrap_or(u32::MAX) } else { 0 };
    }

    fn give_back(&mut self) {
        match self.queued {
            0 => self.in_flight -= 1,
            _ => self.queued -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_design_decides_about_every_request_and_has_none_in_flight_afterwards() {
        let redis = Redis::start().await.unwrap();
        for design in [Design::weir(), Design::article(&redis).await.unwrap(), Design::mimir()] {
            let design = Arc::new(design);
            let (times, refused) = measure(&design, 200, 1).await.unwrap();
            assert!(times.len() >= 100 && refused == 0, "{}: {}", design.name(), times.len());
            match &*design {
                Design::Weir { shedder, .. } => {
                    let figures = shedder.lock().figures(Timestamp::MIN + Duration::from_secs(9), 0);
                    assert!(figures.classes.iter().all(|of| of.in_flight == 0));
                }
                Design::Article { redis, .. } => assert_eq!(redis.ask("EXISTS x\r\n".to_owned()).await.unwrap(), ":0"),
                Design::Mimir(reactive) => assert_eq!(reactive.lock().in_flight, 0),
            }
        }
    }
}
