//! SQLite passes the conformance suite.

#![expect(clippy::unwrap_used, reason = "a test may stop anywhere, in its helpers too")]

use std::sync::Arc;

use async_trait::async_trait;
use tempfile::TempDir;
use tokio::sync::Mutex;
use weir_store::{
    SharedStore,
    conformance::{Backend, Subject, message_groups_without_a_head_are_repaired},
};
use weir_store_sqlite::SqliteStore;

struct Sqlite {
    directory: TempDir,
    opened: Mutex<Option<Arc<SqliteStore>>>,
}

#[async_trait]
impl Backend for Sqlite {
    async fn open(&self) -> SharedStore {
        let mut opened = self.opened.lock().await;
        if let Some(before) = opened.take() {
            before.close().await;
        }
        let store = Arc::new(SqliteStore::open(&self.directory.path().join("weir.db")).await.unwrap());
        *opened = Some(Arc::clone(&store));
        store
    }
}

async fn sqlite() -> Sqlite {
    Sqlite { directory: tempfile::tempdir().unwrap(), opened: Mutex::new(None) }
}

weir_store::store_conformance!(sqlite);

/// The store never leaves a message group without a head, but an older version or a manual edit of the file may.
#[tokio::test]
async fn a_message_group_without_a_head_gets_one_by_the_next_repair() {
    let backend = sqlite().await;
    let file = backend.directory.path().join("weir.db");
    let run = async |sql: &'static str| rusqlite::Connection::open(&file).unwrap().execute_batch(sql).unwrap();
    message_groups_without_a_head_are_repaired(Subject::new(backend).await, run).await;
}
