//! Checks every interleaving of small worlds.

mod checked;
mod fast_path;
mod protocol;
mod remedies;
mod shared;
