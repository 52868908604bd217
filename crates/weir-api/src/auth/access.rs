//! Who may use a route. Every route states it in the table of routes, and cannot be made without it.
//!
//! The check is a part of the route's handler, so no request reaches a handler past it, whatever its path and method
//! look like. The OpenAPI document is made from the same table.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use weir_core::access::Role;

use super::Caller;
use crate::problem::{self, ApiResult};

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody, without a key.
    Open,
    /// Every holder of a key.
    EveryKey,
    /// The holders of a key whose role includes this one.
    Role(Role),
}

/// Marks the answer to a successful change that people made. Events are none of their changes: there are too many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changed;

impl Access {
    /// Refuses a request of this caller, or one whose sender was not looked for.
    fn admit(self, request: &Request) -> ApiResult<()> {
        let role = match self {
            Self::Open => return Ok(()),
            Self::EveryKey => None,
            Self::Role(role) => Some(role),
        };
        let caller = request.extensions().get::<Caller>();
        let caller = caller.ok_or_else(|| problem::internal("a request was not authenticated", request.uri()))?;
        role.map_or(Ok(()), |role| caller.check_role(role))
    }

    /// Whether people change something with an unsafe method of this route.
    fn is_of_changes(self) -> bool {
        matches!(self, Self::Role(Role::Operate | Role::Admin))
    }
}

/// Checks the right to use a route, as a part of its handler.
pub(crate) async fn check(State(access): State<Access>, request: Request, next: Next) -> Response {
    if let Err(problem) = access.admit(&request) {
        return problem.into_response();
    }
    let is_change = access.is_of_changes() && !request.method().is_safe();
    let mut response = next.run(request).await;
    if is_change && response.status().is_success() {
        response.extensions_mut().insert(Changed);
    }
    response
}
