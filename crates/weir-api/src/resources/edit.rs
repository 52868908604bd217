//! What every edit of a resource by its id reads from the request, except the body: who edits what, over which version.

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::activity::Author;
use crate::{
    auth::Caller,
    problem::Problem,
    readers::{body::PathId, if_match::IfMatch, query::Query, texts::Text},
    state::Api,
};

pub(crate) struct Edit<T> {
    pub(crate) api: Api,
    pub(crate) id: T,
    pub(crate) caller: Caller,
    pub(crate) author: Author,
    pub(crate) if_match: IfMatch,
}

impl<T: Text + Send> FromRequestParts<Api> for Edit<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let PathId(id) = PathId::from_request_parts(parts, api).await?;
        let author = Author::from_request_parts(parts, api).await?;
        let Ok(if_match) = IfMatch::from_request_parts(parts, api).await;
        Query::<()>::from_request_parts(parts, api).await?;
        Ok(Self { api: api.clone(), id, caller, author, if_match })
    }
}
