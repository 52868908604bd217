//! What is logged, and how.

use tracing_subscriber::EnvFilter;

use super::{Parsed, items};
use crate::config::{LogFormat, names::nearest};

/// The crates of Weir, by which log lines are filtered.
const LOG_TARGETS: [&str; 13] = [
    "weir",
    "weir_api",
    "weir_api_types",
    "weir_chart",
    "weir_core",
    "weir_dashboard",
    "weir_queue",
    "weir_queue_redis",
    "weir_scheduler",
    "weir_store",
    "weir_store_postgres",
    "weir_store_sqlite",
    "weir_worker",
];
const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

pub(crate) fn log(text: &str) -> Parsed<String> {
    let refused = |problem: String| {
        format!(
            "`{text}` is not a log filter ({problem}); use a level ({}), or levels by module such as info,weir_worker=debug",
            LOG_LEVELS.join(", ")
        )
    };
    // A misspelled word would be a module that writes nothing, so that the log would be empty.
    for directive in items(text) {
        let (module, level) =
            directive.split_once('=').map_or((directive, None), |(module, level)| (module, Some(level)));
        let is_level = |word: &str| LOG_LEVELS.contains(&word.to_ascii_lowercase().as_str());
        let krate = module.split(['[', ':']).next().unwrap_or_default();
        let is_known = LOG_TARGETS.contains(&krate);
        match level {
            Some(level) if !is_level(level) => return Err(refused(format!("`{level}` is not a level"))),
            // Modules of other crates are not known here.
            Some(_) if is_known || !krate.starts_with("weir") => {}
            None if is_level(module) || is_known => {}
            _ => {
                let known = LOG_LEVELS.iter().filter(|_| level.is_none()).chain(&LOG_TARGETS);
                let nearest = nearest(krate, known.map(|name| (*name).to_owned()));
                let hint = nearest.map(|name| format!(": did you mean {name}?")).unwrap_or_default();
                let kind = if level.is_none() { "neither a level nor a module" } else { "not a module" };
                return Err(refused(format!("`{module}` is {kind}{hint}")));
            }
        }
    }
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| refused(error.to_string()))
}

pub(crate) fn log_format(text: &str) -> Parsed<LogFormat> {
    text.parse().map_err(|_| format!("`{text}` is not a log format; use text or json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_log_filter_is_refused() {
        for known in [
            "info",
            "WARN",
            "info,weir_worker=debug",
            "weir_api::auth=trace,sqlx=warn",
            "off",
            "debug,hyper=off",
            "weir_store",
        ] {
            assert!(log(known).is_ok(), "{known}");
        }
        for (unknown, hint) in [
            ("inof", "info"),
            ("info,weir_wroker=debug", "weir_worker"),
            ("info,weir_worker=debgu", "not a level"),
            ("verbose", "neither"),
        ] {
            let problem = log(unknown).unwrap_err();
            assert!(problem.contains(hint), "{unknown}: {problem}");
        }
    }
}
