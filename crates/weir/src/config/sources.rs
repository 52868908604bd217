//! The sources of settings. Each is read into the same form: texts by name, with their origin.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use weir_cli::commands::connection::{API_KEY_ENV, place_and_reason};

use super::{
    ProcessRole,
    error::{ConfigError, Origin, SettingSource},
    flags::SettingFlags,
    names::{CLIENT_ENV, CONFIG_ENV, ENV_PREFIX, VERIFY_ENV, file_of, flag, nearest, variable},
    settings::SETTINGS,
    values::SourceValues,
};

/// The configuration file that is read by default, if it exists.
const DEFAULT_FILE: &str = "weir.toml";

impl SourceValues {
    /// Reads the flags, then the environment, then the configuration file named by a flag or the environment. The first
    /// fault ends the reading.
    pub(crate) fn read(
        flags: &SettingFlags,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let (values, faults) = Self::read_all(flags, environment);
        faults.into_iter().next().map_or(Ok(values), Err)
    }

    /// Like [`Self::read`], with every fault.
    pub(crate) fn read_all(
        flags: &SettingFlags,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> (Self, Vec<ConfigError>) {
        let mut values = Self::default();
        let mut faults = values.add_flags(flags);
        let (config_in_environment, of_environment) = values.add_environment(environment);
        faults.extend(of_environment);
        let named = flags.config.clone().or(config_in_environment);
        let path = named.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        match std::fs::read_to_string(path) {
            Ok(text) => faults.extend(values.add_file(path, &text)),
            // Only the default file may be missing.
            Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {}
            Err(error) => faults.push(unreadable(path, &error)),
        }
        (values, faults)
    }

    /// Adds the default of each setting that no source has set.
    pub(crate) fn or_defaults(mut self, role: ProcessRole) -> Self {
        // Process roles without the API serve only health and metrics, by default on any free port.
        if !role.serves_api() {
            self.add("listen", Origin::Default, "127.0.0.1:0".to_owned());
        }
        for setting in SETTINGS {
            self.add(setting.name, Origin::Default, setting.default.to_owned());
        }
        self
    }

    pub(crate) fn add_flags(&mut self, flags: &SettingFlags) -> Vec<ConfigError> {
        for (name, text) in &flags.texts {
            self.add(name, Origin::Flag, text.clone());
        }
        let read =
            |(name, path): &(&'static str, PathBuf)| self.add_secret(name, path, flag(&file_of(name)), &Origin::Flag);
        flags.files.iter().filter_map(read).collect()
    }

    /// Adds the settings of the environment. Returns the configuration file that it names, and the faults. An empty
    /// variable counts as unset: a compose file may pass on variables that are not set.
    pub(crate) fn add_environment(
        &mut self,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> (Option<PathBuf>, Vec<ConfigError>) {
        let (mut config, mut faults, mut files) = (None, Vec::new(), Vec::new());
        for (name, value) in environment {
            // Skip the variables of other programs, and those that Kubernetes sets for a service named `weir`.
            let Some(set) = name.to_str().filter(|name| name.starts_with(ENV_PREFIX)) else { continue };
            if is_service_link(set, &value) {
                continue;
            }
            // Two variables are no settings: the path of the file, and the secret of `weir verify`.
            if set == CONFIG_ENV {
                config = Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty());
                continue;
            }
            // The variables of commands that call a server are no settings either. Such commands may run on the same
            // machine.
            if set == VERIFY_ENV || CLIENT_ENV.contains(&set) {
                self.has_client_key |= set == API_KEY_ENV && !value.is_empty();
                continue;
            }
            if let Some(name) = secrets().find(|name| variable(&file_of(name)) == set) {
                files.extend((!value.is_empty()).then(|| (name, PathBuf::from(value))));
                continue;
            }
            // An unknown name is probably misspelled. Ignoring it would leave a setting at its default.
            let Some(name) = names().find(|name| variable(name) == set) else {
                let of_files = secrets().map(|name| variable(&file_of(name)));
                let known = names().map(variable).chain(of_files).chain([CONFIG_ENV.to_owned()]);
                faults.push(unknown_variable(set, nearest(set, known)));
                continue;
            };
            match value.into_string() {
                Ok(text) if text.is_empty() => {}
                Ok(text) => self.add(name, Origin::Environment, text),
                Err(_) => faults.push(ConfigError::Invalid {
                    setting: SettingSource { name, origin: Origin::Environment },
                    problem: "the value is not UTF-8".to_owned(),
                }),
            }
        }
        // After the values, so that a secret that is given twice is found in any order.
        let read = |(name, path): (&'static str, PathBuf)| {
            self.add_secret(name, &path, variable(&file_of(name)), &Origin::Environment)
        };
        faults.extend(files.into_iter().filter_map(read));
        (config, faults)
    }

    /// Adds the settings of a file's text, and returns the faults.
    pub(crate) fn add_file(&mut self, path: &Path, text: &str) -> Vec<ConfigError> {
        // The reason does not quote the line, which may hold a secret.
        let table = match toml::from_str::<toml::Table>(text) {
            Ok(table) => table,
            Err(error) => {
                return vec![ConfigError::NotToml { path: path.into(), reason: place_and_reason(text, &error) }];
            }
        };
        let (mut faults, mut files) = (Vec::new(), Vec::new());
        for (key, value) in table {
            if let (Some(name), Some(file)) = (secrets().find(|name| file_of(name) == key), value.as_str()) {
                // A relative path begins at the configuration file.
                files.push((name, path.parent().unwrap_or(Path::new("")).join(file)));
                continue;
            }
            // An unknown key is probably misspelled. Ignoring it would leave a setting at its default.
            let Some(name) = names().find(|name| *name == key) else {
                let nearest = nearest(&key, names().map(str::to_owned).chain(secrets().map(file_of)));
                let known = names().collect::<Vec<_>>().join(", ");
                faults.push(ConfigError::UnknownKey { name: key, path: path.into(), nearest, known });
                continue;
            };
            // Every value becomes the text that a variable would have, so one parser reads both.
            let origin = Origin::File(path.into());
            match as_text(&value) {
                Some(text) => self.add(name, origin, text),
                None => {
                    let problem = format!(
                        "must not be a TOML {}; use a string, a whole number, true or false, or a list of these",
                        value.type_str()
                    );
                    faults.push(ConfigError::Invalid { setting: SettingSource { name, origin }, problem });
                }
            }
        }
        let origin = Origin::File(path.into());
        let read = |(name, file): (&'static str, PathBuf)| {
            self.add_secret(name, &file, format!("`{}`", file_of(name)), &origin)
        };
        faults.extend(files.into_iter().filter_map(read));
        faults
    }

    /// Adds a secret from the file that a source names. It is a fault if the same source has the secret itself, too: one
    /// of them would be ignored, perhaps the new one.
    fn add_secret(
        &mut self,
        name: &'static str,
        path: &Path,
        named_by: String,
        source: &Origin,
    ) -> Option<ConfigError> {
        let origin = Origin::SecretFile { path: path.into(), named_by };
        let fault = |problem: String| {
            Some(ConfigError::Invalid { setting: SettingSource { name, origin: origin.clone() }, problem })
        };
        if self.is_set_by(name, source) {
            let twice = SettingSource { name, origin: source.clone() };
            return fault(format!("the secret is given twice, also as {twice}; remove one of them"));
        }
        match secret_in(path) {
            Ok(text) => {
                // One key a line, or commas.
                let text = if ["api_keys", "encryption_keys"].contains(&name) {
                    text.lines().collect::<Vec<_>>().join(",")
                } else {
                    text
                };
                self.add(name, origin, text);
                None
            }
            Err(problem) => fault(problem),
        }
    }
}

/// The largest file of a secret.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// The text of a file without the line break at its end.
fn secret_in(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_SECRET_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_SECRET_BYTES {
        return Err(format!("is larger than {MAX_SECRET_BYTES} bytes; it holds the secret alone"));
    }
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() { Err("is empty; it holds the secret alone".to_owned()) } else { Ok(text.to_owned()) }
}

/// The settings that may come from files of their own.
fn secrets() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().filter(|setting| setting.is_secret).map(|setting| setting.name)
}

pub(super) fn unknown_variable(name: &str, nearest: Option<String>) -> ConfigError {
    let known = names().map(variable).collect::<Vec<_>>().join(", ");
    ConfigError::UnknownVariable { name: name.to_owned(), nearest, known }
}

fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.name)
}

/// A value of the file, written as in an environment variable.
fn as_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(boolean) => Some(boolean.to_string()),
        toml::Value::Array(values) => {
            let one = |value: &toml::Value| (!value.is_array()).then(|| as_text(value)).flatten();
            let texts: Option<Vec<_>> = values.iter().map(one).collect();
            Some(texts?.join(","))
        }
        _ => None,
    }
}

/// Whether Kubernetes or Docker set this variable: for a service named `weir` they set `WEIR_SERVICE_HOST`,
/// `WEIR_PORT_8080_TCP` and similar variables in every container. The value of a name that ends in `_PORT` must be an
/// address, because `WEIR_ALLOW_PORT=443` is a setting with a wrong name.
fn is_service_link(name: &str, value: &OsStr) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || name.ends_with("_PORT") && value.to_str().is_some_and(|value| value.contains("://"))
}

fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
    ConfigError::Unreadable { path: path.into(), reason: error.to_string() }
}
