//! SIGHUP reads the settings again, and never ends the process. The log filter and the API keys of the settings are used
//! at once. Any other edited setting is named in the log: it needs a restart. Settings that are not valid change nothing.

use crate::{
    config::{ProcessRole, SettingFlags, Settings},
    engine::Engine,
    logs::SetFilter,
};

/// The settings that a running process can change.
const RELOADABLE: [&str; 2] = ["log", "api_keys"];

/// The settings of a process, as they are used.
pub(super) struct Reload<'f> {
    pub(super) flags: &'f SettingFlags,
    pub(super) role: ProcessRole,
    pub(super) set_filter: SetFilter,
}

impl Reload<'_> {
    /// Returns the settings that are used from now on.
    pub(super) fn run(&self, used: Settings, engine: &Engine) -> Settings {
        let read = match Settings::load(self.flags, self.role) {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(%error, "SIGHUP: the settings cannot be read; those in use stay");
                return used;
            }
        };
        let edited = used.differing(&read);
        let (changed, fixed): (Vec<_>, Vec<_>) = edited.into_iter().partition(|name| RELOADABLE.contains(name));
        if changed.contains(&"api_keys") {
            engine.set_keys(&read);
        }
        if changed.contains(&"log") && !(self.set_filter)(&read.log) {
            tracing::error!(filter = read.log, "SIGHUP: the log filter is not valid; the one in use stays");
        }
        if !fixed.is_empty() {
            tracing::warn!(settings = fixed.join(", "), "SIGHUP: these settings were edited and need a restart");
        }
        tracing::info!(changed = changed.join(", "), "SIGHUP: the settings were read again");
        // The others stay as they are used, so that the next reload names them again.
        Settings { log: read.log, api_keys: read.api_keys, ..used }
    }
}
