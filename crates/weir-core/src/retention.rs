//! How long ended deliveries and their events are kept.

use std::time::Duration;

use crate::{DeliveryState, time::Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

/// How long the activity log is kept: a year, as auditors ask for.
pub const ACTIVITY_KEPT: Duration = Duration::from_secs(365 * 86_400);
/// How long the first answer to a request with an `Idempotency-Key` is kept.
pub const ANSWERS_KEPT: Duration = DAY;

/// How long ended deliveries and their attempts are kept. An event is kept as long as one of its deliveries. `None`:
/// without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub delivered: Option<Duration>,
    /// Applies to `cancelled`, `superseded` and `expired`.
    pub cancelled: Option<Duration>,
    /// Dead letters: `dead` and `failed`.
    pub dead: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { delivered: Some(DAY * 14), cancelled: Some(DAY * 14), dead: None }
    }
}

/// The instants before which ended deliveries are deleted.
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
    /// Deliveries that entered this state before the returned instant are deleted; `None`: none are.
    pub fn of(&self, state: DeliveryState) -> Option<Timestamp> {
        match state {
            DeliveryState::Delivered => self.delivered,
            DeliveryState::Dead | DeliveryState::Failed => self.dead,
            state if state.is_terminal() => self.cancelled,
            _ => None,
        }
    }

    /// No delivery that was created after the returned instant is deleted.
    pub fn deliveries(&self) -> Option<Timestamp> {
        [self.delivered, self.cancelled, self.dead].into_iter().flatten().max()
    }

    /// Events that were created before the returned instant are deleted when they have no deliveries: when all were
    /// deleted, or when there never were any.
    pub fn events(&self) -> Option<Timestamp> {
        [self.delivered, self.cancelled].into_iter().flatten().min().or(self.dead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[test]
    fn dead_letters_are_kept_by_default() {
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
    fn an_event_is_kept_for_the_longer_retention_of_delivered_and_cancelled() {
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
