//! SQLite passes the conformance suite.

#![expect(clippy::unwrap_used, reason = "a test may stop anywhere, in its helpers too")]

use std::sync::Arc;

use async_trait::async_trait;
use tempfile::TempDir;
use tokio::sync::Mutex;
use weir_store::{SharedStore, conformance::Backend};
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
