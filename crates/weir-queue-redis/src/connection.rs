//! The connections that all scripts of the process share: one for calls that a delivery waits for, one for the others.
//!
//! A batch of runs, holds or settlements takes Redis some ten milliseconds, and a call behind it on the same connection
//! waits for all of it. Between connections Redis changes after a few calls.
//!
//! Calls are pipelined; each has an answer of its own. The next call replaces connections that failed, both at once: what
//! has happened to one has probably happened to the other. During the backoff after a failed attempt to connect, calls
//! fail at once, and each caller decides how to go on.

use redis::{RedisError, RedisResult, Value};
use tokio::{sync::Mutex, time::Instant};
use weir_core::Backoff;
use weir_queue::QueueError;

use crate::{
    connect::{Dialer, Shared},
    scripts::Call,
};

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) error: QueueError,
    pub(crate) cause: FailureCause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// The shard belongs to this installation.
    Foreign(String),
    /// A key of the shard has another type, a value that Weir did not write, or is missing.
    Damage,
    /// The server, or the connection to it.
    Server,
}

impl CallFailure {
    fn not_sent(reason: &str) -> Self {
        Self { error: QueueError::NotSent(reason.to_owned()), cause: FailureCause::Server }
    }

    /// Only a refusal of a single try says that nothing was written. After any other error the call may have run.
    fn of(error: &RedisError, tried_once: bool) -> Self {
        let cause = cause_of(error);
        let error = match tried_once && (is_refusal(error) || matches!(cause, FailureCause::Foreign(_))) {
            true => QueueError::Refused(error.to_string()),
            false => QueueError::Unknown(error.to_string()),
        };
        Self { error, cause }
    }
}

pub(crate) struct Connection {
    dialer: Dialer,
    state: Mutex<ConnectionState>,
}

#[derive(Clone)]
struct Connected {
    /// For [`Operation::is_urgent`](crate::scripts::Operation::is_urgent).
    urgent: Shared,
    others: Shared,
}

/// The current connections, or when the next attempt to connect may be made.
struct ConnectionState {
    connected: Option<Connected>,
    /// The number of the current connections, so that only those of which one failed are dropped.
    number: u64,
    backoff: Backoff,
    retry_at: Instant,
    last_error: String,
}

impl Connection {
    pub(crate) fn new(dialer: Dialer) -> Self {
        let state = ConnectionState {
            connected: None,
            number: 0,
            backoff: Backoff::default(),
            retry_at: Instant::now(),
            last_error: String::new(),
        };
        Self { dialer, state: Mutex::new(state) }
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Returns the answers in the order of the calls, which are of one operation. Calls of one shard run in the given
    /// order.
    pub(crate) async fn call(&self, calls: &[Call]) -> Vec<Result<Value, CallFailure>> {
        // Without a connection no call is sent, and each gets the same error.
        let (number, Connected { urgent, others }) = match self.connected().await {
            Ok(connected) => connected,
            Err(reason) => return calls.iter().map(|_| Err(CallFailure::not_sent(&reason))).collect(),
        };
        let is_urgent = calls.iter().any(|call| call.operation.is_urgent());
        let connection = if is_urgent { urgent } else { others };
        // The client of a Cluster repeats calls by itself, so its last error says nothing about the earlier tries.
        let tried_once = matches!(connection, Shared::Single(_));
        let answers = match connection {
            Shared::Single(connection) => in_one_pipeline(connection, calls).await,
            Shared::Cluster(connection) => {
                let each = calls.iter().map(|call| one(connection.clone(), call));
                futures_util::future::join_all(each).await
            }
        };
        // The next call connects again.
        if answers.iter().any(|answer| answer.as_ref().is_err_and(is_broken)) {
            self.disconnect(number).await;
        }
        let failure = |error: RedisError| CallFailure::of(&error, tried_once);
        answers.into_iter().map(|answer| answer.map_err(failure)).collect()
    }

    /// The connections and their number, or why there are none.
    async fn connected(&self) -> Result<(u64, Connected), String> {
        // The lock is held while connecting, so that other callers wait for these connections instead of making their
        // own.
        let mut state = self.state.lock().await;
        if let Some(connected) = &state.connected {
            return Ok((state.number, connected.clone()));
        }
        // During the backoff calls fail at once, with the error of the last attempt.
        if Instant::now() < state.retry_at {
            return Err(state.last_error.clone());
        }
        match tokio::try_join!(Box::pin(self.dialer.shared()), Box::pin(self.dialer.shared())) {
            Ok((urgent, others)) => {
                // The new number tells these connections from the previous ones, whose calls may still fail.
                state.number += 1;
                state.backoff.reset();
                let connected = Connected { urgent, others };
                state.connected = Some(connected.clone());
                Ok((state.number, connected))
            }
            Err(error) => {
                let wait = state.backoff.fail_with_jitter(rand::random());
                state.retry_at = Instant::now() + wait;
                state.last_error = error.to_string();
                Err(state.last_error.clone())
            }
        }
    }

    async fn disconnect(&self, number: u64) {
        let mut state = self.state.lock().await;
        if state.number == number {
            state.connected = None;
        }
    }
}

async fn in_one_pipeline(mut connection: redis::aio::MultiplexedConnection, calls: &[Call]) -> Vec<RedisResult<Value>> {
    if let [call] = calls {
        return vec![one(connection, call).await];
    }
    // The error of one call must not hide the answers of the others.
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors();
    for call in calls {
        pipeline.add_command(call.command().clone());
    }
    let mut answers: Vec<RedisResult<Value>> = match pipeline.query_async(&mut connection).await {
        Ok(answers) => answers,
        Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
    };
    // A server that does not know a script gets its source in a further call.
    for (answer, call) in answers.iter_mut().zip(calls) {
        if answer.as_ref().is_err_and(is_unknown_script) {
            *answer = call.in_full().query_async(&mut connection).await;
        }
    }
    answers
}

async fn one(mut connection: impl redis::aio::ConnectionLike, call: &Call) -> RedisResult<Value> {
    match call.command().query_async(&mut connection).await {
        Err(error) if is_unknown_script(&error) => call.in_full().query_async(&mut connection).await,
        answered => answered,
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

fn cause_of(error: &RedisError) -> FailureCause {
    match error.code() {
        Some("FOREIGN") => FailureCause::Foreign(error.detail().unwrap_or_default().to_owned()),
        Some("WRONGTYPE" | "NOGROUP") => FailureCause::Damage,
        // An error of the script itself, such as arithmetic on a value that is no number. Redis names the line.
        _ if error.detail().is_some_and(|detail| detail.contains("user_script:")) && !is_refusal(error) => {
            FailureCause::Damage
        }
        _ => FailureCause::Server,
    }
}

/// The server wrote nothing: it is loading, full, busy, or not the primary.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.code(), Some("LOADING" | "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS" | "READONLY" | "MASTERDOWN"))
}

/// Whether the connection must be replaced. A demoted primary keeps its connections and refuses every write; a new
/// connection finds its successor.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_cluster_error()
        || error.is_unrecoverable_error()
        || error.code() == Some("READONLY")
}
