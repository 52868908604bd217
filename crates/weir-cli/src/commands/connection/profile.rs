//! The profile file: servers by name, each with its key.
//!
//! ```toml
//! profile = "staging"                # without --profile
//!
//! [profiles.staging]
//! server = "https://weir.staging.example.com"
//! key_file = "staging.key"           # or key = "wk_…"; a relative path begins at this file
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use url::Url;

use super::{config_folder, key_in};
use crate::{
    exit::Misuse,
    flags::api::{KeyText, server_url},
};

/// A file of profiles.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileFile {
    /// The default profile.
    profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(deserialize_with = "server")]
    server: Url,
    key: Option<KeyText>,
    key_file: Option<PathBuf>,
}

fn server<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
    server_url(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// A server with its key.
pub(super) struct Profile {
    pub(super) server: Url,
    key: Option<KeyText>,
    key_file: Option<PathBuf>,
}

impl Profile {
    pub(super) fn key(&self) -> Result<Option<KeyText>, Misuse> {
        match &self.key_file {
            Some(file) => key_in(file, "`key_file` of the profile").map(Some),
            None => Ok(self.key.clone()),
        }
    }
}

impl ProfileFile {
    pub(super) fn path(environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        Some(config_folder(environment)?.join("weir/config.toml"))
    }

    /// Reads the file. A missing file has no profiles.
    pub(super) fn read(path: &Path) -> Result<Self, Misuse> {
        let unreadable = |error: &std::io::Error| Misuse(format!("cannot read {}: {error}", path.display()));
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unreadable(&error)),
        };
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| unreadable(&error))?;
        let wrong = |error: &toml::de::Error| {
            Misuse(format!("{} is no file of profiles: {}", path.display(), reason(&text, error)))
        };
        let profiles: Self = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let has_key = profiles.profiles.values().any(|entry| entry.key.is_some());
        // The rights of the file that was read, not of one that replaces it meanwhile.
        if has_key && others_can_read(&file.metadata().map_err(|error| unreadable(&error))?) {
            return Err(Misuse(format!(
                "{path} holds an API key, and other users can read it: run `chmod 600 {path}`",
                path = path.display()
            )));
        }
        Ok(profiles)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.profiles.keys().cloned().collect()
    }

    /// The profile with this name, or the default profile if no name is given.
    pub(super) fn profile(&self, named: Option<&str>, path: &Path) -> Result<Option<Profile>, Misuse> {
        let Some(name) = named.or(self.profile.as_deref()) else { return Ok(None) };
        let Some(entry) = self.profiles.get(name) else {
            let known: Vec<_> = self.profiles.keys().map(String::as_str).collect();
            let known =
                if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
            return Err(Misuse(format!("{} has no profile `{name}`: {known}", path.display())));
        };
        if entry.key.is_some() && entry.key_file.is_some() {
            let message = format!("the profile `{name}` in {} has `key` and `key_file`: remove one", path.display());
            return Err(Misuse(message));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(Some(Profile {
            server: entry.server.clone(),
            key: entry.key.clone(),
            key_file: entry.key_file.as_ref().map(|file| folder.join(file)),
        }))
    }
}

/// The line and the reason of an error, without a value of the file: it may be a key.
fn reason(text: &str, error: &toml::de::Error) -> String {
    let reason = place_and_reason(text, error);
    match (reason.split_once(": invalid "), reason.split_once(", expected ")) {
        (Some((line, _)), Some((_, expected))) => format!("{line}: expected {expected}"),
        _ => reason,
    }
}

/// The line and the reason of a TOML error. The error's own text quotes the line, which may hold a key or a password.
pub fn place_and_reason(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or(0, |span| span.start);
    let line = 1 + text.bytes().take(before).filter(|&byte| byte == b'\n').count();
    format!("line {line}: {}", error.message())
}

#[cfg(unix)]
fn others_can_read(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o077 != 0
}

/// Elsewhere the folder of the user is not readable for others.
#[cfg(not(unix))]
fn others_can_read(_: &fs::Metadata) -> bool {
    false
}
