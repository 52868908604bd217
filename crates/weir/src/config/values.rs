//! The values of the settings, as texts with their origins.

use std::collections::BTreeMap;

use super::error::{ConfigError, Origin, SettingSource};

/// Every setting that is set, with the value of its strongest source.
#[derive(Debug, Clone, Default)]
pub(super) struct SourceValues {
    /// By the names of the settings.
    values: BTreeMap<&'static str, (Origin, String)>,
    /// Whether `WEIR_API_KEY` is set, the key of commands that call a server.
    pub(super) has_client_key: bool,
}

impl SourceValues {
    /// Reads the value of a setting. Every setting has one after `or_defaults`.
    pub(super) fn parse<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let (_, text) = &self.values[name];
        parse(text).map_err(|problem| ConfigError::Invalid { setting: self.source(name), problem })
    }

    /// A setting with the source of its value.
    pub(super) fn source(&self, name: &'static str) -> SettingSource {
        SettingSource { name, origin: self.values[name].0.clone() }
    }

    /// The text of a setting. Every setting has one after `or_defaults`.
    pub(super) fn text(&self, name: &'static str) -> &str {
        &self.values[name].1
    }

    /// Whether this source has set a value.
    pub(super) fn is_set_by(&self, name: &'static str, source: &Origin) -> bool {
        self.values.get(name).is_some_and(|(origin, _)| origin == source)
    }

    /// Adds a value unless a stronger source, which was read earlier, has set it.
    pub(super) fn add(&mut self, name: &'static str, origin: Origin, text: String) {
        self.values.entry(name).or_insert((origin, text));
    }
}
