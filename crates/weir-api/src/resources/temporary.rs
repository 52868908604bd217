//! What holds for a while in place of the settings of a destination or of a limit group: an override of its limits, and a
//! hold. Both end by themselves. Here is what a request may ask for, and the steps that both resources share.

use axum::Json;
use http::{HeaderName, header};
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    RateLimits, Timestamp,
    temporary::{Hold, LASTS, Override, Temporary},
};

use super::{
    destinations::{
        rates::{Limits, RateLimitRequest},
        view::{hold_view, override_view},
    },
    edit::Edit,
};
use crate::{
    errors::Errors,
    problem::{ApiResult, Problem},
    readers::{
        fields::object,
        texts::{ReasonText, TimeText},
    },
};

/// What a request begins, or ends with `None`.
#[derive(Clone)]
pub(crate) enum Change {
    Override(Option<Override>),
    Hold(Option<Hold>),
}

impl Change {
    pub(crate) fn applied_to(&self, current: Temporary) -> Temporary {
        match self.clone() {
            Self::Override(overridden) => Temporary { overridden, ..current },
            Self::Hold(hold) => Temporary { hold, ..current },
        }
    }
}

/// A resource that people may override and hold, as the id in a path names it.
pub(crate) trait Holdable: Sized {
    type View;

    /// Makes a change. Returns what held before, and the resource with its version.
    fn change(
        edit: &Edit<Self>,
        change: Change,
    ) -> impl Future<Output = ApiResult<(Temporary, String, Self::View)>> + Send;
}

/// A request to begin something.
pub(crate) trait Begins {
    type View;

    fn begin(self, now: Timestamp) -> ApiResult<Change>;

    /// What it replaces.
    fn replaced(before: &Temporary) -> Option<Self::View>;
}

/// An answer with the version of the resource.
type Versioned<T> = ([(HeaderName, String); 1], Json<T>);

impl<T: Holdable> Edit<T> {
    /// Begins what the request asks for. The answer has what that replaces, too.
    pub(crate) async fn begin<R: Begins, A>(
        self,
        request: R,
        shown: impl FnOnce(T::View, Option<R::View>) -> A,
    ) -> ApiResult<Versioned<A>> {
        let (before, etag, view) = T::change(&self, request.begin(self.api.clock.now())?).await?;
        Ok(([(header::ETAG, etag)], Json(shown(view, R::replaced(&before)))))
    }

    pub(crate) async fn end(self, change: Change) -> ApiResult<Versioned<T::View>> {
        let (_, etag, view) = T::change(&self, change).await?;
        Ok(([(header::ETAG, etag)], Json(view)))
    }
}

object! {
    /// Limits for a while: one of `rate_limits` and `max_in_flight` at least, and either `for_s` or `until`.
    pub(crate) struct LimitsOverrideRequest {
        /// In place of the limits of the destination or group; `[]`: none. A `min_interval_ms` stays.
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4)]
        rate_limits: Option<Limits>,
        /// In place of that of the destination or group.
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
        /// For how many seconds: at most 30 days.
        #[schema(minimum = 1, maximum = 2_592_000)]
        for_s: Option<u32>,
        /// Until when: at least a second and at most 30 days from now.
        until: Option<TimeText>,
        reason: ReasonText,
    }
    check = Self::check;
}

object! {
    /// A pause with an end: give either `for_s` or `until`.
    pub(crate) struct HoldRequest {
        /// For how many seconds: at most 30 days.
        #[schema(minimum = 1, maximum = 2_592_000)]
        for_s: Option<u32>,
        /// Until when: at least a second and at most 30 days from now.
        until: Option<TimeText>,
        reason: ReasonText,
    }
    check = Self::check;
}

fn given(field: &str) -> Value {
    json!({"properties": {(field): {"type": ["array", "integer", "string"]}}, "required": [field]})
}

/// One of the two names of the end.
fn one_end() -> Value {
    json!({"oneOf": [given("for_s"), given("until")]})
}

fn check_end(for_s: Option<u32>, until: Option<&TimeText>, at: &str, errors: &mut Errors) {
    let is_wrong = |name: &str| errors.has(&format!("{at}/{name}"));
    if for_s.is_some() == until.is_some() && !is_wrong("for_s") && !is_wrong("until") {
        errors.add(format!("{at}/for_s"), "give either `for_s` or `until`");
    }
}

/// The end, to the millisecond, as it is shown.
fn end(for_s: Option<u32>, until: Option<TimeText>, now: Timestamp) -> ApiResult<Timestamp> {
    let until = match (for_s, until) {
        (_, Some(TimeText(until))) => until,
        (for_s, None) => now + std::time::Duration::from_secs(for_s.unwrap_or_default().into()),
    };
    let until = Timestamp::from_millis(until.as_millis());
    // An end that was a second ahead when the request was made is a little less now.
    let is_ahead = until > now && until <= now + *LASTS.end();
    is_ahead.then_some(until).ok_or_else(|| {
        Problem::invalid_field("/until", "must be at least a second and at most 30 days from now".to_owned())
    })
}

impl LimitsOverrideRequest {
    pub(crate) fn keywords() -> Value {
        let limits = json!({"properties": {"rate_limits": Limits::keywords()}});
        json!({"allOf": [limits, {"anyOf": [given("rate_limits"), given("max_in_flight")]}, one_end()]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        let is_wrong = |name: &str| errors.has(&format!("{at}/{name}"));
        let is_empty = self.rate_limits.is_none() && self.max_in_flight.is_none();
        if is_empty && !is_wrong("rate_limits") && !is_wrong("max_in_flight") {
            errors.add(format!("{at}/rate_limits"), "give `rate_limits`, `max_in_flight` or both");
        }
        check_end(self.for_s, self.until.as_ref(), at, errors);
    }
}

impl Begins for LimitsOverrideRequest {
    type View = types::Override;

    fn begin(self, now: Timestamp) -> ApiResult<Change> {
        Ok(Change::Override(Some(Override {
            limits: self.rate_limits.map(RateLimits::from),
            max_in_flight: self.max_in_flight,
            until: end(self.for_s, self.until, now)?,
            reason: self.reason.0,
        })))
    }

    fn replaced(before: &Temporary) -> Option<types::Override> {
        before.overridden.as_ref().map(override_view)
    }
}

impl HoldRequest {
    pub(crate) fn keywords() -> Value {
        one_end()
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        check_end(self.for_s, self.until.as_ref(), at, errors);
    }
}

impl Begins for HoldRequest {
    type View = types::Hold;

    fn begin(self, now: Timestamp) -> ApiResult<Change> {
        Ok(Change::Hold(Some(Hold { until: end(self.for_s, self.until, now)?, reason: self.reason.0 })))
    }

    fn replaced(before: &Temporary) -> Option<types::Hold> {
        before.hold.as_ref().map(hold_view)
    }
}
