//! Weir's distributed protocol, checked in every interleaving of a small world.
//!
//! The world is one destination with one job, one to three events, a producer, one or two schedulers, a worker for each
//! permit, a durable store, and a queue that can be lost. Destinations share no state in the protocol, so one stands for
//! all. Each atomic step on the store or the queue is an [`Action`]; between two of them anything else may happen: another
//! process's step, a crash, the loss of the queue, a tick of time. The steps bear the names they have in `weir-queue`
//! (`wake`, `claim_due`, `publish`, `admit`, `take_slot`, `settle`), `weir-scheduler` (run, sweep) and `weir-worker`.
//! [`stateright`] walks through every state that can be reached, shortest way first, and [`properties`] says what must hold
//! in each.
//!
//! The tests take the protocol's remedies away, one at a time, and see it break in the way that the remedy is there to
//! prevent:
//!
//! | race | remedy ([`Remedies`]) | without it (tests of `remedies`, `fast_path`) |
//! |---|---|---|
//! | the scheduler sees nothing, the wake finds the job present, the scheduler removes it | `wake_version` | `without_wake_versions_…` |
//! | a wake while the job is parked at a later retry | `wake_pulls_forward` | `without_pulling_forward_…` |
//! | crash between the store's commit and the wake | `sweep` | `without_the_sweep_…` |
//! | a scheduler dies between claim and publish | `claim_expiry` | `without_claim_expiry_what_a_dead_scheduler_…` |
//! | a worker is late, and its claim is another's by now | `claim_epoch` | `without_claim_epochs_…` |
//! | publish's reply is lost | `never_unclaim`, `publish_once` | `after_a_lost_reply_…`, `a_publication_that_is_repeated_…` |
//! | two schedulers run one job | `publish_epoch` | `without_epochs_…` |
//! | a stale run gives its claims back when the job has stopped | `release_wakes` | `a_stale_run_…` |
//! | a worker dies after sending, before recording | `at_most_once` | `an_entry_of_a_dead_worker_…` |
//! | a worker stalls at the wire | `slot_gate` | `without_the_gate_…` |
//! | the job stops and restarts | `cursor_outlives_stop` | `a_job_that_forgets_its_cursor_…` |
//! | Redis comes back empty or stale | `generation` | `without_generations_…` (two) |
//! | Redis comes back, and workers hold slots from before | `last_old_start` | `counting_lost_permits_as_sent_now_…` |
//! | a slot is granted long before a loss, or a pause | `grant_ahead` | `slots_granted_far_ahead_…` (two) |
//! | a limit is lowered, or a destination paused, while permits are out | `grant_limits`, `grant_suspension` | `permits_that_are_out_…` (three) |
//! | a run has read the destination before an edit | `publish_version` | `a_run_that_read_older_terms_…` |
//! | an edit's version is below the one before: the queue ignores it, and each run is stale | `versions_rise` | `an_edit_whose_version_does_not_rise_…` (two) |
//! | edits are announced in another order | `edit_version` | `an_edit_that_is_announced_after_a_later_one_…` |
//! | queued or in flight leaks | `permit_deadlines` | `without_deadlines_…` (two) |
//! | the queue loses its cursor before an admission | `admit_knows` | `admitting_with_an_unknown_cursor_…` |
//! | an edit is not announced, and without a run nobody reads it | `admit_in_force` | `an_edit_that_is_not_announced_…` (two) |
//! | an admission's answer is lost | `admit_once` | `an_admission_that_is_repeated_…` |
//! | the job has gone on or stopped when an admission is declined | `decline_releases`, `decline_wakes` | `a_declined_delivery_…` (three) |
//! | a producer dies between commit and admission | `claim_expiry` | `without_claim_expiry_what_a_dead_producer_…` |
//!
//! # What an answer of the checker means
//!
//! *A permit* is the right to ask: no slot is published. A worker that stands ready asks, and the one step that answers sees
//! the permit, the terms, and the only cursor. When it asks is up to the order of steps, so permits need no time hints and
//! workers no kinds of connections here. An edit is in force from its announcement on, or from the first run that reads it.
//!
//! *Time* is in ticks of the slot width J. A send in a tick may start at any instant of it, and the rate is judged by the
//! worst of these. Instants are relative to now and forgotten when they no longer matter, so time has no end and the
//! states are finite.
//!
//! *Slowness* is bounded: [`Faults::stalls`] ticks may pass, all in all, while some process could take a step and does not.
//! Within a tick every order is tried. Crashes, losses, lost replies and refusals are bounded in the same way, and so
//! is how many claims are alive at once.
//!
//! *Liveness* is checked as an invariant, because a checker's "eventually" overlooks cycles: from every state, if nothing
//! more fails, the world comes to rest with everything delivered.
//!
//! *Names* of schedulers and permits are exchangeable, so states that differ in them alone are one; epochs and generations
//! are whether they match.
//!
//! *Left out*: several limits and bursts (one cursor's arithmetic, held by the properties of `weir_core::limiter`),
//! `max_in_flight` and its window, holds (a later start for the next slot), exhausted attempts, and the error of clocks. A
//! producer that guesses what will be admitted learns nothing from what was declined: it may guess at any time.

mod actions;
mod drained;
mod fast_path;
mod permit;
pub mod properties;
mod queue;
mod scenario;
mod scheduler;
mod state;
mod store;
mod surroundings;
mod time;
mod worker;

pub use actions::{Action, Protocol};
pub use scenario::{FastPath, Faults, Remedies, Scenario, Terms};
pub use state::{State, Ticks};
