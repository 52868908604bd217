//! The sources of settings. Each is read into the same form: texts by name, with their origin.

use std::{
    ffi::{OsStr, OsString},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{
    ProcessRole,
    error::{ConfigError, Origin, SettingSource},
    flags::SettingFlags,
    names::{API_KEY_ENV, CLIENT_ENV, CONFIG_ENV, ENV_PREFIX, VERIFY_ENV, nearest, variable},
    settings::SETTINGS,
    values::SourceValues,
};

/// The configuration file that is read by default, if it exists.
const DEFAULT_FILE: &str = "weir.toml";

impl SourceValues {
    /// Reads the flags, then the environment, then the configuration file named by a flag or the environment.
    pub(crate) fn read(
        flags: &SettingFlags,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut values = Self::default();
        values.add_flags(flags);
        let config_in_environment = values.add_environment(environment)?;
        match flags.config.clone().or(config_in_environment) {
            Some(path) => {
                let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
                values.add_file(&path, &text)?;
            }
            None => match std::fs::read_to_string(DEFAULT_FILE) {
                Ok(text) => values.add_file(Path::new(DEFAULT_FILE), &text)?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(Path::new(DEFAULT_FILE), &error)),
            },
        }
        Ok(values)
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

    pub(crate) fn add_flags(&mut self, flags: &SettingFlags) {
        for (name, text) in &flags.texts {
            self.add(name, Origin::Flag, text.clone());
        }
    }

    /// Adds the settings of the environment and returns the configuration file that it names. An empty variable counts
    /// as unset: a compose file may pass on variables that are not set.
    pub(crate) fn add_environment(
        &mut self,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Option<PathBuf>, ConfigError> {
        let mut config = None;
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
            // An unknown name is probably misspelled. Ignoring it would leave a setting at its default.
            let Some(name) = names().find(|name| variable(name) == set) else {
                let known = names().map(variable).chain([CONFIG_ENV.to_owned()]);
                return Err(unknown_variable(set, nearest(set, known)));
            };
            let text = value.into_string().map_err(|_| ConfigError::Invalid {
                setting: SettingSource { name, origin: Origin::Environment },
                problem: "the value is not UTF-8".to_owned(),
            })?;
            if !text.is_empty() {
                self.add(name, Origin::Environment, text);
            }
        }
        Ok(config)
    }

    /// Adds the settings of a file's text.
    pub(crate) fn add_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        // The reason does not quote the line, which may hold a secret.
        let not_toml =
            |error: toml::de::Error| ConfigError::NotToml { path: path.into(), reason: place_and_reason(text, &error) };
        for (key, value) in toml::from_str::<toml::Table>(text).map_err(not_toml)? {
            // An unknown key is probably misspelled. Ignoring it would leave a setting at its default.
            let Some(name) = names().find(|name| *name == key) else {
                let nearest = nearest(&key, names().map(str::to_owned));
                let known = names().collect::<Vec<_>>().join(", ");
                return Err(ConfigError::UnknownKey { name: key, path: path.into(), nearest, known });
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
                    return Err(ConfigError::Invalid { setting: SettingSource { name, origin }, problem });
                }
            }
        }
        Ok(())
    }
}

pub(super) fn unknown_variable(name: &str, nearest: Option<String>) -> ConfigError {
    let known = names().map(variable).collect::<Vec<_>>().join(", ");
    ConfigError::UnknownVariable { name: name.to_owned(), nearest, known }
}

fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.name)
}

/// The line and the reason of a TOML error. The error's own text quotes the line, which may hold a key or a password.
pub(crate) fn place_and_reason(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or(0, |span| span.start);
    let line = 1 + text.bytes().take(before).filter(|&byte| byte == b'\n').count();
    format!("line {line}: {}", error.message())
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
