//! The adaptive rate of Weir as a pacer.

use weir_core::{
    Timestamp,
    adaptive::{AdaptiveRate, PaceCursor, Quota, Sample, Settings, Verdict},
};

use crate::{
    receiver::Ending,
    world::{Answer, MAX_IN_FLIGHT, Pacer, timestamp, trial_seconds},
};

pub struct Ours {
    rate: AdaptiveRate,
    /// What the queue has.
    cursor: PaceCursor,
    /// The copy in the store, and when it was written.
    copy: (AdaptiveRate, f64),
}

impl Ours {
    pub fn new() -> Self {
        let rate = AdaptiveRate::new(Settings::default(), MAX_IN_FLIGHT, None, timestamp(0.0));
        Self { copy: (rate.clone(), 0.0), cursor: rate.cursor(timestamp(0.0)), rate }
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self::new()
    }
}

impl Pacer for Ours {
    fn next_start(&mut self, _now: f64, in_flight: u32) -> Option<f64> {
        if in_flight >= self.cursor.window {
            self.cursor.was_full = true;
            return None;
        }
        Some(trial_seconds(self.cursor.next_start()))
    }

    fn sent(&mut self, now: f64, _in_flight: u32) -> u32 {
        self.cursor.take(timestamp(now), true);
        self.cursor.generation
    }

    fn learn(&mut self, now: f64, answers: &[Answer]) {
        let at = timestamp(now);
        let mut reports: Vec<(Timestamp, Sample)> = Vec::new();
        for answers in answers.chunk_by(|a, b| a.stamp == b.stamp) {
            let mut sample = Sample { generation: answers[0].stamp, ..Sample::default() };
            for answer in answers {
                let verdict = match answer.ending {
                    Ending::Taken | Ending::Broken => Verdict::Ok,
                    Ending::Refused => Verdict::Throttled,
                    Ending::Failed => Verdict::Failed,
                };
                sample.add(verdict, answer.at - answer.sent_at, answer.in_flight);
                if let Some(wait) = answer.retry_after {
                    sample.held_until = sample.held_until.max(Some(timestamp(answer.at + wait)));
                }
                if let Some((remaining, reset)) = answer.quota {
                    sample.quota = Some(Quota { remaining, reset: timestamp(reset) });
                }
            }
            reports.push((at, sample));
        }
        self.rate.learn(&self.cursor.lend(), &reports, at);
        self.cursor.follow(&self.rate.cursor(at));
        if now - self.copy.1 >= 10.0 {
            self.copy = (self.rate.clone(), now);
        }
    }

    fn lose(&mut self, now: f64) {
        self.rate = AdaptiveRate::resumed(self.copy.0.clone(), timestamp(now), timestamp(now));
        self.cursor = self.rate.cursor(timestamp(now));
    }
}
