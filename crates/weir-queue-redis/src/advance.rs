//! Permits that are asked for while their deliveries are being stored.
//!
//! A new delivery waits for its commit, then for Redis. To a destination without a limit every slot is the same, so there its
//! permit is asked for at once, and what Redis takes to answer hides behind the commit. Permit and delivery meet here; whichever
//! comes last, the worker gets both. A permit whose delivery was not stored after all goes back unused. Under a limit nothing
//! is asked for in advance: the slot might pass before the commit.
//!
//! The permits of a destination are as good as each other, and so are its deliveries: they are matched in the order they come.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use weir_core::{Clock as _, DestinationId, Timestamp, claim::ClaimedDelivery};
use weir_queue::{Mailbox, PermitId};

use crate::{
    core::{Answered, Core},
    keys::Shard,
    schedule::{by_destination, by_shard},
    scripts::{Call, Operation},
    wire::{Admitted, Granted},
};

/// A permit that is wanted.
#[derive(Debug, Clone, Copy)]
struct Order {
    destination_id: DestinationId,
    max_in_flight: u32,
    expires_at: Timestamp,
}

/// What has come of the orders of a destination, and has not met its other half.
#[derive(Debug, Default)]
struct Line {
    /// Orders whose delivery is neither stored nor given up.
    expected: usize,
    permits: VecDeque<Granted>,
    refusals: usize,
    deliveries: VecDeque<ClaimedDelivery>,
    given_up: usize,
}

impl Line {
    fn is_over(&self) -> bool {
        self.expected == 0
            && self.permits.is_empty()
            && self.refusals == 0
            && self.deliveries.is_empty()
            && self.given_up == 0
    }
}

/// What met.
#[derive(Debug, Default)]
struct Met {
    handed: Vec<(Granted, ClaimedDelivery)>,
    declined: Vec<ClaimedDelivery>,
    unused: Vec<(DestinationId, Granted)>,
}

impl Met {
    /// Matches what there is. A permit prefers a delivery, a refusal one that was given up.
    fn in_line(&mut self, id: DestinationId, line: &mut Line) {
        while !line.permits.is_empty() && !line.deliveries.is_empty() {
            self.handed.extend(line.permits.pop_front().zip(line.deliveries.pop_front()));
        }
        let pardoned = line.refusals.min(line.given_up);
        line.refusals -= pardoned;
        line.given_up -= pardoned;
        let declined = line.refusals.min(line.deliveries.len());
        line.refusals -= declined;
        self.declined.extend(line.deliveries.drain(..declined));
        let unused = line.given_up.min(line.permits.len());
        line.given_up -= unused;
        self.unused.extend(line.permits.drain(..unused).map(|permit| (id, permit)));
    }
}

#[derive(Default)]
struct Lines(HashMap<DestinationId, Line>);

impl Lines {
    fn expect(&mut self, id: DestinationId) {
        self.0.entry(id).or_default().expected += 1;
    }

    /// The delivery of an order comes or is given up. `false` when there is no such order.
    fn no_longer_expect(&mut self, id: DestinationId) -> bool {
        let line = self.0.get_mut(&id).filter(|line| line.expected > 0);
        line.map(|line| line.expected -= 1).is_some()
    }

    /// Changes a line, matches what there is then, and ends it with its last order.
    fn change(&mut self, id: DestinationId, met: &mut Met, change: impl FnOnce(&mut Line)) {
        let Some(line) = self.0.get_mut(&id) else { return };
        change(line);
        met.in_line(id, line);
        if line.is_over() {
            self.0.remove(&id);
        }
    }
}

#[derive(Default)]
pub(crate) struct Advance {
    orders: Mailbox<Order>,
    lines: Mutex<Lines>,
}

impl Advance {
    // A panic while the lock is held is a bug already reported; a line is whole between two calls.
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a permit for a delivery that is being stored.
    pub(crate) fn order(&self, destination_id: DestinationId, max_in_flight: u32, expires_at: Timestamp) {
        self.lines().expect(destination_id);
        self.orders.add(vec![Order { destination_id, max_in_flight, expires_at }]);
    }

    /// A delivery for which room was kept will not come. Answers whether a permit had been asked for.
    pub(crate) fn give_up(&self, core: &Core, id: DestinationId) -> bool {
        self.meet(core, |lines, met| {
            let is_ours = lines.no_longer_expect(id);
            if is_ours {
                lines.change(id, met, |line| line.given_up += 1);
            }
            is_ours
        })
    }

    /// These deliveries are stored. Answers those back for which no permit was asked for.
    pub(crate) fn deliver(&self, core: &Core, deliveries: Vec<ClaimedDelivery>) -> Vec<ClaimedDelivery> {
        self.meet(core, |lines, met| {
            let mut others = Vec::new();
            for delivery in deliveries {
                let id = delivery.claim.destination_id;
                if lines.no_longer_expect(id) {
                    lines.change(id, met, |line| line.deliveries.push_back(delivery));
                } else {
                    others.push(delivery);
                }
            }
            others
        })
    }

    /// Changes lines, and sends off what met by that.
    fn meet<T>(&self, core: &Core, change: impl FnOnce(&mut Lines, &mut Met) -> T) -> T {
        let mut met = Met::default();
        let changed = change(&mut self.lines(), &mut met);
        core.part(met);
        changed
    }

    /// Fetches what was ordered, for ever.
    pub(crate) async fn run(&self, core: &Core) {
        loop {
            let orders = self.orders.take().await;
            let batches = by_shard(by_destination(orders, |order| order.destination_id), |(id, _)| *id);
            let calls: Vec<Call> = batches.iter().map(|(shard, groups)| call(core, *shard, groups)).collect();
            let answers = core.call_all(&calls).await;
            for ((_, groups), answered) in batches.into_iter().zip(answers) {
                match answered {
                    Ok(answered) => self.sort_out(core, &groups, answered),
                    // Permits that were issued all the same are nobody's, and expire.
                    Err(error) => {
                        tracing::warn!(%error, "could not admit deliveries");
                        groups.iter().for_each(|(id, orders)| self.refuse(core, *id, orders.len()));
                    }
                }
            }
        }
    }

    fn sort_out(&self, core: &Core, groups: &[(DestinationId, Vec<Order>)], mut answered: Answered) {
        for (id, orders) in groups {
            let Some(admitted) = answered.rest.next_admitted() else {
                tracing::warn!("an answer of an unexpected shape");
                self.refuse(core, *id, orders.len());
                continue;
            };
            let Admitted { count, permits, version, room, open_from } = admitted;
            let count = count.min(orders.len());
            core.gates.admitted(*id, count as u32, room, open_from, core.clock.now());
            let granted = permits.granted(answered.generation, version).take(count);
            self.meet(core, |lines, met| lines.change(*id, met, |line| line.permits.extend(granted)));
            if count < orders.len() {
                self.refuse(core, *id, orders.len() - count);
            }
        }
    }

    fn refuse(&self, core: &Core, id: DestinationId, count: usize) {
        core.gates.declined(id, count as u32, core.clock.now());
        self.meet(core, |lines, met| lines.change(id, met, |line| line.refusals += count));
    }
}

impl Core {
    /// Sends off what met.
    fn part(&self, met: Met) {
        let Met { handed, mut declined, unused } = met;
        declined.extend(self.hand_over(handed));
        self.admissions.decline(declined);
        for (destination_id, Granted { serial, generation, .. }) in unused {
            self.reports.add_unused(PermitId { destination_id, serial }, generation);
        }
    }
}

fn call(core: &Core, shard: Shard, groups: &[(DestinationId, Vec<Order>)]) -> Call {
    let mut call = core.new_call(shard, Operation::Admit);
    // The caller takes the permits; nothing is repeated, so the call needs no name.
    call.arg(1).arg("").arg("").arg(0);
    for (id, orders) in groups {
        call.destination(*id).arg(orders.last().map_or(0, |order| order.max_in_flight)).limits(&[]);
        call.permits(orders.iter().map(|order| order.expires_at));
    }
    call
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use weir_core::{
        DeliveryId, EventId,
        claim::{Claim, ClaimedBody},
        event::EventBody,
    };

    use super::*;

    fn id() -> DestinationId {
        DestinationId::from_bytes([1; 16])
    }

    fn delivery(number: u8) -> ClaimedDelivery {
        ClaimedDelivery {
            claim: Claim { delivery_id: DeliveryId::from_bytes([number; 16]), destination_id: id(), epoch: 1 },
            event_id: EventId::from_bytes([number; 16]),
            event_created_at: Timestamp::MIN,
            attempts: 0,
            attempts_before: 0,
            in_lane: false,
            body: ClaimedBody::Inline(EventBody::stored(Bytes::from_static(b"{}"), 0)),
            expires_at: Timestamp::from_secs(60),
            destination: None,
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Happening {
        Granted,
        Refused,
        Stored,
        GivenUp,
    }

    proptest! {
        /// As many answers come as orders, and as many deliveries or cancellations: in any order, each is matched once.
        #[test]
        fn every_half_meets_another(
            outcomes in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..40),
            seed in any::<prop::sample::Index>(),
            rounds in 1..7_usize,
        ) {
            let mut happenings: Vec<Happening> = outcomes
                .iter()
                .flat_map(|&(granted, stored)| {
                    let answer = if granted { Happening::Granted } else { Happening::Refused };
                    [answer, if stored { Happening::Stored } else { Happening::GivenUp }]
                })
                .collect();
            for round in 0..rounds {
                let length = happenings.len();
                happenings.rotate_left(seed.index(length));
                happenings.swap(0, (round * 7 + 1) % length);
            }
            let (mut line, mut met) = (Line::default(), Met::default());
            let stored = outcomes.iter().filter(|(_, stored)| *stored).count();
            let granted = outcomes.iter().filter(|(granted, _)| *granted).count();
            for (number, happening) in happenings.into_iter().enumerate() {
                match happening {
                    Happening::Granted => {
                        line.permits.push_back(Granted { serial: number as u64, generation: 1, version: 1, slot: None });
                    }
                    Happening::Refused => line.refusals += 1,
                    Happening::Stored => line.deliveries.push_back(delivery(number as u8)),
                    Happening::GivenUp => line.given_up += 1,
                }
                met.in_line(id(), &mut line);
            }
            prop_assert!(line.is_over(), "{line:?}");
            prop_assert_eq!(met.handed.len() + met.declined.len(), stored);
            prop_assert_eq!(met.handed.len() + met.unused.len(), granted);
        }
    }
}
