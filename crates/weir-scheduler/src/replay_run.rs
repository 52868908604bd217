//! The end of runs whose destinations have a lane of replays: two claims, the live one first.

use weir_core::{Timestamp, plan::NextRun, replay_share::ClaimResult};
use weir_store::Claims;

use crate::{
    returns::Failure,
    run::Run,
    scheduler::{RETRY_RUN, Scheduler},
};

/// A run of a destination with a lane, once it has claimed what is live.
struct ReplayRun {
    run: Run,
    /// What the claim of what is live brought.
    live: ClaimResult,
    /// How much of the lane it may publish.
    most: u32,
}

impl Scheduler {
    /// Publishes what is live, and after it what the lane may have beside it; so nothing live waits for the lane's claim.
    pub(crate) async fn publish_with_replays(&self, runs: Vec<(Run, Claims)>, now: Timestamp) -> Result<(), Failure> {
        let mut live = Vec::new();
        let mut laned: Vec<ReplayRun> = Vec::with_capacity(runs.len());
        for (mut run, claims) in runs {
            let brought =
                ClaimResult { exhausted: claims.deliveries.len() < run.wanted() as usize, next_due: claims.next_due };
            run.published += claims.deliveries.len() as u32;
            run.deliveries = claims.deliveries;
            if !run.deliveries.is_empty() {
                live.push(run.publication(NextRun::Continue));
            }
            let most = run.split.unwrap_or_default().replay(run.published);
            laned.push(ReplayRun { run, live: brought, most });
        }
        self.publish(live).await?;
        let requests: Vec<_> = laned.iter().map(|ReplayRun { run, most, .. }| run.claim_request(*most)).collect();
        let claims = match self.store.claim_replays(requests, now).await {
            Ok(claims) => claims,
            Err(error) => {
                self.end_runs(laned.into_iter().map(|laned| laned.run).collect(), now + RETRY_RUN).await?;
                return Err(error.into());
            }
        };
        let mut publications = Vec::with_capacity(laned.len());
        for (ReplayRun { run, live, most }, claims) in laned.into_iter().zip(claims) {
            let replay = ClaimResult { exhausted: claims.deliveries.len() < most as usize, next_due: claims.next_due };
            let id = run.lease.destination_id;
            if let Some(credit) = self.replay_shares.credit(id) {
                self.replay_shares
                    .set_credit(id, credit.after(run.published, claims.deliveries.len() as u32, replay.exhausted));
            }
            publications.push(run.end_with_replay(claims.deliveries, live, replay));
        }
        self.publish(publications).await
    }
}
