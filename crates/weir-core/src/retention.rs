//! How long what has ended is kept.

use std::time::Duration;

use crate::{DeliveryState, time::Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

/// How long deliveries are kept once they have ended, with their attempts; their events as long as one of them. `None`: until
/// told otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub delivered: Option<Duration>,
    /// And whatever else ended without anybody having to look at it.
    pub cancelled: Option<Duration>,
    /// Dead letters: `dead` and `failed`.
    pub dead: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { delivered: Some(DAY * 14), cancelled: Some(DAY * 14), dead: None }
    }
}

/// The instants before which what has ended goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cutoffs {
    pub delivered: Option<Timestamp>,
    pub cancelled: Option<Timestamp>,
    pub dead: Option<Timestamp>,
}

impl Retention {
    pub fn cutoffs(&self, now: Timestamp) -> Cutoffs {
        let before = |kept: Option<Duration>| kept.map(|kept| now.before(kept));
        Cutoffs { delivered: before(self.delivered), cancelled: before(self.cancelled), dead: before(self.dead) }
    }
}

impl Cutoffs {
    /// Deliveries that have been in this state since before it go; `None`: none do.
    pub fn of(&self, state: DeliveryState) -> Option<Timestamp> {
        match state {
            DeliveryState::Delivered => self.delivered,
            DeliveryState::Dead | DeliveryState::Failed => self.dead,
            ended if ended.is_terminal() => self.cancelled,
            _ => None,
        }
    }

    /// No delivery that was created after it goes.
    pub fn deliveries(&self) -> Option<Timestamp> {
        [self.delivered, self.cancelled, self.dead].into_iter().flatten().max()
    }

    /// Events created before it go, once they have no deliveries: those that had none as late as others.
    pub fn events(&self) -> Option<Timestamp> {
        [self.delivered, self.cancelled].into_iter().flatten().min().or(self.dead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[test]
    fn dead_letters_stay_until_told() {
        let cutoffs = Retention::default().cutoffs(NOW);
        let fortnight = Some(NOW.before(DAY * 14));
        for state in DeliveryState::ALL {
            let expected = match state {
                DeliveryState::Dead | DeliveryState::Failed => None,
                state if state.is_terminal() => fortnight,
                _ => None,
            };
            assert_eq!(cutoffs.of(state), expected, "{state:?}");
        }
        assert_eq!((cutoffs.deliveries(), cutoffs.events()), (fortnight, fortnight));
    }

    #[test]
    fn an_event_waits_for_the_later_of_delivered_and_cancelled() {
        let kept = |delivered: Option<u32>, cancelled: Option<u32>, dead: Option<u32>| {
            let days = |days: Option<u32>| days.map(|days| DAY * days);
            Retention { delivered: days(delivered), cancelled: days(cancelled), dead: days(dead) }.cutoffs(NOW)
        };
        let ago = |days: u32| Some(NOW.before(DAY * days));
        let cutoffs = kept(Some(14), Some(1), Some(90));
        assert_eq!((cutoffs.deliveries(), cutoffs.events()), (ago(1), ago(14)));
        assert_eq!(kept(None, Some(1), None).events(), ago(1));
        assert_eq!(kept(None, None, Some(90)).events(), ago(90));
        assert_eq!(kept(None, None, None), Cutoffs::default());
        assert_eq!(Cutoffs::default().deliveries(), None);
    }
}
