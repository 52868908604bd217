//! Jump to what an id names, or to the destination with exactly this name. Any other text is searched for.

use axum::extract::Query;
use serde::Deserialize;

use crate::{
    client::append,
    names::exact_id,
    path_id::is_id,
    visit::{Answered, Visit},
};

#[derive(Deserialize)]
pub(crate) struct Jump {
    #[serde(default)]
    id: String,
}

pub(crate) async fn jump(visit: Visit, Query(jump): Query<Jump>) -> Answered {
    let given = jump.id.trim();
    let target = target(given);
    if given.is_empty() || !target.starts_with("/?") {
        return visit.redirect(&target, None);
    }
    let named = exact_id(&visit, given).await?;
    visit.redirect(&named.map_or(target, |id| format!("/destinations/{id}")), None)
}

fn target(id: &str) -> String {
    let pages = [("dst_", "/destinations/"), ("dlv_", "/deliveries/"), ("evt_", "/events/"), ("rpl_", "/replays/")];
    match pages.into_iter().find(|(prefix, _)| is_id(id) && id.starts_with(prefix)) {
        Some((_, page)) => format!("{page}{id}"),
        None => {
            let mut overview = String::from("/");
            append(&mut overview, "q", id);
            overview
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_to_its_page_and_a_text_to_a_search() {
        assert_eq!(target("dst_01h2xcejqtf2nbrexx3vqjhp41"), "/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41");
        assert_eq!(target("dlv_1"), "/deliveries/dlv_1");
        assert_eq!((target("acme & co"), target("dst_/../x")), ("/?q=acme%20%26%20co".into(), "/?q=dst_/../x".into()));
        assert_eq!(target(""), "/");
    }
}
