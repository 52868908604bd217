//! The part of the command line that calls the API of a running server. Like the dashboard it is a client of the API: it
//! knows neither the store nor the queue.
//!
//! `flags` declares the commands, `commands` runs them (one file for each), `output` prints tables, texts and JSON,
//! `completions` answers a shell that asks for the names of destinations. `exit` has the exit codes, `clock` reads the time.

pub mod clock;
pub mod commands;
pub mod completions;
pub mod exit;
pub mod flags;
pub mod output;
