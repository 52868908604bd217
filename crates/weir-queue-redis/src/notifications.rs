//! Notifications of other processes: earlier due times and new generations.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use weir_core::Backoff;

use crate::{client::ShardClient, codec::from_micros, keys::Shard};

/// After this long without a notification the connection is tested with a ping. Until a broken connection is noticed,
/// notifications are lost, and due jobs are found by the check of each second.
const PING_AFTER: Duration = Duration::from_secs(5);

impl ShardClient {
    /// Receives notifications. Never returns.
    pub(crate) async fn run_notifications(self: Arc<Self>) {
        let mut backoff = Backoff::default();
        loop {
            if let Err(error) = self.listen(&mut backoff).await {
                tracing::debug!(%error, "not subscribed to notifications; trying again");
            }
            tokio::time::sleep(backoff.fail_with_jitter(rand::random())).await;
        }
    }

    async fn listen(&self, backoff: &mut Backoff) -> redis::RedisResult<()> {
        let (mut connection, mut messages) = self.connection.dialer().pub_sub().await?.split();
        connection.subscribe(self.keys.notifications()).await?;
        backoff.reset();
        loop {
            let Ok(message) = tokio::time::timeout(PING_AFTER, messages.next()).await else {
                // There were no notifications, or the connection is broken.
                let answered = tokio::time::timeout(PING_AFTER, connection.ping::<redis::Value>()).await;
                answered.map_err(|_| redis::RedisError::from((redis::ErrorKind::Io, "no answer to a ping")))??;
                continue;
            };
            let Some(message) = message else { return Ok(()) };
            let text: String = message.get_payload()?;
            if self.apply_notification(&text).is_none() {
                tracing::warn!(text, "could not read a notification");
            }
        }
    }

    /// A notification is four words: its kind, a shard, a number, and the installation. Those of other installations
    /// on the same server are ignored. An earlier version names no installation; what it notifies of is found within a
    /// second.
    fn apply_notification(&self, text: &str) -> Option<()> {
        let mut words = text.split(' ');
        let (kind, shard, value) = (words.next()?, words.next()?, words.next()?.parse::<u64>().ok()?);
        if words.next() != Some(self.keys.installation()) {
            return Some(());
        }
        match kind {
            "due" => self.due_times.learn(Shard::parse(shard)?, from_micros(value.try_into().ok()?)),
            "generation" => self.learn_generation(Shard::parse(shard)?, value),
            _ => return None,
        }
        Some(())
    }
}
