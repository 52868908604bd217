//! The editor of limits: its preview while typing, saving, and the way back. The form is in `limits_form`.
//!
//! ```text
//!   typing ──▶ preview (POST /v1/destinations/{id}/preview)
//!   save ────▶ PATCH with If-Match ──▶ the page, with a button that restores the limits before
//!                    └─ 412 ──▶ the page with both values and the new version: save again, or leave it
//! ```

use askama::Template;
use http::{HeaderMap, Method, StatusCode};
use weir_api_types::{Preview, Simulation};

use super::{
    limits_form::{Editor, ForecastText as _, Typed},
    now,
    past::{Past, Tried},
};
use crate::{
    client::{ApiPath, Call, append},
    faults::Faults,
    fields::Fields,
    flash::Flash,
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    visit::{Answered, Visit},
};

#[derive(Template)]
#[template(path = "destination_preview.html")]
pub(crate) struct PreviewPart {
    pub(crate) preview: Preview,
}

#[derive(Template)]
#[template(path = "destination_past.html")]
struct PastPart {
    tried: Tried,
}

/// What the limits in the form would do: a part of the page for the script, or the page with it.
pub(crate) async fn preview(visit: Visit, PathId(id): PathId, headers: HeaderMap, fields: Fields) -> Answered {
    let typed = Typed::read(&fields);
    let answer = visit.api.post::<Preview>(&ApiPath::of(["destinations", &id, "preview"]), &typed.body()).await;
    if headers.contains_key("hx-request") {
        let in_words =
            |refusal: Refusal| Refusal { detail: typed.faults(&refusal).text(), errors: Vec::new(), ..refusal };
        return visit.fragment(&PreviewPart { preview: answer.map_err(in_words)? });
    }
    let (preview, faults) = match answer {
        Ok(preview) => (Some(preview), Faults::default()),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => (None, typed.faults(&refusal)),
        Err(refusal) => return Err(refusal),
    };
    let status = if faults.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let editor = Editor::typed(typed, faults);
    now::page(&visit, &id, &now::View::default(), status, Some((editor, preview))).await
}

/// What the limits in the form would have done with recorded deliveries: a part of the page for the script, or the page
/// with it.
pub(crate) async fn simulate(visit: Visit, PathId(id): PathId, headers: HeaderMap, fields: Fields) -> Answered {
    let (typed, mut past) = (Typed::read(&fields), Past::read(&fields));
    let mut body = typed.body();
    past.ask(&mut body, visit.site.clock.now());
    let answer = visit.api.post::<Simulation>(&ApiPath::of(["destinations", &id, "simulate"]), &body).await;
    let answer = answer.map(|simulation| past.answered(simulation, typed.text()));
    if headers.contains_key("hx-request") {
        let in_words =
            |refusal: Refusal| Refusal { detail: typed.faults(&refusal).text(), errors: Vec::new(), ..refusal };
        return visit.fragment(&PastPart { tried: answer.map_err(in_words)? });
    }
    let faults = match answer {
        Ok(tried) => {
            past.tried = Some(tried);
            Faults::default()
        }
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => typed.faults(&refusal),
        Err(refusal) => return Err(refusal),
    };
    let status = if faults.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let editor = Editor { past, ..Editor::typed(typed, faults) };
    now::page(&visit, &id, &now::View::default(), status, Some((editor, None))).await
}

pub(crate) async fn save(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let typed = Typed::read(&fields);
    let path = ApiPath::of(["destinations", &id]);
    let (before, _) = super::read(&visit, &id).await?;
    let before = Typed::of(&before);
    let edit = Call::new(Method::PATCH, &path).json(&typed.body())?.if_match(fields.text("etag"))?;
    match visit.api.send(&edit).await {
        Ok(_) => {
            let text = format!("Limits saved: {} → {}. In effect within 100 ms.", before.text(), typed.text());
            let mut to = format!("/destinations/{id}");
            append(&mut to, "was", &before.code());
            visit.redirect(&to, Some(Flash::done(text)))
        }
        Err(refusal) => refused(&visit, &id, typed, refusal).await,
    }
}

/// The page with what was typed, and why it was not saved.
async fn refused(visit: &Visit, id: &str, typed: Typed, refusal: Refusal) -> Answered {
    let faults = typed.faults(&refusal);
    let editor = Editor::typed(typed, faults);
    let editor = match refusal.status {
        StatusCode::PRECONDITION_FAILED => {
            Editor { changed_to: Some(String::new()), faults: Faults::default(), ..editor }
        }
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT => editor,
        _ => return Err(refusal),
    };
    now::page(visit, id, &now::View::default(), refusal.status, Some((editor, None))).await
}
