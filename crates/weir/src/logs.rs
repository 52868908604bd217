//! Log lines on standard error, as text or as JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging. Call it at most once in a process.
pub(crate) fn start(filter: &str, format: LogFormat) {
    let filter = EnvFilter::new(filter);
    // A line that cannot be written is dropped. Reporting that on standard error, too, would fail again and end the
    // process: a full disk with the log on it must not do that.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
