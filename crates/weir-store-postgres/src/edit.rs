//! Edits: changes requested by a person, by a destination's answer or by background work, too rare to be grouped with
//! others in one statement. Each is one transaction on a pooled connection. Their statements are in the files of their
//! subjects.

use std::{marker::PhantomData, pin::Pin, time::Duration};

use sqlx::PgConnection;
use weir_store::StoreResult;

use crate::{
    PostgresStore,
    errors::{ATTEMPTS, conflicts},
    writer::{COMMIT_TIMEOUT, within},
};

type Steps<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// The steps of an edit on a connection. The steps may borrow the input of the edit, which outlives the connection's
/// borrow: the marker tells the compiler.
pub(crate) struct Change<'input, 'c, T> {
    steps: Steps<'c, T>,
    input: PhantomData<&'c &'input ()>,
}

/// Makes a change of its steps. They begin and commit their own transaction.
pub(crate) fn change<'input, 'c, T>(
    steps: impl Future<Output = Result<T, sqlx::Error>> + Send + 'c,
) -> Change<'input, 'c, T> {
    Change { steps: Box::pin(steps), input: PhantomData }
}

impl PostgresStore {
    /// Makes a change. It runs again after a conflict with another transaction.
    pub(crate) async fn edit<'input, T>(
        &self,
        edit: impl for<'c> Fn(&'c mut PgConnection) -> Change<'input, 'c, T> + Sync,
    ) -> StoreResult<T> {
        self.edit_within(COMMIT_TIMEOUT, edit).await
    }

    /// Like [`PostgresStore::edit`]. The edit fails after this time without an answer.
    pub(crate) async fn edit_within<'input, T>(
        &self,
        limit: Duration,
        edit: impl for<'c> Fn(&'c mut PgConnection) -> Change<'input, 'c, T> + Sync,
    ) -> StoreResult<T> {
        let mut attempts = 1;
        loop {
            match self.try_edit(limit, &edit).await {
                Err(error) if conflicts(&error) && attempts < ATTEMPTS => {
                    tracing::debug!(%error, "an edit conflicted with another transaction and runs again");
                    attempts += 1;
                }
                outcome => return outcome.map_err(|error| self.shared.write_error(&error)),
            }
        }
    }

    async fn try_edit<'input, T>(
        &self,
        limit: Duration,
        edit: &(impl for<'c> Fn(&'c mut PgConnection) -> Change<'input, 'c, T> + Sync),
    ) -> Result<T, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let outcome = within(limit, edit(&mut connection).steps).await;
        if outcome.is_err() {
            // The connection may be inside a failed transaction, so it is not used again.
            connection.close_on_drop();
        }
        outcome
    }
}
