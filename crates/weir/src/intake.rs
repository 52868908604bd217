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
        runtime.thread_name("weir-intake").event_interval(TURNS_BETWEEN_LOOKS).enable_all();
        Ok(Self(Some(runtime.build()?)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is taken in `drop`").handle()
    }
}

impl Drop for Intake {
    /// Without waiting, because another runtime runs this.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
