//! `weir migrate`: migrates the database to the schema of this version.

use weir_store_postgres::PostgresStore;
use weir_store_sqlite::SqliteStore;

use crate::{
    backends::application_name,
    config::{DatabaseServer, DatabaseUrl, ProcessRole, SettingFlags, Settings},
    exit::Exit,
};

pub(super) async fn run(flags: &SettingFlags) -> anyhow::Result<Exit> {
    // No role is started. The settings are read like those of a worker, which need no API key.
    let settings = Settings::load(flags, ProcessRole::Worker)?;
    let applied = match &settings.database_url {
        DatabaseUrl::Sqlite(path) => SqliteStore::migrate(path).await?,
        DatabaseUrl::Postgres(url) => {
            let server = DatabaseServer::of(&settings, url);
            PostgresStore::migrate(&server.url_for(&application_name("migrate"))).await?
        }
    };
    for (version, description) in &applied {
        println!("applied {version} {description}");
    }
    if applied.is_empty() {
        println!("the schema is up to date");
    }
    Ok(Exit::Done)
}
