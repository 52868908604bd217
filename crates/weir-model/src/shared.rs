//! Two flows under one budget: the destinations of a limit group, each with a limit of its own.
//!
//! The rest of the protocol is that of a single destination and is checked there. Here a member is only what takes slots:
//! a worker with one permit at a time. All budgets are in one shard, so they are lost together, and a step that grants a
//! slot sees all of them.

use stateright::{Model, Property};

use crate::{
    queue::next_start,
    scenario::{GRANT_AHEAD, SLOT_WIDTH, TIMEOUT},
    state::Ticks,
};

/// W, in ticks.
const WINDOW: Ticks = 3;
const LONG_AGO: Ticks = -(WINDOW + SLOT_WIDTH);
/// How far back the properties look.
const HISTORY: usize = (WINDOW + 1 + GRANT_AHEAD) as usize;
/// When a claim expires.
const EXPIRES: Ticks = GRANT_AHEAD + TIMEOUT + 1;
/// The limits of the two members, and of their group before and after its edit.
const OWN: [u8; 2] = [1, 2];
const SHARED: [u8; 2] = [2, 1];

pub const GROUP_HOLDS: &str = "at most R sends of all members start in any window of the group";
pub const MEMBERS_HOLD: &str = "at most R sends of a member start in any window of its own";
pub const GROUP_EDITS_BIND: &str = "a window that begins after an edit of the group holds no more sends than it allows";
pub const ALL_SENT: &str = "at rest, every member has sent its backlog";

/// A remedy of shared budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedRemedy {
    /// A slot is taken from every budget of its flow. Without this, from the budget of the member only.
    TakeFromAll,
    /// After a loss the group continues after the last recorded send of all members. Without this, of the member whose
    /// run recovers it.
    RecoverFromAll,
    /// After a loss the outstanding claims of all members count. Without this, those of the member whose run recovers it.
    ClaimsOfAll,
    /// The step that grants a slot uses the limits of an edit from its announcement. Without this, those before.
    GrantLimits,
}

/// How often each fault may still happen, and how many ticks may pass while a process could act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedFaults {
    pub crashes: u8,
    pub losses: u8,
    pub edits: u8,
    pub stalls: u8,
}

/// The model of two members.
#[derive(Debug, Clone)]
pub struct SharedBudget {
    /// How many events each member has.
    pub backlog: u8,
    pub faults: SharedFaults,
    pub without: Option<SharedRemedy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharedAction {
    Records(usize),
    Sends(usize),
    TakesSlot(usize),
    /// A run has recovered cursors.
    Publishes(usize),
    /// A run reads the store because cursors are unknown.
    Reads(usize),
    ClaimExpires(usize),
    EditIsAnnounced,
    Tick,
    Crashes(usize),
    IsEdited,
    QueueIsLost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// Has a slot that starts at this tick.
    Granted(Ticks),
    Sent(Ticks),
    /// Its worker has died. Nothing is known of its send.
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Member {
    left: u8,
    stage: Stage,
    /// When its claim expires, while it has one.
    claim: Option<Ticks>,
    /// In the queue; unknown after a loss.
    cursor: Option<Ticks>,
    /// In the store.
    last_sent: Ticks,
    /// What a run has read: its own cursor, and that of the group.
    recovered: Option<(Ticks, Ticks)>,
    sends: [u8; HISTORY],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SharedState {
    members: [Member; 2],
    cursor: Option<Ticks>,
    /// The time since the queue began, and the edits that are stored, announced and followed.
    age: Ticks,
    stored: u8,
    announced: u8,
    limits: [u8; HISTORY],
    faults: SharedFaults,
}

fn spacing(rate: u8) -> Ticks {
    (WINDOW + SLOT_WIDTH) / rate as Ticks
}

impl SharedBudget {
    fn has(&self, remedy: SharedRemedy) -> bool {
        self.without != Some(remedy)
    }

    /// The start of the next slot of this member, if it can ask for one that is granted now.
    fn slot(&self, state: &SharedState, of: usize) -> Option<Ticks> {
        let member = &state.members[of];
        let asks = match member.stage {
            Stage::Idle => member.left > 0,
            // It has missed its slot, and asks again while its claim lasts.
            Stage::Granted(start) => start < 0 && member.claim.is_some_and(|expires| expires > TIMEOUT),
            Stage::Sent(_) | Stage::Dead => false,
        };
        let followed = if self.has(SharedRemedy::GrantLimits) { state.announced } else { 0 };
        let own = next_start(member.cursor?, spacing(OWN[of]));
        let shared = next_start(state.cursor?, spacing(SHARED[usize::from(followed)]));
        Some(own.max(shared)).filter(|start| asks && *start <= GRANT_AHEAD)
    }

    /// Reads the sends and claims that the cursors are recovered from.
    fn read(&self, state: &SharedState, of: usize) -> (Ticks, Ticks) {
        let last_old_start = GRANT_AHEAD - state.age;
        let one = |member: &Member| (member.last_sent, member.claim.map_or(LONG_AGO, |_| last_old_start));
        let (own_sent, own_claimed) = one(&state.members[of]);
        let (all_sent, all_claimed) = state
            .members
            .iter()
            .map(one)
            .fold((LONG_AGO, LONG_AGO), |all, member| (all.0.max(member.0), all.1.max(member.1)));
        let sent = if self.has(SharedRemedy::RecoverFromAll) { all_sent } else { own_sent };
        let claimed = if self.has(SharedRemedy::ClaimsOfAll) { all_claimed } else { own_claimed };
        (own_sent.max(own_claimed), sent.max(claimed))
    }

    /// The steps without a fault, the most urgent first, and time last.
    fn steps() -> impl Iterator<Item = SharedAction> {
        let of_member = [
            SharedAction::Records as fn(usize) -> SharedAction,
            SharedAction::Sends,
            SharedAction::TakesSlot,
            SharedAction::Publishes,
            SharedAction::Reads,
            SharedAction::ClaimExpires,
        ];
        let of_members = of_member.into_iter().flat_map(|of| (0..2).map(of));
        of_members.chain([SharedAction::EditIsAnnounced, SharedAction::Tick])
    }

    fn apply(&self, next: &mut SharedState, action: SharedAction) -> Option<()> {
        match action {
            SharedAction::Records(of) => {
                let member = &mut next.members[of];
                let Stage::Sent(at) = member.stage else { return None };
                (member.stage, member.claim) = (Stage::Idle, None);
                (member.last_sent, member.left) = (member.last_sent.max(at), member.left - 1);
            }
            SharedAction::Sends(of) => {
                let member = &mut next.members[of];
                if member.stage != Stage::Granted(0) {
                    return None;
                }
                member.stage = Stage::Sent(0);
                member.sends[0] += 1;
            }
            SharedAction::TakesSlot(of) => {
                let start = self.slot(next, of)?;
                let member = &mut next.members[of];
                member.claim = member.claim.or(Some(EXPIRES));
                (member.stage, member.cursor) = (Stage::Granted(start), Some(start));
                if self.has(SharedRemedy::TakeFromAll) {
                    next.cursor = Some(start);
                }
            }
            SharedAction::Reads(of) => {
                let member = &next.members[of];
                if member.recovered.is_some() || member.cursor.is_some() && next.cursor.is_some() {
                    return None;
                }
                next.members[of].recovered = Some(self.read(next, of));
            }
            // A recovered cursor counts only while the queue has none.
            SharedAction::Publishes(of) => {
                let member = &mut next.members[of];
                let (own, shared) = member.recovered.take()?;
                member.cursor = member.cursor.or(Some(own));
                next.cursor = next.cursor.or(Some(shared));
            }
            // A claim whose result is unknown: sent now at the latest.
            SharedAction::ClaimExpires(of) => {
                let member = &mut next.members[of];
                member.claim.filter(|expires| *expires < 0)?;
                (member.stage, member.claim, member.last_sent) = (Stage::Idle, None, 0);
            }
            SharedAction::IsEdited => {
                next.faults.edits = next.faults.edits.checked_sub(1)?;
                next.stored += 1;
            }
            SharedAction::EditIsAnnounced => {
                if next.announced == next.stored {
                    return None;
                }
                next.announced = next.stored;
                next.limits[0] = next.limits[0].max(SHARED[usize::from(next.announced)]);
            }
            SharedAction::Crashes(of) => {
                next.faults.crashes = next.faults.crashes.checked_sub(1)?;
                let member = &mut next.members[of];
                if !matches!(member.stage, Stage::Granted(_) | Stage::Sent(_)) {
                    return None;
                }
                member.stage = Stage::Dead;
            }
            SharedAction::QueueIsLost => {
                next.faults.losses = next.faults.losses.checked_sub(1)?;
                next.cursor = None;
                // Runs from before belong to an earlier generation.
                next.members.iter_mut().for_each(|member| (member.cursor, member.recovered) = (None, None));
                next.age = 0;
            }
            SharedAction::Tick => return self.tick(next),
        }
        Some(())
    }

    /// Lets a tick pass, unless a worker has to record a result first.
    fn tick(&self, next: &mut SharedState) -> Option<()> {
        if next.members.iter().any(|member| member.stage == Stage::Sent(-TIMEOUT)) {
            return None;
        }
        // Who waits for the start of its slot, or for the answer of a receiver, is not slow.
        let is_slow = |action: SharedAction| !matches!(action, SharedAction::Tick | SharedAction::Records(_));
        let mut others = Self::steps().filter(|action| is_slow(*action));
        if others.any(|action| self.apply(&mut next.clone(), action).is_some()) {
            next.faults.stalls = next.faults.stalls.checked_sub(1)?;
        }
        let age = |instant: &mut Ticks, least: Ticks| *instant = (*instant - 1).max(least);
        for member in &mut next.members {
            match &mut member.stage {
                Stage::Granted(start) => age(start, -1),
                Stage::Sent(at) => age(at, -TIMEOUT),
                Stage::Idle | Stage::Dead => {}
            }
            member.claim.iter_mut().for_each(|expires| age(expires, -1));
            member.cursor.iter_mut().for_each(|last| age(last, LONG_AGO));
            age(&mut member.last_sent, LONG_AGO);
            if let Some((own, shared)) = &mut member.recovered {
                age(own, LONG_AGO);
                age(shared, LONG_AGO);
            }
            member.sends.rotate_right(1);
            member.sends[0] = 0;
            member.sends[WINDOW as usize + 1..].fill(0);
        }
        next.cursor.iter_mut().for_each(|last| age(last, LONG_AGO));
        next.age = (next.age + 1).min(GRANT_AHEAD - LONG_AGO);
        next.limits.rotate_right(1);
        next.limits[0] = SHARED[usize::from(next.announced)];
        Some(())
    }

    /// Whether the course without further faults ends with everything sent. It has no cycle: each step moves a send, a
    /// claim or a recovery on, and time stands still at last.
    fn ends_well(&self, state: &SharedState) -> bool {
        let mut at = SharedState { faults: SharedFaults { stalls: u8::MAX, ..state.faults }, ..state.clone() };
        while let Some(next) = Self::steps().find_map(|action| self.next_state(&at, action)) {
            at = SharedState { faults: SharedFaults { stalls: u8::MAX, ..next.faults }, ..next };
        }
        at.members.iter().all(|member| member.left == 0)
    }
}

impl SharedState {
    fn sends(&self) -> [u8; HISTORY] {
        std::array::from_fn(|ticks| self.members.iter().map(|member| member.sends[ticks]).sum())
    }

    fn members_hold(&self) -> bool {
        self.members.iter().zip(OWN).all(|(member, limit)| member.sends.iter().sum::<u8>() <= limit)
    }

    fn edits_bind(&self) -> bool {
        let sends = self.sends();
        let is_bound = |ticks: usize| {
            let spanned = HISTORY.min(ticks + GRANT_AHEAD as usize);
            sends[..ticks].iter().sum::<u8>() <= self.limits[..spanned].iter().copied().max().unwrap_or(0)
        };
        (1..=WINDOW as usize + 1).all(is_bound)
    }
}

impl Model for SharedBudget {
    type State = SharedState;
    type Action = SharedAction;

    fn init_states(&self) -> Vec<SharedState> {
        let member = Member {
            left: self.backlog,
            stage: Stage::Idle,
            claim: None,
            cursor: None,
            last_sent: LONG_AGO,
            recovered: None,
            sends: [0; HISTORY],
        };
        vec![SharedState {
            members: [member; 2],
            cursor: None,
            age: GRANT_AHEAD - LONG_AGO,
            stored: 0,
            announced: 0,
            limits: [SHARED[0]; HISTORY],
            faults: self.faults,
        }]
    }

    fn actions(&self, _: &SharedState, actions: &mut Vec<SharedAction>) {
        actions.extend(Self::steps());
        actions.extend((0..2).map(SharedAction::Crashes));
        actions.extend([SharedAction::IsEdited, SharedAction::QueueIsLost]);
    }

    fn next_state(&self, state: &SharedState, action: SharedAction) -> Option<SharedState> {
        let mut next = state.clone();
        self.apply(&mut next, action)?;
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(GROUP_HOLDS, |_, state: &SharedState| state.sends().iter().sum::<u8>() <= SHARED[0]),
            Property::always(MEMBERS_HOLD, |_, state: &SharedState| state.members_hold()),
            Property::always(GROUP_EDITS_BIND, |_, state: &SharedState| state.edits_bind()),
            Property::always(ALL_SENT, |model: &Self, state| model.ends_well(state)),
        ]
    }
}
