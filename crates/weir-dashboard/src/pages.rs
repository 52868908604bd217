//! The pages, one file each.

pub(crate) mod destination;
pub(crate) mod jump;
pub(crate) mod live;
pub(crate) mod login;
pub(crate) mod overview;
