//! A model of Weir's distributed protocol, checked in every interleaving of a small world.
//!
//! The world has one destination with one job, and one to three events. Its processes are a producer, one or two
//! schedulers, and a worker for each permit. The store is durable; the queue can be lost. Destinations share no state
//! in the protocol, so one destination represents all. Each atomic step on the store or the queue is an [`Action`].
//! Between two actions anything else may happen: a step of another process, a crash, the loss of the queue, a tick of
//! time. The steps have the same names as in `weir-queue` (`wake`, `claim_due`, `publish`, `admit`, `take_slot`,
//! `settle`), `weir-scheduler` (run, sweep) and `weir-worker`. [`stateright`] visits every reachable state, breadth
//! first, and [`properties`] defines what must hold in each state.
//!
//! The tests remove the remedies of the protocol, one at a time, and check that the race happens which the remedy
//! prevents:
//!
//! | race | remedy ([`Remedy`]) | without it (tests of `remedies`, `fast_path`) |
//! |---|---|---|
//! | the scheduler sees nothing, the wake finds the job present, the scheduler removes it | `wake_version` | `without_wake_versions_…` |
//! | a wake while the job is parked at a later retry | `wake_pulls_forward` | `without_pulling_forward_…` |
//! | crash between the store's commit and the wake | `sweep` | `without_the_sweep_…` |
//! | a scheduler dies between claim and publish | `claim_expiry` | `without_claim_expiry_deliveries_claimed_by_a_dead_scheduler_…` |
//! | a worker is late, and its delivery has been claimed again | `claim_epoch` | `without_claim_epochs_…` |
//! | the reply to a publication is lost | `never_unclaim`, `publish_once` | `after_a_lost_reply_…`, `a_publication_that_is_repeated_…` |
//! | two schedulers run one job | `publish_epoch` | `without_epochs_…` |
//! | a stale run releases its claims when the job has stopped | `release_wakes` | `a_stale_run_…` |
//! | a worker dies after sending, before recording | `at_most_once` | `an_entry_of_a_dead_worker_…` |
//! | a worker stalls just before the write | `slot_gate` | `without_the_gate_…` |
//! | a slot is missed, and another one is granted meanwhile | `give_back_last` | `a_missed_slot_that_is_given_back_…` |
//! | the job stops and restarts | `cursor_outlives_stop` | `a_job_that_forgets_its_cursor_…` |
//! | Redis comes back empty or stale | `generation` | `without_generations_…` (two) |
//! | Redis comes back, and workers hold slots from before | `last_old_start` | `counting_lost_permits_as_sent_now_…` |
//! | a slot is granted long before a loss, or a pause | `grant_ahead` | `slots_granted_far_ahead_…` (two) |
//! | a limit is lowered, or a destination paused, while permits are outstanding | `grant_limits`, `grant_suspension` | `permits_that_are_out_…` (three) |
//! | a run reads the destination before an edit | `publish_version` | `a_run_that_read_older_terms_…` |
//! | the version of an edit is lower than the previous one: the queue ignores the edit, and each run is stale | `versions_rise` | `an_edit_whose_version_does_not_rise_…` (two) |
//! | edits are announced in another order | `edit_version` | `an_edit_that_is_announced_after_a_later_one_…` |
//! | permits of dead workers stay queued or in flight | `permit_deadlines` | `without_deadlines_…` (two) |
//! | the queue loses its cursor before an admission | `admit_needs_cursor` | `admitting_with_an_unknown_cursor_…` |
//! | an edit is not announced, and no run reads it | `admit_checks_version` | `an_edit_that_is_not_announced_…` (two) |
//! | an admission's answer is lost | `admit_once` | `an_admission_that_is_repeated_…` |
//! | the job has run again or stopped when an admission is declined | `decline_releases`, `decline_wakes` | `a_declined_delivery_…` (three) |
//! | a producer dies between commit and admission | `claim_expiry` | `without_claim_expiry_deliveries_claimed_by_a_dead_producer_…` |
//!
//! # Assumptions of the model
//!
//! *Permits.* A permit is the right to ask for a slot; no slot is published. A worker that is ready to send asks. One
//! step answers, and it sees the permit, the terms and the only cursor. The order of steps decides when a worker asks,
//! so the model needs no time hints of permits and no states of connections. An edit is in force from its announcement,
//! or from the first run that reads it.
//!
//! *Time* advances in ticks of the slot width J. A send in a tick may start at any instant of it, and the rate is
//! judged by the worst case. Instants are relative to now and are forgotten when they no longer matter. So time has no
//! end, and the number of states is finite.
//!
//! *Slowness* is bounded: in total [`Faults::stalls`] ticks may pass while a process could take a step and does not.
//! Within a tick the checker tries every order. Crashes, losses, lost replies and refusals are bounded in the same way,
//! and so is the number of claims at one time.
//!
//! *Liveness* is checked as an invariant, because the `eventually` of the checker overlooks cycles: from every state,
//! if nothing more fails, the world comes to rest with everything delivered.
//!
//! *Symmetry.* Schedulers and permits are interchangeable, so states that differ only in their numbers are the same
//! state. Epochs and generations are modelled only as matching or not.
//!
//! *Not modelled*: several limits and bursts (the arithmetic of one cursor, tested by the properties of
//! `weir_core::limiter`), `max_in_flight` and `max_outstanding`, holds (a later start of the next slot), their release
//! and the slow start, exhausted attempts, and the error of clocks. A producer with an admission estimate does not
//! learn from declined deliveries: it may use the fast path at any time.
//!
//! # Files
//!
//! `state` is one state of the world, `actions` lists every step. The steps are in `store`, `queue`, `scheduler`,
//! `worker` (with `permit`), `fast_path`, `surroundings` (producer, operator, faults) and `time`. `scenario` sets the
//! size of the world and the remedies, `drained` checks that it comes to rest. [`shared`] is a model of its own: two
//! members of a limit group.

mod actions;
mod drained;
mod fast_path;
mod permit;
pub mod properties;
mod queue;
mod scenario;
mod scheduler;
pub mod shared;
mod state;
mod store;
mod surroundings;
mod time;
mod worker;

pub use actions::{Action, Protocol};
pub use scenario::{FastPath, Faults, Remedy, Scenario, Terms};
pub use state::{State, Ticks};
