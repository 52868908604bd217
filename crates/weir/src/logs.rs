//! Log lines on standard error, as text or as JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Sets another filter. Returns whether it is valid.
pub(crate) type SetFilter = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Starts logging. Call it at most once in a process. The filter can be set again with the result.
pub(crate) fn start(filter: &str, format: LogFormat) -> SetFilter {
    let filter = EnvFilter::new(filter);
    // A line that cannot be written is dropped. Reporting that on standard error, too, would fail again and end the
    // process: a full disk with the log on it must not do that.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let lines = lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            Box::new(move |filter| EnvFilter::try_new(filter).is_ok_and(|filter| handle.reload(filter).is_ok()))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            Box::new(move |filter| EnvFilter::try_new(filter).is_ok_and(|filter| handle.reload(filter).is_ok()))
        }
    }
}
