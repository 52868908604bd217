//! Every interleaving of small worlds.

mod checked;
mod express;
mod protocol;
mod remedies;
