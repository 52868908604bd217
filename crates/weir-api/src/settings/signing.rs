//! The signing settings of a destination: the secret, its rotation, and the signature style.

use http::HeaderName;
use serde_json::Value;
use weir_core::{
    destination::is_reserved_header,
    signing::{DEFAULT_HEADER, InvalidSecret, KeyKind, Secret, SignatureStyle, Signing},
};

use crate::{
    fields::{Errors, Object},
    problem::Problem,
};

/// How long the previous secret also signs by default: long enough to deploy the new secret to every receiver.
pub(crate) const DEFAULT_OVERLAP_S: u32 = 86_400;
/// The longest overlap: 30 days.
pub(crate) const MAX_OVERLAP_S: u32 = 30 * 86_400;

const NEEDS_SHARED: &str = "must be `standard` with a `whsk_` secret: the other styles support only shared secrets";
/// Always sent with the signed time, so a style may use it as its timestamp header.
const TIMESTAMP_HEADER: &str = "webhook-timestamp";

/// Reads the secret and the style of a destination that has these `headers`. An edit with another secret replaces the
/// current one at once and ends a rotation that is in progress.
pub(super) fn signing(
    body: &mut Object<'_>,
    current: Option<&Signing>,
    headers: &[(String, String)],
) -> Option<Signing> {
    // `null` means no secret, so it is valid here.
    body.take_null("secret");
    let secret = body.has("secret").then(|| secret(body));
    let style = style(body, headers);
    let mut signing = match (secret, current) {
        // The given secret is invalid.
        (Some(None), _) => return None,
        (Some(Some(secret)), Some(current)) if secret == current.secret => current.clone(),
        (Some(Some(secret)), _) => Signing::new(secret),
        (None, Some(current)) => current.clone(),
        (None, None) => Signing::new(Secret::from_random(KeyKind::Shared, rand::random())),
    };
    signing.style = style?;
    if signing.style != SignatureStyle::Standard && signing.secret.kind() != KeyKind::Shared {
        body.refuse("signature", NEEDS_SHARED);
    }
    Some(signing)
}

fn secret(body: &mut Object<'_>) -> Option<Secret> {
    let parsed = body.string("secret")?.parse();
    if let Err(error) = &parsed {
        body.refuse("secret", InvalidSecret::to_string(error));
    }
    parsed.ok()
}

fn style(body: &mut Object<'_>, own_headers: &[(String, String)]) -> Option<SignatureStyle> {
    let Some(value) = body.take("signature") else {
        return Some(SignatureStyle::Standard);
    };
    let pointer = body.pointer_to("signature");
    let mut object = Object::open(value, pointer, body.errors())?;
    let style = object.string("style");
    let style = match style.as_deref() {
        None | Some("standard") => {
            for name in ["header", "timestamp_header"] {
                if object.take(name).is_some() {
                    object.refuse(name, "must be omitted: the `standard` style has fixed headers");
                }
            }
            Some(SignatureStyle::Standard)
        }
        Some("timestamped") => {
            if object.take("timestamp_header").is_some() {
                object.refuse("timestamp_header", "must be omitted: a `timestamped` signature contains its time");
            }
            signature_header(&mut object, own_headers).map(|header| SignatureStyle::Timestamped { header })
        }
        Some("prefixed") => prefixed(&mut object, own_headers),
        Some(_) => {
            // The style is unknown, so these known fields are not checked.
            let _ = (object.take("header"), object.take("timestamp_header"));
            object.refuse("style", "must be `standard`, `timestamped` or `prefixed`");
            None
        }
    };
    object.close(&[]);
    style
}

fn prefixed(object: &mut Object<'_>, own_headers: &[(String, String)]) -> Option<SignatureStyle> {
    let header = signature_header(object, own_headers);
    let timestamp_header = match object.string("timestamp_header") {
        None => None,
        Some(name) => Some(header_name(object, "timestamp_header", &name, TIMESTAMP_HEADER, own_headers)?),
    };
    let header = header?;
    if timestamp_header.as_ref() == Some(&header) {
        object.refuse("timestamp_header", "must differ from the header of the signature");
    }
    Some(SignatureStyle::Prefixed { header, timestamp_header })
}

fn signature_header(object: &mut Object<'_>, own_headers: &[(String, String)]) -> Option<String> {
    let name = object.string("header").unwrap_or_else(|| DEFAULT_HEADER.to_owned());
    header_name(object, "header", &name, DEFAULT_HEADER, own_headers)
}

/// The header name in lower case, if it is valid. Reserved headers are refused, except `allowed`.
fn header_name(
    object: &mut Object<'_>,
    field: &str,
    name: &str,
    allowed: &str,
    own_headers: &[(String, String)],
) -> Option<String> {
    let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
        object.refuse(field, "is not a header name");
        return None;
    };
    let name = name.as_str();
    if is_reserved_header(name) && name != allowed {
        object.refuse(field, "is reserved: Weir or HTTP sets this header");
        return None;
    }
    if own_headers.iter().any(|(own, _)| own == name) {
        object.refuse(field, "is also in the destination's `headers`");
        return None;
    }
    Some(name.to_owned())
}

/// The parameters of a rotation.
pub(crate) struct Rotation {
    /// How long the previous secret also signs; 0: not at all.
    pub(crate) overlap_s: u32,
    /// The new secret. `None`: a secret of the same kind is generated.
    secret: Option<Secret>,
}

/// Reads the body of a rotation.
pub(crate) fn rotation(body: Value) -> Result<Rotation, Problem> {
    let mut errors = Errors::default();
    let rotation = Object::open(body, "", &mut errors).map(|mut body| {
        let overlap_s = body.integer("overlap_s", 0..=MAX_OVERLAP_S).unwrap_or(DEFAULT_OVERLAP_S);
        let secret = secret(&mut body);
        body.close(&[]);
        Rotation { overlap_s, secret }
    });
    rotation.filter(|_| errors.is_empty()).ok_or_else(|| Problem::invalid(errors.into_vec()))
}

impl Rotation {
    /// The secret that replaces the one in `current`.
    pub(crate) fn successor(&self, current: &Signing) -> Result<Secret, Problem> {
        let Some(secret) = &self.secret else {
            return Ok(Secret::from_random(current.secret.kind(), rand::random()));
        };
        if *secret == current.secret {
            return Err(Problem::invalid_field("/secret", "is already the secret of the destination"));
        }
        if current.style != SignatureStyle::Standard && secret.kind() != KeyKind::Shared {
            let style = current.style.as_str();
            return Err(Problem::invalid_field(
                "/secret",
                format!("must be a `whsec_` secret for the style `{style}`"),
            ));
        }
        Ok(secret.clone())
    }
}
