//! Verifies the signature of a received request, for the owner of a receiver that refuses requests.
//!
//! The secret of the request, or of the destination, is used and never shown: no answer, error or log line has it. `received`
//! reads the request, and `cause` looks for why it is refused.

mod cause;
mod received;

use std::time::Duration;

use axum::{Json, extract::State};
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    Timestamp,
    signing::{Key, Rejection, Secret, SignatureStyle, signed_seconds, verify as verify_signature},
};

use self::{
    cause::{Suspects, own_secrets},
    received::{ANY_AGE, MAX_SIGNATURE_PARTS, ReceivedHeaders, Request, needed_headers},
};
use super::destinations::{check_readable, find, signature::SignatureRequest};
use crate::{
    auth::Caller,
    errors::Errors,
    problem::{ApiResult, Problem},
    readers::{
        body::Body,
        fields::object,
        query::Query,
        texts::{DestinationIdText, RawBodyText, SecretText},
    },
    state::Api,
};

object! {
    /// A request as it was received.
    pub(crate) struct VerifyRequest {
        /// The secret to verify with. Without `destination`, in the style of `signature`.
        secret: Option<SecretText>,
        /// `dst_…`: verifies with the secret of this destination, in its signature style. During a rotation the
        /// previous secret is tried too.
        destination: Option<DestinationIdText>,
        /// Only without `destination`: the style to verify, with its headers. If absent, that of Standard Webhooks.
        signature: Option<SignatureRequest>,
        /// The URL that was signed, for styles that sign it. If absent, that of the destination.
        url: Option<RawBodyText>,
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
        let null = json!({"type": "null"});
        json!({"anyOf": [
            {"required": ["secret"], "properties": {
                "secret": {"type": "string", "pattern": "^whsec_"}, "destination": &null,
                "signature": {"properties": {
                        "style": {"not": {"const": "discord"}}, "algorithm": {"not": {"const": "ed25519"}},
                    }},
            }},
            {"required": ["destination"], "properties": {
                "destination": {"type": "string"}, "secret": &null, "signature": &null,
            }},
        ]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        let invalid = errors.has(&format!("{at}/secret")) || errors.has(&format!("{at}/destination"));
        if self.secret.is_none() && self.destination.is_none() && !invalid {
            errors.add(format!("{at}/secret"), "is required without `destination`");
        }
        if self.signature.is_some() && self.destination.is_some() {
            errors.add(format!("{at}/signature"), "must be omitted with `destination`, which has a style");
        }
        let style = self.style();
        if let (None, Some(secret)) = (&self.destination, &self.secret)
            && let Some(unfit) = style.refusal_of(&secret.0).filter(|_| !errors.has(&format!("{at}/signature")))
        {
            errors.add(format!("{at}/secret"), format!("does not fit the style `{}`, which {unfit}", style.as_str()));
        }
    }
}

impl VerifyRequest {
    fn style(&self) -> SignatureStyle {
        self.signature.as_ref().map_or_else(SignatureStyle::standard, SignatureRequest::style)
    }
}

/// Verify a request
///
/// Says whether the signature of a received request is valid, as a receiver finds out: paste its headers and its raw
/// body. Name the `destination` to try its current and its previous secret in its signature style, or give a `secret`
/// and the `signature` style.
/// An old signature stays valid here; `age_s` is its age, and receivers usually refuse more than 300 s.
///
/// A signature that does not match is compared with the bytes that Weir has stored, the times at which it has signed, the
/// other secret of the destination, other styles, and the secrets of up to 200 other destinations of the tenant: `cause` and
/// `hint` say what was found.
#[utoipa::path(
    post, path = "/v1/verify", operation_id = "verify_request", tag = "destinations",
    request_body = VerifyRequest,
    responses((status = 200, description = "Whether the signature is valid, and why not", body = types::Verified))
)]
pub(crate) async fn verify(
    State(api): State<Api>,
    caller: Caller,
    _: Query<()>,
    Body(request): Body<VerifyRequest>,
) -> ApiResult<Json<types::Verified>> {
    let now = api.clock.wall();
    let given = request.secret.as_ref().map(|secret| secret.0.clone());
    let mut url = request.url.as_ref().map(|url| url.0.clone());
    let destination = match &request.destination {
        None => None,
        Some(DestinationIdText(id)) => Some(find(&api, &caller, *id).await?),
    };
    let (style, secrets) = match &destination {
        None => (request.style(), given.into_iter().collect()),
        Some(destination) => {
            check_readable(destination)?;
            let signing = &destination.settings.signing;
            url.get_or_insert_with(|| destination.settings.url.to_string());
            if let Some(unfit) = given.as_ref().and_then(|secret| signing.style.refusal_of(secret)) {
                let style = signing.style.as_str();
                let detail = format!("does not fit the style `{style}` of the destination, which {unfit}");
                return Err(Problem::invalid_field("/secret", detail));
            }
            // The previous secret is tried even after its overlap, because the request may have been signed before the
            // end.
            let secrets: Vec<Secret> =
                given.map_or_else(|| own_secrets(signing).cloned().collect(), |secret| vec![secret]);
            (signing.style.clone(), secrets)
        }
    };
    let tolerance = request.tolerance_s.map_or(ANY_AGE, |seconds| Duration::from_secs(seconds.into()));
    let received =
        Request { headers: &request.headers, url: url.as_deref().unwrap_or_default(), body: request.body.0.as_bytes() };
    let mut verified = verified(&style, &secrets, &received, now, tolerance);
    let suspects = Suspects { api: &api, caller: &caller, destination: destination.as_deref(), style, secrets };
    if let Some(cause) = suspects.cause(&verified, &received, request.tolerance_s).await? {
        (verified.cause, verified.hint) = (Some(cause.name.to_owned()), Some(cause.hint));
    }
    Ok(Json(verified))
}

/// The result with the secret that matches, or else with the first one.
fn verified(
    style: &SignatureStyle,
    secrets: &[Secret],
    request: &Request<'_>,
    now: Timestamp,
    tolerance: Duration,
) -> types::Verified {
    let headers = request.headers;
    if let Some(name) = needed_headers(style).into_iter().find(|name| headers.get(name).is_none()) {
        return refused(format!("the header `{name}` is missing"));
    }
    let name = &style.format().header;
    let signature = headers.get(name).unwrap_or_default();
    if style.format().count_parts(signature) > MAX_SIGNATURE_PARTS {
        return refused(format!("the header `{name}` has too many signatures"));
    }
    let received = request.received(style);
    let verdicts =
        secrets.iter().map(|secret| verify_signature(&Key::Secret(secret.clone()), style, &received, now, tolerance));
    // The verdict of a secret that matches takes precedence over those of the other secrets.
    let verdicts: Vec<_> = verdicts.collect();
    let verdict = verdicts.iter().find(|verdict| !matches!(verdict, Err(Rejection::BadSignature))).or(verdicts.first());
    let is_signed = matches!(verdict, Some(Ok(()) | Err(Rejection::TooOld(_) | Rejection::TooNew(_))));
    // Show the time only if a matching signature covers it. Otherwise anyone may have written it.
    let signed = signed_seconds(style, &received).filter(|_| is_signed);
    types::Verified {
        valid: matches!(verdict, Some(Ok(()))),
        reason: verdict.and_then(|verdict| verdict.err()).map(|rejection| rejection.to_string()),
        signed_at: signed.and_then(instant),
        age_s: signed.map(|signed| now.as_secs().saturating_sub(signed)),
        cause: None,
        hint: None,
    }
}

/// `None` for a time that no calendar has.
fn instant(unix_seconds: i64) -> Option<Timestamp> {
    let within = (Timestamp::MIN.as_secs()..=Timestamp::MAX.as_secs()).contains(&unix_seconds);
    within.then(|| Timestamp::from_secs(unix_seconds))
}

fn refused(reason: String) -> types::Verified {
    types::Verified { valid: false, reason: Some(reason), signed_at: None, age_s: None, cause: None, hint: None }
}

#[cfg(test)]
mod tests {
    use weir_core::signing::{CUSTOM, Message, Placeholder, Signing, StyleSpec, style_names};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const BODY: &str = r#"{"n":1}"#;
    const URL: &str = "https://example.com/hooks";

    fn styles() -> Vec<SignatureStyle> {
        let named = style_names().filter(|name| *name != CUSTOM).map(StyleSpec::named);
        let with_time = StyleSpec { timestamp_header: Some("x-time".to_owned()), ..StyleSpec::named("prefixed") };
        named.chain([with_time]).map(|spec| spec.resolve().unwrap()).collect()
    }

    fn secret(style: &SignatureStyle, byte: u8) -> Secret {
        style.new_secret(None, [byte; 32])
    }

    fn is_timed(style: &SignatureStyle) -> bool {
        style.format().signs(Placeholder::Timestamp)
    }

    /// The headers of a request that was signed `age_s` ago.
    fn headers(style: &SignatureStyle, byte: u8, age_s: i64) -> ReceivedHeaders {
        let unix_seconds = NOW.as_secs() - age_s;
        let signing = Signing { style: style.clone(), ..Signing::new(secret(style, byte)) };
        let signature = signing.sign(&Message { id: "evt_1", unix_seconds, url: URL, body: BODY.as_bytes() }, NOW);
        let format = style.format();
        let time = format.timestamp_format.write(unix_seconds);
        let own = [(&format.timestamp_header, time), (&format.id_header, "evt_1".to_owned())];
        let own = own.into_iter().filter_map(|(name, value)| Some((name.clone()?, value)));
        let common = [
            ("webhook-id".to_owned(), "evt_1".to_owned()),
            ("webhook-timestamp".to_owned(), unix_seconds.to_string()),
            (format.header.clone(), signature),
        ];
        ReceivedHeaders(own.chain(common).collect())
    }

    fn judged(
        style: &SignatureStyle,
        secrets: &[u8],
        headers: &ReceivedHeaders,
        tolerance: Duration,
    ) -> types::Verified {
        let secrets: Vec<_> = secrets.iter().map(|byte| secret(style, *byte)).collect();
        verified(style, &secrets, &Request { headers, url: URL, body: BODY.as_bytes() }, NOW, tolerance)
    }

    #[test]
    fn every_style_is_verified_with_either_secret() {
        for style in styles() {
            let headers = headers(&style, 2, 86_400);
            for secrets in [&[2][..], &[1, 2], &[2, 1]] {
                let view = judged(&style, secrets, &headers, ANY_AGE);
                assert!(view.valid && view.reason.is_none(), "{style:?} {secrets:?}: {view:?}");
                let is_timed = is_timed(&style);
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
        for style in styles().into_iter().filter(is_timed) {
            for (age_s, reason) in [
                (301, Some("too old: it was signed 301 s ago")),
                (300, None),
                (-301, Some("too new: it was signed 301 s in the future")),
            ] {
                let view = judged(&style, &[1, 2], &headers(&style, 2, age_s), Duration::from_secs(300));
                let expected = (reason, Some(age_s), reason.is_none());
                assert_eq!((view.reason.as_deref(), view.age_s, view.valid), expected, "{style:?}");
            }
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
        let style = SignatureStyle::standard();
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
