//! Edits: single changes requested by a person, by a destination's answer or by background work, too rare to share a
//! statement with others. The writer runs them one at a time, in their order.

use weir_store::{StoreError, StoreResult};

use crate::{SqliteStore, error::Result, pending::Pending, transaction::Transaction};

/// Whether the commit of an edit must reach the disk before its caller gets the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// A person or a program relies on the answer.
    Yes,
    /// A power failure may lose the edit: background work repeats it, or little is lost.
    No,
}

/// An edit and the channel to its caller.
pub(crate) struct Edit {
    pub(crate) durable: Durable,
    change: Box<dyn Change>,
}

/// What an edit does, whatever its answer is.
trait Change: Send {
    fn run(&mut self, transaction: &mut Transaction<'_, '_>) -> Result<()>;

    fn finish(self: Box<Self>, failure: Option<&StoreError>);
}

impl<F, T> Change for Pending<F, T>
where
    F: FnMut(&mut Transaction<'_, '_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, transaction: &mut Transaction<'_, '_>) -> Result<()> {
        self.answer = Some((self.input)(transaction)?);
        Ok(())
    }

    fn finish(self: Box<Self>, failure: Option<&StoreError>) {
        Self::finish(*self, failure);
    }
}

impl Edit {
    pub(crate) fn new<F, T>(durable: Durable, change: Pending<F, T>) -> Self
    where
        F: FnMut(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        Self { durable, change: Box::new(change) }
    }

    pub(crate) fn run(&mut self, transaction: &mut Transaction<'_, '_>) -> Result<()> {
        self.change.run(transaction)
    }

    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        self.change.finish(failure);
    }
}

impl SqliteStore {
    /// Makes a change in a transaction of the writer and waits for its commit. If the commit batch fails, the change
    /// runs again, alone.
    pub(crate) async fn edit<T: Send + 'static>(
        &self,
        durable: Durable,
        change: impl FnMut(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.ask(change, |pending| Edit::new(durable, pending).into()).await
    }
}
