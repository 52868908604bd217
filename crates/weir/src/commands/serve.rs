//! `weir serve` runs all roles in one process; `weir api`, `weir scheduler` and `weir worker` run one role.

mod reload;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    config::{ProcessRole, SettingFlags, Settings},
    engine::Engine,
    exit::Exit,
    logs,
    metrics::Metrics,
    sd_notify::SdNotify,
    traces::TraceSettings,
};

use reload::Reload;

pub(super) async fn run(flags: &SettingFlags, role: ProcessRole) -> anyhow::Result<Exit> {
    logs::choose(role.name(), Settings::log_format(flags, role));
    // Read all settings first: an invalid one ends the process before anything is opened.
    let mut settings = Settings::load(flags, role)?;
    let traces = TraceSettings::load()?;
    let set_filter = logs::start(role.name(), &settings.log, settings.log_format);
    let reload = Reload { flags, role, set_filter };
    tokio::spawn(logs::report_repeats());
    let mut stop = StopSignals::handle()?;
    // From the beginning, too: without a handler, SIGHUP would end the process.
    let mut hangup = signal(SignalKind::hangup())?;
    let systemd = SdNotify::from_environment();
    // The task ends with the process.
    let _watchdog = systemd.watch();
    let start = Engine::start(role, &settings, traces, Metrics::install()?);
    let mut engine = tokio::select! {
        // Boxed, because this future is large.
        started = Box::pin(start) => started?,
        signal = stop.received() => {
            tracing::info!(signal, "stopped before the start was complete");
            return Ok(Exit::Done);
        }
    };
    if let Some(address) = engine.metrics_address() {
        logs::announce(&format!("metrics are served on http://{address}/metrics"));
    }
    let (version, address) = (env!("CARGO_PKG_VERSION"), engine.address());
    let name = if role == ProcessRole::Serve { String::new() } else { format!(" {}", role.name()) };
    logs::announce(&format!("weir {version}{name} is listening on http://{address}"));
    for warning in settings.warnings(role) {
        tracing::warn!("{warning}");
    }
    // `Settings` accepts an API without keys only on loopback.
    if role.serves_api() && settings.api_keys.is_empty() {
        tracing::info!(
            "no API key is set (WEIR_API_KEYS): every user of this machine can use the API, and no other machine can"
        );
    }

    systemd.ready();
    // Run until a signal asks to stop or a background task has panicked. Both end with an orderly stop.
    let exit = loop {
        tokio::select! {
            signal = stop.received() => {
                let grace_s = settings.shutdown_grace_s;
                tracing::info!(signal, grace_s, "stopping: attempts in flight may finish");
                break Exit::Done;
            }
            () = engine.task_failed() => {
                tracing::error!("a background task ended by itself; this process stops, so that its supervisor restarts it");
                break Exit::Failure;
            }
            _ = hangup.recv() => {
                systemd.reloading();
                settings = reload.run(settings, &engine);
                systemd.ready();
            }
        }
    };
    systemd.stopping();
    engine.stop().await;
    Ok(exit)
}

/// The signals that ask a process to stop. They are handled from the beginning: the first process of a container gets
/// no signal that it does not handle, so it could not be stopped while it starts.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(super) fn handle() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one of the signals and returns its name.
    pub(super) async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
