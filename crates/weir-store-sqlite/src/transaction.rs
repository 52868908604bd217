//! What the operations of one transaction of the writer use. The statements are in the files of their subjects.

use rusqlite::Connection;
use weir_sealing::Keyring;
use weir_store::{BodyCache, DestinationLimits, FastPathBatch};

use crate::{cache::StagedDestinations, change_log::ChangeLog};

pub(crate) struct Transaction<'t, 'c> {
    pub(crate) connection: &'t Connection,
    pub(crate) destinations: &'t mut StagedDestinations<'c>,
    pub(crate) bodies: &'t mut BodyCache,
    pub(crate) fast_path_batch: &'t mut FastPathBatch,
    pub(crate) limits: DestinationLimits,
    pub(crate) keyring: &'t Keyring,
    pub(crate) changes: &'t mut ChangeLog,
    /// The last position that was assigned in any message group.
    pub(crate) last_group_position: &'t mut i64,
}
