//! `weir migrate`: migrates the database to the schema of this version.

use weir_store_postgres::PostgresStore;
use weir_store_sqlite::SqliteStore;

use crate::{
    config::{DatabaseUrl, ProcessRole, SettingFlags, Settings},
    exit::Exit,
};

pub(super) async fn run(flags: &SettingFlags) -> anyhow::Result<Exit> {
    // No role is started. The settings are read like those of a worker, which need no API key.
    let settings = Settings::load(flags, ProcessRole::Worker)?;
    let applied = match &settings.database_url {
        DatabaseUrl::Sqlite(path) => SqliteStore::migrate(path).await?,
        DatabaseUrl::Postgres(url) => PostgresStore::migrate(url.as_ref()).await?,
    };
    for (version, description) in &applied {
        println!("applied {version} {description}");
    }
    if applied.is_empty() {
        println!("the schema is up to date");
    }
    Ok(Exit::Done)
}
