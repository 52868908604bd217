//! The names of destinations, for lists whose rows have only their ids.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt as _;
use weir_api_types::Destination;

use super::{
    client::{Client, Fields},
    records::InWords as _,
};

/// So many destinations are asked for one by one; more are found faster in the list of all.
const ONE_BY_ONE: usize = 64;
const AT_ONE_TIME: usize = 16;
/// The most destinations that are read for their names. Further rows show ids.
const MOST: usize = 10_000;

/// Titles of destinations by their ids.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    /// Asks for the names of these destinations. A destination that is deleted, or that the key does not see, has none,
    /// and so has every one while they cannot be read: the list is shown nevertheless.
    pub(super) async fn of<'a>(client: &Client, ids: impl IntoIterator<Item = &'a str>) -> Self {
        let mut missing: HashSet<&str> = ids.into_iter().collect();
        let mut names = HashMap::new();
        if missing.len() <= ONE_BY_ONE {
            let read = async |id: &str| {
                let answer = client.get(&["v1", "destinations", id], &Fields::new()).await;
                let destination = answer.and_then(|answer| answer.read::<Destination>()).ok()?;
                Some((id.to_owned(), destination.title().to_owned()))
            };
            let found = futures_util::stream::iter(missing).map(read).buffer_unordered(AT_ONE_TIME);
            return Self(found.filter_map(async |found| found).collect().await);
        }
        let mut query = Fields::from_iter([("limit".to_owned(), 200.into())]);
        let mut read = 0;
        while !missing.is_empty() && read < MOST {
            let Ok(page) = client.page(&["v1", "destinations"], &query).await else { break };
            let Ok(destinations) = page.rows.read::<Destination>() else { break };
            read += destinations.len();
            for destination in destinations.iter().filter(|found| missing.remove(found.id.as_str())) {
                names.insert(destination.id.clone(), destination.title().to_owned());
            }
            match page.next_cursor {
                Some(cursor) => query.insert("cursor".to_owned(), cursor.into()),
                None => break,
            };
        }
        Self(names)
    }

    /// The name of a destination, or its id.
    pub(super) fn title(&self, id: &str) -> String {
        self.0.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    /// The name and the id, as far as they are known.
    pub(super) fn label(&self, id: &str) -> String {
        match self.0.get(id).filter(|name| *name != id) {
            Some(name) => format!("{name} ({id})"),
            None => id.to_owned(),
        }
    }
}

#[cfg(test)]
impl Names {
    pub(super) fn known<const N: usize>(names: [(&str, &str); N]) -> Self {
        Self(names.map(|(id, name)| (id.to_owned(), name.to_owned())).into())
    }
}
