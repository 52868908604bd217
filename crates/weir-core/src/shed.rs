//! Load shedding: which requests a process of the API lets in, decided without I/O and without a clock.
//!
//! A request has a [`Class`] and a [`Client`]. It passes three gates, in this order; the bytes of bodies are a gate of
//! their own, in [`crate::inbound`]:
//!
//! 1. **Class**: at most so many requests of a class are in flight in a process.
//! 2. **Pressure**: the longer the store is slow, the higher the level (`pressure`). Level 1 refuses heavy requests,
//!    level 2 reads too, and level 3 bounds the events in flight to what the store completes in 250 ms.
//! 3. **Client**: its own limit if somebody has set one. Otherwise places are free for all while less than three
//!    quarters are taken; above that, only for clients that hold less than their share.
//!
//! ```text
//!  admit ──▶ class ──▶ pressure ──▶ client ──▶ Ticket ──▶ release
//!              └──────────┴───────────┴──▶ Refusal: reason, Retry-After
//! ```
//!
//! Several processes share the limits of clients and the bound of level 3 through `views`: each publishes a small
//! record ten times a second and computes from the others' records how much of the free places it may use. No request
//! waits for that.

mod peaks;
mod policy;
mod pressure;
mod views;

use std::{sync::Arc, time::Duration};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

pub use peaks::{PeakFigures, Peaks};
pub use policy::{
    ClassLimit, ClassLimits, ClientLimit, ClientLimits, ClientOverride, IN_FLIGHT, ShedPolicy, TARGET_MS, WEIGHT,
};
use pressure::{Counts, Pressure, TICK};
pub use pressure::{LEAST_BOUND, MOST_BOUND};
use views::{INGEST, Views};

/// The share of the places of a class that every client may use, whatever it holds already.
const FREE_FOR_ALL: f64 = 0.75;
/// One sixteenth of the places is kept for clients that hold few of them, so that a flood by one client does not make Weir
/// refuse the others.
const KEPT_FOR_SMALL: u32 = 16;
/// The clients that a process remembers. More have requests only where more keys than this are in use at one time.
const MOST_CLIENTS: usize = 4_096;
/// The longest `Retry-After` beyond the first second.
const LONGEST_RETRY_S: f64 = 30.0;
/// The share of its capacity that a process gives to clients that come again after a refusal.
const FOR_RETRIES: f64 = 0.2;

/// How important a request is: what is refused first, and what last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::EnumIter, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Class {
    /// What an operator needs to get out of an overload: refused last.
    Control,
    /// Events.
    Ingest,
    /// Lists and single reads.
    Read,
    /// What reads a lot: audits, replays, previews.
    Heavy,
}

impl Class {
    const COUNT: usize = 4;

    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The requests of this class in flight in one process, unless somebody has set another limit.
    pub const fn default_in_flight(self) -> u32 {
        match self {
            Self::Control => 64,
            Self::Ingest => 16_384,
            Self::Read => 256,
            Self::Heavy => 8,
        }
    }

    /// The level of pressure from which on no request of this class is let in.
    const fn shed_from(self) -> Option<u8> {
        match self {
            Self::Heavy => Some(1),
            Self::Read => Some(2),
            Self::Control | Self::Ingest => None,
        }
    }
}

/// Whether requests are refused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, strum::EnumString, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    #[default]
    On,
    /// Decided and counted, but nothing is refused, so nothing is relieved either.
    DryRun,
    Off,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The memory for bodies is used up.
    Bytes,
    /// As many requests of its class are in flight as may be.
    Class,
    /// The store is slow.
    Pressure,
    /// Its client uses its limit or its share.
    Client,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Who is counted together: a key, or a tenant that has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(u64);

impl ClientId {
    /// The same text gives the same id in every process. FNV-1a: ids are compared between processes and never shown.
    pub fn of(kind: &str, name: &str) -> Self {
        let bytes = kind.bytes().chain([0]).chain(name.bytes());
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    pub id: ClientId,
    /// For people.
    pub name: Arc<str>,
}

/// The sender of a request.
#[derive(Debug, Clone)]
pub struct Sender {
    pub key: Client,
    /// The only tenant of the key; `None` for a key of several tenants.
    pub tenant: Option<Client>,
}

/// The right to be in flight. Must be given back to [`Shedder::release`].
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    class: Class,
    client: ClientId,
}

/// What a client with a limit of its own may still have in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub limit: u32,
    pub left: u32,
}

#[derive(Debug)]
pub enum Decision {
    Admitted {
        ticket: Ticket,
        /// If less than a quarter of the client's own limit is left.
        left: Option<Left>,
        /// Why it would have been refused if this were no dry run.
        would_refuse: Option<Reason>,
    },
    Refused(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// Whether the limit was set for this client. Otherwise the process has no room.
    pub is_own_limit: bool,
    /// The limit that was reached.
    pub limit: u32,
    pub retry_after_s: u32,
}

/// What a process knows of its requests, and decides by.
#[derive(Debug)]
pub struct Shedder {
    /// What applies where the policy has no mode.
    default_mode: Mode,
    policy: ShedPolicy,
    overrides: HashMap<ClientId, ClientLimit>,
    classes: [ClassState; Class::COUNT],
    clients: HashMap<ClientId, ClientState>,
    pressure: Pressure,
    views: Views,
    /// When the current tick ends.
    tick_ends: Timestamp,
    /// The second of which peaks are taken, and weights are summed up.
    second: i64,
}

#[derive(Debug)]
struct ClassState {
    class: Class,
    in_flight: u32,
    /// The most in this second.
    peak: u32,
    peaks: Peaks,
    /// The weights of the clients with requests in the last second and in this one, and in this one alone.
    weights: u64,
    weights_now: u64,
    /// In the last second.
    refused: Counts,
    completed: Counts,
    /// Since the last look at other processes.
    refused_since_look: u32,
}

#[derive(Debug)]
struct ClientState {
    name: Arc<str>,
    in_flight: [u32; Class::COUNT],
    /// The second of the last request of a class.
    seen: [i64; Class::COUNT],
    /// The most in `peak_second`, of all classes but control.
    peak: u32,
    peak_second: i64,
    peaks: Peaks,
    refused: u64,
    refused_since_look: u32,
    /// The part of the client's limit that this process may use, and the look that it was computed after.
    budget: (u64, u32),
}

impl ClientState {
    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            in_flight: [0; Class::COUNT],
            seen: [i64::MIN / 2; Class::COUNT],
            peak: 0,
            peak_second: 0,
            peaks: Peaks::default(),
            refused: 0,
            refused_since_look: 0,
            budget: (0, 0),
        }
    }

    /// What counts against the client's own limit. Control is left out: a limit must not keep an operator out.
    fn counted(&self) -> u32 {
        self.in_flight.iter().sum::<u32>() - self.in_flight[Class::Control as usize]
    }

    fn note_peak(&mut self, second: i64) {
        if self.peak_second != second {
            if self.peak > 0 {
                self.peaks.add(self.peak);
            }
            (self.peak_second, self.peak) = (second, 0);
        }
        self.peak = self.peak.max(self.counted());
    }
}

/// The figures of a class, for people and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassFigures {
    pub class: Class,
    pub in_flight: u32,
    /// Now; under pressure less than the limit of the policy, and 0 while the class is refused.
    pub limit: u32,
    pub peaks: PeakFigures,
}

/// The figures of a client in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFigures {
    pub name: Arc<str>,
    pub in_flight: u32,
    /// Its own limit, of all processes.
    pub limit: Option<u32>,
    pub weight: u32,
    pub refused: u64,
    pub peaks: PeakFigures,
}

/// The figures of a process.
#[derive(Debug, Clone)]
pub struct Figures {
    pub mode: Mode,
    pub level: u8,
    /// Whether the records of other processes are too old to be used.
    pub is_blind: bool,
    /// With this one.
    pub processes: u32,
    pub classes: Vec<ClassFigures>,
    /// The clients with the highest peaks.
    pub clients: Vec<ClientFigures>,
}

impl Shedder {
    /// `default_mode`: what the settings of the process say. `shares`: other processes may share the limits.
    pub fn new(default_mode: Mode, shares: bool, now: Timestamp) -> Self {
        let class = |class| ClassState {
            class,
            in_flight: 0,
            peak: 0,
            peaks: Peaks::default(),
            weights: 0,
            weights_now: 0,
            refused: Counts::default(),
            completed: Counts::default(),
            refused_since_look: 0,
        };
        Self {
            default_mode,
            policy: ShedPolicy::default(),
            overrides: HashMap::default(),
            classes: [Class::Control, Class::Ingest, Class::Read, Class::Heavy].map(class),
            clients: HashMap::default(),
            pressure: Pressure::new(now),
            views: Views::new(shares, now),
            tick_ends: now + TICK,
            second: now.as_secs(),
        }
    }

    pub fn mode(&self) -> Mode {
        self.policy.mode.unwrap_or(self.default_mode)
    }

    /// From now on this policy applies, also to requests in flight.
    pub fn set_policy(&mut self, policy: ShedPolicy) {
        self.overrides = policy.clients.overrides.iter().map(|of| (of.client_id(), of.limit())).collect();
        self.pressure.set_target(Duration::from_millis(policy.target_ms.into()));
        self.policy = policy;
        self.views.forget_budgets();
    }

    pub fn policy(&self) -> &ShedPolicy {
        &self.policy
    }

    /// Decides about a request. `jitter` is in [0, 1).
    pub fn admit(&mut self, class: Class, sender: &Sender, now: Timestamp, jitter: f64) -> Decision {
        self.advance(now);
        let (client, limit) = self.limit_of(sender);
        let id = client.id;
        self.meet(class, client, limit.weight);
        let refusal = self.refusal(class, id, limit);
        if let Some((reason, ..)) = refusal {
            let of_class = &mut self.classes[class as usize];
            of_class.refused.add();
            of_class.refused_since_look += 1;
            if let Some(client) = self.clients.get_mut(&id) {
                client.refused += 1;
                client.refused_since_look += 1;
            }
            if self.mode() == Mode::On {
                let (is_own_limit, at) = refusal.map_or((false, 0), |(_, own, at)| (own, at));
                let retry_after_s = self.retry_after_s(class, jitter);
                return Decision::Refused(Refusal { reason, is_own_limit, limit: at, retry_after_s });
            }
        }
        let of_class = &mut self.classes[class as usize];
        of_class.in_flight += 1;
        of_class.peak = of_class.peak.max(of_class.in_flight);
        let mut left = None;
        if let Some(client) = self.clients.get_mut(&id) {
            client.in_flight[class as usize] += 1;
            client.note_peak(self.second);
            left = limit.in_flight.filter(|_| class != Class::Control).and_then(|limit| {
                let left = limit.saturating_sub(client.counted());
                (left < limit.div_ceil(4)).then_some(Left { limit, left })
            });
        }
        let ticket = Ticket { class, client: id };
        Decision::Admitted { ticket, left, would_refuse: refusal.map(|(reason, ..)| reason) }
    }

    /// The request has ended, however it did. `is_complete`: it was answered.
    pub fn release(&mut self, ticket: Ticket, is_complete: bool, now: Timestamp) {
        self.advance(now);
        let of_class = &mut self.classes[ticket.class as usize];
        of_class.in_flight -= 1;
        if is_complete {
            of_class.completed.add();
        }
        if let Some(client) = self.clients.get_mut(&ticket.client) {
            client.in_flight[ticket.class as usize] -= 1;
        }
    }

    /// An ingest of the store begins. Each ends with [`Self::store_ended`].
    pub fn store_began(&mut self, now: Timestamp) {
        self.advance(now);
        self.pressure.began(now);
    }

    /// `is_finished`: the store has answered; otherwise the caller has gone away.
    pub fn store_ended(&mut self, began: Timestamp, is_finished: bool, now: Timestamp) {
        self.advance(now);
        self.pressure.ended(is_finished.then(|| now.since(began)), now);
    }

    /// This process delivers but takes no requests, so it has no part of the limits.
    pub fn takes_no_requests(&mut self) {
        self.views.takes_requests = false;
    }

    /// The result of a delivery was recorded so long after its end.
    pub fn recorded(&mut self, waited: Duration, now: Timestamp) {
        self.advance(now);
        self.pressure.recorded(waited);
    }

    /// The record for other processes.
    pub fn record(&mut self, now: Timestamp) -> Vec<u8> {
        self.advance(now);
        let of_ingest = &mut self.classes[Class::Ingest as usize];
        let refused = std::mem::take(&mut of_ingest.refused_since_look);
        let mut demands = vec![(INGEST, of_ingest.in_flight, of_ingest.in_flight.saturating_add(refused))];
        let of_client = |(id, client): (&ClientId, &mut ClientState)| {
            let refused = std::mem::take(&mut client.refused_since_look);
            let in_flight = client.counted();
            (in_flight + refused > 0).then_some((*id, in_flight, in_flight.saturating_add(refused)))
        };
        demands.extend(self.clients.iter_mut().filter_map(of_client));
        self.views.publish(demands, self.pressure.completed_per_s(), self.pressure.recording_wait())
    }

    /// Takes over the records of all other processes.
    pub fn look(&mut self, records: &[impl AsRef<[u8]>], now: Timestamp) {
        self.advance(now);
        self.views.look(records, now);
    }

    /// How soon other processes should be looked at again: sooner if more than 80 % of a budget are used, and seldom if
    /// nothing happens here.
    pub fn next_look(&self) -> Duration {
        let is_idle = self.classes.iter().all(|of| of.in_flight == 0 && of.completed.per_s() == 0);
        match () {
            () if self.views.uses_much() => TICK / 10,
            () if is_idle && self.pressure.recording_wait().is_zero() => 10 * TICK,
            () => TICK,
        }
    }

    pub fn figures(&mut self, now: Timestamp, most_clients: usize) -> Figures {
        self.advance(now);
        let classes = self.classes.iter().map(|of| {
            let is_refused = of.class.shed_from().is_some_and(|from| self.pressure.level() >= from);
            let limit = if is_refused { 0 } else { self.limit_of_class(of.class) };
            ClassFigures { class: of.class, in_flight: of.in_flight, limit, peaks: of.peaks.figures() }
        });
        let classes = classes.collect();
        if most_clients > 0 {
            // A client takes over the peak of a past second at its next request, and it may have had none since.
            self.clients.values_mut().for_each(|client| client.note_peak(self.second));
        }
        let all = if most_clients > 0 { Some(&self.clients) } else { None };
        let mut clients: Vec<(&ClientId, &ClientState)> = all.into_iter().flatten().collect();
        clients.sort_by_cached_key(|(id, client)| (std::cmp::Reverse(client.peaks.figures().most), **id));
        let clients = clients.into_iter().take(most_clients).map(|(id, client)| {
            let limit = self.overrides.get(id).copied().unwrap_or(self.policy.clients.default);
            ClientFigures {
                name: Arc::clone(&client.name),
                in_flight: client.counted(),
                limit: limit.in_flight,
                weight: limit.weight,
                refused: client.refused,
                peaks: client.peaks.figures(),
            }
        });
        Figures {
            mode: self.mode(),
            level: self.pressure.level(),
            is_blind: self.views.is_blind(now),
            processes: self.views.processes(now),
            clients: clients.collect(),
            classes,
        }
    }

    /// A limit of the key stands before one of its tenant.
    fn limit_of<'s>(&self, sender: &'s Sender) -> (&'s Client, ClientLimit) {
        if !self.overrides.is_empty() {
            for client in [Some(&sender.key), sender.tenant.as_ref()].into_iter().flatten() {
                if let Some(limit) = self.overrides.get(&client.id) {
                    return (client, *limit);
                }
            }
        }
        (&sender.key, self.policy.clients.default)
    }

    /// Counts the client among those with requests in this second.
    fn meet(&mut self, class: Class, client: &Client, weight: u32) {
        if self.clients.len() >= MOST_CLIENTS && !self.clients.contains_key(&client.id) {
            let second = self.second;
            // Only those with requests, or of the last seconds. If all are, the new one is not remembered, and so has no
            // share: its requests count as those of a newcomer.
            self.clients.retain(|_, known| {
                known.in_flight.iter().any(|&some| some > 0) || known.seen.iter().any(|&seen| seen + 1 >= second)
            });
            if self.clients.len() >= MOST_CLIENTS {
                return;
            }
        }
        let known = self.clients.entry(client.id).or_insert_with(|| ClientState::new(Arc::clone(&client.name)));
        let of_class = &mut self.classes[class as usize];
        let seen = std::mem::replace(&mut known.seen[class as usize], self.second);
        if seen < self.second {
            of_class.weights_now += u64::from(weight);
            if seen + 1 < self.second {
                of_class.weights += u64::from(weight);
            }
        }
    }

    /// Why this request is refused, whether by the client's own limit, and the limit.
    fn refusal(&mut self, class: Class, client: ClientId, own: ClientLimit) -> Option<(Reason, bool, u32)> {
        let most = self.policy.classes.of(class);
        let in_flight = self.classes[class as usize].in_flight;
        if in_flight >= most {
            return Some((Reason::Class, false, most));
        }
        if class.shed_from().is_some_and(|from| self.pressure.level() >= from) {
            return Some((Reason::Pressure, false, 0));
        }
        let limit = self.limit_of_class(class);
        if limit < most {
            self.views.note_use(in_flight, limit);
            if in_flight >= limit {
                return Some((Reason::Pressure, false, limit));
            }
        }
        let known = self.clients.get_mut(&client);
        if let Some(own) = own.in_flight.filter(|_| class != Class::Control) {
            let counted = known.as_ref().map_or(0, |known| known.counted());
            let most = match known {
                Some(known) => self.views.budget_of(client, own, counted, &mut known.budget),
                None => own,
            };
            return (counted >= most).then_some((Reason::Client, true, own));
        }
        let held = known.map_or(0, |known| known.in_flight[class as usize]);
        let kept = (limit / KEPT_FOR_SMALL).max(1);
        if held < kept || f64::from(in_flight) < FREE_FOR_ALL * f64::from(limit) {
            return None;
        }
        let weights = self.classes[class as usize].weights.max(u64::from(own.weight));
        let share = f64::from(limit) * f64::from(own.weight) / weights as f64;
        let has_share = f64::from(held) < share && in_flight < limit - kept;
        (!has_share).then_some((Reason::Client, false, share as u32))
    }

    /// The limit of a class now: under pressure events have a smaller one.
    fn limit_of_class(&self, class: Class) -> u32 {
        let most = self.policy.classes.of(class);
        match class {
            Class::Ingest => match self.pressure.bound(self.views.completed_per_s()) {
                Some(bound) => self.views.budget_of_ingest(bound).min(most),
                None => most,
            },
            Class::Control | Class::Read | Class::Heavy => most,
        }
    }

    /// 1 s, and as much as it takes until those who were refused have been served from [`FOR_RETRIES`] of the capacity,
    /// at random so that they do not all come back at one time.
    fn retry_after_s(&self, class: Class, jitter: f64) -> u32 {
        let of_class = &self.classes[class as usize];
        let spread = f64::from(of_class.refused.per_s()) / (FOR_RETRIES * f64::from(of_class.completed.per_s().max(1)));
        1 + (jitter * (spread.ceil().clamp(1.0, LONGEST_RETRY_S) + 1.0)) as u32
    }

    /// Ends the ticks and seconds that are over.
    fn advance(&mut self, now: Timestamp) {
        if now < self.tick_ends {
            return;
        }
        // After a long time without a request, all that is counted is over after a few seconds.
        let earliest = now - 100 * TICK;
        if self.tick_ends < earliest {
            self.tick_ends = earliest;
        }
        while self.tick_ends <= now {
            let at = self.tick_ends;
            self.views.expire(at);
            self.pressure.recorded_elsewhere(self.views.recording_wait());
            self.pressure.tick(at);
            for of_class in &mut self.classes {
                of_class.refused.tick();
                of_class.completed.tick();
            }
            self.tick_ends = at + TICK;
            self.end_second(at);
        }
    }

    fn end_second(&mut self, now: Timestamp) {
        let second = now.as_secs();
        if second == self.second {
            return;
        }
        let is_next = second == self.second + 1;
        self.second = second;
        for of_class in &mut self.classes {
            if of_class.peak > 0 {
                of_class.peaks.add(of_class.peak);
            }
            of_class.peak = of_class.in_flight;
            of_class.weights = if is_next { of_class.weights_now } else { 0 };
            of_class.weights_now = 0;
        }
    }
}

#[cfg(test)]
mod tests;
