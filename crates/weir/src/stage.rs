//! Tasks that stop together.

use std::time::Duration;

use tokio::{runtime::Handle, sync::watch, task::JoinSet, time::timeout};

pub(crate) struct Stage {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self { stop: watch::Sender::new(false), tasks: JoinSet::new() }
    }

    /// Tells when the stage stops.
    pub(crate) fn stops(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Resolves when the stage stops.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        stopped(self.stops())
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Spawns a task on the threads of another runtime.
    pub(crate) fn spawn_on(&mut self, task: impl Future<Output = ()> + Send + 'static, threads: &Handle) {
        self.tasks.spawn_on(task, threads);
    }

    /// Resolves when a task has ended by itself.
    pub(crate) async fn task_ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Stops the tasks. `false`: some have not ended within this time.
    pub(crate) async fn stop(mut self, within: Duration) -> bool {
        let _ = self.stop.send(true);
        let all_ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                if ended.is_err() {
                    tracing::error!("a background task panicked");
                }
            }
        };
        timeout(within, all_ended).await.is_ok()
    }
}

pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // The sender is dropped with the engine: stop then, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
