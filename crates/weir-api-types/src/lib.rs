//! The JSON of the API's answers, once: the API writes these types, and the command line, the dashboard and the load tests
//! read them. They also are the schemas of the OpenAPI document, under the same names.
//!
//! A field has the type of its JSON: ids and words are strings, because a client only shows them or sends them back. Requests
//! are not here: the API reads them with all errors at once, and clients write them with `serde_json::json!`.
//!
//! One file for each subject: `adaptive`, `alert`, `alert_data`, `audit`, `delivery`, `destination`, `event`, `event_type`, `figures`, `history`, `installation`, `limit_group`, `list`,
//! `merge`, `problem`, `replay`, `reservation`, `shedding`, `signature`, `simulation`; `references` names the schemas of requests.

mod adaptive;
mod alert;
mod alert_data;
mod audit;
mod delivery;
mod destination;
mod event;
mod event_type;
mod figures;
mod history;
mod installation;
mod limit_group;
mod limit_key;
mod list;
mod merge;
mod problem;
mod references;
mod replay;
mod reservation;
mod shedding;
mod signature;
mod simulation;

pub use adaptive::*;
pub use alert::*;
pub use alert_data::*;
pub use audit::*;
pub use delivery::*;
pub use destination::*;
pub use event::*;
pub use event_type::*;
pub use figures::*;
pub use history::*;
pub use installation::*;
pub use limit_group::*;
pub use limit_key::*;
pub use list::*;
pub use merge::merge;
pub use problem::*;
pub use replay::*;
pub use reservation::*;
pub use shedding::*;
pub use signature::*;
pub use simulation::*;
