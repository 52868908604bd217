//! Overload: the rates offered and sent, compared with the rate that the machine can take.

use serde::{Deserialize, Serialize};

use crate::recording::Recording;

/// Rates in events a second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Overload {
    /// Measured before the run.
    pub(crate) capacity_per_s: f64,
    pub(crate) offered_per_s: f64,
    /// Sent while more was offered.
    pub(crate) sent_per_s: f64,
}

impl Overload {
    /// The rate sent ÷ the rate that the machine can take.
    pub(crate) fn share(&self) -> f64 {
        self.sent_per_s / self.capacity_per_s
    }
}

/// `None` for a group that is not overloaded.
pub(crate) fn judge(recording: &Recording, group: usize) -> Option<Overload> {
    recording.groups[group].expect.overload_min?;
    let offered = || recording.events.iter().filter(|event| event.groups.contains(&group)).map(|event| event.meant);
    let until = offered().max()?;
    let span_s = until.since(recording.began).as_secs_f64();
    let sent = |number| recording.at(number).partition_point(|arrival| arrival.at <= until);
    let sent: usize = recording.of_group(group).map(sent).sum();
    Some(Overload {
        capacity_per_s: recording.capacity_per_s?,
        offered_per_s: offered().count() as f64 / span_s,
        sent_per_s: sent as f64 / span_s / recording.of_group(group).count() as f64,
    })
}
