//! Edits: what a person, a single answer or the sweep asks the writer for, one at a time and in their order.

use std::sync::Arc;

use weir_core::{
    DeliveryId, Destination, DestinationId, ReplayId, Timestamp,
    alert::{AlertPolicy, AlertState},
};
use weir_store::{
    BreakerChange, ClaimRequest, Claims, DeliveryAction, DestinationPatch, MessageGroup, NewReplay, Pruned, Purge,
    PurgePlace, PurgeStep, ReplayPhase, ReplayStep, StoreError,
};

use crate::{
    error::Result,
    group::{Operation, Pending},
    prune::Rest,
    writer::Transaction,
};

/// A change that one person or one answer asked for: not worth a shared statement.
pub(crate) enum Edit {
    Create(Pending<Destination, Arc<Destination>>),
    Patch(Pending<DestinationPatch, Option<Arc<Destination>>>),
    Pause(Pending<(DestinationId, String, Timestamp), bool>),
    Hold(Pending<(DestinationId, Timestamp, String), ()>),
    ChangeBreaker(Pending<BreakerChange, bool>),
    Delete(Pending<(DestinationId, Timestamp), bool>),
    RetryDelivery(Pending<(DeliveryId, Timestamp), DeliveryAction>),
    CancelDelivery(Pending<(DeliveryId, Timestamp), DeliveryAction>),
    /// Of the sweep: until when, and at most how many.
    Expire(Pending<(Timestamp, u32), u64>),
    Purge(Pending<(Purge, Option<PurgePlace>), PurgeStep>),
    /// Of the sweep: lines that seem to have no head.
    Advance(Pending<Vec<MessageGroup>, u64>),
    /// Of the sweep: the lines of a destination that is not ordered any more, so many deliveries at most.
    Dissolve(Pending<(DestinationId, u32), u32>),
    CreateReplay(Pending<(NewReplay, u64), ()>),
    CancelReplay(Pending<(ReplayId, Timestamp), Option<ReplayPhase>>),
    StepReplay(Pending<(ReplayId, Timestamp), ReplayStep>),
    ClaimReplays(Pending<(Vec<ClaimRequest>, Timestamp), Vec<Claims>>),
    Prune(Pending<Rest, Pruned>),
    SetAlertPolicy(Pending<AlertPolicy, ()>),
    /// Of a destination, with the version that is the current one.
    RecordAlertState(Pending<(DestinationId, u64, AlertState), bool>),
    /// Until when unknown sends may have started.
    MarkRestored(Pending<Timestamp, ()>),
    /// Shows that the writer lives and gets its lock.
    Check(Pending<(), ()>),
}

impl Edit {
    /// Boxed: edits are rare and much larger than the operations they would widen.
    pub(crate) fn operation(self) -> Operation {
        Operation::Edit(Box::new(self))
    }

    /// A hold that is lost with the power is one `Retry-After` not honoured; a breaker opens again, what expired expires again, and
    /// the sweep does again what it did. Everything else was acknowledged to someone.
    pub(crate) fn durable(&self) -> bool {
        if let Self::ClaimReplays(claim) = self {
            return claim.input.0.iter().any(|request| request.durable);
        }
        let swept = matches!(
            self,
            Self::Expire(_) | Self::Advance(_) | Self::Dissolve(_) | Self::StepReplay(_) | Self::Prune(_)
        );
        !swept && !matches!(self, Self::Hold(_) | Self::ChangeBreaker(_) | Self::Check(_))
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
                edit.answer = Some(transaction.advance_message_groups(&edit.input.iter().cloned().collect())?);
            }
            Self::Dissolve(edit) => {
                edit.answer = Some(transaction.dissolve_message_groups(edit.input.0, edit.input.1)?)
            }
            Self::CreateReplay(edit) => edit.answer = Some(transaction.create_replay(&edit.input.0, edit.input.1)?),
            Self::CancelReplay(edit) => edit.answer = Some(transaction.cancel_replay(edit.input.0, edit.input.1)?),
            Self::StepReplay(edit) => edit.answer = Some(transaction.step_replay(edit.input.0, edit.input.1)?),
            Self::ClaimReplays(edit) => edit.answer = Some(transaction.claim_all(&edit.input.0, edit.input.1, true)?),
            Self::Prune(edit) => edit.answer = Some(transaction.prune(&edit.input)?),
            Self::MarkRestored(edit) => edit.answer = Some(transaction.mark_restored(edit.input)?),
            Self::SetAlertPolicy(edit) => edit.answer = Some(transaction.set_alert_policy(&edit.input)?),
            Self::RecordAlertState(edit) => {
                let (id, version, told) = &edit.input;
                edit.answer = Some(transaction.record_alert_state(*id, *version, told)?);
            }
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
            Self::Check(edit) => edit.finish(failure),
        }
    }
}
