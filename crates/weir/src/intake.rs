//! Threads of their own for the requests of clients, in a process that also delivers.
//!
//! A flood makes thousands of tasks ready at once. On shared threads each step of a delivery would wait behind all of them.
//! On threads of their own, intake and delivery each get their share of the processors from the operating system.

use tokio::runtime::{Builder, Handle, Runtime};

/// The tasks that run before the threads look for new requests. A task is a turn of a client with several steps, so with
/// the default of 61 a quiet client would not be noticed for ten milliseconds.
const TURNS_BETWEEN_LOOKS: u32 = 8;

/// A runtime for requests. It must outlive all uses of the backends, because it opens a part of their connections.
pub(crate) struct Intake(Option<Runtime>);

impl Intake {
    pub(crate) fn start() -> std::io::Result<Self> {
        let mut runtime = Builder::new_multi_thread();
        runtime.thread_name("weir-intake").event_interval(TURNS_BETWEEN_LOOKS);
        runtime.on_thread_start(give_way);
        Ok(Self(Some(runtime.enable_all().build()?)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is taken in `drop`").handle()
    }
}

#[cfg(target_os = "linux")]
fn give_way() {
    let nice = std::env::var("X_NICE").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!(%error, "the threads of intake keep their priority");
    }
}

/// Elsewhere a priority belongs to a whole process.
#[cfg(not(target_os = "linux"))]
fn give_way() {}

impl Drop for Intake {
    /// Without waiting, because another runtime runs this.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
