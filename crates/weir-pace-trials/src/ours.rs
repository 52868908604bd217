//! The adaptive rate of Weir as a pacer.

use weir_core::adaptive::{AdaptiveRate, Quota, Sample, Settings, Verdict};

use crate::{
    receiver::Ending,
    world::{Answer, MAX_IN_FLIGHT, Pacer, timestamp, trial_seconds},
};

pub struct Ours {
    rate: AdaptiveRate,
    /// The copy in the store, and when it was written.
    copy: (AdaptiveRate, f64),
}

impl Ours {
    pub fn new() -> Self {
        let rate = AdaptiveRate::new(Settings::default(), MAX_IN_FLIGHT, None, timestamp(0.0));
        Self { copy: (rate.clone(), 0.0), rate }
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self::new()
    }
}

impl Pacer for Ours {
    fn next_start(&mut self, _now: f64, in_flight: u32) -> Option<f64> {
        self.rate.next_start(in_flight).map(trial_seconds)
    }

    fn sent(&mut self, now: f64, _in_flight: u32) -> u32 {
        self.rate.take(timestamp(now));
        self.rate.generation()
    }

    fn learn(&mut self, now: f64, answers: &[Answer]) {
        let at = timestamp(now);
        for answers in answers.chunk_by(|a, b| a.stamp == b.stamp) {
            let mut sample = Sample { generation: answers[0].stamp, ..Sample::default() };
            for answer in answers {
                let verdict = match answer.ending {
                    Ending::Taken => Verdict::Ok,
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
            self.rate.observe(&sample, at);
        }
        self.rate.step(at);
        if now - self.copy.1 >= 10.0 {
            self.copy = (self.rate.clone(), now);
        }
    }

    fn lose(&mut self, now: f64) {
        self.rate = AdaptiveRate::resumed(self.copy.0.clone(), true, timestamp(now));
    }
}
