//! Names of keys: the only place that makes them, with `scripts/shard.lua`, which adds the suffixes.
//!
//! Every destination belongs to one of [`SHARDS`] shards, and all keys of a shard carry the same hash tag, so that a script on a
//! shard works in a Cluster. The number is fixed: two processes that disagreed on it would run a destination twice.
//!
//! ```text
//! {weir:3}:generation               hash    which server process the shard's data belong to, and since when
//! {weir:3}:schedule                 zset    destination → due time
//! {weir:3}:queue                    stream  permits; one group, `workers`
//! {weir:3}:busy                     set     destinations that may have permits
//! {weir:3}:job:dst_…                string  the job, packed; expires when forgetting it changes nothing
//! {weir:3}:queued:dst_…             zset    permit → when the claim expires
//! {weir:3}:in_flight:dst_…          zset    likewise
//! weir:notices                      channel what waiting processes should hear of
//! ```

use weir_core::DestinationId;

pub(crate) const SHARDS: usize = 16;
/// The group that every worker reads the delivery queue as.
pub(crate) const GROUP: &str = "workers";

/// One of the [`SHARDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shard(usize);

impl Shard {
    /// The one whose clock is the reference.
    pub(crate) const REFERENCE: Self = Self(0);

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }

    /// The shard a destination lives in. Never changes: the last bytes of an id are random.
    pub(crate) fn of(id: DestinationId) -> Self {
        let tail = id.as_bytes().iter().skip(8).fold(0u64, |tail, &byte| tail << 8 | u64::from(byte));
        Self((tail % SHARDS as u64) as usize)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| *number < SHARDS).map(Self)
    }
}

/// The keys of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// `prefix` sets queues that share a server apart.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// What the keys of a shard begin with.
    pub(crate) fn shard(&self, shard: Shard) -> String {
        format!("{}{{weir:{}}}", self.prefix, shard.0)
    }

    pub(crate) fn queue(&self, shard: Shard) -> String {
        self.shard(shard) + ":queue"
    }

    pub(crate) fn notices(&self) -> String {
        format!("{}weir:notices", self.prefix)
    }

    /// The shard of a delivery queue's name.
    pub(crate) fn shard_of_queue(&self, key: &str) -> Option<Shard> {
        let tagged = key.strip_prefix(self.prefix.as_str())?.strip_prefix("{weir:")?;
        Shard::parse(tagged.strip_suffix("}:queue")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_s_name_tells_its_shard() {
        let keys = Keys::new("test:");
        for shard in Shard::all() {
            assert_eq!(keys.shard_of_queue(&keys.queue(shard)), Some(shard));
        }
        assert_eq!(keys.shard_of_queue("{weir:3}:queue"), None);
        assert_eq!(keys.shard_of_queue("test:{weir:16}:queue"), None);
    }

    #[test]
    fn the_shard_of_a_destination_never_changes() {
        let id = DestinationId::from_bytes(0x0188bac7_4afa_78aa_bc3b_bd1eef28d881_u128.to_be_bytes());
        assert_eq!(Shard::of(id).index(), 1);
    }
}
