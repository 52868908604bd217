//! Load shedding: holds what `weir_core::shed` decides, and keeps it up to date in the background.
//!
//! A request is decided about after its key is known and before its body is read ([`enter`]). What it holds is released
//! however it ends, because a guard owns it. No request waits for the store or the queue here: the policy and the records
//! of other processes are read by [`Shedding::keep_fresh`], and the last ones stay while either cannot be reached.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use metrics::{Histogram, gauge, histogram};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};
use weir_core::{
    Clock, Timestamp,
    shed::{Class, Decision, Mode, ShedPolicy, Shedder, Ticket},
};
use weir_queue::{QueueResult, SharedQueue};
use weir_store::SharedStore;

use crate::{
    auth::Caller,
    meters::{self, ShedMeters},
    problem::{self, Problem, RateLimit},
    store_turns::StoreTurns,
};

/// How often the policy is read, and the gauges are set.
const REFRESH_EVERY: Duration = Duration::from_millis(500);
/// An exchange of records that takes longer is given up; the queue may be standing still.
const EXCHANGE_TIMEOUT: Duration = Duration::from_millis(250);
/// The next exchange is never sooner than this.
const SHORTEST_STEP: Duration = Duration::from_millis(10);
/// One request of so many is measured.
const MEASURED: u64 = 64;
/// How long a request waits for the queue to take a message about a committed change. A queue answers within a
/// millisecond, and one that hangs must not delay producers.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(10);

/// Decides which requests a process lets in. Clones share one state.
#[derive(Clone)]
pub struct Shedding(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    shedder: Mutex<Shedder>,
    /// Whether other processes may share the limits.
    shares: bool,
    meters: ShedMeters,
    overhead: Histogram,
    decided: AtomicU64,
    /// Whether the queue did not answer in time when it was last asked.
    is_queue_slow: AtomicBool,
    turns: StoreTurns,
}

impl Shedding {
    /// `mode`: what the settings of the process say. `shares`: other processes may share the limits.
    pub fn new(mode: Mode, shares: bool, clock: Arc<dyn Clock>) -> Self {
        let shedder = Mutex::new(Shedder::new(mode, shares, clock.now()));
        Self(Arc::new(Inner {
            clock,
            shedder,
            shares,
            meters: ShedMeters::new(),
            overhead: histogram!(meters::SHED_OVERHEAD),
            decided: AtomicU64::new(0),
            is_queue_slow: AtomicBool::new(false),
            turns: StoreTurns::default(),
        }))
    }

    /// Of a process that delivers but takes no requests.
    #[must_use]
    pub fn without_requests(self) -> Self {
        self.lock().takes_no_requests();
        self
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shedder> {
        self.0.shedder.lock()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The results of deliveries were recorded after this time.
    pub fn recorded(&self, waited: Duration) {
        let now = self.now();
        self.lock().recorded(waited, now);
    }

    /// Reads the policy, and exchanges records with other processes, again and again, until `shutdown` resolves. `store`:
    /// `None` in a process that takes no requests.
    pub async fn keep_fresh(self, store: Option<SharedStore>, queue: SharedQueue, shutdown: impl Future<Output = ()>) {
        let policies = async {
            match &store {
                Some(store) => self.read_policies(store).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = policies => {}
            () = self.exchange_records(&queue), if self.0.shares => {}
        }
    }

    /// While the store cannot be reached, the last policy stays.
    async fn read_policies(&self, store: &SharedStore) {
        let mut ticks = interval(REFRESH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.set_gauges();
            match store.shed_policy().await {
                Ok(policy) => self.use_policy(policy),
                Err(error) => tracing::debug!(%error, "could not read the limits of load shedding; trying again"),
            }
        }
    }

    /// A policy that would refuse everything is not used, wherever it comes from.
    pub(crate) fn use_policy(&self, policy: ShedPolicy) {
        let mut shedder = self.lock();
        if *shedder.policy() != policy && policy.faults().is_empty() {
            shedder.set_policy(policy);
        }
    }

    async fn exchange_records(&self, queue: &SharedQueue) {
        let meter = histogram!(meters::SHED_SYNC);
        loop {
            let (record, began) = (self.lock().record(self.now()), Instant::now());
            match timeout_at(began + EXCHANGE_TIMEOUT, queue.exchange(record)).await {
                Ok(Ok(records)) => {
                    let now = self.now();
                    self.lock().look(&records, now);
                }
                Ok(Err(error)) => tracing::debug!(%error, "could not exchange records with other processes"),
                Err(_) => tracing::debug!("the queue did not answer in time; the last records are used"),
            }
            meter.record(began.elapsed().as_secs_f64());
            // In steps, because the first requests after a quiet time bring the next look forward.
            while let wait = { self.lock().next_look() }
                && let Some(left) = wait.checked_sub(began.elapsed()).filter(|left| !left.is_zero())
            {
                sleep(left.min((wait / 10).max(SHORTEST_STEP))).await;
            }
        }
    }

    fn set_gauges(&self) {
        let figures = { self.lock().figures(self.now(), 0) };
        for of in figures.classes {
            gauge!(meters::SHED_IN_FLIGHT, "class" => of.class.as_str()).set(of.in_flight);
            gauge!(meters::SHED_LIMIT, "class" => of.class.as_str()).set(of.limit);
        }
        gauge!(meters::SHED_LEVEL).set(figures.level);
        gauge!(meters::SHED_BLIND).set(u8::from(figures.is_blind));
    }

    /// Lets a request in, or says why not.
    fn admit(&self, class: Class, caller: &Caller) -> Result<(Option<Admitted>, Option<RateLimit>), Problem> {
        let Inner { clock, meters, overhead, decided, .. } = &*self.0;
        let began = clock.now();
        let decision = {
            let mut shedder = self.lock();
            if shedder.mode() == Mode::Off {
                return Ok((None, None));
            }
            shedder.admit(class, caller.sender(), began, rand::random())
        };
        if decided.fetch_add(1, Ordering::Relaxed) % MEASURED == 0 {
            overhead.record(clock.now().since(began).as_secs_f64());
        }
        match decision {
            Decision::Admitted { ticket, left, would_refuse } => {
                meters.admitted(class, would_refuse);
                let left = left.map(|left| RateLimit { policy: "client", limit: left.limit, left: left.left });
                Ok((Some(Admitted { shedding: self.clone(), ticket: Some(ticket), is_complete: false }), left))
            }
            Decision::Refused(refusal) => {
                meters.refused(class, refusal.reason);
                Err(Problem::shed(class, refusal))
            }
        }
    }

    /// Which events are in the store at one time.
    pub(crate) fn turns(&self) -> &StoreTurns {
        &self.0.turns
    }

    /// An ingest of the store begins, or waits for its turn.
    #[must_use]
    pub fn storing(&self) -> Storing<'_> {
        let began = self.now();
        self.lock().store_began(began);
        Storing { shedding: self, began, is_finished: false }
    }

    /// Runs a call of the queue as a separate task and waits for it at most [`QUEUE_TIMEOUT`], or not at all if the last
    /// one took longer. The task continues in any case. Returns the answer, if there is one in time.
    pub(crate) async fn in_time<T: Send + 'static>(
        &self,
        call: impl Future<Output = QueueResult<T>> + Send + 'static,
    ) -> Option<QueueResult<T>> {
        let shared = Arc::clone(&self.0);
        let called = tokio::spawn(async move {
            let began = Instant::now();
            let answer = call.await;
            // A call that succeeded after a long time says nothing about the next one. One that failed at once neither:
            // between two attempts to connect, the client of a queue that hangs refuses calls.
            if answer.is_ok() && began.elapsed() < QUEUE_TIMEOUT {
                shared.is_queue_slow.store(false, Ordering::Relaxed);
            }
            answer
        });
        if self.0.is_queue_slow.load(Ordering::Relaxed) {
            return None;
        }
        match tokio::time::timeout(QUEUE_TIMEOUT, called).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                self.0.is_queue_slow.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}

/// What a request holds.
struct Admitted {
    shedding: Shedding,
    ticket: Option<Ticket>,
    /// Whether it was answered.
    is_complete: bool,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let now = self.shedding.now();
            self.shedding.lock().release(ticket, self.is_complete, now);
        }
    }
}

/// An ingest that the store has begun.
pub struct Storing<'s> {
    shedding: &'s Shedding,
    began: Timestamp,
    is_finished: bool,
}

impl Storing<'_> {
    /// The store has answered.
    pub fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let now = self.shedding.now();
        self.shedding.lock().store_ended(self.began, self.is_finished, now);
    }
}

/// The admission of a request that may wait. A waiting request is no load and must not keep others out, so it ends its
/// admission before it waits.
#[derive(Clone, Default)]
pub(crate) struct Admission(Arc<Mutex<Option<Admitted>>>);

impl Admission {
    /// Releases the ticket, as if the request had been answered.
    pub(crate) fn end(&self) {
        if let Some(mut admitted) = self.0.lock().take() {
            admitted.is_complete = true;
        }
    }
}

/// As [`enter`], for requests that may end their [`Admission`] before they are answered.
pub(crate) async fn enter_to_wait(
    State((shedding, class)): State<(Shedding, Class)>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(caller) = request.extensions().get::<Caller>() else {
        return problem::internal("a request was not authenticated", request.uri()).into_response();
    };
    match shedding.admit(class, caller) {
        Err(problem) => problem.into_response(),
        Ok((admitted, _)) => {
            let admission = Admission(Arc::new(Mutex::new(admitted)));
            request.extensions_mut().insert(admission.clone());
            let response = next.run(request).await;
            admission.end();
            response
        }
    }
}

/// Lets a request in, as a part of the handler of its route.
pub(crate) async fn enter(
    State((shedding, class)): State<(Shedding, Class)>,
    request: Request,
    next: Next,
) -> Response {
    let Some(caller) = request.extensions().get::<Caller>() else {
        return problem::internal("a request was not authenticated", request.uri()).into_response();
    };
    match shedding.admit(class, caller) {
        Err(problem) => problem.into_response(),
        Ok((mut admitted, left)) => {
            let mut response = next.run(request).await;
            if let Some(admitted) = &mut admitted {
                admitted.is_complete = true;
            }
            if let Some(left) = left {
                left.add_to(&mut response, 1);
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use weir_queue::QueueError;

    use super::*;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Timestamp {
            Timestamp::MIN
        }

        fn wall(&self) -> Timestamp {
            Timestamp::MIN
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_hangs_delays_one_request_also_while_its_client_refuses_calls_at_once() {
        let shedding = Shedding::new(Mode::On, true, Arc::new(Still));
        let hangs = || pending::<QueueResult<()>>();
        let waited = async |call| {
            let began = Instant::now();
            assert_eq!(shedding.in_time(call).await, None);
            began.elapsed()
        };
        assert!(waited(hangs()).await >= QUEUE_TIMEOUT);
        // Between two attempts to connect.
        let refused = async { Err::<(), _>(QueueError::NotSent("no connection".to_owned())) };
        assert_eq!(shedding.in_time(refused).await, None);
        tokio::task::yield_now().await;
        assert_eq!(waited(hangs()).await, Duration::ZERO);
        assert_eq!(shedding.in_time(ready(Ok(()))).await, None);
        tokio::task::yield_now().await;
        assert_eq!(shedding.in_time(ready(Ok(()))).await, Some(Ok(())), "the queue answers again");
    }
}
