//! The whole configuration: the order of the sources, refused settings, and helpful messages.

use std::path::Path;

use clap::{Args as _, Command, FromArgMatches as _};

use super::*;

fn flags(arguments: &[&str]) -> SettingFlags {
    let matches = SettingFlags::augment_args(Command::new("weir")).get_matches_from(["weir"].iter().chain(arguments));
    SettingFlags::from_arg_matches(&matches).unwrap()
}

fn environment(variables: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
    variables.iter().map(|(name, value)| (name.into(), value.into())).collect::<Vec<_>>().into_iter()
}

/// Settings from flags, environment and the text of a file.
fn load(arguments: &[&str], variables: &[(&str, &str)], file: &str) -> Result<Settings, ConfigError> {
    let mut values = SourceValues::default();
    let mut faults = values.add_flags(&flags(arguments));
    faults.extend(values.add_environment(environment(variables)).1);
    faults.extend(values.add_file(Path::new("weir.toml"), file));
    if let Some(fault) = faults.into_iter().next() {
        return Err(fault);
    }
    Settings::from_sources(values, ProcessRole::Serve)
}

/// The message of the error.
fn refusal(arguments: &[&str], variables: &[(&str, &str)], file: &str) -> String {
    load(arguments, variables, file).unwrap_err().to_string()
}

#[test]
fn a_health_check_asks_the_metrics_listener_or_the_main_listener() {
    let asked = |variables: &[(&str, &str)]| {
        let mut values = SourceValues::default();
        assert_eq!(values.add_environment(environment(variables)).1, []);
        Settings::health_listen_of(values).map(|listen| listen.to_string())
    };
    let (listen, metrics) = (("WEIR_LISTEN", "0.0.0.0:8000"), ("WEIR_METRICS_LISTEN", "0.0.0.0:9464"));
    assert_eq!(asked(&[listen, metrics]).unwrap(), "0.0.0.0:9464");
    assert_eq!(asked(&[listen]).unwrap(), "0.0.0.0:8000", "without an API key, which only the server needs");
    assert_eq!(asked(&[]).unwrap(), "127.0.0.1:8080");
    assert!(asked(&[("WEIR_METRICS_LISTEN", "nowhere")]).is_err());
}

#[test]
fn the_defaults_match_the_documentation() {
    let settings = load(&[], &[], "").unwrap();
    let expected = Settings {
        listen: "127.0.0.1:8080".parse().unwrap(),
        metrics_listen: None,
        database_url: DatabaseUrl::Sqlite("weir.db".into()),
        database_password: None,
        database_pool: weir_store_postgres::DEFAULT_POOL,
        database_read_url: None,
        database_tls_ca: None,
        database_tls_cert: None,
        database_tls_key: None,
        encryption_keys: Keyring::default(),
        encrypt_bodies: false,
        redis_url: None,
        redis_password: None,
        redis_tls_ca: None,
        redis_tls_cert: None,
        redis_tls_key: None,
        redis_prefix: weir_queue_redis::DEFAULT_PREFIX.to_owned(),
        api_keys: Vec::new(),
        allow_http: false,
        hosts: Vec::new(),
        public_url: None,
        dashboard: true,
        allow_networks: Vec::new(),
        deny_networks: Vec::new(),
        trusted_proxies: Vec::new(),
        allow_ports: Vec::new(),
        egress_proxy: None,
        egress_direct: Vec::new(),
        egress_allow: Vec::new(),
        user_agent: None,
        log: "info".to_owned(),
        log_format: LogFormat::Text,
        max_event_bytes: 1024 * 1024,
        body_budget_bytes: weir_api::DEFAULT_BODY_BUDGET_BYTES,
        shed: weir_core::shed::Mode::On,
        event_types: weir_core::event_types::Mode::Open,
        max_connections: 4096,
        max_connections_per_address: None,
        max_destinations: DestinationLimits::default().of_tenant,
        max_destinations_per_event: DestinationLimits::default().of_event,
        worker_capacity: None,
        shutdown_grace_s: 25,
        retention_delivered_days: Some(14),
        retention_cancelled_days: Some(14),
        retention_dead_days: None,
    };
    assert_eq!(settings, expected);
    assert_eq!(settings.retention(), Retention::default());
}

#[test]
fn flags_override_the_environment_and_the_environment_overrides_the_file() {
    let file = "listen = '127.0.0.1:1'\nlog = 'warn'\nmax_event_bytes = 2048\n";
    let variables = [("WEIR_LISTEN", "127.0.0.1:2"), ("WEIR_LOG", "debug")];
    let settings = load(&["--listen", "127.0.0.1:3"], &variables, file).unwrap();
    assert_eq!((settings.listen.port(), settings.log.as_str(), settings.max_event_bytes), (3, "debug", 2048));
}

#[test]
fn a_file_may_use_the_types_of_toml() {
    let file = "allow_http = true\nallow_networks = ['127.0.0.0/8', '10.0.0.0/8']\napi_keys = ['a', 'b']\nshutdown_grace_s = 5\n";
    let settings = load(&[], &[], file).unwrap();
    assert!(settings.allow_http);
    assert_eq!((settings.allow_networks.len(), settings.api_keys.len(), settings.shutdown_grace_s), (2, 2, 5));
    assert_eq!(load(&[], &[], "allow_ports = [443, '8000-8999']").unwrap().allow_ports, [443..=443, 8_000..=8_999]);
    assert!(
        refusal(&[], &[], "allow_ports = [[443]]").starts_with("`allow_ports` in weir.toml: must not be a TOML array;")
    );
    assert!(refusal(&[], &[], "listen = 1.5").starts_with("`listen` in weir.toml: must not be a TOML float;"));
    assert!(refusal(&[], &[], "[listen]").contains("must not be a TOML table;"));
}

#[test]
fn the_dashboard_and_its_url_can_be_set() {
    let url = "https://ops.example.com:8443/weir/";
    let settings = load(&["--dashboard", "off"], &[("WEIR_PUBLIC_URL", url)], "").unwrap();
    let public_url = settings.public_url.unwrap();
    assert_eq!((settings.dashboard, public_url.path(), public_url.is_https()), (false, "/weir", true));
    assert!(load(&[], &[], "dashboard = 'on'").unwrap().dashboard);
    let refused = refusal(&[], &[("WEIR_DASHBOARD", "yes")], "");
    assert!(refused.ends_with("`yes` is neither on nor off"), "{refused}");
    let refused = refusal(&[], &[], "public_url = 'https://me:hunter2@ops.example.com'");
    assert!(refused.contains("must be an http or https URL") && !refused.contains("hunter2"), "{refused}");
}

#[test]
fn trusted_proxies_are_networks() {
    let settings = load(&[], &[("WEIR_TRUSTED_PROXIES", "10.0.0.0/8,192.0.2.7")], "").unwrap();
    assert_eq!(settings.trusted_proxies, ["10.0.0.0/8", "192.0.2.7/32"].map(|network| network.parse().unwrap()));
    let refused = refusal(&["--trusted-proxies", "proxy.local"], &[], "");
    assert!(refused.starts_with("--trusted-proxies: `proxy.local` is not a network"), "{refused}");
}

#[test]
fn a_short_key_is_refused_beyond_loopback() {
    let (open, long) = (("WEIR_LISTEN", "0.0.0.0:8080"), "sixteen-letters-");
    for short in ["sesame", "fifteen-letters"] {
        let keys = format!("{long},{short}");
        let refused = refusal(&[], &[open, ("WEIR_API_KEYS", &keys)], "");
        assert!(refused.starts_with("WEIR_API_KEYS in the environment: "), "{refused}");
        assert!(refused.contains("fewer than 16 characters") && !refused.contains(short), "{refused}");
        assert!(load(&[], &[("WEIR_API_KEYS", &keys)], "").is_ok(), "only this machine reaches it");
    }
    assert!(load(&[], &[open, ("WEIR_API_KEYS", long)], "").is_ok());
}

#[test]
fn a_boolean_flag_needs_no_value() {
    assert!(load(&["--allow-http"], &[], "").unwrap().allow_http);
    assert!(!load(&["--allow-http=false"], &[("WEIR_ALLOW_HTTP", "true")], "").unwrap().allow_http);
}

#[test]
fn unknown_keys_and_variables_are_refused_by_name() {
    let key = refusal(&[], &[], "lisen = '127.0.0.1:1'");
    assert!(key.starts_with("`lisen` in weir.toml is not a setting of Weir (did you mean listen?)"), "{key}");
    let variable = refusal(&[], &[("WEIR_API_KEY", "secret")], "");
    assert!(variable.starts_with("WEIR_API_KEY is not a setting of Weir (did you mean WEIR_API_KEYS?)"), "{variable}");
    assert!(!variable.contains("secret"), "{variable}");
}

#[test]
fn variables_that_kubernetes_sets_for_a_service_named_weir_are_ignored() {
    let links = [
        ("WEIR_SERVICE_HOST", "10.0.0.1"),
        ("WEIR_SERVICE_PORT", "80"),
        ("WEIR_PORT", "tcp://10.0.0.1:80"),
        ("WEIR_PORT_80_TCP_ADDR", "10.0.0.1"),
    ];
    assert!(load(&[], &links, "").is_ok());
    let misspelled = refusal(&[], &[("WEIR_ALLOW_PORT", "443")], "");
    assert!(misspelled.contains("did you mean WEIR_ALLOW_PORTS?"), "{misspelled}");
}

#[test]
fn the_variable_of_verify_is_ignored() {
    load(&[], &[("WEIR_VERIFY_SECRET", "whsec_x")], "").unwrap();
}

#[test]
fn an_empty_variable_counts_as_unset() {
    assert_eq!(load(&[], &[("WEIR_LISTEN", ""), ("WEIR_REDIS_URL", "")], "").unwrap(), load(&[], &[], "").unwrap());
}

#[test]
fn an_error_names_the_setting_its_source_and_the_remedy() {
    let cases = [
        (refusal(&["--listen", "here"], &[], ""), "--listen: `here` is not an address to listen on; use an IP"),
        (
            refusal(&[], &[("WEIR_LOG_FORMAT", "xml")], ""),
            "WEIR_LOG_FORMAT in the environment: `xml` is not a log format; use text or json",
        ),
        (refusal(&[], &[], "max_event_bytes = 1"), "`max_event_bytes` in weir.toml: `1` is not a whole number from"),
        (refusal(&[], &[], "listen = "), "the configuration file weir.toml is not valid TOML: "),
        (refusal(&["--log", "a=b=c"], &[], ""), "--log: `a=b=c` is not a log filter"),
    ];
    for (actual, expected) in cases {
        assert!(actual.starts_with(expected), "{actual}");
    }
}

#[test]
fn an_invalid_file_is_not_quoted_in_the_error() {
    let refused = refusal(&[], &[], "log = \"info\"\napi_keys = [hunter2");
    assert!(refused.contains("line 2: ") && !refused.contains("hunter2"), "{refused}");
}

#[test]
fn the_store_determines_the_queue() {
    let backing = |role, variables: &[(&str, &str)]| load(&[], variables, "").unwrap().backing(role);
    let (postgres, redis) = (("WEIR_DATABASE_URL", "postgres://db/weir"), ("WEIR_REDIS_URL", "redis://cache"));
    let embedded = Backing::Embedded { database: "weir.db".into() };
    assert_eq!(backing(ProcessRole::Serve, &[]), Ok(embedded));
    for role in [ProcessRole::Serve, ProcessRole::Api, ProcessRole::Scheduler, ProcessRole::Worker] {
        assert!(matches!(backing(role, &[postgres, redis]), Ok(Backing::Scaled { .. })), "{role:?}");
        assert_eq!(backing(role, &[postgres]), Err(ConfigError::PostgresAlone));
        assert_eq!(backing(role, &[redis]), Err(ConfigError::RedisAlone));
    }
    let alone = backing(ProcessRole::Worker, &[]).unwrap_err().to_string();
    for named in ["weir worker", "WEIR_DATABASE_URL", "WEIR_REDIS_URL", "weir serve"] {
        assert!(alone.contains(named), "{alone}");
    }
}

#[test]
fn only_the_api_needs_a_key_to_listen_beyond_loopback() {
    let mut values = SourceValues::default();
    assert_eq!(values.add_environment(environment(&[("WEIR_LISTEN", "0.0.0.0:9000")])).1, []);
    assert!(matches!(Settings::from_sources(values.clone(), ProcessRole::Api), Err(ConfigError::OpenToAll { .. })));
    assert!(Settings::from_sources(values, ProcessRole::Worker).is_ok());
}

#[test]
fn without_a_key_weir_listens_on_loopback_only() {
    let message = refusal(&[], &[("WEIR_LISTEN", "0.0.0.0:8080")], "");
    assert!(
        message.starts_with("WEIR_LISTEN in the environment: other machines can reach 0.0.0.0:8080")
            && message.contains("WEIR_API_KEYS"),
        "{message}"
    );
    assert!(load(&[], &[("WEIR_LISTEN", "0.0.0.0:8080"), ("WEIR_API_KEYS", " , ")], "").is_err());
    for address in ["127.0.0.2:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        assert!(load(&["--listen", address], &[], "").is_ok(), "{address}");
    }
    assert!(load(&["--listen", "0.0.0.0:80"], &[("WEIR_API_KEYS", "a-key-of-16-signs")], "").is_ok());
}

#[test]
fn keys_are_not_shown() {
    let settings = load(&[], &[("WEIR_API_KEYS", "hunter2")], "").unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"), "{settings:?}");
    assert_eq!(settings.api_keys[0].as_ref(), "hunter2");
}

#[test]
fn a_named_file_is_read_and_must_exist() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.toml");
    std::fs::write(&path, "listen = '127.0.0.1:4'").unwrap();
    let path = path.to_str().unwrap();
    let by_flag = Settings::load_from(&flags(&["--config", path]), ProcessRole::Serve, environment(&[])).unwrap();
    let by_environment =
        Settings::load_from(&flags(&[]), ProcessRole::Serve, environment(&[("WEIR_CONFIG", path)])).unwrap();
    assert_eq!((by_flag.listen.port(), by_environment.listen.port()), (4, 4));
    let missing = Settings::load_from(&flags(&["--config", "no/such.toml"]), ProcessRole::Serve, environment(&[]))
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("cannot read the configuration file no/such.toml"), "{missing}");
}

#[test]
fn variables_of_commands_that_call_a_server_are_ignored_where_the_api_has_keys() {
    let client = [("WEIR_URL", "http://10.0.0.1:8080"), ("WEIR_PROFILE", "production"), ("WEIR_API_KEY", "wk_1")];
    assert!(load(&["--api-keys", "secret"], &client, "").is_ok());
    assert!(load(&[], &client[..2], "").is_ok());
    let refusal = refusal(&[], &client, "");
    assert!(refusal.starts_with("WEIR_API_KEY is not a setting"), "{refusal}");
}

#[test]
fn a_secret_may_come_from_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (url, keys, empty) =
        (file("url", "postgres://weir@db/weir\n"), file("keys", "one\ntwo\n"), file("empty", "\n"));
    let redis = ("WEIR_REDIS_URL", "redis://cache");
    let settings = load(&["--api-keys-file", &keys], &[("WEIR_DATABASE_URL_FILE", &url), redis], "").unwrap();
    assert_eq!(settings.database_url, DatabaseUrl::Postgres(ServerUrl("postgres://weir@db/weir".to_owned())));
    assert_eq!(settings.api_keys, ["one", "two"].map(|key| ApiKey(key.to_owned())));
    // A stronger source wins, whether it is a file or not.
    let settings = load(&["--api-keys", "flag"], &[("WEIR_API_KEYS_FILE", &keys)], "").unwrap();
    assert_eq!(settings.api_keys, [ApiKey("flag".to_owned())]);
    let settings = load(&[], &[("WEIR_API_KEYS_FILE", &keys)], "api_keys = 'file'").unwrap();
    assert_eq!(settings.api_keys.len(), 2);
    let in_toml = load(&[], &[], &format!("api_keys_file = '{keys}'")).unwrap();
    assert_eq!(in_toml.api_keys.len(), 2);

    let both = refusal(&[], &[("WEIR_API_KEYS", "hush"), ("WEIR_API_KEYS_FILE", &keys)], "");
    assert!(both.contains("WEIR_API_KEYS_FILE") && both.contains("twice") && !both.contains("hush"), "{both}");
    assert!(refusal(&[], &[("WEIR_API_KEYS_FILE", &empty)], "").contains("empty"));
    assert!(refusal(&[], &[("WEIR_API_KEYS_FILE", "/no/such")], "").contains("/no/such"));
    assert!(refusal(&[], &[("WEIR_API_KEY_FILE", &keys)], "").contains("WEIR_API_KEYS_FILE"));
    assert!(refusal(&[], &[("WEIR_LISTEN_FILE", &keys)], "").contains("WEIR_LISTEN"), "only secrets have files");
    let large = file("large", &"x".repeat(65 * 1024));
    assert!(refusal(&[], &[("WEIR_API_KEYS_FILE", &large)], "").contains("larger"));
}

#[test]
fn each_setting_of_tls_needs_the_others() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let cert = ("WEIR_DATABASE_TLS_CERT", file);
    assert!(refusal(&[], &[cert], "").contains("database_tls_key"));
    assert!(load(&[], &[cert, ("WEIR_DATABASE_TLS_KEY", file)], "").is_ok());
    let ca = ("WEIR_REDIS_TLS_CA", file);
    assert!(refusal(&[], &[ca, ("WEIR_REDIS_URL", "redis://a")], "").contains("rediss://"));
    assert!(load(&[], &[ca, ("WEIR_REDIS_URL", "rediss://a,rediss://b")], "").is_ok());
    assert!(refusal(&[], &[("WEIR_REDIS_TLS_CA", "/no/such")], "").contains("/no/such"));
}
