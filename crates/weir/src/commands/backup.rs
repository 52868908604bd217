//! `weir backup`: copies a SQLite database while Weir runs, and checks the copy. PostgreSQL has its own tools for this, so
//! for it the command prints what to run.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use url::Url;
use weir_core::{Clock as _, Timestamp};
use weir_store_sqlite::{BackedUp, BackupError, SqliteStore};

use super::serve::StopSignals;
use crate::{
    cli::BackupArgs,
    clock::SystemClock,
    config::{DatabaseUrl, ProcessRole, Settings},
    exit::{Exit, Misuse},
};

/// The names of backups in a folder: `weir-2026-11-24T202900Z.db`. They sort by time.
const START: &str = "weir-";
const END: &str = ".db";

/// The parameters of a URL that PostgreSQL's own programs know. Others are of Weir's client.
const OF_LIBPQ: [&str; 8] =
    ["sslmode", "sslrootcert", "sslcert", "sslkey", "host", "hostaddr", "application_name", "options"];

pub(super) async fn run(arguments: BackupArgs) -> anyhow::Result<Exit> {
    // No role is started. The settings are read like those of a worker, which need no API key.
    let settings = Settings::load(&arguments.settings, ProcessRole::Worker)?;
    let now = SystemClock::start().now();
    match &settings.database_url {
        DatabaseUrl::Sqlite(database) => copy(database.clone(), arguments, now).await,
        DatabaseUrl::Postgres(url) => {
            if arguments.keep.is_some() {
                return Err(
                    Misuse("--keep is for SQLite: PostgreSQL is backed up with its own tools".to_owned()).into()
                );
            }
            print!("{}", commands_for_postgres(url.as_ref(), &arguments.into, now)?);
            eprintln!("no backup was made: PostgreSQL is backed up with its own tools, by the commands above");
            // A job that calls this must not look as if it had made a backup.
            Ok(Exit::Failure)
        }
    }
}

async fn copy(database: PathBuf, arguments: BackupArgs, now: Timestamp) -> anyhow::Result<Exit> {
    let BackupArgs { into, keep, .. } = arguments;
    let folder = into.is_dir().then(|| into.clone());
    if folder.is_none() && keep.is_some() {
        let message = format!("--keep needs a folder, and {} is none; create it, or leave --keep out", into.display());
        return Err(Misuse(message).into());
    }
    let file = folder.as_ref().map_or(into, |folder| folder.join(file_name(now, END)));
    let interrupted = Arc::new(AtomicBool::new(false));
    let copying = {
        let (file, interrupted) = (file.clone(), Arc::clone(&interrupted));
        tokio::task::spawn_blocking(move || {
            SqliteStore::back_up(&database, &file, &|| interrupted.load(Ordering::Relaxed))
        })
    };
    tokio::pin!(copying);
    let mut stop = StopSignals::handle()?;
    let copied = tokio::select! {
        copied = &mut copying => copied,
        _ = stop.received() => {
            interrupted.store(true, Ordering::Relaxed);
            copying.await
        }
    };
    let BackedUp { bytes } = copied.context("the copy panicked")?.map_err(|error| match error {
        // A wrong setting has its own exit code.
        BackupError::Source(error) => error.into(),
        error => anyhow::Error::from(error),
    })?;
    println!("wrote {} ({:.1} MB), checked: ok", file.display(), bytes as f64 / 1e6);
    if let (Some(folder), Some(keep)) = (folder, keep) {
        for removed in all_but_newest(&folder, keep as usize)? {
            println!("removed {}", removed.display());
        }
    }
    Ok(Exit::Done)
}

/// `2026-11-24T20:29:00.123Z` without what does not fit into a name.
fn file_name(now: Timestamp, end: &str) -> String {
    let seconds = now.to_string();
    let seconds = seconds.split('.').next().unwrap_or_default().replace(':', "");
    format!("{START}{seconds}Z{end}")
}

fn is_backup(name: &str) -> bool {
    let time = name.strip_prefix(START).and_then(|rest| rest.strip_suffix(END)).unwrap_or_default();
    time.len() == "2026-11-24T202900Z".len()
        && time.ends_with('Z')
        && time.bytes().all(|byte| byte.is_ascii_digit() || b"-TZ".contains(&byte))
}

/// Removes the oldest backups of a folder, and returns them. Other files stay.
fn all_but_newest(folder: &Path, keep: usize) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut backups = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_backup) {
            backups.push(path);
        }
    }
    backups.sort();
    let removed = backups.len().saturating_sub(keep);
    backups.truncate(removed);
    for path in &backups {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(backups)
}

/// What backs up a database of PostgreSQL. The password is left out: PostgreSQL's programs take it from PGPASSWORD or
/// from the file `~/.pgpass`.
fn commands_for_postgres(url: &str, into: &Path, now: Timestamp) -> anyhow::Result<String> {
    let mut url = Url::parse(url).map_err(|error| Misuse(format!("database_url: invalid URL ({error})")))?;
    let had_password = url.password().is_some();
    // Fails only for a URL without a host, which has no password either.
    let _ = url.set_password(None);
    let known: Vec<_> = url
        .query_pairs()
        .filter(|(name, _)| OF_LIBPQ.contains(&&**name))
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    url.set_query(None);
    if !known.is_empty() {
        url.query_pairs_mut().extend_pairs(known);
    }
    let file = if into.is_dir() { into.join(file_name(now, ".dump")) } else { into.to_owned() };
    let (file, url) = (quoted(&file.to_string_lossy()), quoted(url.as_str()));
    let password = if had_password { "# PGPASSWORD or ~/.pgpass has the password of WEIR_DATABASE_URL.\n" } else { "" };
    Ok(format!(
        "# With the programs of a PostgreSQL that is as new as the server. Weir goes on meanwhile.\n{password}umask 077\n\
         pg_dump --format=custom --file={file} --dbname={url}\npg_restore --list {file} > /dev/null   # the dump can be read\n"
    ))
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn only_the_oldest_backups_are_removed_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let days = ["2026-11-01", "2026-11-02", "2026-11-03"].map(|day| at(&format!("{day}T03:17:00.250Z")));
        let [first, second, third] = days.map(|day| file_name(day, END));
        assert_eq!(first, "weir-2026-11-01T031700Z.db");
        let others = ["weir.db", "weir-old.db", "weir-2026-11-01T031700Z.db.part", "notes"];
        for name in [&*first, &*second, &*third].into_iter().chain(others) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(all_but_newest(folder.path(), 2).unwrap(), [folder.path().join(&first)]);
        assert_eq!(all_but_newest(folder.path(), 2).unwrap(), [] as [PathBuf; 0]);
        for name in [&*second, &*third].into_iter().chain(others) {
            assert!(folder.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn the_command_for_postgresql_has_no_password_and_only_what_its_programs_know() {
        let url = "postgres://weir:s3cr3t%27@db.example:5433/weir?sslmode=verify-full&statement-cache-capacity=5";
        let text = commands_for_postgres(url, Path::new("/backup/it's.dump"), at("2026-11-24T20:29:00Z")).unwrap();
        assert!(!text.contains("s3cr3t"), "{text}");
        let command = "pg_dump --format=custom --file='/backup/it'\\''s.dump' \
                       --dbname='postgres://weir@db.example:5433/weir?sslmode=verify-full'";
        assert!(text.contains(command), "{text}");
        assert!(text.contains("PGPASSWORD"), "{text}");
    }
}
