//! Every interleaving of small worlds.

mod checked;
mod protocol;
mod remedies;
