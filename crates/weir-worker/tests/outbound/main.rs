//! The outbound client against receivers made of raw sockets: the bytes that they receive, and how their answers are
//! judged.

#![expect(clippy::unwrap_used, reason = "a test's scaffolding")]

mod answers;
mod connecting;
mod details;
mod gate;
mod identities;
mod names;
mod proxied;
mod reuse;
mod support;
