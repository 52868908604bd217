//! PostgreSQL passes the conformance suite.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use weir_store::{SharedStore, conformance::Backend};
use weir_store_postgres::PostgresStore;

use crate::{database::Database, fixtures::NOW};

pub(crate) struct Postgres {
    pub(crate) database: Database,
    opened: Mutex<Option<Arc<PostgresStore>>>,
}

#[async_trait]
impl Backend for Postgres {
    async fn open(&self) -> SharedStore {
        let mut opened = self.opened.lock().await;
        if let Some(previous) = opened.take() {
            previous.close().await;
        }
        let store = Arc::new(PostgresStore::open(&self.database.url(), NOW).await.unwrap());
        *opened = Some(Arc::clone(&store));
        store
    }
}

pub(crate) async fn postgres() -> Postgres {
    Postgres { database: Database::migrated().await, opened: Mutex::new(None) }
}

weir_store::store_conformance!(postgres);
