//! `weir secrets`: which keys the values of the database need, and the rotation of keys while processes run.

use std::{
    collections::BTreeSet,
    io::{IsTerminal as _, stderr},
    time::Duration,
};

use anyhow::bail;
use tokio::time::{Instant, sleep};
use weir_sealing::{COLUMNS, KeyId, Keyring};
use weir_store::{
    BEAT_EVERY,
    sealing::{Progress, SealedCounts, SealedRows, count_sealed, missing_key},
};
use weir_store_postgres::PostgresStore;
use weir_store_sqlite::SqliteStore;

use crate::{
    backends::application_name,
    cli::SecretsCommand,
    config::{DatabaseServer, DatabaseUrl, ProcessRole, SettingFlags, Settings},
    exit::{Exit, Misuse},
};
use weir_cli::output::{
    self, Screen,
    table::{Column, Table},
};

/// How often the progress is printed.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// After this time, a process that still encrypts with a removed key has said so.
const ANNOUNCED_AFTER: Duration = Duration::from_millis(2_500);

pub(super) async fn run(command: SecretsCommand) -> anyhow::Result<Exit> {
    match command {
        SecretsCommand::Check(flags) => {
            let (rows, keyring) = open(&flags).await?;
            check(&*rows, &keyring).await
        }
        SecretsCommand::Rotate(flags) => {
            let (rows, keyring) = open(&flags).await?;
            rotate(&*rows, &keyring).await
        }
    }
}

async fn open(flags: &SettingFlags) -> anyhow::Result<(Box<dyn SealedRows>, Keyring)> {
    // No role is started. The settings are read like those of a worker, which need no API key.
    let settings = Settings::load(flags, ProcessRole::Worker)?;
    let rows: Box<dyn SealedRows> = match &settings.database_url {
        DatabaseUrl::Sqlite(path) => Box::new(SqliteStore::sealed_rows(path)?),
        DatabaseUrl::Postgres(url) => {
            let server = DatabaseServer::of(&settings, url);
            Box::new(PostgresStore::sealed_rows(&server.url_for(&application_name("secrets"))).await?)
        }
    };
    Ok((rows, settings.keyring()))
}

async fn check(rows: &dyn SealedRows, keyring: &Keyring) -> anyhow::Result<Exit> {
    let (counts, _) = count_sealed(rows, None, &mut reporter("counted")).await?;
    print_counts(&counts, keyring)?;
    let is_due = |(column, key): &(&str, Option<KeyId>)| {
        let sealed = || COLUMNS.iter().any(|one| one.name == *column && keyring.seals(one));
        *key != keyring.first_id() && (key.is_some() || sealed())
    };
    let due: u64 = counts.iter().filter(|(place, _)| is_due(place)).map(|(_, count)| count).sum();
    if due > 0 {
        output::print(&format!("\n{due} values are not as the settings say: run `weir secrets rotate`"))?;
        return Ok(Exit::Failure);
    }
    let unused = unused(rows.sealing_keys().await?, &counts, keyring);
    output::print(&format!(
        "\nEvery value is as the settings say.{}",
        if unused.is_empty() {
            String::new()
        } else {
            format!(" `weir secrets rotate` says whether {} can be removed.", names(&unused))
        }
    ))?;
    Ok(Exit::Done)
}

async fn rotate(rows: &dyn SealedRows, keyring: &Keyring) -> anyhow::Result<Exit> {
    let known = rows.sealing_keys().await?;
    if keyring.is_empty() {
        return Err(
            Misuse("encryption_keys: there is no key to encrypt with; set WEIR_ENCRYPTION_KEYS".to_owned()).into()
        );
    }
    if let Some(key) = missing_key(&known, keyring) {
        let message = format!("encryption_keys: values are encrypted with the key {key}; add it behind the first one");
        return Err(Misuse(message).into());
    }
    // Before that, a process might not be able to read what the rotation stores.
    if let Some(first) = keyring.first_id().filter(|first| !known.contains(first)) {
        let message = format!(
            "encryption_keys: no process of Weir has started with {first} as its first key; restart all of them with \
             these keys, and run this command again"
        );
        return Err(Misuse(message).into());
    }
    let (counts, renewed) = count_sealed(rows, Some(keyring), &mut reporter("rotated")).await?;
    output::print(&format!("{} values were stored again", renewed.rows))?;
    if let Some(error) = renewed.last_error {
        bail!("{} values stay as they are, because no key opens them; the last one: {error}", renewed.unopened);
    }
    // What a process has stored meanwhile with another key, it stores again and again: it is named below.
    let unused = unused(known, &counts, keyring);
    for key in &unused {
        rows.remove_sealing_key(*key).await?;
    }
    if !unused.is_empty() {
        sleep(ANNOUNCED_AFTER.max(2 * BEAT_EVERY)).await;
        let back: Vec<_> = rows.sealing_keys().await?.into_iter().filter(|key| unused.contains(key)).collect();
        if !back.is_empty() {
            bail!(
                "a process of Weir still encrypts with {}: restart all of them with the keys of this command, and run it again",
                names(&back)
            );
        }
    }
    // Also those that an earlier call has seen to the end, in case nobody has read what it said.
    let of_settings = self::unused(keyring.ids().collect(), &counts, keyring);
    let needless: BTreeSet<KeyId> = unused.into_iter().chain(of_settings).collect();
    if !needless.is_empty() {
        let names = names(&needless.into_iter().collect::<Vec<_>>());
        output::print(&format!("No value needs {names} any more: remove it from WEIR_ENCRYPTION_KEYS"))?;
    }
    if let Some(note) = rows.clean_up().await? {
        output::print(&note)?;
    }
    Ok(Exit::Done)
}

/// The keys that the store knows, that encrypt nothing new, and that no value needs.
fn unused(known: Vec<KeyId>, counts: &SealedCounts, keyring: &Keyring) -> Vec<KeyId> {
    let used: BTreeSet<KeyId> = counts.keys().filter_map(|(_, key)| *key).chain(keyring.first_id()).collect();
    known.into_iter().filter(|key| !used.contains(key)).collect()
}

fn names(keys: &[KeyId]) -> String {
    let names: Vec<_> = keys.iter().map(ToString::to_string).collect();
    format!("{} {}", if keys.len() == 1 { "the key" } else { "the keys" }, names.join(", "))
}

fn print_counts(counts: &SealedCounts, keyring: &Keyring) -> anyhow::Result<()> {
    let columns = [Column::text("column"), Column::text("key"), Column::number("values")];
    let key = |key: &Option<KeyId>| match key {
        None => "not encrypted".to_owned(),
        Some(key) if keyring.first_id() == Some(*key) => format!("{key} (the first)"),
        Some(key) if keyring.has(*key) => key.to_string(),
        Some(key) => format!("{key} (missing)"),
    };
    let rows = counts.iter().map(|((column, of), count)| [(*column).into(), key(of).into(), count.to_string().into()]);
    output::print(&Table::new(columns).with(rows).render(Screen::of_stdout()))
}

/// Prints the progress to standard error: in place on a terminal, otherwise a line each time.
fn reporter(verb: &'static str) -> impl FnMut(Progress) + Send {
    let mut next = Instant::now() + PROGRESS_EVERY;
    move |Progress { column, read, renewed }| {
        if Instant::now() < next {
            return;
        }
        next += PROGRESS_EVERY;
        let end = if stderr().is_terminal() { "\r" } else { "\n" };
        let count = if verb == "rotated" { format!(", {renewed} {verb}") } else { String::new() };
        eprint!("{column}: {read} read{count}{end}");
    }
}
