//! Alerting: the destinations that subscribe to alerts, the conditions to report, and the alert states already
//! recorded.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use weir_core::{
    Destination, DestinationId, LimitGroupId, Timestamp,
    access::TenantScope,
    activity::Activity,
    adaptive::{COMPARED, Change, Fall},
    alert::{AlertPolicy, AlertRecord, BoundKeys, DestinationStatus},
    refusals::Refusals,
    stall::Late,
};

use crate::{Paces, StoreResult};

/// The condition of one destination, from which alerts are derived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub destination_id: DestinationId,
    /// The number of waiting deliveries, without those of replays. Where more than 10,000 live deliveries and more than
    /// 10,000 of replays wait, replays beyond 10,000 are included, because only the sum has a counter.
    pub waiting: u64,
    /// When the oldest of these deliveries was created: the one that has been due for the longest, or the oldest retry.
    pub oldest_created_at: Option<Timestamp>,
    /// When the last delivery of the backlog expires, including deliveries of replays, if it lives as long as the one
    /// that lives longest; `None` when none expires. In a long backlog its last deliveries decide: the newest ones, and
    /// those that are due last. About a thousand of each kind are read, divided among the destinations with a backlog.
    pub last_expires_at: Option<Timestamp>,
    /// Dead letters: `dead` or `failed`.
    pub undelivered: u64,
    /// The alerts already published.
    pub record: AlertRecord,
    /// Rises with every change of `record`; 0 if none was recorded.
    pub version: u64,
}

impl Condition {
    /// A condition without problems and without recorded alerts.
    pub fn healthy(destination_id: DestinationId) -> Self {
        Self {
            destination_id,
            waiting: 0,
            oldest_created_at: None,
            last_expires_at: None,
            undelivered: 0,
            record: AlertRecord::default(),
            version: 0,
        }
    }

    /// Adds a condition without problems for each of these destinations that has none.
    pub fn add_missing(conditions: &mut Vec<Self>, ids: impl IntoIterator<Item = DestinationId>) {
        let known: HashSet<_> = conditions.iter().map(|condition| condition.destination_id).collect();
        conditions.extend(ids.into_iter().filter(|id| !known.contains(id)).map(Self::healthy));
    }

    /// What alerts depend on. `refused`: the refusals within the limit, or `None` if it was not looked for them;
    /// `stalled`: the start that is late, or `None` if nothing is known; `pace_per_s`: its adaptive pace, if it has one.
    pub fn status(
        &self,
        destination: &Destination,
        refused: Option<Option<Refusals>>,
        stalled: Option<Option<Late>>,
        pace_per_s: Option<f64>,
        now: Timestamp,
    ) -> DestinationStatus {
        let drains_in = self.drains_in(destination, pace_per_s, None, 1.0, now);
        let destination = destination.at(now);
        let settings = &destination.settings;
        DestinationStatus {
            waiting: self.waiting,
            oldest_age: self.oldest_created_at.map_or(Duration::ZERO, |at| now.since(at)),
            drains_in,
            remaining_life: match self.last_expires_at {
                Some(at) => at.since(now),
                None => Duration::from_secs(settings.retry.max_age_s.into()),
            },
            breaker: destination.breaker.reason().map(ToOwned::to_owned),
            paused: destination.paused_reason.clone(),
            undelivered: self.undelivered,
            refused,
            stalled,
            pace: None,
            refusing: None,
            bound_keys: BoundKeys::default(),
        }
    }
}

impl Condition {
    /// The time until the backlog is sent. The rate is the lowest of three: the destination's limits for deliveries of this
    /// mean cost, its adaptive pace, and its share of its limit group. `None` if there is none of these, or if the share
    /// of a member is not known.
    pub fn drains_in(
        &self,
        destination: &Destination,
        pace_per_s: Option<f64>,
        share_per_s: Option<f64>,
        cost: f64,
        now: Timestamp,
    ) -> Option<Duration> {
        let destination = destination.at(now);
        let settings = &destination.settings;
        let rates = [settings.rate_limits.per_second_at(cost), pace_per_s, share_per_s];
        let rate = rates.into_iter().flatten().reduce(f64::min);
        let rate = rate.filter(|_| settings.limit_group.is_none() || share_per_s.is_some())?;
        let held = destination.held_until.map_or(Duration::ZERO, |until| until.since(now));
        let secs = self.waiting as f64 / rate;
        Duration::try_from_secs_f64(secs).ok().map(|drains| held.saturating_add(drains))
    }
}

/// How adaptive paces stand against what they were an hour ago. Read every ten seconds: the changes of an hour may be many.
#[derive(Debug, Clone, Default)]
pub struct PaceWatch {
    falls: HashMap<DestinationId, Fall>,
    looked_at: Option<Timestamp>,
}

impl PaceWatch {
    /// The most changes that are read: those of a thousand paces that change five times in an hour, or of a few that change
    /// all the time.
    const MOST_CHANGES: u32 = 5_000;
    const EVERY: Duration = Duration::from_secs(10);

    /// Reads the last changes if it is time to.
    pub async fn look(&mut self, store: &(impl Paces + ?Sized), now: Timestamp) -> StoreResult<()> {
        if self.looked_at.is_some_and(|at| now.since(at) < Self::EVERY) {
            return Ok(());
        }
        let from = now.before(COMPARED);
        let mut changes: HashMap<DestinationId, Vec<Change>> = HashMap::new();
        for (id, change) in store.recent_pace_changes(from, Self::MOST_CHANGES).await? {
            changes.entry(id).or_default().push(change);
        }
        self.falls = changes.into_iter().filter_map(|(id, of)| Some((id, Fall::of(&of, from)?))).collect();
        self.looked_at = Some(now);
        Ok(())
    }

    /// Those whose pace is less than half of what it was.
    pub fn fallen(&self) -> impl Iterator<Item = DestinationId> {
        self.falls.iter().filter(|(_, fall)| fall.is_deep()).map(|(id, _)| *id)
    }

    /// For [`DestinationStatus::pace`].
    pub fn of(&self, destination: &Destination) -> Option<Option<Fall>> {
        match destination.settings.adaptive {
            None => Some(None),
            Some(_) => self.falls.get(&destination.id).cloned().map(Some),
        }
    }
}

/// The key of the alerts about the installation, which no destination has as its id.
pub const INSTALLATION: DestinationId = DestinationId::from_bytes([0; 16]);

#[async_trait]
pub trait Alerting: Send + Sync {
    /// The alert policy for all destinations; the default until one is set.
    async fn alert_policy(&self) -> StoreResult<AlertPolicy>;

    /// Replaces the policy if it is still the expected one, so that the activity says what was replaced. Returns whether
    /// it was; otherwise nothing is recorded.
    async fn set_alert_policy(
        &self,
        expected: AlertPolicy,
        policy: AlertPolicy,
        activity: Activity,
    ) -> StoreResult<bool>;

    /// The destinations that take events of Weir's own types. Must be cheap: called every two seconds.
    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>>;

    /// Every destination of these tenants with a backlog, dead letters, a breaker that is not closed, a pause by Weir
    /// itself, or recorded alerts. Reads counters, and a bounded part of each backlog.
    async fn conditions(&self, tenants: &TenantScope) -> StoreResult<Vec<Condition>>;

    /// The number of waiting deliveries of all destinations, from the counters.
    async fn backlog(&self) -> StoreResult<u64>;

    /// Records the alerts of a destination. `false` if `version` is not the current one, because another process
    /// recorded alerts meanwhile.
    async fn record_alerts(&self, id: DestinationId, version: u64, record: AlertRecord) -> StoreResult<bool>;

    /// The recorded alerts of every limit group that has some and is not deleted, each with its version.
    async fn group_alerts(&self) -> StoreResult<Vec<(LimitGroupId, u64, AlertRecord)>>;

    /// As [`Self::record_alerts`], of a limit group.
    async fn record_group_alerts(&self, id: LimitGroupId, version: u64, record: AlertRecord) -> StoreResult<bool> {
        // Their ids are distinct, and so are kept in one table.
        self.record_alerts(DestinationId::from_bytes(*id.as_bytes()), version, record).await
    }

    /// The recorded alerts about the installation itself, and their version; 0 before the first.
    async fn installation_alerts(&self) -> StoreResult<(u64, AlertRecord)>;

    /// As [`Self::record_alerts`], of the installation.
    async fn record_installation_alerts(&self, version: u64, record: AlertRecord) -> StoreResult<bool> {
        self.record_alerts(INSTALLATION, version, record).await
    }
}
