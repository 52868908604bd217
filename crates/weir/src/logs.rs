//! Log lines on standard error, as text or as JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging. Call it at most once in a process.
pub(crate) fn start(filter: &str, format: LogFormat) {
    let filter = EnvFilter::new(filter);
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
