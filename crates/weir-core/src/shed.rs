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
//! `request` has the terms, `state` what is counted, `figures` what is shown.
//!
//! Several processes share the limits of clients and the bound of level 3 through `views`: each publishes a small
//! record ten times a second and computes from the others' records how much of the free places it may use. No request
//! waits for that.

mod figures;
mod peaks;
mod policy;
mod pressure;
mod request;
mod state;
mod views;

use std::{sync::Arc, time::Duration};

use foldhash::HashMap;

use crate::time::Timestamp;

pub use figures::{ClassFigures, ClientFigures, Figures};
pub use peaks::{PeakFigures, Peaks};
pub use policy::{
    ClassLimit, ClassLimits, ClientLimit, ClientLimits, ClientOverride, IN_FLIGHT, ShedPolicy, TARGET_MS, WEIGHT,
};
pub use pressure::{LEAST_BOUND, MOST_BOUND};
use pressure::{Pressure, TICK};
pub use request::{Class, Client, ClientId, Decision, Left, Mode, Reason, Refusal, Sender, Ticket};
use state::{ClassState, ClientState};
use views::{INGEST, Views};

/// The share of the places of a class that every client may use, whatever it holds already.
const FREE_FOR_ALL: f64 = 0.75;
/// One of sixteen places is reserved for clients that hold few places. So Weir does not refuse them during a flood by another
/// client.
const KEPT_FOR_SMALL: u32 = 16;
/// The clients that a process remembers. More have requests only where more keys than this are in use at one time.
const MOST_CLIENTS: usize = 4_096;
/// The longest `Retry-After` beyond the first second.
const LONGEST_RETRY_S: f64 = 30.0;
/// The share of its capacity that a process gives to clients that come again after a refusal.
const FOR_RETRIES: f64 = 0.2;

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

impl Shedder {
    /// `default_mode`: what the settings of the process say. `shares`: other processes may share the limits.
    pub fn new(default_mode: Mode, shares: bool, now: Timestamp) -> Self {
        Self {
            default_mode,
            policy: ShedPolicy::default(),
            overrides: HashMap::default(),
            classes: [Class::Control, Class::Ingest, Class::Read, Class::Heavy].map(ClassState::new),
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
        let kept = (limit / KEPT_FOR_SMALL).max(1);
        let weights = self.classes[class as usize].weights.max(u64::from(own.weight));
        let held = self.clients.get(&client).map_or(0, |known| known.in_flight[class as usize]);
        if limit < most {
            self.views.note_use(in_flight, limit);
            // The bound may fall below what is in flight already. The clients that hold few get in meanwhile: all together
            // not many more than the places that are kept for them.
            let few = (u64::from(kept) * u64::from(own.weight) / weights).max(1);
            if in_flight >= limit && u64::from(held) >= few {
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
        if held < kept || f64::from(in_flight) < FREE_FOR_ALL * f64::from(limit) {
            return None;
        }
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
        self.classes.iter_mut().for_each(|of_class| of_class.end_second(is_next));
    }
}

#[cfg(test)]
mod tests;
