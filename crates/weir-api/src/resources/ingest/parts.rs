//! A batch whose deliveries do not fit in one commit is stored in parts.

use std::time::Duration;

use tokio::time::Instant;

use crate::problem::{ApiResult, Problem, ProblemKind};

/// How long a batch may take until no further part of it is begun. Common clients wait 30 s for an answer; one that
/// gave up would not learn which events are stored.
const LONGEST: Duration = Duration::from_secs(20);

/// The results of the items of a batch, part by part.
pub(super) struct Parts<T> {
    total: usize,
    began: Instant,
    /// In the order of the items.
    results: Vec<ApiResult<T>>,
}

impl<T> Parts<T> {
    pub(super) fn of(total: usize) -> Self {
        Self { total, began: Instant::now(), results: Vec::with_capacity(total) }
    }

    /// The item with which the next part begins. `None` when every item has its result. When the time is up, these are
    /// errors.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.has_stored() && self.began.elapsed() >= LONGEST {
            let detail = "the events before this one took too long to store: send it again";
            self.refuse_rest(&Problem::new(ProblemKind::Unavailable, detail));
        }
        Some(self.results.len()).filter(|next| *next < self.total)
    }

    /// Adds the results of a part. If it failed before anything is stored, so does the batch. Otherwise each item that
    /// is not stored gets the error, because items before it are stored.
    pub(super) fn add(&mut self, part: ApiResult<Vec<ApiResult<T>>>) -> ApiResult<()> {
        match part {
            Ok(part) => self.results.extend(part),
            Err(problem) if self.has_stored() => self.refuse_rest(&problem),
            Err(problem) => return Err(problem),
        }
        Ok(())
    }

    pub(super) fn into_results(self) -> Vec<ApiResult<T>> {
        self.results
    }

    fn has_stored(&self) -> bool {
        self.results.iter().any(Result::is_ok)
    }

    fn refuse_rest(&mut self, problem: &Problem) {
        self.results.resize_with(self.total, || Err(problem.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Problem {
        Problem::new(ProblemKind::Unavailable, "the store does not answer; try again")
    }

    /// The results of a batch whose parts have two items, `None` for a failed one; stores up to `stored` items.
    fn stored_until(total: usize, stored: usize) -> ApiResult<Vec<Option<usize>>> {
        let mut parts = Parts::of(total);
        while let Some(from) = parts.next() {
            let part = (from..total.min(from + 2)).map(Ok).collect();
            parts.add(if from < stored { Ok(part) } else { Err(unavailable()) })?;
        }
        Ok(parts.into_results().into_iter().map(Result::ok).collect())
    }

    #[tokio::test]
    async fn the_results_of_all_parts_are_in_order() {
        assert_eq!(stored_until(5, 5).unwrap(), [Some(0), Some(1), Some(2), Some(3), Some(4)]);
    }

    #[tokio::test]
    async fn items_after_a_failure_get_the_error_and_those_before_are_stored() {
        assert_eq!(stored_until(6, 4).unwrap(), [Some(0), Some(1), Some(2), Some(3), None, None]);
    }

    #[tokio::test]
    async fn a_failure_before_anything_is_stored_fails_the_batch() {
        assert!(stored_until(5, 0).is_err());
        let mut parts = Parts::<()>::of(2);
        parts.add(Ok(vec![Err(unavailable())])).unwrap();
        assert!(parts.add(Err(unavailable())).is_err(), "a refused event is not stored");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_takes_too_long_says_which_items_are_not_stored() {
        let mut parts = Parts::of(10);
        while let Some(from) = parts.next() {
            tokio::time::sleep(LONGEST / 4).await;
            parts.add(Ok(vec![Ok(from)])).unwrap();
        }
        let results = parts.into_results();
        assert_eq!((results.len(), results.iter().filter(|result| result.is_ok()).count()), (10, 4));
        assert!(results[4].as_ref().unwrap_err().detail().contains("send it again"));
    }
}
