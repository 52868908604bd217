//! Log lines on standard error, as text or as JSON. Each says which process wrote it, and a warning that repeats is
//! written a few times a minute.

mod line;
mod repeats;

use std::{io::IsTerminal as _, sync::OnceLock, time::Duration};

use tracing_subscriber::{
    EnvFilter,
    fmt::format::{DefaultFields, JsonFields},
};

use self::{
    line::{Json, Lines, Text},
    repeats::Repeats,
};
use crate::config::LogFormat;

/// How often the repeated lines that were not written are reported.
const REPORT_EVERY: Duration = Duration::from_secs(60);

static LOG: OnceLock<Log> = OnceLock::new();

/// The log of this process.
struct Log {
    role: &'static str,
    format: LogFormat,
    repeats: Repeats,
}

/// What every line says of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    role: &'static str,
    pid: u32,
    host: String,
}

/// Says how the log of this process looks, so that also an error in its settings does. The first call counts.
pub(crate) fn choose(role: &'static str, format: LogFormat) {
    chosen(role, format);
}

fn chosen(role: &'static str, format: LogFormat) -> &'static Log {
    LOG.get_or_init(|| Log { role, format, repeats: Repeats::default() })
}

/// Sets another filter. Returns whether it is valid.
pub(crate) type SetFilter = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Starts logging. Call it at most once in a process. The filter can be set again with the result.
pub(crate) fn start(role: &'static str, filter: &str, format: LogFormat) -> SetFilter {
    let log = chosen(role, format);
    let identity = identity(role);
    let filter = EnvFilter::new(filter);
    // A line that cannot be written is dropped. Reporting that on standard error, too, would fail again and end the
    // process: a full disk with the log on it must not do that.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal()).fmt_fields(DefaultFields::new());
            let lines = lines.event_format(Lines::new(identity, &log.repeats, Text)).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            Box::new(move |filter| EnvFilter::try_new(filter).is_ok_and(|filter| handle.reload(filter).is_ok()))
        }
        LogFormat::Json => {
            let lines = lines.fmt_fields(JsonFields::new());
            let lines = lines.event_format(Lines::new(identity, &log.repeats, Json)).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            // A panic is a line of the log too.
            std::panic::set_hook(Box::new(|panic| {
                let place = panic.location().map(ToString::to_string);
                tracing::error!(place, "panic: {}", panic.payload_as_str().unwrap_or("no message"));
            }));
            Box::new(move |filter| EnvFilter::try_new(filter).is_ok_and(|filter| handle.reload(filter).is_ok()))
        }
    }
}

/// Reports the repeated lines that were not written, until the task is aborted.
pub(crate) async fn report_repeats() {
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let Some(log) = LOG.get() else { return };
        for (place, suppressed) in log.repeats.ended() {
            tracing::warn!(place, suppressed, "lines that repeated were not written");
        }
    }
}

/// Writes a line to standard output, independent of the filter: with port 0, scripts read the actual port there. It is an
/// object if the log is JSON.
pub(crate) fn announce(message: &str) {
    println!("{}", own_line("INFO", message).unwrap_or_else(|| message.to_owned()));
}

/// Writes the error that ends the program.
pub(crate) fn fail(message: &str) {
    eprintln!("{}", own_line("ERROR", message).unwrap_or_else(|| format!("error: {message}")));
}

/// The object of a line that is not an event; `None` if the log is text.
fn own_line(level: &str, message: &str) -> Option<String> {
    let log = LOG.get().filter(|log| log.format == LogFormat::Json)?;
    Some(line::object(&identity(log.role), level, message))
}

fn identity(role: &'static str) -> Identity {
    Identity { role, pid: std::process::id(), host: host() }
}

/// The name of this machine; in a container that of the container, in Kubernetes that of the pod.
pub(crate) fn host() -> String {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
    })
    .clone()
}
