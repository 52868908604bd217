//! The types of the events that are alerts.

/// What an alert says. Its name is the type of its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumIter, strum::EnumString, strum::IntoStaticStr)]
#[strum(const_into_str)]
pub enum AlertType {
    #[strum(serialize = "weir.backlog.high")]
    BacklogHigh,
    #[strum(serialize = "weir.backlog.cleared")]
    BacklogCleared,
    #[strum(serialize = "weir.breaker.opened")]
    BreakerOpened,
    #[strum(serialize = "weir.breaker.closed")]
    BreakerClosed,
    #[strum(serialize = "weir.destination.paused")]
    Paused,
    #[strum(serialize = "weir.destination.refused")]
    Refused,
    #[strum(serialize = "weir.destination.admitted")]
    Admitted,
    #[strum(serialize = "weir.destination.refusing")]
    Refusing,
    #[strum(serialize = "weir.destination.accepting")]
    Accepting,
    #[strum(serialize = "weir.destination.stalled")]
    Stalled,
    #[strum(serialize = "weir.destination.recovered")]
    Recovered,
    #[strum(serialize = "weir.installation.stalled")]
    InstallationStalled,
    #[strum(serialize = "weir.installation.recovered")]
    InstallationRecovered,
    #[strum(serialize = "weir.rate.lowered")]
    RateLowered,
    #[strum(serialize = "weir.rate.restored")]
    RateRestored,
    #[strum(serialize = "weir.limit_group.behind")]
    GroupBehind,
    #[strum(serialize = "weir.limit_group.caught_up")]
    GroupCaughtUp,
    #[strum(serialize = "weir.delivery.dead")]
    Dead,
}

impl AlertType {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// `None`: no type, or one of a later version.
    pub fn named(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator as _;

    use super::*;

    #[test]
    fn the_guide_to_alerts_names_every_type_and_no_other() {
        let guide = include_str!("../../../../docs/guides/alerts.md");
        for known in AlertType::iter() {
            assert!(guide.contains(known.as_str()), "{known:?}");
        }
        let names = guide.split(|c: char| !c.is_ascii_lowercase() && !"._".contains(c));
        for name in names.filter(|name| name.starts_with("weir.") && name.split('.').all(|part| !part.is_empty())) {
            assert!(AlertType::named(name).is_some(), "{name}");
        }
    }
}
