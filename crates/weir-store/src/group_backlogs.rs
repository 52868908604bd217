//! The backlogs of limit groups: which members a group holds back, what it leaves to each, and whether it is behind.
//!
//! A group holds a member back if the member has a backlog, is not stopped, and could send more without the group; and if
//! the group is used, because what waits for a retry waits for no slot. Idle members count by what they send. A group is used
//! when its sends come near its limit, or as much of its members is out as may be in flight: then it leaves them what it sends.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use weir_core::{
    Condition as Obstacle, DeliveryState, Destination, DestinationId, LimitGroup, LimitGroupId, RateLimit, Timestamp,
    alert::{AlertPolicy, AlertRecord, GroupStatus},
    limit::Shape,
    shares::{Share, Wish},
};

use crate::{
    Alerting, Condition, CostWatch, Counters, LimitGroups, Outbox, ReservedSlots, StoreResult, limit_in_costs,
};

/// A group whose members send at least this share of its limit is used: slots leave out up to 1 % of a window, and a minute
/// of sends begins and ends with a part of a bucket. The same share of the maximum in flight: between the end of a send and
/// the next claim there is room.
const USED: f64 = 0.8;
/// Below this many sends a minute the number of them says nothing about the use.
const TELLING: f64 = 10.0;
/// The sends of this time are compared with the limit.
const LATELY: Duration = Duration::from_secs(60);
/// Of how many groups that seem unused it is asked in one look whether callers outside Weir use them. Each takes a read.
const ASKED: usize = 100;

/// What somebody got and sent in the last minute, in deliveries and sends a second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    pub arrivals_per_s: f64,
    pub sends_per_s: f64,
}

/// The traffic of the members of limit groups in the last minute.
#[derive(Debug, Clone, Default)]
pub struct GroupTraffic {
    members: HashMap<DestinationId, Rates>,
    groups: HashMap<LimitGroupId, Rates>,
}

impl GroupTraffic {
    /// Adds the traffic of a destination, if it is in a group.
    pub fn add(&mut self, destination: &Destination, rates: Rates) {
        let Some(id) = destination.settings.limit_group else { return };
        self.members.insert(destination.id, rates);
        let sum = self.groups.entry(id).or_default();
        sum.arrivals_per_s += rates.arrivals_per_s;
        sum.sends_per_s += rates.sends_per_s;
    }

    fn of(&self, id: LimitGroupId) -> Rates {
        self.groups.get(&id).copied().unwrap_or_default()
    }

    fn sends_of(&self, id: DestinationId) -> f64 {
        self.members.get(&id).map_or(0.0, |rates| rates.sends_per_s)
    }
}

/// A destination, its condition and its adaptive pace.
pub type GroupMember<'a> = (&'a Condition, &'a Arc<Destination>, Option<f64>);

/// What is known of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupBacklog {
    pub group: Arc<LimitGroup>,
    pub status: GroupStatus,
    /// The alerts already published, and the version of this record.
    pub record: AlertRecord,
    pub version: u64,
}

impl GroupBacklog {
    /// Whether the group is behind now, or has not caught up.
    pub fn is_behind(&self, now: Timestamp) -> bool {
        self.record.history().group_is_behind(&self.status, now).is_some()
    }
}

/// The groups whose members have a backlog, and those with recorded alerts.
#[derive(Debug, Clone, Default)]
pub struct GroupBacklogs {
    groups: BTreeMap<LimitGroupId, GroupBacklog>,
    /// What the groups leave to their members.
    shares: HashMap<DestinationId, Share>,
    costs: CostWatch,
}

impl GroupBacklogs {
    /// Looks at these destinations. A few statements, however many groups there are.
    pub async fn read<'a>(
        store: &(impl Alerting + Counters + LimitGroups + Outbox + ReservedSlots + ?Sized),
        members: impl IntoIterator<Item = GroupMember<'a>>,
        traffic: &'a GroupTraffic,
        costs: &mut CostWatch,
        policy: &'a AlertPolicy,
        now: Timestamp,
    ) -> StoreResult<Self> {
        let members: Vec<_> = members.into_iter().filter(|(condition, ..)| condition.waiting > 0).collect();
        let mut members_of: BTreeMap<LimitGroupId, Vec<GroupMember<'a>>> = BTreeMap::new();
        for &member in &members {
            if let Some(id) = member.1.settings.limit_group {
                members_of.entry(id).or_default().push(member);
            }
        }
        let mut records: HashMap<_, _> =
            store.group_alerts().await?.into_iter().map(|(id, version, record)| (id, (version, record))).collect();
        for id in records.keys() {
            members_of.entry(*id).or_default();
        }
        let ids: Vec<_> = members_of.keys().copied().collect();
        let groups: HashMap<_, _> =
            store.limit_groups(&ids).await?.into_iter().flatten().map(|group| (group.id, group)).collect();
        let wanted = members.iter().filter_map(|(_, destination, _)| {
            let group = destination.settings.limit_group.and_then(|id| groups.get(&id));
            Some((destination.id, limit_in_costs(destination, group.map(|group| &**group), now)?))
        });
        costs.look(store, wanted, now).await?;
        // What is out of the members with a backlog, where it is bounded.
        let bounded = groups.values().filter(|group| group.at(now).max_in_flight.is_some());
        let bounded = bounded.filter_map(|group| members_of.get(&group.id)).flatten().map(|(_, member, _)| member.id);
        let bounded: Vec<_> = bounded.collect();
        let counts = if bounded.is_empty() { Vec::new() } else { store.counts(&bounded).await? };
        let out: HashMap<_, _> =
            bounded.iter().copied().zip(counts.iter().map(|counts| counts.of(DeliveryState::Delivering))).collect();
        let (mut this, mut asked) = (Self { costs: costs.clone(), ..Self::default() }, 0);
        for group in groups.into_values() {
            let members = members_of.remove(&group.id).unwrap_or_default();
            let record = records.remove(&group.id).unwrap_or_default();
            let costs = &*costs;
            let mut look = Look { group, members, record, traffic, costs, policy, now, is_used: false, is_full: false };
            let is_used = look.sends_show_use() || look.is_held();
            look.is_full = !is_used && look.is_full(&out);
            look.is_used = is_used || look.is_full;
            // Callers outside Weir may use it.
            if !look.is_used && asked < ASKED && (Look { is_used: true, ..look.clone() }).backlog().is_behind(now) {
                asked += 1;
                look.is_used = store.has_reserved(look.group.id, now.before(LATELY)).await?;
            }
            this.add(&look);
        }
        Ok(this)
    }

    /// Adds what a look at a group has found.
    fn add(&mut self, look: &Look<'_>) {
        for ((_, destination, _), share) in look.members.iter().zip(look.shares()) {
            self.shares.extend(share.map(|share| (destination.id, share)));
        }
        self.groups.insert(look.group.id, look.backlog());
    }

    pub fn iter(&self) -> impl Iterator<Item = &GroupBacklog> {
        self.groups.values()
    }

    /// The time until the backlog of a destination is sent. The lowest of three rates counts: its limit, its adaptive pace,
    /// and what its group leaves it.
    pub fn drains_in(&self, member: GroupMember<'_>, now: Timestamp) -> Option<Duration> {
        let (condition, destination, pace_per_s) = member;
        let Some(id) = destination.settings.limit_group else {
            return condition.drains_in(destination, pace_per_s, None, self.cost_of(destination.id), now);
        };
        let group = self.groups.get(&id)?;
        let share = self.shares.get(&destination.id).copied();
        drains_in_group(&group.group, member, share, self.cost_of(destination.id), now)
    }

    /// The mean cost of what waits; 1 where no limit counts it.
    pub fn cost_of(&self, id: DestinationId) -> f64 {
        self.costs.mean_of(id)
    }

    /// Whether the alert about the destination's group replaces an alert about its own backlog. It does not if the tenant
    /// of the destination does not see the group.
    pub fn speaks_for(&self, destination: &Destination) -> bool {
        let tells = |id| {
            let group = self.groups.get(&id)?;
            Some(group.group.tenant.as_ref() == Some(&destination.settings.tenant))
        };
        self.shares.get(&destination.id).is_some_and(|share| share.binds)
            && destination.settings.limit_group.and_then(tells) == Some(true)
    }
}

/// What is known of a group when it is looked at.
#[derive(Clone)]
struct Look<'a> {
    group: Arc<LimitGroup>,
    /// Those with a backlog.
    members: Vec<GroupMember<'a>>,
    record: (u64, AlertRecord),
    traffic: &'a GroupTraffic,
    costs: &'a CostWatch,
    policy: &'a AlertPolicy,
    now: Timestamp,
    /// What an unused group has waiting does not wait for it.
    is_used: bool,
    /// As much is out as may be in flight.
    is_full: bool,
}

impl Look<'_> {
    fn is_full(&self, out: &HashMap<DestinationId, u64>) -> bool {
        let out: u64 = self.members.iter().filter_map(|(_, member, _)| out.get(&member.id)).sum();
        let most = self.group.at(self.now).max_in_flight;
        most.is_some_and(|most| out as f64 >= USED * f64::from(most))
    }

    /// What the group allows its members: its limits or, where it is full, what it sends at present.
    fn rate(&self) -> Option<f64> {
        let limit = self.group.at(self.now).rate_limits.per_second_at(self.mean_cost());
        let sends = self.is_full.then(|| self.traffic.of(self.group.id).sends_per_s);
        [limit, sends].into_iter().flatten().reduce(f64::min)
    }

    fn is_held(&self) -> bool {
        self.group.temporary.hold_at(self.now).is_some()
    }

    /// Whether sends of the last minute show that the limits are used. They may be used while few sends start or none: costs,
    /// rare sends and windows that were sent at once tell nothing.
    fn sends_show_use(&self) -> bool {
        let group = self.group.at(self.now);
        if group.rate_limits.is_unlimited() {
            return false;
        }
        let tells = |limit: &RateLimit| limit.shape() == Shape::Even && !limit.is_in_costs();
        let tells = group.rate_limits.as_slice().iter().all(tells);
        let rate = group.rate_limits.per_second().filter(|rate| tells && rate * LATELY.as_secs_f64() >= TELLING);
        rate.is_none_or(|rate| self.traffic.of(group.id).sends_per_s >= USED * rate)
    }

    /// The mean cost of all that waits.
    fn mean_cost(&self) -> f64 {
        let sums =
            self.members.iter().map(|(condition, one, _)| (condition.waiting as f64, self.costs.mean_of(one.id)));
        let (waiting, costs) =
            sums.fold((0.0, 0.0), |(all, sum), (waiting, cost)| (all + waiting, sum + waiting * cost));
        if waiting > 0.0 { costs / waiting } else { 1.0 }
    }

    /// What the group leaves to each of these members; `None` where it has no rate.
    fn shares(&self) -> Vec<Option<Share>> {
        let Some(rate) = self.rate() else { return vec![None; self.members.len()] };
        let wish = |(_, destination, pace_per_s): &GroupMember<'_>| {
            let destination = destination.at(self.now);
            let settings = &destination.settings;
            let own = settings.rate_limits.per_second_at(self.costs.mean_of(destination.id));
            let most = [own, *pace_per_s].into_iter().flatten().reduce(f64::min);
            let rests = destination.is_stopped() || destination.is(Obstacle::Held, self.now);
            Wish { weight: settings.weight.into(), per_s: if rests { 0.0 } else { most.unwrap_or(f64::INFINITY) } }
        };
        let wishes: Vec<Wish> = self.members.iter().map(wish).collect();
        let of_these: f64 = self.members.iter().map(|(_, one, _)| self.traffic.sends_of(one.id)).sum();
        let idle = (self.traffic.of(self.group.id).sends_per_s - of_these).max(0.0);
        let held_until = self.group.temporary.hold_at(self.now).map(|hold| hold.until);
        let shares = Share::of_all((rate - idle).max(0.0), &wishes, held_until);
        shares.into_iter().map(|share| Some(Share { binds: self.is_used && share.binds, ..share })).collect()
    }

    fn backlog(&self) -> GroupBacklog {
        let rates = self.traffic.of(self.group.id);
        let mut status = GroupStatus::new(rates.arrivals_per_s, rates.sends_per_s);
        if self.is_held() {
            status = status.held();
        }
        for (&member, share) in self.members.iter().zip(self.shares()) {
            if let Some(share) = share.filter(|share| share.binds) {
                let (condition, destination, pace_per_s) = member;
                let mut of_member = condition.status(destination, None, None, pace_per_s, self.now);
                let cost = self.costs.mean_of(destination.id);
                of_member.drains_in = drains_in_group(&self.group, member, Some(share), cost, self.now);
                status.add(&of_member, &destination.settings.alerts.apply_to(self.policy));
            }
        }
        let (version, record) = self.record;
        GroupBacklog { group: Arc::clone(&self.group), status: status.sum_up(self.policy), record, version }
    }
}

/// A hold of the group counts as one of the member.
fn drains_in_group(
    group: &LimitGroup,
    (condition, destination, pace_per_s): GroupMember<'_>,
    share: Option<Share>,
    cost: f64,
    now: Timestamp,
) -> Option<Duration> {
    let held = group.temporary.hold_at(now).map_or(Duration::ZERO, |hold| hold.until.since(now));
    let drains = condition.drains_in(destination, pace_per_s, share.map(|share| share.per_s), cost, now)?;
    Some(held.saturating_add(drains))
}
