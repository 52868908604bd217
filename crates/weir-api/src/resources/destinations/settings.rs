//! The settings of a destination that a request asks for, with the rules that depend on the configuration and on the
//! current settings.
//!
//! A PATCH is a JSON merge patch (RFC 7396) on the view of the destination. The result is read like a new destination.
//! So one set of rules applies to both, and an edit cannot produce settings that a creation would refuse.

use std::{num::NonZeroU32, sync::Arc};

use serde_json::Value;
use url::Url;
use weir_core::{
    RateLimits,
    address::AddressPolicy,
    body::{BodySettings, default_source},
    breaker::BreakerPolicy,
    destination::{ALL_TENANTS, DEFAULT_MAX_IN_FLIGHT, DEFAULT_TENANT, DEFAULT_TIMEOUT_MS, Settings},
    egress::Egress,
    limit_group::DEFAULT_WEIGHT,
    order::DeliveryOrder,
    pattern::EventPattern,
    retry::RetryPolicy,
    signing::{Secret, SignatureStyle, Signing, Unfit},
};

use super::{
    egress::Kept,
    headers::{Header, Headers, MASK},
    key_limits::{KeyLimitsRequest, check_alone},
    patch::DestinationPatch,
    rates,
    request::DestinationRequest,
};
use crate::{
    errors::Errors,
    problem::{ApiResult, Problem},
    readers::{
        fields::{self, read_with},
        texts::EventPatternText,
    },
};

/// The settings of a new destination.
pub(crate) fn read(body: Value, addresses: &AddressPolicy) -> ApiResult<Settings> {
    let context = Context { addresses, current: None, origin_changes: false, renews_secret: false };
    read_with(body, |request, errors| context.settings(request, errors)).and_then(alone)
}

/// The settings of an edited destination: the patch merged into `shown`, the view of `current`.
pub(crate) fn merge(
    current: &Settings,
    mut shown: Value,
    patch: Value,
    addresses: &AddressPolicy,
) -> ApiResult<Settings> {
    let patch: DestinationPatch = fields::read(patch)?;
    let origin_changes = changes_origin(&current.url, &patch.0);
    if origin_changes && let Value::Object(shown) = &mut shown {
        shown.remove("headers");
        if let Some(Value::Object(tls)) = shown.get_mut("tls") {
            tls.retain(|field, _| field == "ca");
        }
    }
    // A null is read only together with a style.
    let renews_secret = patch.0.get("secret").is_some_and(Value::is_null);
    let context = Context { addresses, current: Some(current), origin_changes, renews_secret };
    read_with(patch.merge_into(shown), |request, errors| context.settings(request, errors))
        .and_then(fit)
        .and_then(alone)
}

/// The settings that replace all current ones. Only the secret, and header values that are masked, stay.
pub(crate) fn replace(current: &Settings, body: Value, addresses: &AddressPolicy) -> ApiResult<Settings> {
    let origin_changes = changes_origin(&current.url, &body);
    let context = Context { addresses, current: Some(current), origin_changes, renews_secret: false };
    read_with(body, |request, errors| context.settings(request, errors)).and_then(fit).and_then(alone)
}

/// Refuses limit keys together with what they cannot be combined with.
fn alone(settings: Settings) -> ApiResult<Settings> {
    check_alone(&settings, false).map(|()| settings)
}

/// Refuses the style if it does not fit the secret of the destination. The request names no secret, so the request is
/// valid, and this is a conflict.
fn fit(settings: Settings) -> ApiResult<Settings> {
    let Signing { style, secret, .. } = &settings.signing;
    match style.refusal_of(secret) {
        None => Ok(settings),
        Some(unfit) => Err(Problem::conflict(format!(
            "the style `{}` does not fit the secret of the destination: it {unfit}; send a `secret` with the style, or \
             `\"secret\": null` for a new one",
            style.as_str()
        ))),
    }
}

/// Whether a patch changes the origin of the URL. The values of headers are write-only, so a client that edits the URL
/// must not be able to send them to a receiver of its own. An invalid URL is refused later.
fn changes_origin(current: &Url, patch: &Value) -> bool {
    let url = patch.get("url").and_then(Value::as_str).and_then(|url| url.parse::<Url>().ok());
    url.is_some_and(|url| url.origin() != current.origin())
}

/// What the rules depend on besides the request.
struct Context<'a> {
    addresses: &'a AddressPolicy,
    /// The settings before the edit; `None` for a new destination.
    current: Option<&'a Settings>,
    /// Whether the edit changes the origin of the URL. If it does, masked header values are refused, so that the new
    /// origin does not get the old values.
    origin_changes: bool,
    /// Whether the edit asks for a new secret that fits its style.
    renews_secret: bool,
}

impl Context<'_> {
    /// `None` if the URL is invalid, which has no default.
    fn settings(&self, request: DestinationRequest, errors: &mut Errors) -> Option<Settings> {
        // The rules of the URL, the headers and the signing depend on the configuration and on the current settings.
        let url = request.url.and_then(|url| self.url(url.0, errors));
        let headers = self.headers(request.headers.unwrap_or_default(), errors);
        let style = request.signature.map_or_else(SignatureStyle::standard, |signature| signature.style());
        let signing = self.signing(request.secret.map(|secret| secret.0), style, errors);
        let tenant = request.tenant.map_or_else(|| DEFAULT_TENANT.to_owned(), |tenant| tenant.0);
        let event_types = event_types(request.event_types, &tenant, errors);
        let mut body = request.body.map(BodySettings::from).unwrap_or_default();
        body.source = body.source.filter(|source| *source != default_source(&tenant));
        let kept = Kept { current: self.current.map(|current| &current.egress), origin_changes: self.origin_changes };
        let tls = kept.tls(request.tls, errors);
        if !tls.is_default() && url.as_ref().is_some_and(|url| url.scheme() == "http") {
            errors.add("/tls", "needs a URL with https");
        }
        let egress = Egress { proxy: kept.proxy(request.proxy, self.addresses, errors), tls };
        let skip_after_attempts = request.skip_after_attempts.and_then(NonZeroU32::new);
        // Absent fields get their defaults.
        Some(Settings {
            key_limits: request.key_limits.and_then(KeyLimitsRequest::limits),
            url: url?,
            name: request.name.map(|name| name.0).unwrap_or_default(),
            tenant,
            event_types,
            filter: request.filter.map(|filter| Arc::new(filter.0)),
            rate_limits: RateLimits::from(request.rate_limits.unwrap_or_default())
                .with_min_interval(rates::min_interval(request.min_interval_ms)),
            adaptive: request.adaptive.map(Into::into),
            max_in_flight: request.max_in_flight.unwrap_or(DEFAULT_MAX_IN_FLIGHT),
            timeout_ms: request.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
            retry: RetryPolicy {
                refusals_count: request.refusals_count.unwrap_or(false),
                ..request.retry.map(Into::into).unwrap_or_default()
            },
            breaker: request.breaker.map_or_else(|| Some(BreakerPolicy::default()), |breaker| breaker.map(Into::into)),
            alerts: request.alerts.map(Into::into).unwrap_or_default(),
            order: DeliveryOrder::new(request.ordered.unwrap_or(false), skip_after_attempts),
            headers,
            body,
            egress,
            signing,
            limit_group: request.limit_group.map(|id| id.0),
            weight: request.weight.and_then(|weight| u16::try_from(weight).ok()).unwrap_or(DEFAULT_WEIGHT),
            paused: request.paused.unwrap_or(false),
        })
    }

    fn url(&self, url: Url, errors: &mut Errors) -> Option<Url> {
        // An unchanged URL is not checked again: a destination must stay editable if its address is no longer allowed.
        if self.current.is_some_and(|current| current.url == url) {
            return Some(url);
        }
        if url.fragment().is_some() {
            errors.add("/url", "must not have a fragment: HTTP does not send it");
            return None;
        }
        self.addresses.check_url(&url).map_err(|refusal| errors.add("/url", refusal.to_string())).ok().map(|()| url)
    }

    /// The headers with their values: the mask stands for the current value.
    fn headers(&self, Headers(headers): Headers, errors: &mut Errors) -> Vec<(String, String)> {
        let mut kept = Vec::with_capacity(headers.len());
        for Header { name, value, pointer } in headers {
            match self.header_value(&name, value) {
                Ok(value) => kept.push((name, value)),
                Err(detail) => errors.add(pointer, detail),
            }
        }
        kept
    }

    fn header_value(&self, name: &str, value: String) -> Result<String, &'static str> {
        if value != MASK {
            return Ok(value);
        }
        if self.origin_changes {
            return Err("must be the value, not `***`: values are not kept when the URL gets another origin");
        }
        let current = self.current.and_then(|current| current.headers.iter().find(|(known, _)| known == name));
        current
            .map(|(_, value)| value.clone())
            .ok_or("must be the value, not `***`: the destination has no such header")
    }

    /// An edit with another secret replaces the current one at once and ends a rotation that is in progress. An edit of
    /// the style keeps the secret if it fits, so that receivers stay valid.
    fn signing(&self, given: Option<Secret>, style: SignatureStyle, errors: &mut Errors) -> Signing {
        let current = self.current.map(|current| &current.signing);
        let is_given = given.is_some();
        let mut signing = match (given, current) {
            (Some(secret), Some(current)) if secret == current.secret => current.clone(),
            (Some(secret), _) => Signing::new(secret),
            (None, Some(current)) if !self.renews_secret => current.clone(),
            (None, current) => Signing::new(style.new_secret(current.map(|current| &current.secret), rand::random())),
        };
        // A secret that was not given is checked when the whole request is valid.
        let unfit = style.refusal_of(&signing.secret).filter(|_| is_given && !errors.has("/signature"));
        let name = style.as_str();
        match unfit {
            None => {}
            Some(unfit @ Unfit::NeedsEncoded) => {
                errors.add("/secret", format!("does not fit the style `{name}`, which {unfit}"));
            }
            Some(unfit) => errors.add("/signature", format!("does not fit the secret: the style `{name}` {unfit}")),
        }
        if !style.takes_several() {
            // The header holds one signature, so the previous secret cannot sign any longer.
            signing.previous = None;
        }
        signing.style = style;
        signing
    }
}

/// The event types of a destination. One of operators gets nothing but alerts.
fn event_types(given: Option<Vec<EventPatternText>>, tenant: &str, errors: &mut Errors) -> Vec<EventPattern> {
    let is_of_operators = tenant == ALL_TENANTS;
    let Some(given) = given else {
        return vec![if is_of_operators { EventPattern::Prefix("weir.".to_owned()) } else { EventPattern::Any }];
    };
    let patterns = distinct(given.into_iter().map(|pattern| pattern.0));
    if is_of_operators && !patterns.iter().all(EventPattern::is_operational) {
        errors.add(
            "/event_types",
            "must name only alerts, such as `weir.*`: a destination of all tenants gets nothing else",
        );
    }
    patterns
}

fn distinct(patterns: impl Iterator<Item = EventPattern>) -> Vec<EventPattern> {
    let mut distinct = Vec::new();
    for pattern in patterns {
        if !distinct.contains(&pattern) {
            distinct.push(pattern);
        }
    }
    distinct
}
