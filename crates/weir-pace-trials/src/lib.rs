//! Adaptive rate and its opponents, in virtual time, on receivers of many kinds.
//!
//! A trial is deterministic: a seed, a receiver, a pacer, two workers that report up to 250 ms late, and a hard limit
//! that the engine's own limiter keeps. Nothing here is a part of the product; `weir_core::adaptive` is what is judged.
//!
//! # Files
//!
//! `world` plays a trial, `receiver`, `scenarios`, `unseen`, `strange` and `real` say against what, `judge` what counts.
//! `ours` is Weir's pacer and `opponents` the others'; `vector` plays the scenarios that Vector's limiter brings. `table`
//! writes the page, and `rng` makes the numbers of a seed.

pub mod judge;
pub mod opponents;
pub mod ours;
pub mod real;
pub mod receiver;
pub mod rng;
pub mod scenarios;
pub mod strange;
pub mod table;
pub mod unseen;
pub mod vector;
pub mod world;
