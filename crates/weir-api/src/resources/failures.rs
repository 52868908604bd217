//! How the last deliveries to a destination failed: what the page of a destination with an open breaker shows.
//!
//! A look at some of the newest and of the oldest deliveries that failed is enough: a probe takes the oldest one. So the
//! cost does not depend on how many failed.

use std::{cmp::Reverse, collections::HashMap, time::Duration};

use weir_api_types as types;
use weir_core::{DeliveryState, DestinationId, delivery::Delivery};
use weir_store::{DeliveryDetail, DeliveryFilter, ListOrder, PageRequest};

use crate::{problem::ApiResult, state::ApiState};

/// The deliveries that each read returns.
const LOOKED_AT: u32 = 25;
/// Older failures than this, before the last one, have other causes.
const SPAN: Duration = Duration::from_secs(3_600);
/// The characters of an answer that are shown.
const ANSWER_CHARS: usize = 200;

/// The last failure, and how often each error occurred.
pub(crate) async fn recent(
    api: &ApiState,
    id: DestinationId,
) -> ApiResult<(Option<types::LastFailure>, Vec<types::ErrorCount>)> {
    let mut failed: HashMap<_, Delivery> = HashMap::new();
    let retrying = [DeliveryState::Retrying];
    for (states, order) in [
        (&retrying[..], ListOrder::Newest),
        (&retrying, ListOrder::Oldest),
        (&[DeliveryState::Dead, DeliveryState::Failed], ListOrder::Newest),
    ] {
        let filter =
            DeliveryFilter { destination_id: Some(id), states: states.to_vec(), order, ..DeliveryFilter::default() };
        let page = api.store.list_deliveries(&filter, PageRequest { before: None, limit: LOOKED_AT }).await?;
        failed.extend(page.rows.into_iter().map(|delivery| (delivery.id, delivery)));
    }
    let mut failed: Vec<_> = failed.into_values().filter(|delivery| error(delivery).is_some()).collect();
    failed.sort_by_key(|delivery| Reverse((delivery.updated_at, delivery.id)));
    let Some(last) = failed.first() else { return Ok((None, Vec::new())) };
    let recent = failed.iter().filter(|delivery| last.updated_at.since(delivery.updated_at) <= SPAN);
    let counts = counted(recent.filter_map(error));
    Ok((api.store.delivery(last.id).await?.and_then(last_failure), counts))
}

/// The status of its last attempt, or else the kind of the error.
fn error(delivery: &Delivery) -> Option<String> {
    let last = delivery.last_attempt.as_ref()?;
    let kind = last.error_kind?;
    Some(last.status_code.map_or_else(|| kind.to_string(), |status| status.to_string()))
}

/// How often each error occurs, the most frequent first.
pub(crate) fn counted(errors: impl IntoIterator<Item = String>) -> Vec<types::ErrorCount> {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for error in errors {
        *counts.entry(error).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().map(|(error, count)| types::ErrorCount { error, count }).collect();
    counts.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.error.cmp(&b.error)));
    counts
}

fn last_failure(DeliveryDetail { delivery, attempts }: DeliveryDetail) -> Option<types::LastFailure> {
    let last = attempts.into_iter().rev().find(|attempt| attempt.error_kind().is_some())?;
    let answer = last.response_body.as_deref().map(str::trim).filter(|answer| !answer.is_empty());
    Some(types::LastFailure {
        delivery_id: delivery.id.to_string(),
        number: last.number,
        at: last.sent_at.unwrap_or(delivery.updated_at),
        status_code: last.status_code,
        error_kind: last.error_kind().map(|kind| kind.to_string()),
        answer: answer.map(|answer| answer.chars().take(ANSWER_CHARS).collect()),
        error: last.error,
    })
}
