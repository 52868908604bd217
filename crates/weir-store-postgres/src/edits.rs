//! Edits: what a person, a single answer or the sweep asks for; one transaction each, on a connection of the pool.

use async_trait::async_trait;
use sqlx::PgConnection;
use weir_store::StoreResult;

use crate::{
    PostgresStore,
    errors::{ATTEMPTS, conflicts, store_error},
};

/// A change that is not worth a shared statement.
#[async_trait]
pub(crate) trait Edit: Sync {
    type Answer;

    /// Makes the change in one transaction. May be run again when others were in its way.
    async fn run(&self, connection: &mut PgConnection) -> Result<Self::Answer, sqlx::Error>;
}

impl PostgresStore {
    pub(crate) async fn edit<E: Edit>(&self, edit: E) -> StoreResult<E::Answer> {
        for _ in 1..ATTEMPTS {
            match self.try_edit(&edit).await {
                Err(error) if conflicts(&error) => tracing::debug!(%error, "an edit met another and runs again"),
                outcome => return outcome.map_err(|error| store_error(&error)),
            }
        }
        self.try_edit(&edit).await.map_err(|error| store_error(&error))
    }

    async fn try_edit<E: Edit>(&self, edit: &E) -> Result<E::Answer, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let outcome = edit.run(&mut connection).await;
        if outcome.is_err() {
            // It may be in the middle of a transaction that has failed; the next user must not find it so.
            connection.close_on_drop();
        }
        outcome
    }
}
