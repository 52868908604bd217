//! Edits: single changes requested by a person, by a destination's answer or by the sweep. The writer runs them one at
//! a time, in their order.

use std::{collections::BTreeSet, sync::Arc};

use weir_core::{
    ApiKeyId, DeliveryId, Destination, DestinationId, ReplayId, Timestamp,
    alert::{AlertPolicy, AlertState},
};
use weir_store::{
    ApiKey, BreakerChange, ClaimRequest, Claims, DeliveryAction, DestinationPatch, MessageGroup, NewReplay, Pruned,
    Purge, PurgePlace, PurgeStep, ReplayPhase, ReplayStep, StoreError,
};

use crate::{
    error::Result,
    group::{Operation, Pending},
    prune::PruneBatch,
    writer::Transaction,
};

/// A single change: too rare for a shared statement.
pub(crate) enum Edit {
    Create(Pending<Destination, Arc<Destination>>),
    Patch(Pending<DestinationPatch, Option<Arc<Destination>>>),
    Pause(Pending<(DestinationId, String, Timestamp), bool>),
    Hold(Pending<(DestinationId, Timestamp, String), ()>),
    ChangeBreaker(Pending<BreakerChange, bool>),
    Delete(Pending<(DestinationId, Timestamp), bool>),
    RetryDelivery(Pending<(DeliveryId, Timestamp), DeliveryAction>),
    CancelDelivery(Pending<(DeliveryId, Timestamp), DeliveryAction>),
    /// Of the sweep: the present time, and the maximum number of deliveries.
    Expire(Pending<(Timestamp, u32), u64>),
    Purge(Pending<(Purge, Option<PurgePlace>), PurgeStep>),
    /// Of the sweep: message groups that seem to have no head.
    Advance(Pending<BTreeSet<MessageGroup>, u64>),
    /// Of the sweep: a destination that is no longer ordered, and the maximum number of deliveries to remove from its
    /// groups.
    Dissolve(Pending<(DestinationId, u32), u32>),
    CreateReplay(Pending<(NewReplay, u64), ()>),
    CancelReplay(Pending<(ReplayId, Timestamp), Option<ReplayPhase>>),
    StepReplay(Pending<(ReplayId, Timestamp), ReplayStep>),
    ClaimReplays(Pending<(Vec<ClaimRequest>, Timestamp), Vec<Claims>>),
    Prune(Pending<PruneBatch, Pruned>),
    SetAlertPolicy(Pending<AlertPolicy, ()>),
    /// Of a destination, with the version that must be the current one.
    RecordAlertState(Pending<(DestinationId, u64, AlertState), bool>),
    CreateApiKey(Pending<ApiKey, ()>),
    DeleteApiKey(Pending<ApiKeyId, bool>),
    /// The latest instant at which an unrecorded send may have started.
    MarkRestored(Pending<Timestamp, ()>),
    /// Proves that the writer runs and can lock the database.
    Check(Pending<(), ()>),
}

impl Edit {
    /// Boxed, because edits are rare and would make every operation larger.
    pub(crate) fn operation(self) -> Operation {
        Operation::Edit(Box::new(self))
    }

    /// Whether the commit must reach the disk. A power failure may lose a hold (one `Retry-After` is then ignored), a
    /// change of a breaker (the breaker opens again), and steps that background work repeats. A check changes nothing.
    /// All other edits were acknowledged.
    pub(crate) fn durable(&self) -> bool {
        if let Self::ClaimReplays(claim) = self {
            return claim.input.0.iter().any(|request| request.durable);
        }
        let is_repeated_by_sweep = matches!(
            self,
            Self::Expire(_) | Self::Advance(_) | Self::Dissolve(_) | Self::StepReplay(_) | Self::Prune(_)
        );
        !is_repeated_by_sweep && !matches!(self, Self::Hold(_) | Self::ChangeBreaker(_) | Self::Check(_))
    }

    pub(crate) fn run(&mut self, transaction: &mut Transaction<'_, '_>) -> Result<()> {
        match self {
            Self::Create(edit) => edit.answer = Some(transaction.create_destination(&edit.input)?),
            Self::Patch(edit) => edit.answer = Some(transaction.patch_destination(&edit.input)?),
            Self::Pause(edit) => {
                let (id, reason, now) = &edit.input;
                edit.answer = Some(transaction.pause_destination(*id, reason, *now)?);
            }
            Self::Hold(edit) => {
                let (id, until, reason) = &edit.input;
                edit.answer = Some(transaction.hold_destination(*id, *until, reason)?);
            }
            Self::ChangeBreaker(edit) => edit.answer = Some(transaction.change_breaker(&edit.input)?),
            Self::Delete(edit) => edit.answer = Some(transaction.delete_destination(edit.input.0, edit.input.1)?),
            Self::RetryDelivery(edit) => {
                edit.answer = Some(transaction.retry_delivery(edit.input.0, edit.input.1)?);
            }
            Self::CancelDelivery(edit) => {
                edit.answer = Some(transaction.cancel_delivery(edit.input.0, edit.input.1)?);
            }
            Self::Expire(edit) => edit.answer = Some(transaction.expire_deliveries(edit.input.0, edit.input.1)?),
            Self::Purge(edit) => edit.answer = Some(transaction.purge(&edit.input.0, edit.input.1)?),
            Self::Advance(edit) => {
                edit.answer = Some(transaction.advance_message_groups(&edit.input)?);
            }
            Self::Dissolve(edit) => {
                edit.answer = Some(transaction.dissolve_message_groups(edit.input.0, edit.input.1)?);
            }
            Self::CreateReplay(edit) => edit.answer = Some(transaction.create_replay(&edit.input.0, edit.input.1)?),
            Self::CancelReplay(edit) => edit.answer = Some(transaction.cancel_replay(edit.input.0, edit.input.1)?),
            Self::StepReplay(edit) => edit.answer = Some(transaction.step_replay(edit.input.0, edit.input.1)?),
            Self::ClaimReplays(edit) => edit.answer = Some(transaction.claim_all(&edit.input.0, edit.input.1, true)?),
            Self::Prune(edit) => edit.answer = Some(transaction.prune(&edit.input)?),
            Self::MarkRestored(edit) => edit.answer = Some(transaction.mark_restored(edit.input)?),
            Self::SetAlertPolicy(edit) => edit.answer = Some(transaction.set_alert_policy(&edit.input)?),
            Self::RecordAlertState(edit) => {
                let (id, version, state) = &edit.input;
                edit.answer = Some(transaction.record_alert_state(*id, *version, state)?);
            }
            Self::CreateApiKey(edit) => edit.answer = Some(transaction.create_api_key(&edit.input)?),
            Self::DeleteApiKey(edit) => edit.answer = Some(transaction.delete_api_key(edit.input)?),
            Self::Check(edit) => edit.answer = Some(()),
        }
        Ok(())
    }

    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        match self {
            Self::Create(edit) => edit.finish(failure),
            Self::Patch(edit) => edit.finish(failure),
            Self::Pause(edit) => edit.finish(failure),
            Self::Hold(edit) => edit.finish(failure),
            Self::ChangeBreaker(edit) => edit.finish(failure),
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
            Self::SetAlertPolicy(edit) => edit.finish(failure),
            Self::RecordAlertState(edit) => edit.finish(failure),
            Self::MarkRestored(edit) => edit.finish(failure),
            Self::CreateApiKey(edit) => edit.finish(failure),
            Self::DeleteApiKey(edit) => edit.finish(failure),
            Self::Check(edit) => edit.finish(failure),
        }
    }
}
