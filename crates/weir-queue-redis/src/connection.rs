//! The connection that all scripts of the process share.
//!
//! Calls are pipelined; each is answered by itself. A connection that failed is replaced by the next call, after a backoff in
//! which calls fail at once: whoever called decides what to do meanwhile.

use redis::{RedisError, Value};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    connect::{Backoff, Dialer, Shared},
    scripts::Call,
};

/// Why a call brought no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing left this process.
    #[error("no connection to Redis: {0}")]
    NotSent(String),
    /// Redis said that it does not run scripts now.
    #[error("Redis refuses for the moment: {0}")]
    Refused(String),
    /// It may have run.
    #[error("no answer from Redis: {0}")]
    Unknown(String),
}

pub(crate) struct Connection {
    dialer: Dialer,
    line: Mutex<Line>,
}

struct Line {
    connection: Option<Shared>,
    /// Differs for each connection, so that only the one that failed is dropped.
    number: u64,
    backoff: Backoff,
    retry_at: Instant,
    last_error: String,
}

impl Connection {
    pub(crate) fn new(dialer: Dialer) -> Self {
        let line = Line {
            connection: None,
            number: 0,
            backoff: Backoff::default(),
            retry_at: Instant::now(),
            last_error: String::new(),
        };
        Self { dialer, line: Mutex::new(line) }
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// The answers, in the order of the calls. Calls of one shard run in their order.
    pub(crate) async fn call(&self, calls: &[Call]) -> Vec<Result<Value, CallError>> {
        let (number, connection) = match self.connection().await {
            Ok(connected) => connected,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        // The client of a Cluster tries again by itself, so its last answer says nothing of the tries before.
        let tried_once = matches!(connection, Shared::Single(_));
        let answers = match connection {
            Shared::Single(connection) => in_one_pipeline(connection, calls).await,
            Shared::Cluster(connection) => {
                let each = calls.iter().map(|call| one(connection.clone(), call));
                futures_util::future::join_all(each).await
            }
        };
        if answers.iter().any(|answer| answer.as_ref().is_err_and(is_broken)) {
            self.drop_connection(number).await;
        }
        let reason = |error: RedisError| match tried_once && is_refusal(&error) {
            true => CallError::Refused(error.to_string()),
            false => CallError::Unknown(error.to_string()),
        };
        answers.into_iter().map(|answer| answer.map_err(reason)).collect()
    }

    async fn connection(&self) -> Result<(u64, Shared), CallError> {
        let mut line = self.line.lock().await;
        if let Some(connection) = &line.connection {
            return Ok((line.number, connection.clone()));
        }
        if Instant::now() < line.retry_at {
            return Err(CallError::NotSent(line.last_error.clone()));
        }
        match self.dialer.shared().await {
            Ok(connection) => {
                line.number += 1;
                line.backoff.reset();
                line.connection = Some(connection.clone());
                Ok((line.number, connection))
            }
            Err(error) => {
                let wait = line.backoff.fail();
                line.retry_at = Instant::now() + wait;
                line.last_error = error.to_string();
                Err(CallError::NotSent(line.last_error.clone()))
            }
        }
    }

    async fn drop_connection(&self, number: u64) {
        let mut line = self.line.lock().await;
        if line.number == number {
            line.connection = None;
        }
    }
}

type Answered = Result<Value, RedisError>;

async fn in_one_pipeline(mut connection: redis::aio::MultiplexedConnection, calls: &[Call]) -> Vec<Answered> {
    if let [call] = calls {
        return vec![one(connection, call).await];
    }
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors();
    for call in calls {
        pipeline.add_command(call.command().clone());
    }
    let mut answers: Vec<Answered> = match pipeline.query_async(&mut connection).await {
        Ok(answers) => answers,
        Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
    };
    for (answer, call) in answers.iter_mut().zip(calls) {
        if answer.as_ref().is_err_and(is_unknown_script) {
            *answer = call.in_full().query_async(&mut connection).await;
        }
    }
    answers
}

async fn one(mut connection: impl redis::aio::ConnectionLike, call: &Call) -> Answered {
    match call.command().query_async(&mut connection).await {
        Err(error) if is_unknown_script(&error) => call.in_full().query_async(&mut connection).await,
        answered => answered,
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Nothing was written: the server is loading, full, busy, or not the primary.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.code(), Some("LOADING" | "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS" | "READONLY" | "MASTERDOWN"))
}

/// A primary that was demoted keeps its connections, and would refuse for ever; another look finds its successor.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_cluster_error()
        || error.is_unrecoverable_error()
        || error.code() == Some("READONLY")
}
