//! Which reads a replica of the database may answer: those of a request that reads much and decides nothing (lists,
//! history, audits). Everything else is read where it is written.

use std::sync::Arc;

use tokio::sync::OnceCell;

tokio::task_local! {
    /// Whether the replica answers the reads of this request, once it is known.
    static ANSWERS: Arc<OnceCell<bool>>;
}

/// A replica may answer what `reads` reads from the store.
pub async fn with_replica<T>(reads: impl Future<Output = T>) -> T {
    ANSWERS.scope(Arc::default(), reads).await
}

/// Whether a replica answers this read. Of the reads in one [`with_replica`], the first one asks `is_current`.
pub async fn replica_answers(is_current: impl Future<Output = bool>) -> bool {
    let Ok(answers) = ANSWERS.try_with(Arc::clone) else { return false };
    *answers.get_or_init(|| is_current).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_asks_once_and_only_if_it_may_use_a_replica() {
        assert!(!replica_answers(async { true }).await);
        with_replica(async {
            assert!(replica_answers(async { true }).await);
            assert!(replica_answers(async { false }).await, "as its first read");
        })
        .await;
        assert!(!with_replica(replica_answers(async { false })).await);
    }
}
