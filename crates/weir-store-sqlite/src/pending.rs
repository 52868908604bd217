//! An operation on its way to the writer, and the way back of its answer.

use tokio::sync::oneshot;
use weir_store::{StoreError, StoreResult};

/// One operation and the channel to its caller.
pub(crate) struct Pending<I, O> {
    pub(crate) input: I,
    pub(crate) answer: Option<O>,
    reply: oneshot::Sender<StoreResult<O>>,
}

impl<I, O> Pending<I, O> {
    pub(crate) fn new(input: I) -> (Self, Answer<O>) {
        let (reply, answer) = oneshot::channel();
        (Self { input, answer: None, reply }, Answer(answer))
    }

    /// Sends the answer, or the reason for its absence. Ignores callers that no longer wait.
    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        let unanswered = || StoreError::Failed("the operation was not answered".to_owned());
        let answer = match failure {
            Some(error) => Err(error.clone()),
            None => self.answer.ok_or_else(unanswered),
        };
        let _ = self.reply.send(answer);
    }
}

/// The future answer to an operation.
pub(crate) struct Answer<O>(oneshot::Receiver<StoreResult<O>>);

impl<O> Answer<O> {
    pub(crate) async fn get(self) -> StoreResult<O> {
        self.0.await.map_err(|_| closed())?
    }
}

pub(crate) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}
