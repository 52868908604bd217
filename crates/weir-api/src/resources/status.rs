//! The state of the installation: processes, store and queue.

use std::time::{Duration, Instant};

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::claim::ProcessId;
use weir_queue::QueueError;
use weir_store::{ProcessProfile, RunningProcess, StoreError};

use crate::{auth::Caller, problem::ApiResult, readers::query::Query, state::Api};

/// How long store and queue may take to answer. A page that shows that one of them is away must not wait for it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Show the state of the installation
///
/// For keys that are not bound to tenants. It is answered also while the store or the queue cannot be reached.
#[utoipa::path(
    get, path = "/v1/status", operation_id = "show_status", tag = "operation",
    responses((status = 200, description = "The processes, the store and the queue", body = types::InstallationStatus))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    _: Query<()>,
) -> ApiResult<Json<types::InstallationStatus>> {
    caller.check_unbound()?;
    let installation = &api.installation;
    let (store, queue, queue_depths, processes) = tokio::join!(
        probe(installation.store, api.store.check(), obstacle),
        probe(installation.queue, api.queue.check(), refusal),
        tokio::time::timeout(ANSWERS_WITHIN, (installation.queue_depths)()),
        tokio::time::timeout(ANSWERS_WITHIN, api.store.running_processes()),
    );
    let processes = processes.ok().and_then(Result::ok);
    let now = api.clock.now();
    let outage = api.live.stalls().outage(now).flatten();
    Ok(Json(types::InstallationStatus {
        as_of: now,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: types::Backend { free_bytes: (installation.free_bytes)(), ..store },
        queue,
        queue_depths: queue_depths.ok().flatten(),
        processes: processes.map(|processes| processes.into_iter().map(process).collect()),
        outage: outage.map(|outage| types::InstallationOutage {
            cause: outage.fault.as_str().to_owned(),
            reason: outage.reason(),
            since: outage.since,
        }),
    }))
}

/// What keeps a store that answers from writing.
fn obstacle(error: &StoreError) -> Option<String> {
    match error {
        StoreError::CannotWrite { obstacle, .. } => Some(obstacle.to_string()),
        _ => None,
    }
}

/// Why the queue refuses calls, if it answers. Redis also names the script there, which does not help an operator.
fn refusal(error: &QueueError) -> Option<String> {
    match error {
        QueueError::Refused(reason) => {
            let reason = reason.split(" script: ").next()?.trim_end_matches('.');
            Some(format!("it refuses calls: {reason}"))
        }
        _ => None,
    }
}

async fn probe<E>(
    kind: &'static str,
    check: impl Future<Output = Result<(), E>>,
    obstacle: impl Fn(&E) -> Option<String>,
) -> types::Backend {
    #[expect(clippy::disallowed_methods, reason = "it measures an answer, and decides nothing about sends")]
    let asked = Instant::now();
    let checked = tokio::time::timeout(ANSWERS_WITHIN, check).await;
    let is_reachable = matches!(checked, Ok(Ok(())));
    let obstacle = checked.ok().and_then(Result::err).and_then(|error| obstacle(&error));
    let answered_in_ms = is_reachable.then(|| (asked.elapsed().as_secs_f64() * 1_000_000.0).round() / 1_000.0);
    types::Backend { kind: kind.to_owned(), is_reachable, obstacle, answered_in_ms, free_bytes: None }
}

pub(crate) fn process(process: RunningProcess) -> types::Process {
    let RunningProcess { id: ProcessId(id), profile, clock_ahead_us } = process;
    let clock_ahead_s = clock_ahead_us.map(|us| us as f64 / 1e6);
    match profile {
        Some(ProcessProfile { role, version, host, started_at }) => types::Process {
            id,
            role: Some(role),
            version: Some(version),
            host: Some(host).filter(|host| !host.is_empty()),
            started_at: Some(started_at),
            clock_ahead_s,
        },
        None => types::Process { id, role: None, version: None, host: None, started_at: None, clock_ahead_s },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_refuses_is_told_without_the_script() {
        for (reason, told) in [
            ("\"OOM\": command not allowed. script: 98ff, on @user_script:252.", "\"OOM\": command not allowed"),
            (
                "\"MISCONF\": No space left on device script: 98ff, on @user_script:252.",
                "\"MISCONF\": No space left on device",
            ),
        ] {
            let refused = refusal(&QueueError::Refused(reason.to_owned()));
            assert_eq!(refused, Some(format!("it refuses calls: {told}")));
        }
    }
}
