//! All faults of the settings at once, and the values that are in force, for `weir config check`.

use std::{ffi::OsString, fmt};

use url::Url;

use super::{
    ConfigError, ProcessRole, SettingFlags, Settings,
    error::{Origin, SettingSource},
    names::variable,
    servers,
    settings::SETTINGS,
    values::SourceValues,
};

const HIDDEN: &str = "•••";

/// The settings of a process that would start.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) values: Vec<EffectiveValue>,
    pub(crate) faults: Vec<ConfigError>,
    /// What such a process would warn of.
    pub(crate) warnings: Vec<String>,
}

/// The value of a setting that is in force. A secret is not in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EffectiveValue {
    pub(crate) variable: String,
    pub(crate) value: String,
    pub(crate) source: String,
}

impl Checked {
    pub(crate) fn of(flags: &SettingFlags, role: ProcessRole) -> Self {
        Self::read(flags, role, std::env::vars_os())
    }

    pub(super) fn read(
        flags: &SettingFlags,
        role: ProcessRole,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Self {
        let (values, mut faults) = SourceValues::read_all(flags, environment);
        let values = values.or_defaults(role);
        let invalid = Settings::faults(&values);
        let are_read = invalid.is_empty();
        let mut warnings = Vec::new();
        faults.extend(invalid);
        // What does not fit together is known only of values that can be read.
        if are_read && let Ok(settings) = Settings::parse(&values) {
            faults.extend(servers::unfit(&settings, &values));
            faults.extend(settings.exposure(&values, role));
            faults.extend(settings.backing(role).err());
            warnings = settings.warnings(role);
        }
        let values = SETTINGS.iter().map(|setting| {
            let text = values.text(setting.name);
            EffectiveValue {
                variable: variable(setting.name),
                value: if setting.is_secret { masked(setting.name, text) } else { shown(text) },
                source: source(&values.source(setting.name)),
            }
        });
        Self { values: values.collect(), faults, warnings }
    }
}

fn shown(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { text.to_owned() }
}

fn source(setting: &SettingSource) -> String {
    match &setting.origin {
        Origin::Flag => "flag".to_owned(),
        Origin::Environment => "environment".to_owned(),
        Origin::File(path) => path.display().to_string(),
        Origin::SecretFile { path, .. } => path.display().to_string(),
        Origin::Default => "default".to_owned(),
    }
}

/// A secret as far as it may be shown: where a server is, and how many keys there are.
fn masked(name: &str, text: &str) -> String {
    match name {
        _ if text.is_empty() => shown(text),
        "api_keys" | "encryption_keys" => {
            let keys = text.split(',').filter(|key| !["", "none"].contains(&key.trim())).count();
            format!("{HIDDEN} ({keys} {})", if keys == 1 { "key" } else { "keys" })
        }
        "database_url" | "database_read_url" | "redis_url" | "egress_proxy" => {
            text.split(',').map(|url| Masked(url.trim()).to_string()).collect::<Vec<_>>().join(",")
        }
        _ => HIDDEN.to_owned(),
    }
}

/// A URL without its password and the values of its parameters, which may hold one.
struct Masked<'a>(&'a str);

impl fmt::Display for Masked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A path of SQLite is no secret.
        if self.0.starts_with("sqlite:") {
            return f.write_str(self.0);
        }
        let Ok(url) = Url::parse(self.0) else { return f.write_str(HIDDEN) };
        // A password that ends early has its rest in the other parts.
        let rest = self
            .0
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once(['/', '?', '#']))
            .map_or("", |(_, rest)| rest);
        if rest.contains('@') {
            return f.write_str(HIDDEN);
        }
        write!(f, "{}://", url.scheme())?;
        match (url.username(), url.password()) {
            ("", None) => {}
            (user, None) => write!(f, "{user}@")?,
            (user, Some(_)) => write!(f, "{user}:{HIDDEN}@")?,
        }
        f.write_str(url.host_str().unwrap_or_default())?;
        if let Some(port) = url.port() {
            write!(f, ":{port}")?;
        }
        f.write_str(url.path())?;
        const OPEN: [&str; 5] = ["sslmode", "host", "port", "application_name", "db"];
        for (n, (name, value)) in url.query_pairs().enumerate() {
            let value = if OPEN.contains(&&*name) { &*value } else { HIDDEN };
            write!(f, "{}{name}={value}", if n == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect::<Vec<_>>().into_iter()
    }

    fn checked(role: ProcessRole, variables: &[(&str, &str)]) -> Checked {
        Checked::read(&SettingFlags::default(), role, environment(variables))
    }

    fn value_of<'a>(checked: &'a Checked, variable: &str) -> (&'a str, &'a str) {
        let found = checked.values.iter().find(|value| value.variable == variable).unwrap();
        (&found.value, &found.source)
    }

    #[test]
    fn all_faults_are_found_at_once() {
        let variables = [
            ("WEIR_LISTN", "127.0.0.1:1"),
            ("WEIR_LISTEN", "nowhere"),
            ("WEIR_ALLOW_NETWORKS", "10.0.0.0/99"),
            ("WEIR_LOG", "inof"),
            ("WEIR_DATABASE_PASSWORD_FILE", "/no/such/file"),
        ];
        let faults: Vec<_> = checked(ProcessRole::Serve, &variables).faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults.len(), 5, "{faults:#?}");
        for (name, _) in variables {
            assert!(faults.iter().any(|fault| fault.contains(name)), "{name}: {faults:#?}");
        }
    }

    #[test]
    fn settings_that_do_not_fit_together_are_faults() {
        let faults = |role, variables: &[(&str, &str)]| {
            checked(role, variables).faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(faults(ProcessRole::Serve, &[]), "");
        let cert = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let unfit = [
            ("WEIR_LISTEN", "0.0.0.0:8080"),
            ("WEIR_REDIS_URL", "redis://cache"),
            ("WEIR_REDIS_TLS_CA", cert),
            ("WEIR_DATABASE_TLS_KEY", cert),
        ];
        let found = faults(ProcessRole::Serve, &unfit);
        for part in ["WEIR_API_KEYS", "rediss://", "go together", "SQLite"] {
            assert!(found.contains(part), "{part}: {found}");
        }
        assert!(faults(ProcessRole::Worker, &[]).contains("weir serve"));
    }

    #[test]
    fn effective_values_have_their_sources_and_show_no_secret() {
        let variables = [
            ("WEIR_DATABASE_URL", "postgres://weir:hush@db:5433/weir?sslmode=require&password=hush"),
            ("WEIR_REDIS_URL", "redis://:hush@a:1,redis://:hush@b"),
            ("WEIR_API_KEYS", "hush-hush-hush-hush,hush-hush-hush-hash"),
            ("WEIR_REDIS_PASSWORD", "hush"),
            ("WEIR_LOG", "debug"),
        ];
        let checked = checked(ProcessRole::Serve, &variables);
        assert!(checked.faults.is_empty(), "{:?}", checked.faults);
        assert!(!format!("{checked:?}").contains("hush"), "{checked:?}");
        let database = "postgres://weir:•••@db:5433/weir?sslmode=require&password=•••";
        assert_eq!(value_of(&checked, "WEIR_DATABASE_URL"), (database, "environment"));
        assert_eq!(value_of(&checked, "WEIR_REDIS_URL").0, "redis://:•••@a:1,redis://:•••@b");
        assert_eq!(value_of(&checked, "WEIR_API_KEYS").0, "••• (2 keys)");
        assert_eq!(value_of(&checked, "WEIR_REDIS_PASSWORD").0, "•••");
        assert_eq!(value_of(&checked, "WEIR_LOG"), ("debug", "environment"));
        assert_eq!(value_of(&checked, "WEIR_DASHBOARD"), ("on", "default"));
        assert_eq!(value_of(&checked, "WEIR_PUBLIC_URL").0, "–");
    }

    #[test]
    fn a_url_that_is_refused_is_not_shown_either() {
        for url in ["postgres://weir:12/hush@db/weir", "postgres://weir:hush/1@db/weir", "hush"] {
            let checked = checked(ProcessRole::Serve, &[("WEIR_DATABASE_URL", url)]);
            assert_eq!(value_of(&checked, "WEIR_DATABASE_URL").0, "•••", "{url}");
            assert!(!format!("{checked:?}").contains("hush"), "{checked:?}");
        }
    }
}
