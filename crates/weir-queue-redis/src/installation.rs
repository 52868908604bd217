//! Whose keys these are. The first installation that uses a prefix leaves its id in every shard (`shard.lua`), and from
//! then on every script of another installation changes nothing.

use redis::RedisResult;
use weir_core::InstallationId;
use weir_queue::QueueError;

use crate::{client::ShardClient, config::OpenError, connect::Shared, connection::FailureCause, keys::Shard};

impl ShardClient {
    /// Refuses keys of another installation, and marks keys of nobody.
    pub(crate) async fn take_possession(&self, address: &str) -> Result<(), OpenError> {
        let foreign = |owner| OpenError::Foreign {
            address: address.to_owned(),
            prefix: self.config.prefix.clone(),
            owner,
            own: self.config.installation,
        };
        // Look at every shard before the first is marked. Otherwise this process could take a shard whose marker its
        // owner has just lost, and then find that the others belong to the owner.
        let unusable = |error| OpenError::Unusable { address: address.to_owned(), error };
        let not_sent = |error: redis::RedisError| unusable(QueueError::NotSent(error.to_string()));
        let mut connection = self.connection.dialer().shared().await.map_err(not_sent)?;
        for shard in Shard::all() {
            let owner = self.owner(&mut connection, shard).await.map_err(not_sent)?;
            if let Some(owner) = owner.filter(|owner| owner != self.keys.installation()) {
                return Err(foreign(owner));
            }
        }
        // Of two installations that start together, only the one that marks this shard goes on to the others.
        let marked = self.connection.call(&[self.begin_shard(Shard::REFERENCE)]).await.pop();
        match marked {
            Some(Err(failure)) => match failure.cause {
                FailureCause::Foreign(owner) => Err(foreign(owner)),
                FailureCause::Damage | FailureCause::Server => Err(unusable(failure.error)),
            },
            _ => Ok(()),
        }
    }

    /// The installation that has marked a shard. A marker that cannot be read is no marker.
    async fn owner(&self, connection: &mut Shared, shard: Shard) -> RedisResult<Option<String>> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys.generation(shard)).arg("installation");
        match connection.query::<Option<String>>(&command).await {
            Ok(owner) => Ok(owner.filter(|owner| owner.parse::<InstallationId>().is_ok())),
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
            Err(error) => Err(error),
        }
    }
}
