//! Why a request is refused: what is tried when its signature matches no secret of its destination.
//!
//! | cause | what is tried |
//! |---|---|
//! | `newline` | the body without white space at its end, or with other line breaks |
//! | `re_serialized`, `body_changed` | the bytes that Weir has stored for the event |
//! | `timestamp` | the times at which Weir has signed the event |
//! | `previous_secret`, `present_secret` | the other secret of the destination |
//! | `other_style` | every style whose headers are there |
//! | `other_destination` | the secrets of the tenant's other destinations |

use std::borrow::Cow;

use serde_json::Value;
use weir_api_types as types;
use weir_core::{
    Destination, EventId, Timestamp,
    access::TenantScope,
    body::BodySettings,
    event::Event,
    signing::{CUSTOM, Key, Received, Secret, SignatureStyle, Signing, StyleSpec, style_names, verify},
};
use weir_store::{DestinationFilter, PageRequest};

use super::received::{ANY_AGE, MAX_SIGNATURE_PARTS, Request, needed_headers};
use crate::{auth::Caller, problem::ApiResult, state::ApiState};

/// The most other destinations whose secrets are tried.
const MOST_DESTINATIONS: u32 = 200;
/// The most bytes of bodies that are signed to find the cause: less than 100 ms of one core.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// The most attempts whose times are tried.
const MOST_ATTEMPTS: usize = 50;
/// How much of two bodies is shown where they begin to differ.
const SHOWN: usize = 24;

/// Why a request is refused, or what its owner should know although it is valid.
pub(super) struct Cause {
    pub(super) name: &'static str,
    pub(super) hint: String,
}

fn cause(name: &'static str, hint: impl Into<String>) -> Option<Cause> {
    Some(Cause { name, hint: hint.into() })
}

/// The secrets of a destination, the present one first.
pub(super) fn own_secrets(signing: &Signing) -> impl Iterator<Item = &Secret> {
    [Some(&signing.secret), signing.previous.as_ref().map(|previous| &previous.secret)].into_iter().flatten()
}

/// What may have signed a request.
pub(super) struct Suspects<'s> {
    pub(super) api: &'s ApiState,
    pub(super) caller: &'s Caller,
    /// The destination that the request is said to come from.
    pub(super) destination: Option<&'s Destination>,
    pub(super) style: SignatureStyle,
    pub(super) secrets: Vec<Secret>,
}

/// How many bytes may still be signed.
struct Budget(usize);

impl Budget {
    /// Whether one of these secrets has signed what was received. `false` also if too much was tried already.
    fn is_signed<'k>(
        &mut self,
        style: &SignatureStyle,
        secrets: impl IntoIterator<Item = &'k Secret>,
        received: &Received<'_>,
    ) -> bool {
        let parts = style.format().count_parts(received.signature).max(1);
        if parts > MAX_SIGNATURE_PARTS {
            return false;
        }
        secrets.into_iter().filter(|secret| style.refusal_of(secret).is_none()).any(|secret| {
            let bytes = received.body.len().saturating_mul(parts);
            let Some(left) = self.0.checked_sub(bytes) else { return false };
            self.0 = left;
            // The age does not matter here.
            let (key, now) = (Key::Secret(secret.clone()), Timestamp::MIN);
            verify(&key, style, received, now, ANY_AGE).is_ok()
        })
    }
}

impl Suspects<'_> {
    /// The cause of what was found, if there is one.
    pub(super) async fn cause(
        &self,
        found: &types::Verified,
        request: &Request<'_>,
        tolerance_s: Option<u32>,
    ) -> ApiResult<Option<Cause>> {
        let mut budget = Budget(MOST_BYTES);
        // The signature matches.
        if found.valid || found.signed_at.is_some() {
            return Ok(match (found.valid, found.age_s) {
                (true, _) => self.previous(&mut budget, request),
                (false, Some(age)) => too_far(age, tolerance_s),
                (false, None) => None,
            });
        }
        let received = request.received(&self.style);
        if needed_headers(&self.style).into_iter().all(|name| request.headers.get(name).is_some()) {
            if let Some(cause) = self.newline(&mut budget, &received) {
                return Ok(Some(cause));
            }
            if let Some(event) = self.event(request).await?
                && let Some(cause) = self.of_event(&mut budget, &event, &received).await?
            {
                return Ok(Some(cause));
            }
            if let Some(cause) = self.own(&mut budget, &received) {
                return Ok(Some(cause));
            }
        }
        if let Some(cause) = self.other_style(&mut budget, request) {
            return Ok(Some(cause));
        }
        self.other_destination(&mut budget, request).await
    }

    /// Whether a valid request was signed with the previous secret.
    fn previous(&self, budget: &mut Budget, request: &Request<'_>) -> Option<Cause> {
        let signing = &self.destination?.settings.signing;
        let previous = signing.previous.as_ref()?;
        let received = request.received(&self.style);
        if budget.is_signed(&self.style, [&signing.secret], &received)
            || !budget.is_signed(&self.style, [&previous.secret], &received)
        {
            return None;
        }
        let until = previous.valid_until;
        let hint = format!(
            "it is signed with the previous secret alone, which signs until {until}: a receiver that knows only the present \
             secret refuses it"
        );
        cause("previous_secret", hint)
    }

    /// A secret was given, and the destination has signed with another one.
    fn own(&self, budget: &mut Budget, received: &Received<'_>) -> Option<Cause> {
        let signing = &self.destination?.settings.signing;
        if budget.is_signed(&self.style, [&signing.secret], received) {
            return cause(
                "present_secret",
                "it is signed with the present secret of the destination, which is not the given one",
            );
        }
        let previous = signing.previous.as_ref()?;
        budget.is_signed(&self.style, [&previous.secret], received).then_some(())?;
        cause("previous_secret", "it is signed with the previous secret of the destination, which is not the given one")
    }

    /// The body with other white space around it.
    fn newline(&self, budget: &mut Budget, received: &Received<'_>) -> Option<Cause> {
        let body = received.body;
        let trimmed = body.trim_ascii_end();
        let joined = String::from_utf8_lossy(body).replace("\r\n", "\n");
        let with_newline = [body, b"\n"].concat();
        let variants: [(&[u8], &str); 4] = [
            (trimmed, "the body has a line break or a space at its end that was not signed"),
            (joined.as_bytes(), "the line breaks of the body were changed from LF to CRLF"),
            (joined.trim_end().as_bytes(), "the line breaks of the body were changed, and one was added at its end"),
            (&with_newline, "the line break at the end of the body was removed, and it was signed with it"),
        ];
        let differs = |(variant, _): &(&[u8], &str)| *variant != body;
        let (_, what) = variants.into_iter().filter(differs).find(|(variant, _)| {
            budget.is_signed(&self.style, &self.secrets, &Received { body: variant, ..*received })
        })?;
        cause("newline", format!("{what}: verify the raw bytes of the body, as they were received"))
    }

    /// The event that the request names, if the caller sees it and the destination may have got it.
    async fn event(&self, request: &Request<'_>) -> ApiResult<Option<Event>> {
        let header = self.style.id_header().unwrap_or("webhook-id");
        let named = request.headers.get(header).or_else(|| request.headers.get("webhook-id"));
        let Some(id) = named.and_then(|id| id.parse::<EventId>().ok()) else { return Ok(None) };
        let is_seen = |event: &Event| {
            let is_of_destination =
                self.destination.is_none_or(|destination| destination.settings.tenant == event.tenant);
            self.caller.sees(&event.tenant) && is_of_destination
        };
        Ok(self.api.store.event(id).await?.filter(is_seen))
    }

    /// Another body, or another time, than those of the event.
    async fn of_event(&self, budget: &mut Budget, event: &Event, received: &Received<'_>) -> ApiResult<Option<Cause>> {
        let default = BodySettings::default();
        let settings = self.destination.map_or(&default, |destination| &destination.settings.body);
        let stored = settings.of(&event.body, &event.tenant);
        let with_stored = Received { body: &stored[..], ..*received };
        if stored[..] != *received.body && budget.is_signed(&self.style, &self.secrets, &with_stored) {
            return Ok(Some(changed_body(&stored, received.body)));
        }
        let (Some(name), Some(given)) = (self.style.timestamp_header(), received.timestamp) else { return Ok(None) };
        let format = self.style.format().timestamp_format;
        for signed in self.signed_times(event).await? {
            let written = format.write(signed);
            for body in [received.body, &stored[..]] {
                let other = Received { timestamp: Some(&written), body, ..*received };
                if written != given && budget.is_signed(&self.style, &self.secrets, &other) {
                    let off = match format.read(given) {
                        Some(given) => format!(", which is off by {} s", given.abs_diff(signed)),
                        None => ", which is no such time".to_owned(),
                    };
                    let hint =
                        format!("the header `{name}` is `{}`, but `{written}` was signed{off}", shortened(given));
                    return Ok(cause("timestamp", hint));
                }
            }
        }
        Ok(None)
    }

    /// When Weir signed the event for the destination, in unix seconds, the last time first.
    async fn signed_times(&self, event: &Event) -> ApiResult<Vec<i64>> {
        let Some(destination) = self.destination else { return Ok(Vec::new()) };
        let deliveries = self.api.store.event_deliveries(event.id).await?;
        let Some(own) = deliveries.iter().find(|delivery| delivery.destination_id == destination.id) else {
            return Ok(Vec::new());
        };
        let detail = self.api.store.delivery(own.id).await?;
        let attempts = detail.into_iter().flat_map(|detail| detail.attempts.into_iter().rev());
        Ok(attempts.filter_map(|attempt| Some(attempt.details.signed_at?.as_secs())).take(MOST_ATTEMPTS).collect())
    }

    /// Every style whose headers the request has.
    fn other_style(&self, budget: &mut Budget, request: &Request<'_>) -> Option<Cause> {
        let styles = style_names().filter(|name| *name != CUSTOM && *name != self.style.as_str());
        let styles = styles.filter_map(|name| StyleSpec::named(name).resolve().ok());
        let found = styles
            .filter(|style| has_headers(style, request))
            .find(|style| budget.is_signed(style, &self.secrets, &request.received(style)))?;
        let (found, own) = (found.as_str(), self.style.as_str());
        cause("other_style", format!("it is signed in the style `{found}`, and was verified in the style `{own}`"))
    }

    /// The secrets of the other destinations of the tenant, each in its style.
    async fn other_destination(&self, budget: &mut Budget, request: &Request<'_>) -> ApiResult<Option<Cause>> {
        let Some(own) = self.destination else { return Ok(None) };
        let filter = DestinationFilter::of(TenantScope::one(&own.settings.tenant));
        let page = PageRequest { before: None, limit: MOST_DESTINATIONS };
        let others = self.api.store.list_destinations(&filter, page).await?.rows;
        for other in others.iter().filter(|other| other.id != own.id) {
            let signing = &other.settings.signing;
            let url = other.settings.url.to_string();
            let request = Request { url: &url, ..*request };
            if has_headers(&signing.style, &request)
                && budget.is_signed(&signing.style, own_secrets(signing), &request.received(&signing.style))
            {
                let name = match other.settings.name.trim() {
                    "" => other.settings.url.as_str(),
                    name => name,
                };
                let hint = format!("it is signed with the secret of another destination: {name} ({})", other.id);
                return Ok(cause("other_destination", hint));
            }
            // A MAC of a long body takes a while, and other requests wait.
            tokio::task::yield_now().await;
        }
        Ok(None)
    }
}

fn has_headers(style: &SignatureStyle, request: &Request<'_>) -> bool {
    needed_headers(style).into_iter().all(|name| request.headers.get(name).is_some())
}

/// The signature matches, but not within the tolerance.
fn too_far(age_s: i64, tolerance_s: Option<u32>) -> Option<Cause> {
    let tolerance = tolerance_s?;
    let beyond = age_s.unsigned_abs().saturating_sub(tolerance.into());
    let hint = match age_s {
        0.. => format!(
            "it was signed {age_s} s ago, {beyond} s more than the tolerance: it waited on its way, or the clock of the \
             receiver is ahead"
        ),
        _ => format!(
            "it was signed {} s in the future, {beyond} s more than the tolerance: the clock of the receiver is behind",
            age_s.unsigned_abs()
        ),
    };
    cause("timestamp", hint)
}

/// The stored body was signed, and another one was received.
fn changed_body(stored: &[u8], received: &[u8]) -> Cause {
    let parsed = |body: &[u8]| serde_json::from_slice::<Value>(body).ok();
    let at = stored.iter().zip(received).take_while(|(one, other)| one == other).count();
    let place =
        format!("from byte {at} on, `{}` was signed and `{}` was received", part(stored, at), part(received, at));
    if parsed(stored).is_some_and(|stored| Some(stored) == parsed(received)) {
        let hint = format!(
            "the body is the same JSON in other bytes: something has parsed it and written it again ({place}). Verify the raw \
             bytes of the body, before it is parsed"
        );
        return Cause { name: "re_serialized", hint };
    }
    Cause { name: "body_changed", hint: format!("the body was changed after it was signed: {place}") }
}

/// A part of a body, from a position on.
fn part(body: &[u8], at: usize) -> Cow<'_, str> {
    let rest = body.get(at..).unwrap_or_default();
    String::from_utf8_lossy(&rest[..rest.len().min(SHOWN)])
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}
