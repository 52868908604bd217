//! PostgreSQL and Redis, with all that a connection needs: the URL, a password that is given apart, the pool, and TLS.

use std::path::{Path, PathBuf};

use url::Url;

use super::{ConfigError, DatabaseUrl, Password, ServerUrl, Settings, error::SettingSource, values::SourceValues};

/// The PostgreSQL server of several processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatabaseServer {
    url: ServerUrl,
    /// A replica for reads.
    read_url: Option<ServerUrl>,
    password: Option<Password>,
    pub(crate) pool: u32,
    tls: TlsFiles,
}

/// The Redis of several processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedisServer {
    url: ServerUrl,
    password: Option<Password>,
    pub(crate) prefix: String,
    pub(crate) tls: TlsFiles,
}

/// The files for TLS with a server, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl DatabaseServer {
    pub(crate) fn of(settings: &Settings, url: &ServerUrl) -> Self {
        Self {
            url: url.clone(),
            read_url: settings.database_read_url.clone(),
            password: settings.database_password.clone(),
            pool: settings.database_pool,
            tls: TlsFiles {
                ca: settings.database_tls_ca.clone(),
                cert: settings.database_tls_cert.clone(),
                key: settings.database_tls_key.clone(),
            },
        }
    }

    /// The URL with the other settings as its parameters, and with a name by which the server lists the connections. It
    /// holds the password.
    pub(crate) fn url_for(&self, application_name: &str) -> String {
        self.complete(&self.url, application_name)
    }

    /// Like [`Self::url_for`], of the replica for reads.
    pub(crate) fn read_url_for(&self, application_name: &str) -> Option<String> {
        self.read_url.as_ref().map(|url| self.complete(url, application_name))
    }

    fn complete(&self, url: &ServerUrl, application_name: &str) -> String {
        // It was parsed before.
        let Ok(mut url) = Url::parse(url.as_ref()) else { return url.as_ref().to_owned() };
        let has = |name: &str| url.query_pairs().any(|(known, _)| known.replace('-', "") == name);
        let (has_mode, has_name) = (has("sslmode"), has("application_name"));
        let mut pairs = url.query_pairs_mut();
        if let Some(Password(password)) = &self.password {
            pairs.append_pair("password", password);
        }
        if self.tls.ca.is_some() && !has_mode {
            pairs.append_pair("sslmode", "verify-full");
        }
        for (name, file) in [("sslrootcert", &self.tls.ca), ("sslcert", &self.tls.cert), ("sslkey", &self.tls.key)] {
            if let Some(file) = file {
                pairs.append_pair(name, &file.to_string_lossy());
            }
        }
        if !has_name {
            pairs.append_pair("application_name", application_name);
        }
        drop(pairs);
        url.to_string()
    }
}

impl RedisServer {
    pub(super) fn of(settings: &Settings, url: &ServerUrl) -> Self {
        Self {
            url: url.clone(),
            password: settings.redis_password.clone(),
            prefix: settings.redis_prefix.clone(),
            tls: TlsFiles {
                ca: settings.redis_tls_ca.clone(),
                cert: settings.redis_tls_cert.clone(),
                key: settings.redis_tls_key.clone(),
            },
        }
    }

    /// The URLs of the nodes, separated by commas. They hold the password.
    pub(crate) fn urls(&self) -> String {
        let nodes: Vec<_> = self.url.as_ref().split(',').map(|node| self.with_password(node.trim())).collect();
        nodes.join(",")
    }

    fn with_password(&self, node: &str) -> String {
        let (Some(Password(password)), Ok(mut url)) = (&self.password, Url::parse(node)) else {
            return node.to_owned();
        };
        if url.host().is_none() {
            url.query_pairs_mut().append_pair("pass", password);
        } else {
            // A URL with a host takes a password.
            let _ = url.set_password(Some(&escaped(password)));
        }
        url.to_string()
    }
}

/// A text with an escape for every character that may mean something in a URL.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// The settings of the two servers that do not fit together.
pub(super) fn unfit(settings: &Settings, values: &SourceValues) -> Vec<ConfigError> {
    let fault = |name: &'static str, problem: &str| ConfigError::Invalid {
        setting: values.source(name) as SettingSource,
        problem: problem.to_owned(),
    };
    let is_set = |file: &Option<PathBuf>| file.as_deref().is_some_and(|file: &Path| !file.as_os_str().is_empty());
    let mut faults = Vec::new();
    if is_set(&settings.database_tls_cert) != is_set(&settings.database_tls_key) {
        faults.push(fault(
            "database_tls_cert",
            "a certificate and its key go together: set database_tls_cert and database_tls_key",
        ));
    }
    if settings.database_read_url.is_some() && matches!(settings.database_url, DatabaseUrl::Sqlite(_)) {
        faults.push(fault(
            "database_read_url",
            "only PostgreSQL has replicas: set database_url to its primary, or remove this",
        ));
    }
    if is_set(&settings.redis_tls_cert) != is_set(&settings.redis_tls_key) {
        faults.push(fault(
            "redis_tls_cert",
            "a certificate and its key go together: set redis_tls_cert and redis_tls_key",
        ));
    }
    let is_tls = settings
        .redis_url
        .as_ref()
        .is_some_and(|url| url.as_ref().split(',').all(|node| node.trim().starts_with("rediss://")));
    for (name, file) in [("redis_tls_ca", &settings.redis_tls_ca), ("redis_tls_cert", &settings.redis_tls_cert)] {
        if is_set(file) && !is_tls {
            faults.push(fault(name, "is used only with TLS: write redis_url with rediss://"));
        }
    }
    if settings.encrypt_bodies && settings.encryption_keys.is_empty() {
        faults.push(fault("encrypt_bodies", "needs a key: set encryption_keys"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(url: &str, password: Option<&str>, tls: TlsFiles) -> DatabaseServer {
        let password = password.map(|password| Password(password.to_owned()));
        DatabaseServer { url: ServerUrl(url.to_owned()), read_url: None, password, pool: 6, tls }
    }

    #[test]
    fn the_other_settings_of_postgres_become_parameters_of_its_url() {
        let tls = TlsFiles { ca: Some("/etc/ca.pem".into()), ..TlsFiles::default() };
        let url = database("postgres://weir@db/weir", Some("p/#?@&= %41"), tls.clone()).url_for("weir worker a");
        let url = Url::parse(&url).unwrap();
        let pairs: Vec<_> = url.query_pairs().map(|(name, value)| format!("{name}:{value}")).collect();
        let expected = [
            "password:p/#?@&= %41",
            "sslmode:verify-full",
            "sslrootcert:/etc/ca.pem",
            "application_name:weir worker a",
        ];
        assert_eq!(pairs, expected);
        let own = database("postgres://db/weir?sslmode=require&application_name=billing", None, tls).url_for("weir");
        assert!(!own.contains("verify-full") && !own.contains("application_name=weir"), "{own}");
        let socket =
            database("postgres:///weir?host=/run/postgresql", Some("a b"), TlsFiles::default()).url_for("weir");
        assert!(socket.starts_with("postgres:///weir?host=") && socket.contains("password=a+b"), "{socket}");
    }

    #[test]
    fn any_password_reaches_redis_as_it_is() {
        let urls = |url: &str, password: &str| {
            let (url, tls) = (ServerUrl(url.to_owned()), TlsFiles::default());
            RedisServer { url, password: Some(Password(password.to_owned())), prefix: String::new(), tls }.urls()
        };
        assert_eq!(urls("redis://a:1,rediss://me@b", "p/%4"), "redis://:p%2F%254@a:1,rediss://me:p%2F%254@b");
        assert_eq!(urls("unix:///run/r.sock", "p&#"), "unix:///run/r.sock?pass=p%26%23");
    }
}
