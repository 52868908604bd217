//! Login with an API key, and logout. The key is exchanged for a cookie by `POST /v1/session`; the dashboard keeps
//! neither.

use askama::Template;
use axum::{extract::Query, response::IntoResponse};
use http::{HeaderMap, Method, StatusCode, header};
use serde::Deserialize;
use serde_json::json;

use crate::{
    client::{ApiPath, Call},
    fields::Fields,
    flash::Flash,
    frame::{Frame, Section},
    refusal::Refusal,
    visit::{Answered, Visit, local_path},
};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    frame: Frame,
    /// Where the reader wanted to go.
    next: String,
    /// Why the last try was refused.
    error: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Login {
    #[serde(default)]
    next: String,
}

pub(crate) async fn show(visit: Visit, Query(login): Query<Login>) -> Answered {
    let next = local_path(&login.next);
    match visit.me().await {
        // Without configured keys, or with a session, there is nothing to do here.
        Ok(_) => visit.redirect(next, None),
        Err(refusal) if refusal.status == StatusCode::UNAUTHORIZED => page(&visit, StatusCode::OK, next, None),
        Err(refusal) => Err(refusal),
    }
}

pub(crate) async fn submit(visit: Visit, fields: Fields) -> Answered {
    let next = local_path(fields.raw("next"));
    let call = Call::new(Method::POST, &ApiPath::of(["session"])).json(&json!({"key": fields.text("key")}))?;
    match visit.api.send(&call).await {
        Ok(answer) => with_cookies(visit.redirect(next, None), &answer.headers),
        Err(refusal) => {
            let error = match refusal.status {
                StatusCode::UNAUTHORIZED => "This key is not valid. Check that it was copied as a whole.".to_owned(),
                StatusCode::TOO_MANY_REQUESTS => {
                    let wait = refusal.retry_after.as_deref().unwrap_or("60");
                    format!("Too many tries failed. Try again in {wait} seconds.")
                }
                _ => refusal.sentence(),
            };
            page(&visit, refusal.status, next, Some(error))
        }
    }
}

pub(crate) async fn logout(visit: Visit) -> Answered {
    let answer = visit.api.send(&Call::new(Method::DELETE, &ApiPath::of(["session"]))).await?;
    with_cookies(visit.redirect("/login", Some(Flash::done("You are logged out."))), &answer.headers)
}

fn page(visit: &Visit, status: StatusCode, next: &str, error: Option<String>) -> Answered {
    let frame = Frame::new(visit.site.clone(), Section::None, "Log in");
    visit.page_with(status, &LoginPage { frame: visit.with_flash(frame), next: next.to_owned(), error })
}

/// Hands the cookies of the API to the browser.
fn with_cookies(response: Answered, from: &HeaderMap) -> Result<axum::response::Response, Refusal> {
    let mut response = response?.into_response();
    for cookie in from.get_all(header::SET_COOKIE) {
        response.headers_mut().append(header::SET_COOKIE, cookie.clone());
    }
    Ok(response)
}
