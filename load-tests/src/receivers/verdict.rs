//! The figures of a case, from the exchanges alone, and what falls short of the wanted figures.

use std::time::{Duration, Instant};

use super::{
    case::{Case, Setting},
    relay::Exchange,
};

/// The case while it was played.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) case: Case,
    pub(super) exchanges: Vec<Exchange>,
    pub(super) ended: Instant,
    /// Events that were posted.
    pub(super) events: u64,
    /// Deliveries that were given up.
    pub(super) dead: u64,
    /// What stops the destination at the end, in the words of the API.
    pub(super) stopped: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    pub(super) sends: usize,
    pub(super) accepted: usize,
    /// Answers of 429 and 503.
    pub(super) refused: usize,
    pub(super) others: usize,
    /// The share of the limit that was used, from the first send on.
    pub(super) used: f64,
    /// The longest time without a send.
    pub(super) longest_pause: Duration,
}

impl Figures {
    pub(super) fn refused_share(&self) -> f64 {
        self.refused as f64 / self.sends.max(1) as f64
    }
}

impl Played {
    pub(super) fn figures(&self) -> Figures {
        let count = |is: fn(u16) -> bool| self.exchanges.iter().filter(|exchange| is(exchange.status)).count();
        let accepted = count(|status| (200..300).contains(&status));
        let refused = count(|status| status == 429 || status == 503);
        let mut sent: Vec<_> = self.exchanges.iter().map(|exchange| exchange.at).collect();
        sent.sort_unstable();
        let used = sent.first().map_or(0.0, |first| {
            let span_s = self.ended.saturating_duration_since(*first).as_secs_f64();
            // The first send opens the span, so it is not one of the sends within it.
            accepted.saturating_sub(1) as f64 / (self.case.limit.per_s() * span_s)
        });
        let times = sent.iter().copied().chain([self.ended]);
        let pauses = times.clone().skip(1).zip(times).map(|(next, last)| next.saturating_duration_since(last));
        Figures {
            sends: sent.len(),
            accepted,
            refused,
            others: sent.len() - accepted - refused,
            used,
            longest_pause: pauses.max().unwrap_or_default(),
        }
    }

    /// Each wanted figure that was not reached.
    pub(super) fn breaches(&self) -> Vec<String> {
        let (wanted, figures) = (self.case.wanted, self.figures());
        let mut breaches = Vec::new();
        if figures.sends == 0 {
            breaches.push("nothing was sent".to_owned());
        }
        if let Some(share) = wanted.refused_max {
            // One refusal is no share: a send can be late once.
            let most = (share * figures.sends as f64).ceil() as usize;
            if figures.refused > most {
                breaches.push(format!(
                    "{} of {} sends were refused, at most {most} are wanted",
                    figures.refused, figures.sends
                ));
            }
        }
        if let Some(share) = wanted.used_min
            && figures.used < share
        {
            breaches.push(format!(
                "{:.1} % of the limit was used, {:.0} % are wanted",
                figures.used * 100.0,
                share * 100.0
            ));
        }
        if wanted.all_delivered && (self.dead > 0 || figures.accepted as u64 != self.events) {
            breaches
                .push(format!("{} of {} events were delivered, {} are dead", figures.accepted, self.events, self.dead));
        }
        if figures.others > 0 {
            breaches.push(format!("{} answers were neither 2xx nor a refusal", figures.others));
        }
        breaches
    }

    /// Whether the use of the limit means something: a destination without a limit has finished before the end.
    pub(super) fn has_use(&self) -> bool {
        self.case.setting != Setting::Unlimited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::now,
        receivers::case::{Kind, Limit, Wanted},
    };

    /// Ten sends a second for ten seconds, of which the numbers in `refused` are refused.
    fn played(wanted: Wanted, refused: &[u64]) -> Played {
        let began = now();
        let exchange = |n: u64| Exchange {
            at: began + Duration::from_millis(100 * n),
            status: if refused.contains(&n) { 429 } else { 200 },
        };
        let case = Case {
            kind: Kind::Gcra,
            limit: Limit::per_second(10),
            jitter: Duration::ZERO,
            setting: Setting::Default,
            wanted,
        };
        Played {
            case,
            exchanges: (0..100).map(exchange).collect(),
            ended: began + Duration::from_millis(9_900),
            events: 100,
            dead: 0,
            stopped: None,
        }
    }

    #[test]
    fn figures_count_from_the_first_send() {
        let figures = played(Wanted::default(), &[7, 8, 9]).figures();
        assert_eq!((figures.sends, figures.accepted, figures.refused, figures.others), (100, 97, 3, 0));
        assert!((figures.used - 96.0 / 99.0).abs() < 1e-9 && (figures.refused_share() - 0.03).abs() < 1e-9);
        assert_eq!(figures.longest_pause, Duration::from_millis(100));
    }

    #[test]
    fn a_figure_below_the_wanted_one_is_a_breach() {
        let wanted = Wanted { refused_max: Some(0.002), used_min: Some(0.98), all_delivered: false };
        assert_eq!(played(wanted, &[5]).breaches(), Vec::<String>::new());
        let breaches = played(wanted, &[5, 50, 51]).breaches();
        assert_eq!(breaches[0], "3 of 100 sends were refused, at most 1 are wanted");
        assert_eq!(breaches[1], "97.0 % of the limit was used, 98 % are wanted");
    }

    #[test]
    fn an_event_that_is_not_delivered_is_a_breach() {
        let wanted = Wanted { all_delivered: true, ..Wanted::default() };
        assert_eq!(played(wanted, &[]).breaches(), Vec::<String>::new());
        let missing = Played { events: 120, dead: 20, ..played(wanted, &[]) };
        assert_eq!(missing.breaches(), ["100 of 120 events were delivered, 20 are dead"]);
        let silent = Played { exchanges: Vec::new(), ..played(Wanted::default(), &[]) };
        assert_eq!(silent.breaches(), ["nothing was sent"]);
    }
}
