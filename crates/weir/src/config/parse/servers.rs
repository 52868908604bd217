//! Where the servers of a deployment are, and the secrets and files for their connections.

use std::path::PathBuf;

use url::Url;
use weir_sealing::{InvalidKeys, Keyring};

use super::Parsed;
use crate::config::{DatabaseUrl, Password, ServerUrl};

pub(crate) fn database_url(text: &str) -> Parsed<DatabaseUrl> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return postgres_url(text);
    }
    // The errors below do not repeat the text: even an unknown URL may hold a password.
    let path = text.strip_prefix("sqlite://").or_else(|| text.strip_prefix("sqlite:"));
    match path {
        Some(path) if path.contains('?') => {
            Err("sqlite:// takes a path without parameters; remove the `?` and the text after it".to_owned())
        }
        Some("" | ":memory:") => {
            Err("the database must be a file that outlives the process; use a path such as sqlite://weir.db".to_owned())
        }
        Some(path) => Ok(DatabaseUrl::Sqlite(PathBuf::from(path))),
        None => {
            Err("not a database URL that Weir supports; use sqlite:// and the path of a file, such as sqlite://weir.db, or postgres://user@host/database".to_owned())
        }
    }
}

/// Empty: none.
pub(crate) fn database_read_url(text: &str) -> Parsed<Option<ServerUrl>> {
    match database_url(text) {
        _ if text.is_empty() => Ok(None),
        Ok(DatabaseUrl::Postgres(url)) => Ok(Some(url)),
        Ok(DatabaseUrl::Sqlite(_)) => Err("only PostgreSQL has replicas; use postgres://user@host/database".to_owned()),
        Err(problem) => Err(problem),
    }
}

/// Empty: none.
pub(crate) fn redis_url(text: &str) -> Parsed<Option<ServerUrl>> {
    // The URL of a Cluster is a list of nodes with commas between them. The error does not show the URL, because it may contain
    // a password.
    let is_tcp = |node: &str| ["redis://", "rediss://"].iter().any(|scheme| node.starts_with(scheme));
    let is_unix = |node: &str| ["unix:///", "redis+unix:///"].iter().any(|scheme| node.starts_with(scheme));
    let is_one = !text.contains(',');
    match text {
        "" => Ok(None),
        _ if is_one && is_unix(text) => Ok(Some(ServerUrl(text.to_owned()))),
        _ if text.split(',').all(is_tcp) => {
            text.split(',').try_for_each(without_raw_characters)?;
            Ok(Some(ServerUrl(text.to_owned())))
        }
        _ => {
            Err("not a Redis URL; use redis://host:6379, rediss:// for TLS, unix:///run/redis.sock, or nodes of a Cluster separated by commas. A comma in a password is written %2C"
                .to_owned())
        }
    }
}

/// Refuses a URL whose password has a character that ends it: what follows would count as the name of the host or of the
/// database, and be shown.
fn without_raw_characters(url: &str) -> Parsed<()> {
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = after_scheme.find(['/', '?', '#']).unwrap_or(after_scheme.len());
    let (authority, rest) = after_scheme.split_at(end);
    // Only the last `@` ends the password. Another one in it would be read right, but by no other program.
    if rest.contains('@') || authority.matches('@').count() > 1 {
        return Err("the user or the password has one of the characters / ? # @, which end it in a URL: write them as %2F %3F %23 %40, or give the password apart (WEIR_DATABASE_PASSWORD, WEIR_REDIS_PASSWORD, or a file that WEIR_…_FILE names). An @ elsewhere is written %40 too".to_owned());
    }
    Ok(())
}

/// The parameters of a `postgres://` URL. The client would ignore another one, and write its value to the log.
const POSTGRES_PARAMETERS: [&str; 19] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "options[…]",
];

fn postgres_url(text: &str) -> Parsed<DatabaseUrl> {
    without_raw_characters(text)?;
    // The error of the parser does not repeat the text.
    let url = Url::parse(text).map_err(|error| {
        format!(
            "not a URL ({error}); write it as postgres://user:password@host:5432/database, an IPv6 address in brackets"
        )
    })?;
    for (name, _) in url.query_pairs() {
        if !POSTGRES_PARAMETERS.contains(&&*name) && !name.starts_with("options[") {
            return Err(format!(
                "`{name}` is not a parameter of the URL; use one of {}",
                POSTGRES_PARAMETERS.join(", ")
            ));
        }
    }
    Ok(DatabaseUrl::Postgres(ServerUrl(text.to_owned())))
}

/// Empty: none. The error does not repeat the text.
pub(crate) fn encryption_keys(text: &str) -> Parsed<Keyring> {
    text.parse().map_err(|error: InvalidKeys| error.to_string())
}

/// Empty: none.
pub(crate) fn password(text: &str) -> Parsed<Option<Password>> {
    match text {
        "" => Ok(None),
        _ if text.contains('\0') => Err("a password has no NUL character".to_owned()),
        _ => Ok(Some(Password(text.to_owned()))),
    }
}

/// Empty: none. The file is opened now, so that a wrong path is found before anything starts.
pub(crate) fn readable_file(text: &str) -> Parsed<Option<PathBuf>> {
    if text.is_empty() {
        return Ok(None);
    }
    let opened = std::fs::File::open(text).and_then(|file| file.metadata());
    match opened {
        Ok(metadata) if metadata.is_file() => Ok(Some(PathBuf::from(text))),
        Ok(_) => Err(format!("`{text}` is not a file")),
        Err(error) => Err(format!("cannot read `{text}`: {error}")),
    }
}

/// The longest prefix of keys. It is a part of every key.
const MAX_REDIS_PREFIX: usize = 64;

/// Braces would change the hash tags of the keys, on which a Cluster depends.
pub(crate) fn redis_prefix(text: &str) -> Parsed<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if (1..=MAX_REDIS_PREFIX).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("not a prefix of keys; use 1 to {MAX_REDIS_PREFIX} letters, digits, and the characters - _ . :"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sqlite_url_needs_a_file_path() {
        assert_eq!(database_url("sqlite://weir.db"), Ok(DatabaseUrl::Sqlite("weir.db".into())));
        assert_eq!(database_url("sqlite:///var/lib/weir.db"), Ok(DatabaseUrl::Sqlite("/var/lib/weir.db".into())));
        assert_eq!(database_url("sqlite:data/weir.db"), Ok(DatabaseUrl::Sqlite("data/weir.db".into())));
        for bad in ["", "weir.db", "mysql://x", "sqlite://", "sqlite::memory:", "sqlite://weir.db?mode=ro"] {
            assert!(database_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn server_urls_are_recognised_by_scheme_and_their_passwords_are_not_shown() {
        let url = "postgres://weir:hunter2@db/weir";
        assert_eq!(database_url(url), Ok(DatabaseUrl::Postgres(ServerUrl(url.to_owned()))));
        assert!(!format!("{:?}", database_url(url)).contains("hunter2"));
        assert!(redis_url("redis://:hunter2@a:1,rediss://b").unwrap().is_some());
        assert_eq!(redis_url(""), Ok(None));
        assert!(!redis_url("reddis://:hunter2@cache").unwrap_err().contains("hunter2"));
        assert!(!database_url("postgre://weir:hunter2@db/weir").unwrap_err().contains("hunter2"));
    }

    #[test]
    fn a_password_with_a_raw_character_is_refused_and_no_part_of_it_is_shown() {
        for url in [
            "postgres://weir:12/hush@db/weir",
            "postgres://weir:hu?hush@db/weir",
            "postgres://weir:12#hush@db/weir",
            "postgres://weir:hu@s/hush@db/weir",
            "postgres://weir:hush@hush@db/weir",
            "postgres://weir:hush/@db/weir",
        ] {
            let problem = database_url(url).unwrap_err();
            assert!(problem.contains("%2F") && !problem.contains("hush"), "{url}: {problem}");
        }
        let problem = redis_url("redis://:12/hush@cache:6379").unwrap_err();
        assert!(problem.contains("%2F") && !problem.contains("hush"), "{problem}");
        let problem = redis_url("redis://:hu,hush@cache:6379").unwrap_err();
        assert!(problem.contains("%2C") && !problem.contains("hush"), "{problem}");
        assert!(database_url("postgres://weir:12%2Fhush@db/weir?sslmode=require").is_ok());
        let problem = database_url("postgres://weir@db/weir?sslpassword=hush").unwrap_err();
        assert!(problem.contains("`sslpassword`") && !problem.contains("hush"), "{problem}");
    }

    #[test]
    fn sockets_and_ipv6_addresses_are_servers() {
        for url in
            ["unix:///run/redis.sock", "redis+unix:///run/redis.sock?db=1", "redis://[::1]:6379", "rediss://[fd00::1]"]
        {
            assert!(redis_url(url).unwrap().is_some(), "{url}");
        }
        assert!(redis_url("unix:///run/a.sock,unix:///run/b.sock").is_err(), "a Cluster has no sockets");
        assert!(database_url("postgres://weir@[::1]:5432/weir").is_ok());
        assert!(database_url("postgres:///weir?host=/run/postgresql").is_ok());
        assert!(database_url("postgres://weir@::1:5432/weir").unwrap_err().contains("brackets"));
    }

    #[test]
    fn a_prefix_of_keys_leaves_the_hash_tags_alone() {
        for valid in ["weir", "staging:weir", "a.b-c_1"] {
            assert_eq!(redis_prefix(valid).as_deref(), Ok(valid));
        }
        for invalid in ["", "{weir}", "we ir", "wéir", "*", &"x".repeat(65)] {
            assert!(redis_prefix(invalid).is_err(), "{invalid}");
        }
    }
}
