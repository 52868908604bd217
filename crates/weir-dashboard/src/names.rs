//! The names of the destinations that a page mentions: the lists of the API have only their ids.

use std::collections::{BTreeSet, HashMap};

use futures_util::future::join_all;
use weir_api_types::{BriefDestination, Destination, Overview};

use crate::{client::ApiPath, refusal::Refusal, visit::Visit};

/// The name, or the URL of a destination without one. A name of white space only would make a link without a text.
pub(crate) fn label<'a>(name: &'a str, url: &'a str) -> &'a str {
    if name.trim().is_empty() { url } else { name }
}

/// The names of some destinations. A deleted one is shown by its id.
#[derive(Debug, Default)]
pub(crate) struct Names(HashMap<String, String>);

impl Names {
    /// Reads the destinations one by one: a page has few different ones.
    pub(crate) async fn read<'a>(visit: &Visit, ids: impl IntoIterator<Item = &'a str>) -> Self {
        let ids: BTreeSet<&str> = ids.into_iter().filter(|id| !id.is_empty()).collect();
        let read = ids.into_iter().map(async |id| {
            let found: Result<Destination, Refusal> = visit.api.get(&ApiPath::of(["destinations", id])).await;
            found.ok().map(|found| (id.to_owned(), label(&found.settings.name, &found.settings.url).to_owned()))
        });
        Self(join_all(read).await.into_iter().flatten().collect())
    }

    pub(crate) fn of(&self, id: &str) -> String {
        self.0.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }
}

/// The destinations with a text in their name or URL: so many that one with exactly this name is among them.
async fn search(visit: &Visit, text: &str) -> Result<Vec<BriefDestination>, Refusal> {
    let path = ApiPath::of(["overview"]).with("q", text).with("sort", "name").with("limit", "50");
    let found: Overview = visit.api.get(&path).await?;
    Ok(found.data.into_iter().map(|row| row.destination).collect())
}

/// The first two destinations that have exactly this name or URL, or else those that have it in upper or lower case.
fn exactly<'a>(
    found: &'a [BriefDestination],
    given: &str,
) -> (Option<&'a BriefDestination>, Option<&'a BriefDestination>) {
    let lower = given.to_lowercase();
    let is_exact = |one: &&BriefDestination| one.name.trim() == given || one.url == given;
    let is_same =
        |one: &&BriefDestination| [one.name.trim(), one.url.as_str()].iter().any(|own| own.to_lowercase() == lower);
    let mut exact = found.iter().filter(is_exact);
    match exact.next() {
        Some(first) => (Some(first), exact.next()),
        None => {
            let mut same = found.iter().filter(is_same);
            (same.next(), same.next())
        }
    }
}

/// The most names that are suggested: as many as a list below a field shows without scrolling.
const SUGGESTED: usize = 8;

/// Destinations that a reader may mean, who has typed a part of a name or URL: those whose names begin with it first.
pub(crate) async fn suggestions(visit: &Visit, given: &str) -> Result<Vec<BriefDestination>, Refusal> {
    let mut found = search(visit, given).await?;
    let lower = given.to_lowercase();
    found.sort_by_key(|one| !one.name.trim().to_lowercase().starts_with(&lower));
    found.truncate(SUGGESTED);
    Ok(found)
}

/// The id of the only destination with exactly this name or URL, or with it in upper or lower case.
pub(crate) async fn exact_id(visit: &Visit, given: &str) -> Result<Option<String>, Refusal> {
    let found = search(visit, given).await?;
    Ok(match exactly(&found, given) {
        (Some(one), None) => Some(one.id.clone()),
        _ => None,
    })
}

/// The id of the destination that a reader names by its id, name or URL, or why there is not one.
pub(crate) async fn destination_id(visit: &Visit, given: &str) -> Result<Result<String, String>, Refusal> {
    if given.is_empty() || given.starts_with("dst_") {
        return Ok(Ok(given.to_owned()));
    }
    let found = search(visit, given).await?;
    let (first, second) = exactly(&found, given);
    Ok(match (first, second, found.as_slice()) {
        (Some(one), None, _) | (None, _, [one]) => Ok(one.id.clone()),
        (_, _, []) => Err(format!("No destination has “{given}” in its name or URL.")),
        _ => Err(format!("Several destinations have “{given}” in their names or URLs; name one of them exactly.")),
    })
}
