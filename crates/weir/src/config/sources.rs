//! The places a setting can come from, each read into the same shape: texts by key, with their origin.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{
    error::{ConfigError, Named, Origin},
    key::{CONFIG_ENV, ENV_PREFIX, Key, VERIFY_ENV, nearest},
};
use crate::cli::SettingFlags;

/// The file that is read, if it is there, when nobody names one.
const DEFAULT_FILE: &str = "weir.toml";

/// Every setting that was given somewhere, by its strongest source.
#[derive(Debug, Default)]
pub(crate) struct Given(BTreeMap<Key, (Origin, String)>);

impl Given {
    /// Reads flags, then the environment, then the file that they or the environment name.
    pub(crate) fn read(
        flags: &SettingFlags,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut given = Self::default();
        given.add_flags(flags);
        let config_in_environment = given.add_environment(environment)?;
        match flags.config.clone().or(config_in_environment) {
            Some(path) => {
                let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
                given.add_file(&path, &text)?;
            }
            None => match std::fs::read_to_string(DEFAULT_FILE) {
                Ok(text) => given.add_file(Path::new(DEFAULT_FILE), &text)?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(Path::new(DEFAULT_FILE), &error)),
            },
        }
        Ok(given)
    }

    /// The value of a setting with the name of its source, or the default.
    pub(crate) fn get(&self, key: Key, default: &str) -> (Named, String) {
        self.find(key).unwrap_or_else(|| (Named { key, origin: Origin::Default }, default.to_owned()))
    }

    pub(crate) fn find(&self, key: Key) -> Option<(Named, String)> {
        let (origin, text) = self.0.get(&key)?;
        Some((Named { key, origin: origin.clone() }, text.clone()))
    }

    /// Keeps what a stronger source, read before, has given.
    fn add(&mut self, key: Key, origin: Origin, text: String) {
        self.0.entry(key).or_insert((origin, text));
    }

    pub(crate) fn add_flags(&mut self, flags: &SettingFlags) {
        for (key, text) in flags.texts() {
            self.add(key, Origin::Flag, text);
        }
    }

    /// Adds the environment's settings and answers the configuration file it names. Empty variables count as unset, as
    /// in a compose file that passes on what may not be there.
    pub(crate) fn add_environment(
        &mut self,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Option<PathBuf>, ConfigError> {
        let mut config = None;
        for (name, value) in environment {
            let Some(name) = name.to_str().filter(|name| name.starts_with(ENV_PREFIX) && !is_service_link(name)) else {
                continue;
            };
            if name == CONFIG_ENV {
                config = Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty());
                continue;
            }
            if name == VERIFY_ENV {
                continue;
            }
            let Some(key) = Key::of_env(name) else {
                let known = Key::ALL.into_iter().map(Key::env).chain([CONFIG_ENV.to_owned()]);
                return Err(ConfigError::UnknownVariable { name: name.to_owned(), nearest: nearest(name, known) });
            };
            let text = value.into_string().map_err(|_| ConfigError::Invalid {
                named: Named { key, origin: Origin::Environment },
                problem: "the value is not UTF-8".to_owned(),
            })?;
            if !text.is_empty() {
                self.add(key, Origin::Environment, text);
            }
        }
        Ok(config)
    }

    /// Adds the settings of a file's text.
    pub(crate) fn add_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let not_toml =
            |error: toml::de::Error| ConfigError::NotToml { path: path.into(), reason: place_and_reason(text, &error) };
        for (name, value) in toml::from_str::<toml::Table>(text).map_err(not_toml)? {
            let Some(key) = Key::of_name(&name) else {
                let nearest = nearest(&name, Key::ALL.into_iter().map(|key| key.name().to_owned()));
                return Err(ConfigError::UnknownKey { name, path: path.into(), nearest });
            };
            let origin = Origin::File(path.into());
            match as_text(&value) {
                Some(text) => self.add(key, origin, text),
                None => {
                    let problem = format!(
                        "a {} does not fit here; give a text, a number, true or false, or a list of those",
                        value.type_str()
                    );
                    return Err(ConfigError::Invalid { named: Named { key, origin }, problem });
                }
            }
        }
        Ok(())
    }
}

/// Where a file is not TOML, and why. The error's own text shows the line, which may hold a key or a password.
fn place_and_reason(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or(0, |span| span.start);
    let line = 1 + text.bytes().take(before).filter(|&byte| byte == b'\n').count();
    format!("line {line}: {}", error.message())
}

/// A value of the file as one would write it in the environment.
fn as_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        toml::Value::Array(values) => {
            let one = |value: &toml::Value| (!value.is_array()).then(|| as_text(value)).flatten();
            let texts: Option<Vec<_>> = values.iter().map(one).collect();
            Some(texts?.join(","))
        }
        _ => None,
    }
}

/// Whether Kubernetes or Docker made this variable: beside a service named `weir` every container is given
/// `WEIR_SERVICE_HOST`, `WEIR_PORT_8080_TCP` and the like, which nobody here chose.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
    ConfigError::Unreadable { path: path.into(), reason: error.to_string() }
}
