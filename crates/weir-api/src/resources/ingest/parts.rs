//! A batch whose deliveries do not fit in one commit is stored in parts.

use std::time::Duration;

use tokio::time::Instant;

use crate::problem::{ApiResult, Problem, ProblemKind};

/// How long a batch may take until no further part of it is begun. Common clients wait 30 s for an answer; one that gave
/// up would not learn which events are stored.
const LONGEST: Duration = Duration::from_secs(20);

/// Stores `total` items, part by part: `store` stores a part that begins at the given item, and returns the results of
/// at least one. Returns all results in their order. If the first part fails, so does the call. If a later one fails,
/// or the time is up, each item that is not stored gets the error, because the items before it are stored.
pub(super) async fn in_parts<T>(
    total: usize,
    mut store: impl AsyncFnMut(usize) -> ApiResult<Vec<ApiResult<T>>>,
) -> ApiResult<Vec<ApiResult<T>>> {
    let began = Instant::now();
    let mut results: Vec<ApiResult<T>> = Vec::with_capacity(total);
    while results.len() < total {
        let part = if results.is_empty() || began.elapsed() < LONGEST {
            store(results.len()).await
        } else {
            Err(Problem::new(ProblemKind::Unavailable, "the events before this one took too long to store: send it again"))
        };
        match part {
            Ok(part) => results.extend(part),
            Err(problem) if results.is_empty() => return Err(problem),
            Err(problem) => results.resize_with(total, || Err(problem.clone())),
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Problem {
        Problem::new(ProblemKind::Unavailable, "the store does not answer; try again")
    }

    #[tokio::test]
    async fn the_results_of_all_parts_are_in_order() {
        let stored = in_parts(5, async |from| Ok((from..5.min(from + 2)).map(Ok).collect())).await.unwrap();
        assert_eq!(stored.into_iter().flatten().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn a_failure_before_anything_is_stored_fails_the_batch() {
        assert!(in_parts::<usize>(5, async |_| Err(unavailable())).await.is_err());
    }

    #[tokio::test]
    async fn items_after_a_failure_get_the_error_and_those_before_are_stored() {
        let store = async |from| if from < 4 { Ok(vec![Ok(from), Ok(from + 1)]) } else { Err(unavailable()) };
        let results = in_parts(7, store).await.unwrap();
        assert_eq!(results.iter().map(|result| result.as_ref().ok().copied()).collect::<Vec<_>>(), [
            Some(0),
            Some(1),
            Some(2),
            Some(3),
            None,
            None,
            None
        ]);
        assert_eq!(results[6].as_ref().unwrap_err().detail(), unavailable().detail());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_takes_too_long_says_which_items_are_not_stored() {
        let store = async |from| {
            tokio::time::sleep(LONGEST / 4).await;
            Ok(vec![Ok(from)])
        };
        let results = in_parts(10, store).await.unwrap();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 4);
        assert!(results[4].as_ref().unwrap_err().detail().contains("send it again"));
    }
}
