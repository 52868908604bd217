//! The last part of a run for a destination with a replay. Such a run makes two claims: the first takes live
//! deliveries, the second takes replayed deliveries.

use weir_core::{Timestamp, plan::NextRun, replay_share::ClaimResult};
use weir_store::Claims;

use crate::{
    release::Failure,
    run::{RETRY_RUN, Run},
    scheduler::Scheduler,
};

/// A run of a destination with replays, after its claim of live deliveries.
struct ReplayRun {
    run: Run,
    /// The result of the claim of live deliveries.
    live: ClaimResult,
    /// How many replayed deliveries the run may publish.
    limit: u32,
}

impl Scheduler {
    /// Publishes the live deliveries, then claims and publishes replayed deliveries. Live deliveries never wait for the
    /// claim of replayed ones.
    pub(crate) async fn publish_with_replays(&self, runs: Vec<(Run, Claims)>, now: Timestamp) -> Result<(), Failure> {
        // Publish the live deliveries. The runs continue under the same leases.
        let mut live = Vec::new();
        let mut replay_runs: Vec<ReplayRun> = Vec::with_capacity(runs.len());
        for (mut run, claims) in runs {
            let live_claims =
                ClaimResult { exhausted: claims.deliveries.len() < run.wanted() as usize, next_due: claims.next_due };
            run.published += claims.deliveries.len() as u32;
            run.deliveries = claims.deliveries;
            if !run.deliveries.is_empty() {
                live.push(run.publication(NextRun::Continue));
            }
            // Replayed deliveries get their minimum of permits, or more if the live deliveries leave permits unused.
            let limit = run.split.unwrap_or_default().replay(run.published);
            replay_runs.push(ReplayRun { run, live: live_claims, limit });
        }
        self.publish(live).await?;

        // Claim replayed deliveries with the permits that the live ones left unused.
        let requests: Vec<_> =
            replay_runs.iter().map(|ReplayRun { run, limit, .. }| run.claim_request(*limit)).collect();
        let claims = match self.store.claim_replays(requests, now).await {
            Ok(claims) => claims,
            Err(error) => {
                // The claims may have been made, and then expire by themselves. The jobs run again soon.
                self.end_runs(replay_runs.into_iter().map(|replay_run| replay_run.run).collect(), now + RETRY_RUN)
                    .await?;
                return Err(error.into());
            }
        };
        // Publish them, update the credits, and end the runs.
        let mut publications = Vec::with_capacity(replay_runs.len());
        for (ReplayRun { run, live, limit }, claims) in replay_runs.into_iter().zip(claims) {
            let replay = ClaimResult { exhausted: claims.deliveries.len() < limit as usize, next_due: claims.next_due };
            let id = run.destination_id();
            if let Some(credit) = self.replay_shares.credit(id) {
                self.replay_shares
                    .set_credit(id, credit.after(run.published, claims.deliveries.len() as u32, replay.exhausted));
            }
            publications.push(run.end_with_replay(claims.deliveries, live, replay));
        }
        self.publish(publications).await
    }
}
