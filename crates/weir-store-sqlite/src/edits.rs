//! Edits: single changes requested by a person, by a destination's answer or by the sweep. The writer runs them one at
//! a time, in their order.

use std::{collections::BTreeSet, sync::Arc};

use weir_core::{
    ApiKeyId, DeliveryId, Destination, DestinationId, ReplayId, Timestamp,
    activity::Activity,
    alert::{AlertPolicy, AlertState},
    claim::Claim,
};
use weir_store::{
    ApiKey, BreakerChange, ClaimRequest, Claims, Created, Creation, Deletion, DeliveryAction, DestinationDeletion,
    DestinationPatch, Hold, MessageGroup, NamedCreation, NewReplay, Pause, Pruned, Purge, PurgePlace, PurgeStep,
    ReplayPhase, ReplayStep, SessionSecret, StoreError,
};

use crate::{
    error::Result,
    group::{Operation, Pending},
    prune::PruneBatch,
    writer::Transaction,
};

/// A change that is too rare to share a statement with others.
pub(crate) enum Edit {
    Create(Pending<(Destination, Creation), Created<Arc<Destination>>>),
    CreateNamed(Pending<(Destination, Activity), NamedCreation>),
    Patch(Pending<(DestinationPatch, Creation), Created<Option<Arc<Destination>>>>),
    Pause(Pending<Vec<Pause>, Vec<bool>>),
    Hold(Pending<Vec<Hold>, ()>),
    ChangeBreakers(Pending<Vec<BreakerChange>, Vec<bool>>),
    Delete(Pending<(DestinationDeletion, Activity), Deletion>),
    RetryDelivery(Pending<(DeliveryId, Timestamp, Activity), DeliveryAction>),
    CancelDelivery(Pending<(DeliveryId, Timestamp, Activity), DeliveryAction>),
    /// Made by the sweep. The input is the present time and the maximum number of deliveries.
    Expire(Pending<(Timestamp, u32), u64>),
    /// One step of a purge. The input has the activity of the purge, and the number of deliveries that earlier steps
    /// have cancelled.
    Purge(Pending<(Purge, Option<PurgePlace>, Activity, u64), PurgeStep>),
    /// Made by the sweep. The input is the message groups that seem to have no head.
    Advance(Pending<BTreeSet<MessageGroup>, u64>),
    /// Made by the sweep. The input is a destination that is no longer ordered, and the maximum number of deliveries to
    /// remove from its groups.
    Dissolve(Pending<(DestinationId, u32), u32>),
    CreateReplay(Pending<(NewReplay, u64, Creation), Created<()>>),
    CancelReplay(Pending<(ReplayId, Timestamp, Activity), Option<ReplayPhase>>),
    StepReplay(Pending<(ReplayId, Timestamp), ReplayStep>),
    ClaimReplays(Pending<(Vec<ClaimRequest>, Timestamp), Vec<Claims>>),
    Prune(Pending<PruneBatch, Pruned>),
    /// Deletes old activities and old answers. Activities from before the first instant and answers from before the
    /// second are old.
    PruneActivity(Pending<(Timestamp, Timestamp), u64>),
    /// Records an activity that changes nothing else.
    Record(Pending<Creation, Created<()>>),
    /// Folds recorded changes into the totals. The scheduler asks for it.
    Fold(Pending<(), u64>),
    /// One step of the retention of traffic, at the present time.
    RollUp(Pending<Timestamp, bool>),
    /// The first policy must be the current one; the second replaces it.
    SetAlertPolicy(Pending<(AlertPolicy, AlertPolicy, Activity), bool>),
    /// The alert state of a destination. The number is the version that must be the current one.
    RecordAlertState(Pending<(DestinationId, u64, AlertState), bool>),
    CreateApiKey(Pending<(ApiKey, Creation), Created<()>>),
    DeleteApiKey(Pending<(ApiKeyId, Activity), bool>),
    KeepSessionSecret(Pending<SessionSecret, SessionSecret>),
    /// Made by the worker, again and again. The input is the claims, and before when none of them expires.
    Renew(Pending<(Vec<Claim>, Timestamp), u64>),
    /// The input is the latest instant at which an unrecorded send may have started.
    MarkRestored(Pending<Timestamp, ()>),
    /// Proves that the writer runs and can lock the database.
    Check(Pending<(), ()>),
    /// Proves that the writer can write.
    Beat(Pending<(), ()>),
}

impl Edit {
    /// Boxed, because edits are rare and would make every operation larger.
    pub(crate) fn operation(self) -> Operation {
        Operation::Edit(Box::new(self))
    }

    /// Whether the commit must reach the disk. A power failure may lose a hold (one `Retry-After` is then ignored), a
    /// change of a breaker (the breaker opens again), and steps that background work repeats. A check and a
    /// beat change nothing. All other edits were acknowledged.
    pub(crate) fn durable(&self) -> bool {
        if let Self::ClaimReplays(claim) = self {
            return claim.input.0.iter().any(|request| request.durable);
        }
        let is_repeated = matches!(
            self,
            Self::Expire(_)
                | Self::Renew(_)
                | Self::Advance(_)
                | Self::Dissolve(_)
                | Self::StepReplay(_)
                | Self::Prune(_)
                | Self::PruneActivity(_)
                | Self::Fold(_)
                | Self::RollUp(_)
        );
        !is_repeated && !matches!(self, Self::Hold(_) | Self::ChangeBreakers(_) | Self::Check(_) | Self::Beat(_))
    }

    pub(crate) fn run(&mut self, transaction: &mut Transaction<'_, '_>) -> Result<()> {
        match self {
            Self::Create(edit) => {
                let (destination, creation) = &edit.input;
                edit.answer = Some(match transaction.is_full(destination) {
                    true => transaction.stored_answer(creation)?.map_or(Created::Full, Created::Before),
                    false => transaction.create_once(creation, |this| this.create_destination(destination))?,
                });
            }
            Self::CreateNamed(edit) => {
                let created = transaction.create_named_destination(&edit.input.0)?;
                edit.answer = Some(transaction.recorded(created, NamedCreation::is_new, &edit.input.1)?);
            }
            Self::Patch(edit) => {
                edit.answer = Some(transaction.patch_destination(&edit.input.0, &edit.input.1)?);
            }
            Self::Pause(edit) => {
                let paused = edit.input.iter().map(|pause| transaction.pause_destination(pause));
                edit.answer = Some(paused.collect::<Result<_>>()?);
            }
            Self::Hold(edit) => {
                edit.answer = Some(edit.input.iter().try_for_each(|hold| transaction.hold_destination(hold))?);
            }
            Self::ChangeBreakers(edit) => {
                let changed = edit.input.iter().map(|change| transaction.change_breaker(change));
                edit.answer = Some(changed.collect::<Result<_>>()?);
            }
            Self::Delete(edit) => {
                let deleted = transaction.delete_destination(&edit.input.0)?;
                let is_deleted = |deletion: &Deletion| *deletion == Deletion::Deleted;
                edit.answer = Some(transaction.recorded(deleted, is_deleted, &edit.input.1)?);
            }
            Self::RetryDelivery(edit) => {
                let (id, now, activity) = &edit.input;
                let retried = transaction.retry_delivery(*id, *now)?;
                edit.answer = Some(transaction.recorded(retried, DeliveryAction::is_done, activity)?);
            }
            Self::CancelDelivery(edit) => {
                let (id, now, activity) = &edit.input;
                let cancelled = transaction.cancel_delivery(*id, *now)?;
                edit.answer = Some(transaction.recorded(cancelled, DeliveryAction::is_done, activity)?);
            }
            Self::Expire(edit) => edit.answer = Some(transaction.expire_deliveries(edit.input.0, edit.input.1)?),
            Self::Purge(edit) => {
                let (purge, after, activity, before) = &edit.input;
                let step = transaction.purge(purge, *after)?;
                let counted = activity.clone().with_cancelled(before + step.cancelled);
                edit.answer = Some(transaction.recorded(step, |step| step.cancelled > 0, &counted)?);
            }
            Self::Advance(edit) => {
                edit.answer = Some(transaction.advance_message_groups(&edit.input)?);
            }
            Self::Dissolve(edit) => {
                edit.answer = Some(transaction.dissolve_message_groups(edit.input.0, edit.input.1)?);
            }
            Self::CreateReplay(edit) => {
                let (replay, total, creation) = &edit.input;
                edit.answer = Some(transaction.create_once(creation, |this| this.create_replay(replay, *total))?);
            }
            Self::CancelReplay(edit) => {
                let (id, now, activity) = &edit.input;
                edit.answer = Some(transaction.cancel_replay(*id, *now, activity)?);
            }
            Self::StepReplay(edit) => edit.answer = Some(transaction.step_replay(edit.input.0, edit.input.1)?),
            Self::ClaimReplays(edit) => edit.answer = Some(transaction.claim_all(&edit.input.0, edit.input.1, true)?),
            Self::Prune(edit) => edit.answer = Some(transaction.prune(&edit.input)?),
            Self::Fold(edit) => edit.answer = Some(transaction.fold_changes()?),
            Self::RollUp(edit) => edit.answer = Some(transaction.roll_up_traffic(edit.input)?),
            Self::Renew(edit) => edit.answer = Some(transaction.renew(&edit.input.0, edit.input.1)?),
            Self::MarkRestored(edit) => edit.answer = Some(transaction.mark_restored(edit.input)?),
            Self::PruneActivity(edit) => {
                edit.answer = Some(transaction.prune_activity(edit.input.0, edit.input.1)?);
            }
            Self::Record(edit) => edit.answer = Some(transaction.create_once(&edit.input, |_| Ok(()))?),
            Self::SetAlertPolicy(edit) => {
                let (expected, policy, activity) = &edit.input;
                let is_set = transaction.set_alert_policy(expected, policy)?;
                edit.answer = Some(transaction.recorded(is_set, |is_set| *is_set, activity)?);
            }
            Self::RecordAlertState(edit) => {
                let (id, version, state) = &edit.input;
                edit.answer = Some(transaction.record_alert_state(*id, *version, state)?);
            }
            Self::CreateApiKey(edit) => {
                let (key, creation) = &edit.input;
                edit.answer = Some(transaction.create_once(creation, |this| this.create_api_key(key))?);
            }
            Self::DeleteApiKey(edit) => {
                let deleted = transaction.delete_api_key(edit.input.0)?;
                edit.answer = Some(transaction.recorded(deleted, |deleted| *deleted, &edit.input.1)?);
            }
            Self::KeepSessionSecret(edit) => edit.answer = Some(transaction.keep_session_secret(&edit.input)?),
            Self::Check(edit) => edit.answer = Some(()),
            Self::Beat(edit) => edit.answer = Some(transaction.beat()?),
        }
        Ok(())
    }

    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        match self {
            Self::Create(edit) => edit.finish(failure),
            Self::CreateNamed(edit) => edit.finish(failure),
            Self::Patch(edit) => edit.finish(failure),
            Self::Pause(edit) => edit.finish(failure),
            Self::Hold(edit) => edit.finish(failure),
            Self::ChangeBreakers(edit) => edit.finish(failure),
            Self::Delete(edit) => edit.finish(failure),
            Self::RetryDelivery(edit) | Self::CancelDelivery(edit) => edit.finish(failure),
            Self::Expire(edit) => edit.finish(failure),
            Self::Purge(edit) => edit.finish(failure),
            Self::Advance(edit) => edit.finish(failure),
            Self::Dissolve(edit) => edit.finish(failure),
            Self::CreateReplay(edit) => edit.finish(failure),
            Self::CancelReplay(edit) => edit.finish(failure),
            Self::StepReplay(edit) => edit.finish(failure),
            Self::ClaimReplays(edit) => edit.finish(failure),
            Self::Prune(edit) => edit.finish(failure),
            Self::PruneActivity(edit) => edit.finish(failure),
            Self::Record(edit) => edit.finish(failure),
            Self::Fold(edit) => edit.finish(failure),
            Self::RollUp(edit) => edit.finish(failure),
            Self::SetAlertPolicy(edit) => edit.finish(failure),
            Self::RecordAlertState(edit) => edit.finish(failure),
            Self::Renew(edit) => edit.finish(failure),
            Self::MarkRestored(edit) => edit.finish(failure),
            Self::CreateApiKey(edit) => edit.finish(failure),
            Self::DeleteApiKey(edit) => edit.finish(failure),
            Self::KeepSessionSecret(edit) => edit.finish(failure),
            Self::Check(edit) | Self::Beat(edit) => edit.finish(failure),
        }
    }
}
