//! Seats that keys share fairly: open streams, audits, reads of much data, and changes at one time. A request waits for its
//! seat before load is shed, so it holds no place while it waits.
//!
//! A key gets another seat only while more seats are free than it has. So a key that is alone has half of them, two
//! keys have a third each, and some are free for the next key as long as there are fewer keys than seats. Nobody has to
//! give a seat back for that. Source: Choudhury and Hahne, Dynamic Queue Length Thresholds, 1998, with the factor 1.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use weir_core::shed::{Class, Reason};

use crate::{
    auth::{Caller, Sharer},
    meters,
    problem::{self, Problem},
};

/// How long a request waits for its turn. Shorter than the timeouts of clients and proxies.
const PATIENCE: Duration = Duration::from_secs(10);
/// The waiting requests of one key, which bounds what they hold in memory. More than the tabs of a team ask for at once.
const MAX_WAITING_OF_KEY: usize = 64;

/// Seats that are shared. Clones share the same seats.
#[derive(Clone)]
pub(crate) struct FairShare {
    /// The name for refusals.
    name: &'static str,
    /// What is refused.
    class: Class,
    seats: usize,
    max_waiting_of_key: usize,
    patience: Duration,
    state: Arc<Mutex<Seats>>,
}

#[derive(Default)]
struct Seats {
    taken: usize,
    /// No entry without a seat.
    by_sharer: HashMap<Sharer, usize>,
    /// In the order of their arrival.
    waiting: VecDeque<(Sharer, oneshot::Sender<Seat>)>,
}

/// A seat, until it is dropped.
pub(crate) struct Seat {
    sharer: Sharer,
    share: FairShare,
}

impl FairShare {
    pub(crate) fn new(name: &'static str, class: Class, seats: usize) -> Self {
        Self { name, class, seats, max_waiting_of_key: MAX_WAITING_OF_KEY, patience: PATIENCE, state: Arc::default() }
    }

    /// With other bounds of the waiting requests of one key, and of their waiting time.
    pub(crate) fn with_waiting(self, max_waiting_of_key: usize, patience: Duration) -> Self {
        Self { max_waiting_of_key, patience, ..self }
    }

    /// A seat at once, or none.
    pub(crate) fn take_now(&self, sharer: Sharer) -> Option<Seat> {
        self.state.lock().may_take(sharer, self.seats).then(|| self.seat(sharer))
    }

    /// A seat when it is this sharer's turn; `None` if that takes too long, or if too many wait already.
    pub(crate) async fn take(&self, sharer: Sharer) -> Option<Seat> {
        let turn = {
            let mut state = self.state.lock();
            // Whoever may take a seat now waits for nobody: others wait only for seats that they may not take.
            if state.may_take(sharer, self.seats) {
                return Some(self.seat(sharer));
            }
            state.waiting.retain(|(_, turn)| !turn.is_closed());
            if state.waiting.iter().filter(|(other, _)| *other == sharer).count() >= self.max_waiting_of_key {
                return None;
            }
            let (sender, turn) = oneshot::channel();
            state.waiting.push_back((sharer, sender));
            turn
        };
        // A seat that arrives too late, or for a client that has gone, is dropped with the channel.
        tokio::time::timeout(self.patience, turn).await.ok()?.ok()
    }

    /// The seat that [`Seats::may_take`] has counted.
    fn seat(&self, sharer: Sharer) -> Seat {
        Seat { sharer, share: self.clone() }
    }
}

impl Seats {
    /// Counts another seat of this sharer, if it may have one.
    fn may_take(&mut self, sharer: Sharer, seats: usize) -> bool {
        let own = self.by_sharer.get(&sharer).copied().unwrap_or_default();
        let may_take = own < seats - self.taken;
        if may_take {
            self.taken += 1;
            *self.by_sharer.entry(sharer).or_default() += 1;
        }
        may_take
    }

    fn give_back(&mut self, sharer: Sharer) {
        self.taken -= 1;
        if let Some(own) = self.by_sharer.get_mut(&sharer) {
            *own -= 1;
            if *own == 0 {
                self.by_sharer.remove(&sharer);
            }
        }
    }

    /// The first that waits for a seat and may have one now. It is counted.
    fn next(&mut self, seats: usize) -> Option<(Sharer, oneshot::Sender<Seat>)> {
        self.waiting.retain(|(_, turn)| !turn.is_closed());
        let sharers: Vec<Sharer> = self.waiting.iter().map(|(sharer, _)| *sharer).collect();
        let first = sharers.into_iter().position(|sharer| self.may_take(sharer, seats))?;
        self.waiting.remove(first)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.share.state.lock().give_back(self.sharer);
        // Each step takes the lock anew: a seat that nobody receives is dropped, and its end takes the lock, too.
        while let Some((sharer, turn)) = {
            let mut state = self.share.state.lock();
            state.next(self.share.seats)
        } {
            drop(turn.send(self.share.seat(sharer)));
        }
    }
}

/// The right of a request to a seat, when it is its turn.
#[derive(Clone)]
pub(crate) struct Turn {
    share: FairShare,
    sharer: Sharer,
}

impl Turn {
    /// `None` for a request that was not authenticated.
    fn of(share: FairShare, request: &Request) -> Option<Self> {
        let sharer = request.extensions().get::<Caller>().map(Caller::sharer)?;
        Some(Self { share, sharer })
    }

    /// Waits for the seat.
    pub(crate) async fn seat(&self) -> Result<Seat, Problem> {
        let Self { share, sharer } = self;
        share.take(*sharer).await.ok_or_else(|| {
            meters::no_room(share.class, Reason::Client);
            let detail = format!("this key has too many {} under way or waiting; try again", share.name);
            Problem::no_room(Reason::Client, detail)
        })
    }
}

/// Lets a request wait for its turn, as a part of the handler of its route. The handler may keep the seat for work that
/// goes on after the client has gone: it is an extension of the request.
pub(crate) async fn in_turn(State(share): State<FairShare>, mut request: Request, next: Next) -> Response {
    let Some(turn) = Turn::of(share, &request) else { return unauthenticated(&request) };
    let seat = match turn.seat().await {
        Ok(seat) => Arc::new(seat),
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(Arc::clone(&seat));
    next.run(request).await
}

/// Gives a request a [`Turn`] as an extension: its handler waits for the seat where it reads much.
pub(crate) async fn if_needed(State(share): State<FairShare>, mut request: Request, next: Next) -> Response {
    let Some(turn) = Turn::of(share, &request) else { return unauthenticated(&request) };
    request.extensions_mut().insert(turn);
    next.run(request).await
}

fn unauthenticated(request: &Request) -> Response {
    problem::internal("a request was not authenticated", request.uri()).into_response()
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, future::join_all};

    use super::*;

    const A: Sharer = Sharer::Setting(0);
    const B: Sharer = Sharer::Setting(1);
    const C: Sharer = Sharer::Nobody;

    fn take_all(share: &FairShare, sharer: Sharer) -> Vec<Seat> {
        std::iter::from_fn(|| share.take_now(sharer)).collect()
    }

    #[test]
    fn one_key_takes_half_and_every_other_key_still_gets_a_place() {
        let share = FairShare::new("streams", Class::Read, 100);
        let first = take_all(&share, A);
        let second = take_all(&share, B);
        let third = take_all(&share, C);
        assert_eq!((first.len(), second.len(), third.len()), (50, 25, 13));
        // Who closes some may not take them all back: the others have come.
        drop(first);
        assert_eq!(take_all(&share, A).len(), 31);
    }

    #[test]
    fn a_place_that_is_given_back_is_free_again() {
        let share = FairShare::new("streams", Class::Read, 4);
        for _ in 0..10 {
            assert_eq!(take_all(&share, A).len(), 2);
        }
        assert!(share.state.lock().by_sharer.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_key_delays_no_other_key() {
        let share = FairShare::new("heavy reads", Class::Read, 4);
        let running = take_all(&share, A);
        let flood: Vec<_> = (0..MAX_WAITING_OF_KEY)
            .map(|_| {
                let share = share.clone();
                tokio::spawn(async move { share.take(A).await.map(drop).is_some() })
            })
            .collect();
        while share.state.lock().waiting.len() < MAX_WAITING_OF_KEY {
            tokio::task::yield_now().await;
        }
        assert!(share.take(A).await.is_none(), "too many wait already");
        let other = tokio::time::timeout(Duration::ZERO, share.take(B)).await;
        assert!(other.is_ok_and(|seat| seat.is_some()), "another key does not wait");
        drop(running);
        let served = join_all(flood).await;
        assert!(served.into_iter().all(|served| served.unwrap()));
        assert_eq!(share.state.lock().taken, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_refused_and_who_goes_away_leaves_no_place_taken() {
        let share = FairShare::new("audits", Class::Heavy, 2);
        let running = share.take_now(A).unwrap();
        assert!(share.take(A).await.is_none());
        // A client that has gone before its turn came.
        let mut gone = Box::pin(share.take(A));
        assert!((&mut gone).now_or_never().is_none());
        drop(running);
        assert_eq!(share.state.lock().taken, 1, "the seat was sent");
        drop(gone);
        assert_eq!(share.state.lock().taken, 0);
    }
}
