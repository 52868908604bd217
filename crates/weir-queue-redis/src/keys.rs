//! Names of keys. Only this file and `scripts/shard.lua`, which adds the suffixes, make them.
//!
//! Every destination belongs to one of [`SHARDS`] shards: to that of its limit group, if it has one. All keys of a
//! shard have the same hash tag, so that a script on a shard works in a Cluster. The number is fixed: two processes
//! with different numbers would run a destination twice.
//!
//! ```text
//! {weir:3}:generation               hash    the installation, the server process that wrote the data, and since when
//! {weir:3}:schedule                 zset    destination → due time
//! {weir:3}:queue                    stream  permits; one group, `workers`
//! {weir:3}:busy                     set     destinations that may have permits
//! {weir:3}:job:dst_…                string  the job, packed; expires when forgetting it changes nothing
//! {weir:3}:queued:dst_…             zset    permit → when the claim expires
//! {weir:3}:in_flight:dst_…          zset    permit → when the claim expires
//! {weir:3}:turns:dst_…              zset    of a group: members that wait for a turn → virtual time
//! {weir:3}:parked:dst_…             zset    of a destination with limit keys: keys that wait long for slots of their own → since when
//! {weir:3}:admitted:…               string  the last admission of a caller and its answer, packed
//! {weir:0}:records                  hash    process → when it was written, and its record; expires when all have ended
//! weir:notices                      channel notifications: earlier due times and new generations
//! ```
//!
//! A limit key and the budget that the keys of a destination share have jobs under ids of their own
//! (`weir_core::limit_key`), which are in the shard of the destination.
//!
//! A group has a job and sets of permits as a destination has, and so one entry in the schedule. Its id is written as that
//! of a destination: a program of an earlier version then takes it for a destination that was deleted.
//!
//! `weir` is the prefix, which a setting can replace, for installations that share a server.

use weir_core::{DestinationId, InstallationId, LimitGroupId};

pub(crate) const SHARDS: usize = 16;
/// The consumer group in which workers read the delivery queue.
pub(crate) const GROUP: &str = "workers";

/// The id of a group's job.
pub(crate) fn group_job(id: LimitGroupId) -> DestinationId {
    DestinationId::from_bytes(*id.as_bytes())
}

/// One of the [`SHARDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shard(usize);

impl Shard {
    /// The shard whose clock is the reference.
    pub(crate) const REFERENCE: Self = Self(0);

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }

    /// The shard of the budgets of a destination in this group.
    pub(crate) fn of_home(id: DestinationId, group: Option<LimitGroupId>) -> Self {
        Self::of(group.map_or(id, group_job))
    }

    /// The shard of a destination without a group, or of a group's job. Never changes. The last bytes of an id are
    /// random, so destinations spread evenly.
    pub(crate) fn of(id: DestinationId) -> Self {
        let tail = id.as_bytes().iter().skip(8).fold(0u64, |tail, &byte| tail << 8 | u64::from(byte));
        Self((tail % SHARDS as u64) as usize)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }

    /// Its number for the scheduler.
    pub(crate) fn number(self) -> u16 {
        self.0 as u16
    }

    pub(crate) fn numbered(number: u16) -> Self {
        Self(usize::from(number) % SHARDS)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| *number < SHARDS).map(Self)
    }
}

/// The keys of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
    /// Its id, as text.
    installation: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, installation: InstallationId) -> Self {
        Self { prefix: prefix.to_owned(), installation: installation.to_string() }
    }

    pub(crate) fn installation(&self) -> &str {
        &self.installation
    }

    /// The beginning of all keys of a shard.
    pub(crate) fn shard(&self, shard: Shard) -> String {
        format!("{{{}:{}}}", self.prefix, shard.0)
    }

    pub(crate) fn generation(&self, shard: Shard) -> String {
        self.shard(shard) + ":generation"
    }

    pub(crate) fn queue(&self, shard: Shard) -> String {
        self.shard(shard) + ":queue"
    }

    /// The pub/sub channel of notifications.
    pub(crate) fn notifications(&self) -> String {
        format!("{}:notices", self.prefix)
    }

    /// The shard of a delivery queue, from its key.
    pub(crate) fn shard_of_queue(&self, key: &str) -> Option<Shard> {
        let number = key.strip_prefix('{')?.strip_prefix(self.prefix.as_str())?.strip_prefix(':')?;
        Shard::parse(number.strip_suffix("}:queue")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_is_read_from_the_name_of_a_queue() {
        let keys = Keys::new("test:a", InstallationId::from_bytes([1; 16]));
        for shard in Shard::all() {
            assert_eq!(keys.shard_of_queue(&keys.queue(shard)), Some(shard));
        }
        assert_eq!(keys.shard_of_queue("{weir:3}:queue"), None);
        assert_eq!(keys.shard_of_queue("{test:3}:queue"), None);
        assert_eq!(keys.shard_of_queue("{test:a:16}:queue"), None);
    }

    #[test]
    fn the_shard_of_a_destination_never_changes() {
        let id = DestinationId::from_bytes(0x0188bac7_4afa_78aa_bc3b_bd1eef28d881_u128.to_be_bytes());
        assert_eq!(Shard::of(id).index(), 1);
    }
}
