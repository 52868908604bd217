//! Verifies the signature of a received request, for the owner of a receiver that refuses requests.
//!
//! The secret of the request, or of the destination, is used and never shown: no answer, error or log line has it.

use std::time::Duration;

use axum::{Json, extract::State};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, schema::Type},
};
use weir_core::{
    Timestamp,
    signing::{Key, Received, Rejection, Secret, SignatureStyle, verify as verify_signature},
};

use super::destinations::find;
use crate::{
    auth::Caller,
    errors::{Errors, escape, type_name},
    problem::ApiResult,
    readers::{
        body::Body,
        fields::{Read, object},
        query::Query,
        texts::{DestinationIdText, RawBodyText, SecretText},
    },
    state::Api,
};

/// The most headers of a request to verify. Weir sends fewer; a list that is copied from a browser has a few more.
const MAX_HEADERS: usize = 100;
/// The most parts of a signature header, between spaces and commas: Weir sends four at most. Each may cost a MAC of the
/// whole body, so a longer header would cost seconds.
const MAX_SIGNATURE_PARTS: usize = 64;
/// The tolerance if the client names none: longer than the age of any request, so the age is shown and not judged.
const ANY_AGE: Duration = Duration::from_secs(u64::MAX);

object! {
    /// A request as it was received.
    pub(crate) struct VerifyRequest {
        /// The secret to verify with, in the style of Standard Webhooks. With `destination`, in the destination's style.
        secret: Option<SecretText>,
        /// `dst_…`: verifies with the secret of this destination, in its signature style. During a rotation the
        /// previous secret is tried too.
        destination: Option<DestinationIdText>,
        headers: ReceivedHeaders,
        /// The raw body.
        body: RawBodyText,
        /// A signature is not valid if its time differs by more than this from now. If absent, the age does not matter.
        #[schema(minimum = 0, maximum = 31_536_000)]
        tolerance_s: Option<u32>,
    }
    check = Self::check;
}

impl VerifyRequest {
    pub(crate) fn keywords() -> Value {
        let given = |name: &str| json!({"required": [name], "properties": {name: {"type": "string"}}});
        json!({"anyOf": [given("secret"), given("destination")]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        let invalid = errors.has(&format!("{at}/secret")) || errors.has(&format!("{at}/destination"));
        if self.secret.is_none() && self.destination.is_none() && !invalid {
            errors.add(format!("{at}/secret"), "is required without `destination`");
        }
    }
}

/// Names, in lower case, and values.
pub(crate) struct ReceivedHeaders(Vec<(String, String)>);

impl ReceivedHeaders {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.trim())
    }
}

impl Read for ReceivedHeaders {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Object(members) = value else {
            errors.add(at, format!("must be an object of names and values, not {}", type_name(&value)));
            return None;
        };
        if members.len() > MAX_HEADERS {
            errors.add(at, format!("must contain at most {MAX_HEADERS} headers"));
        }
        let mut headers = Vec::with_capacity(members.len());
        for (name, value) in members {
            match value {
                Value::String(value) => headers.push((name.to_ascii_lowercase(), value)),
                other => {
                    errors
                        .add(format!("{at}/{}", escape(&name)), format!("must be a string, not {}", type_name(&other)));
                }
            }
        }
        Some(Self(headers))
    }
}

impl ToSchema for ReceivedHeaders {}

impl PartialSchema for ReceivedHeaders {
    fn schema() -> RefOr<Schema> {
        let value = ObjectBuilder::new().schema_type(Type::String);
        let headers = ObjectBuilder::new()
            .schema_type(Type::Object)
            .additional_properties(Some(Schema::Object(value.build())))
            .max_properties(Some(MAX_HEADERS));
        RefOr::T(Schema::Object(headers.build()))
    }
}

/// Verify a request
///
/// Says whether the signature of a received request is valid, as a receiver finds out: paste its headers and its raw
/// body. Name the `destination` to try its current and its previous secret in its signature style, or give a `secret`.
/// An old signature stays valid here; `age_s` is its age, and receivers usually refuse more than 300 s.
#[utoipa::path(
    post, path = "/v1/verify", operation_id = "verify_request", tag = "destinations",
    request_body = VerifyRequest,
    responses((status = 200, description = "Whether the signature is valid, and why not", body = VerifiedView))
)]
pub(crate) async fn verify(
    State(api): State<Api>,
    caller: Caller,
    _: Query<()>,
    Body(request): Body<VerifyRequest>,
) -> ApiResult<Json<VerifiedView>> {
    let now = api.clock.wall();
    let given = request.secret.as_ref().map(|secret| secret.0.clone());
    let (style, secrets) = match &request.destination {
        None => (SignatureStyle::Standard, given.into_iter().collect()),
        Some(DestinationIdText(id)) => {
            let signing = &find(&api, &caller, *id).await?.settings.signing;
            // The previous secret is tried even after its overlap, because the request may have been signed before the
            // end.
            let own = || [Some(&signing.secret), signing.previous.as_ref().map(|previous| &previous.secret)];
            let secrets: Vec<Secret> =
                given.map_or_else(|| own().into_iter().flatten().cloned().collect(), |secret| vec![secret]);
            (signing.style.clone(), secrets)
        }
    };
    let tolerance = request.tolerance_s.map_or(ANY_AGE, |seconds| Duration::from_secs(seconds.into()));
    Ok(Json(verified(&style, &secrets, &request.headers, &request.body.0, now, tolerance)))
}

/// The result with the secret that matches, or else with the first one.
fn verified(
    style: &SignatureStyle,
    secrets: &[Secret],
    headers: &ReceivedHeaders,
    body: &str,
    now: Timestamp,
    tolerance: Duration,
) -> VerifiedView {
    let missing = needed_headers(style).into_iter().find(|name| headers.get(name).is_none());
    if let Some(name) = missing {
        return VerifiedView::refused(format!("the header `{name}` is missing"));
    }
    let signature = headers.get(style.header()).unwrap_or_default();
    if signature.split([' ', ',']).count() > MAX_SIGNATURE_PARTS {
        return VerifiedView::refused(format!("the header `{}` has too many signatures", style.header()));
    }
    let unix_seconds = signed_seconds(style, headers);
    let received = Received {
        id: headers.get("webhook-id").unwrap_or_default(),
        // The signature itself has the time in the timestamped style.
        unix_seconds: if matches!(style, SignatureStyle::Timestamped { .. }) { None } else { unix_seconds },
        signature,
        body: body.as_bytes(),
    };
    let verdicts =
        secrets.iter().map(|secret| verify_signature(&Key::Secret(secret.clone()), style, &received, now, tolerance));
    // The verdict of a secret that matches takes precedence over those of the other secrets.
    let verdicts: Vec<_> = verdicts.collect();
    let verdict = verdicts.iter().find(|verdict| !matches!(verdict, Err(Rejection::BadSignature))).or(verdicts.first());
    let is_signed = matches!(verdict, Some(Ok(()) | Err(Rejection::TooOld(_) | Rejection::TooNew(_))));
    // Show the time only if a matching signature covers it. Otherwise anyone may have written it.
    let signed = unix_seconds.filter(|_| is_signed);
    VerifiedView {
        valid: matches!(verdict, Some(Ok(()))),
        reason: verdict.and_then(|verdict| verdict.err()).map(|rejection| rejection.to_string()),
        signed_at: signed.and_then(instant),
        age_s: signed.map(|signed| now.as_secs().saturating_sub(signed)),
    }
}

/// The headers without which a request in this style cannot be verified.
fn needed_headers(style: &SignatureStyle) -> Vec<&str> {
    match style {
        SignatureStyle::Standard => vec!["webhook-id", "webhook-timestamp", style.header()],
        _ => style.timestamp_header().into_iter().chain([style.header()]).collect(),
    }
}

/// The time that the signature is for, in seconds, if the style has one.
fn signed_seconds(style: &SignatureStyle, headers: &ReceivedHeaders) -> Option<i64> {
    let header = match style {
        SignatureStyle::Standard => headers.get("webhook-timestamp"),
        SignatureStyle::Prefixed { .. } => headers.get(style.timestamp_header()?),
        SignatureStyle::Timestamped { header } => {
            headers.get(header)?.split(',').find_map(|part| part.trim().strip_prefix("t="))
        }
    };
    header?.parse().ok()
}

/// `None` for a time that no calendar has.
fn instant(unix_seconds: i64) -> Option<Timestamp> {
    let within = (Timestamp::MIN.as_secs()..=Timestamp::MAX.as_secs()).contains(&unix_seconds);
    within.then(|| Timestamp::from_secs(unix_seconds))
}

/// Whether a request is signed as it should be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verified)]
pub(crate) struct VerifiedView {
    valid: bool,
    /// Why the signature is not valid; null if it is.
    reason: Option<String>,
    /// The signed time; null unless the signature matches and has a time.
    #[schema(value_type = Option<String>, format = DateTime)]
    signed_at: Option<Timestamp>,
    /// How long ago that was; negative in the future.
    age_s: Option<i64>,
}

impl VerifiedView {
    fn refused(reason: String) -> Self {
        Self { valid: false, reason: Some(reason), signed_at: None, age_s: None }
    }
}

#[cfg(test)]
mod tests {
    use weir_core::signing::Signing;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const BODY: &str = r#"{"n":1}"#;

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes(vec![byte; 32]).unwrap()
    }

    fn styles() -> [SignatureStyle; 4] {
        let header = || "x-signature".to_owned();
        [
            SignatureStyle::Standard,
            SignatureStyle::Timestamped { header: header() },
            SignatureStyle::Prefixed { header: header(), timestamp_header: None },
            SignatureStyle::Prefixed { header: header(), timestamp_header: Some("x-time".to_owned()) },
        ]
    }

    /// The headers of a request that was signed `age_s` ago.
    fn headers(style: &SignatureStyle, byte: u8, age_s: i64) -> ReceivedHeaders {
        let unix_seconds = NOW.as_secs() - age_s;
        let signing = Signing { style: style.clone(), ..Signing::new(secret(byte)) };
        let signature = signing.sign("evt_1", unix_seconds, BODY.as_bytes(), NOW);
        let all = [
            ("webhook-id", "evt_1".to_owned()),
            ("webhook-timestamp", unix_seconds.to_string()),
            (style.header(), signature),
        ];
        let own_time = style.timestamp_header().map(|name| (name, unix_seconds.to_string()));
        ReceivedHeaders(all.into_iter().chain(own_time).map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn judged(style: &SignatureStyle, secrets: &[u8], headers: &ReceivedHeaders, tolerance: Duration) -> VerifiedView {
        let secrets: Vec<_> = secrets.iter().copied().map(secret).collect();
        verified(style, &secrets, headers, BODY, NOW, tolerance)
    }

    #[test]
    fn every_style_is_verified_with_either_secret() {
        for style in styles() {
            let headers = headers(&style, 2, 86_400);
            for secrets in [&[2][..], &[1, 2], &[2, 1]] {
                let view = judged(&style, secrets, &headers, ANY_AGE);
                assert!(view.valid && view.reason.is_none(), "{style:?} {secrets:?}: {view:?}");
                let is_timed = !matches!(style, SignatureStyle::Prefixed { timestamp_header: None, .. });
                assert_eq!(view.age_s, is_timed.then_some(86_400), "{style:?}");
                assert_eq!(view.signed_at, is_timed.then(|| Timestamp::from_secs(NOW.as_secs() - 86_400)));
            }
            let refused = judged(&style, &[1, 3], &headers, ANY_AGE);
            assert!(refused.reason.unwrap().starts_with("bad signature"), "{style:?}");
            assert_eq!((refused.valid, refused.signed_at, refused.age_s), (false, None, None), "{style:?}");
        }
    }

    #[test]
    fn an_age_is_judged_only_within_a_tolerance() {
        let style = SignatureStyle::Standard;
        for (age_s, reason) in [
            (301, Some("too old: it was signed 301 s ago")),
            (300, None),
            (-301, Some("too new: it was signed 301 s in the future")),
        ] {
            let view = judged(&style, &[1, 2], &headers(&style, 2, age_s), Duration::from_secs(300));
            assert_eq!((view.reason.as_deref(), view.age_s, view.valid), (reason, Some(age_s), reason.is_none()));
        }
    }

    #[test]
    fn a_missing_header_and_a_time_that_is_none_are_named() {
        for style in styles() {
            for name in needed_headers(&style) {
                let mut headers = headers(&style, 1, 0);
                headers.0.retain(|(own, _)| own != name);
                let view = judged(&style, &[1], &headers, ANY_AGE);
                assert_eq!(view.reason, Some(format!("the header `{name}` is missing")), "{style:?}");
            }
        }
        let style = SignatureStyle::Standard;
        for (time, reason) in
            [("yesterday", "the signature has no valid time"), ("9223372036854775807", "bad signature")]
        {
            let mut headers = headers(&style, 1, 0);
            headers
                .0
                .iter_mut()
                .filter(|(name, _)| name == "webhook-timestamp")
                .for_each(|(_, own)| *own = time.into());
            let view = judged(&style, &[1], &headers, ANY_AGE);
            assert!(view.reason.unwrap().starts_with(reason), "{time}");
        }
    }
}
