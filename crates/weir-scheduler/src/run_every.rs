//! The loop of the agents that make passes.

use std::time::Duration;

/// Makes passes: reads the store or the queue, and does what is due.
pub(crate) trait Agent {
    /// Makes one pass. May be interrupted at any time, as by a crash.
    fn make_pass(&mut self) -> impl Future<Output = ()> + Send;
}

/// Makes a pass at once, and then again `interval` after the end of each, until `shutdown` resolves.
pub(crate) async fn run_every(interval: Duration, shutdown: impl Future<Output = ()>, mut agent: impl Agent) {
    let passes = async {
        loop {
            agent.make_pass().await;
            tokio::time::sleep(interval).await;
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = passes => {}
    }
}
