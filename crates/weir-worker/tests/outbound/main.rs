//! The way out against receivers made of raw sockets: what they see, byte by byte, and what is made of what they answer.

#![expect(clippy::unwrap_used, reason = "a test's scaffolding")]

mod answers;
mod connecting;
mod gate;
mod names;
mod reuse;
mod support;
