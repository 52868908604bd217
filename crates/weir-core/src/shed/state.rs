//! What is counted of a class and of a client.

use std::sync::Arc;

use super::{peaks::Peaks, pressure::Counts, request::Class};

#[derive(Debug)]
pub(super) struct ClassState {
    pub(super) class: Class,
    pub(super) in_flight: u32,
    /// The most in this second.
    pub(super) peak: u32,
    pub(super) peaks: Peaks,
    /// The weights of the clients with requests in the last second and in this one, and in this one alone.
    pub(super) weights: u64,
    pub(super) weights_now: u64,
    /// In the last second.
    pub(super) refused: Counts,
    pub(super) completed: Counts,
    /// Since the last look at other processes.
    pub(super) refused_since_look: u32,
}

impl ClassState {
    pub(super) fn new(class: Class) -> Self {
        Self {
            class,
            in_flight: 0,
            peak: 0,
            peaks: Peaks::default(),
            weights: 0,
            weights_now: 0,
            refused: Counts::default(),
            completed: Counts::default(),
            refused_since_look: 0,
        }
    }

    /// `is_next`: the second that follows is the next one.
    pub(super) fn end_second(&mut self, is_next: bool) {
        if self.peak > 0 {
            self.peaks.add(self.peak);
        }
        self.peak = self.in_flight;
        self.weights = if is_next { self.weights_now } else { 0 };
        self.weights_now = 0;
    }
}

#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) name: Arc<str>,
    pub(super) in_flight: [u32; Class::COUNT],
    /// The second of the last request of a class.
    pub(super) seen: [i64; Class::COUNT],
    /// The most in `peak_second`, of all classes but control.
    pub(super) peak: u32,
    pub(super) peak_second: i64,
    pub(super) peaks: Peaks,
    pub(super) refused: u64,
    pub(super) refused_since_look: u32,
    /// The part of the client's limit that this process may use, and the look that it was computed after.
    pub(super) budget: (u64, u32),
}

impl ClientState {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            in_flight: [0; Class::COUNT],
            seen: [i64::MIN / 2; Class::COUNT],
            peak: 0,
            peak_second: 0,
            peaks: Peaks::default(),
            refused: 0,
            refused_since_look: 0,
            budget: (0, 0),
        }
    }

    /// What counts against the client's own limit. Control is left out: a limit must not keep an operator out.
    pub(super) fn counted(&self) -> u32 {
        self.in_flight.iter().sum::<u32>() - self.in_flight[Class::Control as usize]
    }

    pub(super) fn note_peak(&mut self, second: i64) {
        if self.peak_second != second {
            if self.peak > 0 {
                self.peaks.add(self.peak);
            }
            (self.peak_second, self.peak) = (second, 0);
        }
        self.peak = self.peak.max(self.counted());
    }
}
