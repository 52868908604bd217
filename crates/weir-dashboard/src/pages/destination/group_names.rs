//! The limit group of a destination by its name, in the form of the settings: the API knows groups by their ids.

use http::StatusCode;
use weir_api_types::{LimitGroup, LimitGroupRow, List};

use crate::{client::ApiPath, refusal::Refusal, visit::Visit};

/// How many groups the form offers: one page of the API. The names of others are typed.
const OFFERED: &str = "200";
/// How many pages are searched for a name that was typed. A tenant has at most 1,000 groups, and so has the installation
/// for all tenants; those of other tenants lie between them.
const SEARCHED: usize = 50;

/// What the form shows of groups.
pub(super) struct GroupNames {
    /// The names of the newest groups that the destination may join.
    pub(super) offered: Vec<String>,
    /// The name of its own group, or the id if the caller does not see that group.
    pub(super) own: Option<String>,
}

/// Whether a destination of this tenant may join.
fn fits(group: &LimitGroup, tenant: &str) -> bool {
    group.tenant.as_deref().is_none_or(|of| of == tenant)
}

async fn page(visit: &Visit, cursor: &str) -> Result<List<LimitGroupRow>, Refusal> {
    visit.api.get(&ApiPath::of(["limit-groups"]).with("limit", OFFERED).with("cursor", cursor)).await
}

pub(super) async fn names(visit: &Visit, tenant: &str, own: Option<&str>) -> Result<GroupNames, Refusal> {
    let groups: Vec<LimitGroup> = page(visit, "").await?.data.into_iter().map(|row| row.limit_group).collect();
    let own = match (own, groups.iter().find(|group| own == Some(&group.id))) {
        (None, _) => None,
        (Some(_), Some(group)) => Some(group.name.clone()),
        (Some(id), None) => match visit.api.get::<LimitGroup>(&ApiPath::of(["limit-groups", id])).await {
            Ok(group) => Some(group.name),
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Some(id.to_owned()),
            Err(refusal) => return Err(refusal),
        },
    };
    let offered = groups.into_iter().filter(|group| fits(group, tenant)).map(|group| group.name).collect();
    Ok(GroupNames { offered, own })
}

/// The id of a group that a person has typed as a name or as an id. If two groups have the name, that of the tenant comes
/// before the one for all tenants. `None`: there is no such group.
pub(super) async fn id_of(visit: &Visit, tenant: &str, typed: &str) -> Result<Option<String>, Refusal> {
    if typed.starts_with("lgr_") {
        return Ok(Some(typed.to_owned()));
    }
    let (mut for_all, mut cursor) = (None, String::new());
    for _ in 0..SEARCHED {
        let List { data, next_cursor } = page(visit, &cursor).await?;
        for group in data.into_iter().map(|row| row.limit_group).filter(|group| group.name == typed) {
            match &group.tenant {
                Some(of) if of == tenant => return Ok(Some(group.id)),
                Some(_) => {}
                None => for_all = Some(group.id),
            }
        }
        match next_cursor {
            Some(next) => cursor = next,
            None => break,
        }
    }
    Ok(for_all)
}
