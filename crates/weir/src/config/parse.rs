//! Parses texts into typed settings. Each error says what is wrong and what is valid; it never repeats a secret.

use std::{
    fmt::Display,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    str::FromStr,
};

use ipnet::IpNet;
use tracing_subscriber::EnvFilter;
use url::{Host, Url};
use weir_api::{InvalidPublicUrl, PublicUrl};
use weir_core::{
    egress::{HostPattern, HttpProxy},
    event_types,
    shed::Mode,
};
use weir_sealing::{InvalidKeys, Keyring};

use super::{ApiKey, DatabaseUrl, LogFormat, Password, ServerUrl, names::nearest};

/// Accepted instead of a number of attempts or connections.
const AUTO: &str = "auto";
/// Accepted instead of a number of days.
const FOREVER: &str = "forever";

type Parsed<T> = Result<T, String>;

pub(super) fn listen(text: &str) -> Parsed<SocketAddr> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    local.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).or_else(|| text.parse().ok()).ok_or_else(|| {
        format!("`{text}` is not an address to listen on; use an IP address and a port such as 127.0.0.1:8080")
    })
}

/// Empty: none.
pub(super) fn optional_listen(text: &str) -> Parsed<Option<SocketAddr>> {
    if text.is_empty() { Ok(None) } else { listen(text).map(Some) }
}

pub(super) fn database_url(text: &str) -> Parsed<DatabaseUrl> {
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
pub(super) fn database_read_url(text: &str) -> Parsed<Option<ServerUrl>> {
    match database_url(text) {
        _ if text.is_empty() => Ok(None),
        Ok(DatabaseUrl::Postgres(url)) => Ok(Some(url)),
        Ok(DatabaseUrl::Sqlite(_)) => Err("only PostgreSQL has replicas; use postgres://user@host/database".to_owned()),
        Err(problem) => Err(problem),
    }
}

/// Empty: none.
pub(super) fn redis_url(text: &str) -> Parsed<Option<ServerUrl>> {
    // Commas separate the nodes of a Cluster. The error does not repeat the text, which may hold a password.
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
pub(super) fn encryption_keys(text: &str) -> Parsed<Keyring> {
    text.parse().map_err(|error: InvalidKeys| error.to_string())
}

/// Empty: none.
pub(super) fn password(text: &str) -> Parsed<Option<Password>> {
    match text {
        "" => Ok(None),
        _ if text.contains('\0') => Err("a password has no NUL character".to_owned()),
        _ => Ok(Some(Password(text.to_owned()))),
    }
}

/// Empty: none. The file is opened now, so that a wrong path is found before anything starts.
pub(super) fn readable_file(text: &str) -> Parsed<Option<PathBuf>> {
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
pub(super) fn redis_prefix(text: &str) -> Parsed<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if (1..=MAX_REDIS_PREFIX).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("not a prefix of keys; use 1 to {MAX_REDIS_PREFIX} letters, digits, and the characters - _ . :"))
}

pub(super) fn api_keys(text: &str) -> Parsed<Vec<ApiKey>> {
    let key = |key: &str| {
        // Only these characters can be sent in the `Authorization` header.
        let sendable = key.bytes().all(|byte| byte.is_ascii_graphic());
        sendable.then(|| ApiKey(key.to_owned())).ok_or_else(|| {
            "a key contains a space or a non-ASCII character, which no request can send; separate keys by commas"
                .to_owned()
        })
    };
    items(text).map(key).collect()
}

pub(super) fn hosts(text: &str) -> Parsed<Vec<Host<String>>> {
    let host = |text: &str| {
        let v6 = text.parse().map(Host::Ipv6).ok();
        // A `*` is refused: wildcards are not supported and would match no host.
        let other = || Host::parse(text).ok().filter(|host| !host.to_string().contains('*'));
        v6.or_else(other).ok_or_else(|| {
            format!(
                "`{text}` is not a host; use names or addresses without scheme and port, separated by commas, such as weir.example.com,10.0.0.5"
            )
        })
    };
    items(text).map(host).collect()
}

/// Empty: none.
pub(super) fn public_url(text: &str) -> Parsed<Option<PublicUrl>> {
    // The error does not repeat the text: it may hold a password.
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|error: InvalidPublicUrl| error.to_string()) }
}

pub(super) fn on_or_off(text: &str) -> Parsed<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

pub(super) fn shed(text: &str) -> Parsed<Mode> {
    text.parse().map_err(|_| format!("`{text}` is none of on, dry-run and off"))
}

pub(super) fn event_types(text: &str) -> Parsed<event_types::Mode> {
    text.parse().map_err(|_| format!("`{text}` is neither open nor strict"))
}

pub(super) fn networks(text: &str) -> Parsed<Vec<IpNet>> {
    let network = |text: &str| {
        let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let network = network.ok_or_else(|| {
            format!("`{text}` is not a network; use CIDRs separated by commas, such as 10.0.0.0/8,fd00::/8")
        })?;
        // IPv4-mapped addresses are compared as IPv4, so such a network would match no address.
        match network {
            IpNet::V6(v6) if v6.prefix_len() >= 96 && v6.addr().to_ipv4_mapped().is_some() => {
                Err(format!("`{text}` is a network of IPv4-mapped addresses; use the IPv4 network, such as 10.0.0.0/8"))
            }
            network => Ok(network),
        }
    };
    items(text).map(network).collect()
}

/// Empty: none.
pub(super) fn egress_proxy(text: &str) -> Parsed<Option<HttpProxy>> {
    if text.is_empty() { Ok(None) } else { HttpProxy::parse(text).map(Some).map_err(str::to_owned) }
}

pub(super) fn host_patterns(text: &str) -> Parsed<Vec<HostPattern>> {
    items(text).map(str::parse).collect()
}

/// Empty: that of the program.
pub(super) fn user_agent(text: &str) -> Parsed<Option<String>> {
    match text.len() {
        0 => Ok(None),
        // What a header of a destination may have.
        1..=256 if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => Ok(Some(text.to_owned())),
        _ => Err("a user-agent has at most 256 characters, all of them printable ASCII".to_owned()),
    }
}

/// Empty: any.
pub(super) fn ports(text: &str) -> Parsed<Vec<RangeInclusive<u16>>> {
    let port = |text: &str| text.trim().parse().ok().filter(|&port: &u16| port > 0);
    let ports = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = port(first).zip(port(last)).filter(|(first, last)| first <= last);
        range.map(|(first, last)| first..=last).ok_or_else(|| {
            format!("`{text}` is not a port; use ports and ranges separated by commas, such as 443,8000-8999")
        })
    };
    items(text).map(ports).collect()
}

pub(super) fn boolean(text: &str) -> Parsed<bool> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("`{text}` is not a boolean; use true or false")),
    }
}

/// The crates of Weir, by which log lines are filtered.
const LOG_TARGETS: [&str; 13] = [
    "weir",
    "weir_api",
    "weir_api_types",
    "weir_chart",
    "weir_core",
    "weir_dashboard",
    "weir_queue",
    "weir_queue_redis",
    "weir_scheduler",
    "weir_store",
    "weir_store_postgres",
    "weir_store_sqlite",
    "weir_worker",
];
const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

pub(super) fn log(text: &str) -> Parsed<String> {
    let refused = |problem: String| {
        format!(
            "`{text}` is not a log filter ({problem}); use a level ({}), or levels by module such as info,weir_worker=debug",
            LOG_LEVELS.join(", ")
        )
    };
    // A misspelled word would be a module that writes nothing, so that the log would be empty.
    for directive in items(text) {
        let (module, level) =
            directive.split_once('=').map_or((directive, None), |(module, level)| (module, Some(level)));
        let is_level = |word: &str| LOG_LEVELS.contains(&word.to_ascii_lowercase().as_str());
        let krate = module.split(['[', ':']).next().unwrap_or_default();
        let is_known = LOG_TARGETS.contains(&krate);
        match level {
            Some(level) if !is_level(level) => return Err(refused(format!("`{level}` is not a level"))),
            // Modules of other crates are not known here.
            Some(_) if is_known || !krate.starts_with("weir") => {}
            None if is_level(module) || is_known => {}
            _ => {
                let known = LOG_LEVELS.iter().filter(|_| level.is_none()).chain(&LOG_TARGETS);
                let nearest = nearest(krate, known.map(|name| (*name).to_owned()));
                let hint = nearest.map(|name| format!(": did you mean {name}?")).unwrap_or_default();
                let kind = if level.is_none() { "neither a level nor a module" } else { "not a module" };
                return Err(refused(format!("`{module}` is {kind}{hint}")));
            }
        }
    }
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| refused(error.to_string()))
}

pub(super) fn log_format(text: &str) -> Parsed<LogFormat> {
    text.parse().map_err(|_| format!("`{text}` is not a log format; use text or json"))
}

/// A whole number from `least` to `most`.
pub(super) fn number<T: FromStr + PartialOrd + Display>(text: &str, least: T, most: T) -> Parsed<T> {
    match text.parse::<T>() {
        Ok(number) if least <= number && number <= most => Ok(number),
        _ => Err(format!("`{text}` is not a whole number from {least} to {most}")),
    }
}

/// A maximum of destinations.
pub(super) fn destinations(text: &str) -> Parsed<usize> {
    number(text, 1, 1_000_000)
}

/// The maximum number of attempts that a worker makes at one time. `None`: as many as the limit of open files allows.
pub(super) fn capacity(text: &str) -> Parsed<Option<usize>> {
    number_or(AUTO, "means as many as the limit of open files allows", text, 1_000_000)
}

/// The maximum number of connections of one client address. `None`: a quarter of all connections.
pub(super) fn connections_per_address(text: &str) -> Parsed<Option<usize>> {
    number_or(AUTO, "means a quarter of all connections", text, 1_000_000)
}

/// How many days records are kept. `None`: forever. The minimum is a day, because daily limits need the sends of the
/// last day.
pub(super) fn days(text: &str) -> Parsed<Option<u64>> {
    number_or(FOREVER, "disables the deletion", text, 36_500)
}

/// A whole number from 1 to `most`, or a word.
fn number_or<T: FromStr + PartialOrd + Display + From<u8>>(
    word: &str,
    meaning: &str,
    text: &str,
    most: T,
) -> Parsed<Option<T>> {
    if text == word {
        return Ok(None);
    }
    number(text, T::from(1), most).map(Some).map_err(|problem| format!("{problem}, nor {word}, which {meaning}"))
}

/// The items of a comma-separated list, trimmed; empty items are ignored.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ip_and_port_or_localhost() {
        assert_eq!(listen("[::1]:0"), Ok("[::1]:0".parse().unwrap()));
        assert_eq!(listen("localhost:9000"), Ok("127.0.0.1:9000".parse().unwrap()));
        for bad in ["", "8080", "example.com:80", "127.0.0.1", "localhost:99999"] {
            assert!(listen(bad).unwrap_err().contains("127.0.0.1:8080"), "{bad}");
        }
    }

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
    fn an_unknown_log_filter_is_refused() {
        for known in [
            "info",
            "WARN",
            "info,weir_worker=debug",
            "weir_api::auth=trace,sqlx=warn",
            "off",
            "debug,hyper=off",
            "weir_store",
        ] {
            assert!(log(known).is_ok(), "{known}");
        }
        for (unknown, hint) in [
            ("inof", "info"),
            ("info,weir_wroker=debug", "weir_worker"),
            ("info,weir_worker=debgu", "not a level"),
            ("verbose", "neither"),
        ] {
            let problem = log(unknown).unwrap_err();
            assert!(problem.contains(hint), "{unknown}: {problem}");
        }
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

    #[test]
    fn networks_are_cidrs_or_single_addresses() {
        let parsed = networks("127.0.0.0/8, ::1 ,").unwrap();
        assert_eq!(parsed, ["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
        assert!(networks("127.0.0.0/33").unwrap_err().contains("`127.0.0.0/33`"));
        for mapped in ["::ffff:10.0.0.0/104", "::ffff:10.1.2.3"] {
            assert!(networks(mapped).unwrap_err().contains("IPv4-mapped"), "{mapped}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses_without_ports() {
        let expected =
            ["weir.example.com", "10.0.0.5", "[fd00::1]", "[fd00::2]"].map(|host| Host::parse(host).unwrap());
        assert_eq!(hosts("Weir.Example.com, 10.0.0.5,fd00::1,[fd00::2],").unwrap(), expected);
        for bad in ["weir.example.com:8080", "https://weir.example.com", "a b", "10.0.0.5/8", "*.example.com"] {
            assert!(hosts(bad).unwrap_err().contains("without scheme and port"), "{bad}");
        }
    }

    #[test]
    fn ports_are_numbers_or_ranges() {
        assert_eq!(ports("443, 8000-8999"), Ok(vec![443..=443, 8_000..=8_999]));
        assert_eq!(ports(""), Ok(Vec::new()));
        for bad in ["0", "65536", "https", "9-8", "-", "80-", "1-2-3"] {
            assert!(ports(bad).unwrap_err().contains("443,8000-8999"), "{bad}");
        }
    }

    #[test]
    fn a_key_that_no_request_can_send_is_refused_and_not_shown() {
        assert_eq!(api_keys("a, b,").unwrap().len(), 2);
        let problem = api_keys("good,geh eim").unwrap_err();
        assert!(!problem.contains("geh eim"), "{problem}");
    }

    #[test]
    fn retention_is_a_number_of_days_or_forever() {
        assert_eq!(days("14"), Ok(Some(14)));
        assert_eq!(days("forever"), Ok(None));
        for bad in ["0", "-1", "1.5", "never", "", "36501"] {
            assert!(days(bad).unwrap_err().contains("nor forever"), "{bad}");
        }
    }

    #[test]
    fn a_capacity_is_a_number_or_auto() {
        assert_eq!(capacity("auto"), Ok(None));
        assert_eq!(capacity("512"), Ok(Some(512)));
        assert!(capacity("0").unwrap_err().contains("auto"));
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused() {
        assert_eq!(number("5", 1, 5), Ok(5));
        for bad in ["0", "6", "-1", "1.5", ""] {
            assert!(number::<u64>(bad, 1, 5).unwrap_err().contains("from 1 to 5"), "{bad}");
        }
    }
}
