//! The form of a log line: the line of `tracing_subscriber`, with the process that wrote it.

use std::fmt;

use serde_json::json;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Full, Writer},
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

use super::{
    Identity,
    repeats::{Repeats, Verdict},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Lines of text: the process stands at the end, where it does not move the message.
pub(super) struct Text;

/// Lines of JSON: the process stands behind the first field.
pub(super) struct Json;

/// Writes events in one of the forms, without those that repeat too often.
pub(super) struct Lines<F> {
    identity: Identity,
    repeats: &'static Repeats,
    form: F,
    text: Format<Full, SystemTime>,
    json: Format<tracing_subscriber::fmt::format::Json, SystemTime>,
}

impl<F> Lines<F> {
    pub(super) fn new(identity: Identity, repeats: &'static Repeats, form: F) -> Self {
        let text = Format::default().with_target(false);
        Self { identity, repeats, form, text, json: Format::default().json().flatten_event(true) }
    }

    /// How many lines like this one were not written; `None`: it is not written either.
    fn admitted(&self, event: &Event<'_>) -> Option<u64> {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN {
            return Some(0);
        }
        match self.repeats.judge(metadata) {
            Verdict::Write { suppressed } => Some(suppressed),
            Verdict::Suppress => None,
        }
    }
}

impl<S, N> FormatEvent<S, N> for Lines<Text>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let Self { form: Text, identity: Identity { role, pid, host }, .. } = self;
        // An error drops the line.
        let suppressed = self.admitted(event).ok_or(fmt::Error)?;
        let has_ansi = writer.has_ansi_escapes();
        let mut line = String::new();
        self.text.format_event(context, Writer::new(&mut line), event)?;
        // `Writer::new` has no colours, so the level gets its colour here.
        let line = line.trim_end();
        match (has_ansi, line.split_once(event.metadata().level().as_str())) {
            (true, Some((before, after))) => {
                let colour = match *event.metadata().level() {
                    Level::ERROR => 31,
                    Level::WARN => 33,
                    Level::INFO => 32,
                    _ => 34,
                };
                write!(writer, "{before}\u{1b}[{colour}m{}\u{1b}[0m{after}", event.metadata().level())?;
            }
            _ => writer.write_str(line)?,
        }
        if suppressed > 0 {
            write!(writer, " suppressed={suppressed}")?;
        }
        let (dim, plain) = if has_ansi { ("\u{1b}[2m", "\u{1b}[0m") } else { ("", "") };
        writeln!(writer, " {dim}role={role} pid={pid} host={host} version={VERSION}{plain}")
    }
}

impl<S, N> FormatEvent<S, N> for Lines<Json>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let Self { form: Json, identity, .. } = self;
        let suppressed = self.admitted(event).ok_or(fmt::Error)?;
        let mut line = String::new();
        self.json.format_event(context, Writer::new(&mut line), event)?;
        // The line is an object that begins with its time.
        let rest = line.trim_end().strip_prefix('{').ok_or(fmt::Error)?;
        let (time, rest) = rest.split_once(',').ok_or(fmt::Error)?;
        let suppressed = if suppressed > 0 { format!(",\"suppressed\":{suppressed}") } else { String::new() };
        writeln!(writer, "{{{time},{}{suppressed},{rest}", fields(identity))
    }
}

/// The fields of the process.
fn fields(Identity { role, pid, host }: &Identity) -> String {
    let [role, host, version] = [json!(role), json!(host), json!(VERSION)];
    format!("\"role\":{role},\"pid\":{pid},\"host\":{host},\"version\":{version}")
}

/// The object of a line that is not an event.
pub(super) fn object(identity: &Identity, level: &str, message: &str) -> String {
    let mut time = String::new();
    // Writing to a text does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let (time, message) = (json!(time), json!(message));
    format!(
        "{{\"timestamp\":{time},{},\"level\":\"{level}\",\"target\":\"weir\",\"message\":{message}}}",
        fields(identity)
    )
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, OnceLock},
    };

    use parking_lot::Mutex;
    use serde_json::Value;
    use tracing_subscriber::fmt::format::{DefaultFields, JsonFields};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn repeats() -> &'static Repeats {
        // Each test is judged by its own places in the code.
        static REPEATS: OnceLock<Repeats> = OnceLock::new();
        REPEATS.get_or_init(Repeats::default)
    }

    fn identity() -> Identity {
        Identity { role: "worker", pid: 7, host: "web \"1\"".to_owned() }
    }

    #[test]
    fn a_line_of_json_has_the_process() {
        let written = Written::default();
        let (writer, lines) = (written.clone(), Lines::new(identity(), repeats(), Json));
        let log =
            tracing_subscriber::fmt().log_internal_errors(false).fmt_fields(JsonFields::new()).event_format(lines);
        let log = log.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            for n in 0..20 {
                tracing::warn!(n, "it repeats");
            }
            tracing::info!(host_name = "x", "a message, with a comma");
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &lines {
            assert_eq!((&line["role"], &line["pid"], &line["version"]), (&json!("worker"), &json!(7), &json!(VERSION)));
            assert_eq!(line["host"], json!("web \"1\""));
            assert!(line["timestamp"].as_str().unwrap().parse::<weir_core::Timestamp>().is_ok(), "{line}");
        }
        assert_eq!(lines.len(), Repeats::PER_MINUTE as usize + 1, "{text}");
        assert_eq!(lines.last().unwrap()["message"], json!("a message, with a comma"));
    }

    #[test]
    fn a_line_of_text_has_the_process_at_its_end() {
        let written = Written::default();
        let (writer, lines) = (written.clone(), Lines::new(identity(), repeats(), Text));
        let log = tracing_subscriber::fmt().with_ansi(false).fmt_fields(DefaultFields::new()).event_format(lines);
        let log = log.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || tracing::error!(error = "none", "stopped"));
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        let expected = format!(" ERROR stopped error=\"none\" role=worker pid=7 host=web \"1\" version={VERSION}\n");
        assert!(text.ends_with(&expected), "{text}");
    }

    #[test]
    fn a_line_that_is_no_event_is_an_object_too() {
        let object: Value = serde_json::from_str(&object(&identity(), "INFO", "weir is \"listening\"")).unwrap();
        assert_eq!((&object["level"], &object["message"]), (&json!("INFO"), &json!("weir is \"listening\"")));
        assert!(object["timestamp"].as_str().unwrap().parse::<weir_core::Timestamp>().is_ok(), "{object}");
    }
}
