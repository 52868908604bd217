//! The history of a limit group: what its members got and sent together in the last day, and the limits that were in force.

use std::time::Duration;

use askama::Template;
use weir_api_types::{History, HistoryBucket, LimitChange, LimitGroupHistory, LimitGroupHistoryBucket};

use crate::{
    client::ApiPath,
    pages::destination::charts::HistoryText as _,
    path_id::PathId,
    units::Units as _,
    views::LimitText as _,
    visit::{Answered, Visit},
};

/// The time that is shown: its buckets are minutes.
const SHOWN: Duration = Duration::from_secs(86_400);

#[derive(Template)]
#[template(path = "limit_group_history.html")]
struct Part {
    history: History,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.history.data.iter().all(|bucket| bucket.arrivals + bucket.sends + bucket.failed == 0)
    }

    fn chart(&self) -> String {
        self.history.traffic_chart().inline()
    }

    /// The newest first.
    fn changes(&self) -> impl Iterator<Item = &LimitChange> {
        self.history.limit_changes.iter().rev()
    }

    fn limits(&self, change: &LimitChange) -> String {
        let limits: Vec<String> = change.rate_limits.iter().map(|limit| limit.short()).collect();
        if limits.is_empty() { "unlimited".to_owned() } else { limits.join(", ") }
    }
}

/// As the history of one destination, which has more.
fn as_history(group: LimitGroupHistory) -> History {
    let LimitGroupHistory { step, from, to, data, limit_changes } = group;
    let bucket = |LimitGroupHistoryBucket { at, sends, delivered, failed, arrivals }| HistoryBucket {
        at,
        sends,
        delivered,
        failed,
        arrivals,
        backlog: 0,
        max_window: Vec::new(),
        errors: Vec::new(),
    };
    History {
        step,
        from,
        to,
        data: data.into_iter().map(bucket).collect(),
        windows_left_out: Vec::new(),
        errors_left_out: false,
        latencies: Vec::new(),
        limit_changes,
    }
}

pub(crate) async fn fragment(visit: Visit, PathId(id): PathId) -> Answered {
    let from = visit.site.clock.now() - SHOWN;
    let path = ApiPath::of(["limit-groups", &id, "history"]).with("from", &from.to_string());
    let history = as_history(visit.api.get(&path).await?);
    visit.fragment(&Part { history })
}
