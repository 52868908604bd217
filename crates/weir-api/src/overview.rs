//! All destinations at one instant: how much waits at each, how fast it is sent, and why it is not faster.
//!
//! Viewers never read the store themselves. They share one [`Sample`]: every order, filter and page is an answer from
//! it. A sample is taken when somebody looks and the last one is too old, so without viewers none is taken, and ten
//! viewers cost what one costs. It reads the counters of the store, so each process with the API shows everything,
//! whichever process does the work.
//!
//! ```text
//!   store ──▶ Sampler ──when a request looks──▶ Sample ──▶ GET /v1/overview
//!                     ──each second, and after a change──▶ Broadcast ──▶ GET /v1/stream
//! ```

mod broadcast;
mod changes;
mod live;
mod recent;
mod row;
mod sample;
mod sampler;
mod version;

pub(crate) use broadcast::Samples;
pub(crate) use changes::{Change, ChangeKind, DestinationChange};
pub use live::LiveOverview;
pub(crate) use recent::Minutes;
pub(crate) use row::{Row, Standing, Totals};
pub(crate) use sample::{Order, Sample};
