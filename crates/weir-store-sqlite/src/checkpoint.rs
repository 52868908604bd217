//! Copies the write-ahead log into the file, beside the writer.
//!
//! Left to the writer's commits, a checkpoint and its two fsyncs would stop every claim and ingest for many milliseconds. So a
//! thread of its own copies nearly all of it while the writer goes on (a passive checkpoint waits for nobody and nobody waits
//! for it), and then what was written meanwhile, which is less each time. The rest the writer copies itself between two groups:
//! only then is there a moment at which the log is copied to its end, and the next commit begins it anew.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use rusqlite::Connection;

use crate::error::Result;

/// Rows written between two checkpoints: a few MiB of log, a short recovery. What is copied at once makes the disk busy for everyone:
/// at five times as many rows, commits stood still for 25 ms at a time, and at 3,000 events a second the slowest hundredth took 13 ms
/// instead of 2 to 3. Throughput is the same.
const ROWS: usize = 2_000;

/// How often the thread copies before the writer does. The first time takes long, and leaves what was written in that time; after
/// the last the writer finds a few pages.
const PASSES: usize = 3;

/// The writer's side.
pub(crate) struct Checkpoints {
    rows: usize,
    begin: SyncSender<()>,
    /// The thread tells each time how it has copied what there was when it began. Closed when it has let go of the file.
    copied: Receiver<Result<()>>,
}

/// Starts the thread on a connection of its own. It ends with the [`Checkpoints`].
pub(crate) fn spawn(connection: Connection) -> Checkpoints {
    let (begin, begun) = sync_channel(1);
    let (tell, copied) = channel();
    tokio::task::spawn_blocking(move || {
        run(&connection, &begun, &tell);
        drop(connection);
        drop(tell);
    });
    Checkpoints { rows: 0, begin, copied }
}

fn run(connection: &Connection, begun: &Receiver<()>, tell: &Sender<Result<()>>) {
    while begun.recv().is_ok() {
        // The writer listens until this thread has ended.
        let _ = tell.send((0..PASSES).try_for_each(|_| copy(connection)));
    }
}

impl Checkpoints {
    /// Ends the thread, so that the last connection to close is the writer's, which clears the log away.
    pub(crate) fn close(self) {
        drop(self.begin);
        while self.copied.recv().is_ok() {}
    }

    /// To be called between groups, with the rows of the last.
    pub(crate) fn after(&mut self, rows: usize, connection: &Connection) -> Result<()> {
        self.rows += rows;
        if self.rows >= ROWS && self.begin.try_send(()).is_ok() {
            self.rows = 0;
        }
        // Nearly all of it is copied.
        if let Ok(copied) = self.copied.try_recv() {
            copied?;
            copy(connection)?;
        }
        Ok(())
    }
}

fn copy(connection: &Connection) -> Result<()> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?)
}
