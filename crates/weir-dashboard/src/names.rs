//! The names of the destinations that a page mentions: the lists of the API have only their ids.

use std::collections::{BTreeSet, HashMap};

use futures_util::future::join_all;
use serde::Deserialize;

use crate::{client::ApiPath, refusal::Refusal, visit::Visit};

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NamedDestination {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl NamedDestination {
    /// The name, or the URL of a destination without one.
    pub(crate) fn label(&self) -> &str {
        if self.name.is_empty() { &self.url } else { &self.name }
    }
}

/// The names of some destinations. A deleted one is shown by its id.
#[derive(Debug, Default)]
pub(crate) struct Names(HashMap<String, String>);

impl Names {
    /// Reads the destinations one by one: a page has few different ones.
    pub(crate) async fn read<'a>(visit: &Visit, ids: impl IntoIterator<Item = &'a str>) -> Self {
        let ids: BTreeSet<&str> = ids.into_iter().filter(|id| !id.is_empty()).collect();
        let read = ids.into_iter().map(async |id| {
            let found: Result<NamedDestination, Refusal> = visit.api.get(&ApiPath::of(["destinations", id])).await;
            found.ok().map(|found| (id.to_owned(), found.label().to_owned()))
        });
        Self(join_all(read).await.into_iter().flatten().collect())
    }

    pub(crate) fn of(&self, id: &str) -> String {
        self.0.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }
}

/// The id of the destination that a reader names by its id, name or URL, or why there is not one.
pub(crate) async fn destination_id(visit: &Visit, given: &str) -> Result<Result<String, String>, Refusal> {
    if given.is_empty() || given.starts_with("dst_") {
        return Ok(Ok(given.to_owned()));
    }
    let path = ApiPath::of(["overview"]).with("q", given).with("sort", "name").with("limit", "3");
    let found: crate::views::List<Found> = visit.api.get(&path).await?;
    let found: Vec<NamedDestination> = found.data.into_iter().map(|row| row.destination).collect();
    let mut exact = found.iter().filter(|one| one.name == given || one.url == given);
    Ok(match (exact.next(), exact.next(), found.as_slice()) {
        (Some(one), None, _) | (None, _, [one]) => Ok(one.id.clone()),
        (_, _, []) => Err(format!("No destination has “{given}” in its name or URL.")),
        _ => Err(format!("Several destinations have “{given}” in their names or URLs; name one of them exactly.")),
    })
}

#[derive(Deserialize)]
struct Found {
    destination: NamedDestination,
}
