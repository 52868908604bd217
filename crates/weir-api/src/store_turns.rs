//! How many events a client may have in the store at one time.
//!
//! Clients take turns in the store, but a commit with a thousand events of one client takes long, and so does what follows
//! it: a thousand answers at one time. An event of another client that comes meanwhile waits for all of that. So while
//! several clients post, each has at most [`LEAST`] events in the store at one time. Its other events wait here, in
//! their order, and count as events in the store for the load shedding.
//!
//! A store may take long for each commit by its nature (a slow disk, a server far away). Then a client has as many events
//! in it as [`PER_S`] need (Little's law).

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use weir_core::shed::{Class, ClientId, Reason};

use crate::{
    meters,
    problem::{ApiResult, Problem},
};

/// With 128, others waited longer on PostgreSQL.
const LEAST: usize = 64;
/// What every client can post in a second at least, however long a commit takes.
const PER_S: f64 = 1_000.0;
/// A client is alone if no other one has posted for this long.
const ALONE_AFTER: Duration = Duration::from_secs(1);
/// How long an event waits here. The store refuses an event that waits for longer, too.
const PATIENCE: Duration = Duration::from_secs(10);
/// The weight of one more time in the mean of the times that the store takes.
const WEIGHT: f64 = 1.0 / 16.0;

/// The turns of all clients. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct StoreTurns(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// No entry without a place.
    clients: HashMap<ClientId, Client>,
    /// The client that posted last and when, and the last other one.
    last: Option<(ClientId, Instant)>,
    last_other: Option<(ClientId, Instant)>,
    /// The mean time that events were in the store, in seconds.
    takes_s: f64,
}

#[derive(Default)]
struct Client {
    in_store: usize,
    /// Empty while nothing of the client is in the store: the end of a place lets the next ones in.
    waiting: VecDeque<(usize, oneshot::Sender<Place>)>,
}

/// The right to have events in the store, until it is dropped.
pub(crate) struct Place {
    turns: StoreTurns,
    client: ClientId,
    events: usize,
    began: Instant,
}

impl StoreTurns {
    /// Waits until it is the turn of these events, which one request has posted.
    pub(crate) async fn enter(&self, client: ClientId, events: usize) -> ApiResult<Place> {
        let turn = {
            let (mut state, now) = (self.0.lock(), Instant::now());
            state.note(client, now);
            let bound = state.bound(client, now);
            let of = state.clients.entry(client).or_default();
            of.forget_gone();
            if of.waiting.is_empty() && has_room(of.in_store, events, bound) {
                of.in_store += events;
                return Ok(self.place(client, events));
            }
            let (sender, turn) = oneshot::channel();
            of.waiting.push_back((events, sender));
            turn
        };
        // A place that comes too late, or for a request that has gone, is dropped with the channel.
        if let Ok(Ok(place)) = tokio::time::timeout(PATIENCE, turn).await {
            return Ok(place);
        }
        meters::no_room(Class::Ingest, Reason::Client);
        let detail =
            "too many events of this key wait for the store; try again later, or send several events in a batch";
        Err(Problem::no_room(Reason::Client, detail))
    }

    /// A place that is counted already.
    fn place(&self, client: ClientId, events: usize) -> Place {
        Place { turns: self.clone(), client, events, began: Instant::now() }
    }

    /// The next request of a client that may enter. It is counted.
    fn next(&self, client: ClientId) -> Option<(usize, oneshot::Sender<Place>)> {
        let mut state = self.0.lock();
        let bound = state.bound(client, Instant::now());
        let of = state.clients.get_mut(&client)?;
        of.forget_gone();
        let in_store = of.in_store;
        let next = of.waiting.pop_front_if(|(events, _)| has_room(in_store, *events, bound));
        of.in_store += next.as_ref().map_or(0, |(events, _)| *events);
        if of.in_store == 0 {
            state.clients.remove(&client);
        }
        next
    }
}

impl State {
    fn note(&mut self, client: ClientId, now: Instant) {
        if let Some((last, at)) = self.last.replace((client, now))
            && last != client
        {
            self.last_other = Some((last, at));
        }
    }

    /// The events that a client may have in the store at one time.
    fn bound(&self, client: ClientId, now: Instant) -> usize {
        let mut others = [self.last, self.last_other].into_iter().flatten().filter(|(other, _)| *other != client);
        let is_alone = others.all(|(_, at)| now.duration_since(at) > ALONE_AFTER);
        if is_alone { usize::MAX } else { LEAST.max((self.takes_s * PER_S) as usize) }
    }
}

impl Client {
    /// Removes the first requests if they have gone.
    fn forget_gone(&mut self) {
        while self.waiting.pop_front_if(|(_, turn)| turn.is_closed()).is_some() {}
    }
}

/// More events than the bound have room alone.
fn has_room(in_store: usize, events: usize, bound: usize) -> bool {
    in_store == 0 || in_store + events <= bound
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self { turns, client, events, began } = self;
        {
            let mut state = turns.0.lock();
            state.takes_s += (began.elapsed().as_secs_f64() - state.takes_s) * WEIGHT;
            if let Some(of) = state.clients.get_mut(client) {
                of.in_store -= *events;
            }
        }
        // Each step takes the lock anew: a place that nobody receives is dropped, and its end takes the lock, too.
        while let Some((events, turn)) = turns.next(*client) {
            drop(turn.send(turns.place(*client, events)));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::time::{advance, sleep};

    use super::*;

    const QUIET: &str = "quiet";
    const LOUD: &str = "loud";

    fn client(name: &str) -> ClientId {
        ClientId::of("key", name)
    }

    /// A place at once, or none.
    fn enter_now(turns: &StoreTurns, name: &str, events: usize) -> Option<Place> {
        turns.enter(client(name), events).now_or_never().map(|entered| entered.unwrap_or_else(|_| panic!("refused")))
    }

    fn enter_all(turns: &StoreTurns, name: &str) -> Vec<Place> {
        std::iter::from_fn(|| enter_now(turns, name, 1)).take(10 * LEAST).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_few_events_in_the_store_while_another_one_posts() {
        let turns = StoreTurns::default();
        assert_eq!(enter_all(&turns, LOUD).len(), 10 * LEAST, "it is alone");
        drop(enter_now(&turns, QUIET, 1).unwrap());
        let of_loud = enter_all(&turns, LOUD);
        assert_eq!(of_loud.len(), LEAST);
        assert!(enter_now(&turns, QUIET, 1).is_some(), "it waits for nobody");
        advance(ALONE_AFTER + Duration::from_millis(1)).await;
        assert_eq!(enter_all(&turns, LOUD).len(), 10 * LEAST, "it is alone again");
        drop(of_loud);
        assert!(turns.0.lock().clients.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn events_enter_in_their_order_and_a_large_batch_enters_alone() {
        let turns = StoreTurns::default();
        drop(enter_now(&turns, QUIET, 1));
        let small = enter_now(&turns, LOUD, 1).unwrap();
        let mut batch = Box::pin(turns.enter(client(LOUD), 10 * LEAST));
        let mut later = Box::pin(turns.enter(client(LOUD), 1));
        assert!((&mut batch).now_or_never().is_none());
        assert!((&mut later).now_or_never().is_none(), "the batch came before it");
        drop(small);
        let entered = batch.await.unwrap_or_else(|_| panic!("refused"));
        assert!((&mut later).now_or_never().is_none());
        drop(entered);
        assert!(later.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_store_gets_as_many_events_as_a_thousand_a_second_need() {
        let turns = StoreTurns::default();
        for _ in 0..100 {
            drop(enter_now(&turns, QUIET, 1));
            let places = enter_all(&turns, LOUD);
            sleep(Duration::from_millis(300)).await;
            drop(places);
        }
        drop(enter_now(&turns, QUIET, 1));
        let places = enter_all(&turns, LOUD).len();
        assert!((250..=300).contains(&places), "{places}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_refused_and_who_has_gone_leaves_no_place_taken() {
        let turns = StoreTurns::default();
        drop(enter_now(&turns, QUIET, 1));
        let batch = enter_now(&turns, LOUD, LEAST).unwrap();
        let mut gone = Box::pin(turns.enter(client(LOUD), 1));
        assert!((&mut gone).now_or_never().is_none());
        let began = Instant::now();
        assert!(turns.enter(client(LOUD), LEAST).await.is_err());
        assert_eq!(began.elapsed(), PATIENCE);
        // A place is sent to a request that has gone meanwhile.
        drop(batch);
        drop(gone);
        assert!(turns.0.lock().clients.is_empty());
    }
}
