//! What lasts for a while, of a destination or a limit group: other limits, or a hold.

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_api_types::{Hold, Override, RateLimit};

use super::{
    Call,
    client::{Fields, Request},
    fields,
    records::{for_a_while, limits_of},
};
use crate::flags::{
    temporary::{Lasts, OverrideFlags},
    time::Span,
};

/// How long a hold lasts, and why. `None`: it ends now.
pub(super) fn hold(Lasts { for_span, until, reason, end }: &Lasts) -> anyhow::Result<Option<Fields>> {
    let for_s = for_span.as_ref().map(|Span(span)| span.as_secs());
    let body = fields(&json!({"for_s": for_s, "until": until, "reason": reason}))?;
    Ok((!end).then_some(body))
}

/// Which limits hold instead, how long, and why. `None`: those of the settings hold again.
pub(super) fn limits(OverrideFlags { limits, unlimited, lasts }: &OverrideFlags) -> anyhow::Result<Option<Fields>> {
    let Some(mut body) = hold(lasts)? else { return Ok(None) };
    body.extend(fields(limits)?);
    if *unlimited {
        body.insert("rate_limits".to_owned(), json!([]));
    }
    Ok(Some(body))
}

/// A destination or a group, and what was replaced. A hold is read as an override without limits.
#[derive(Deserialize)]
struct InForce {
    id: String,
    name: String,
    rate_limits: Vec<RateLimit>,
    min_interval_ms: Option<u32>,
    hold: Option<Hold>,
    #[serde(rename = "override")]
    overridden: Option<Override>,
    replaced: Option<Override>,
}

/// Begins an override or a hold of a destination or a group; `None` ends it.
pub(super) async fn set(
    call: &Call,
    path @ [.., what]: [&str; 4],
    if_match: Option<&str>,
    body: Option<Fields>,
) -> anyhow::Result<()> {
    let text = body.map(|body| Value::Object(body).to_string());
    let method = if text.is_some() { Method::POST } else { Method::DELETE };
    let request = Request { body: text.as_deref(), if_match, ..Request::new(method, &path) };
    call.print(&call.client.send(request).await?, |of: InForce| {
        let title = if of.name.is_empty() { &of.id } else { &of.name };
        let replaced = of.replaced.map(|of| format!("\nIt replaces: {}", for_a_while(&of))).unwrap_or_default();
        match (&of.hold, &of.overridden) {
            _ if text.is_none() => {
                format!(
                    "The {what} of {title} is over. Its limits: {}.",
                    limits_of(&of.rate_limits, of.min_interval_ms)
                )
            }
            (Some(hold), _) if what == "hold" => {
                format!("{title}: held until {}: {}{replaced}", hold.until, hold.reason)
            }
            (_, now) => format!("{title}: {}{replaced}", now.as_ref().map(for_a_while).unwrap_or_default()),
        }
    })
}
