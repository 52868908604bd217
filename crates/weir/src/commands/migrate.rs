//! `weir migrate`: the database at this version's schema.

use weir_store_sqlite::SqliteStore;

use crate::{
    cli::{Exit, SettingFlags},
    config::{DatabaseUrl, Settings},
};

pub(super) async fn run(flags: &SettingFlags) -> anyhow::Result<Exit> {
    let settings = Settings::load(flags)?;
    let DatabaseUrl::Sqlite(path) = &settings.database_url;
    let applied = SqliteStore::migrate(path).await?;
    for (version, description) in &applied {
        println!("applied {version} {description}");
    }
    if applied.is_empty() {
        println!("the schema is up to date");
    }
    Ok(Exit::Done)
}
