//! How an attempt ended, and the kind of its error as one word: for filters, lists and metrics.

use std::{fmt, str::FromStr};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum AttemptOutcome {
    /// The destination answered 2xx.
    Delivered,
    /// The attempt failed, and another attempt may succeed.
    Retryable,
    /// The destination refused the delivery permanently.
    Rejected,
    /// The sender died or lost its claim before it could record what happened. The request may have arrived.
    Unknown,
}

impl AttemptOutcome {
    pub const ALL: [Self; 4] = [Self::Delivered, Self::Retryable, Self::Rejected, Self::Unknown];

    /// The name in JSON and in the store.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// Why there was no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Failure {
    /// The host name has no address.
    Dns,
    /// The connection was refused, reset before the request, or could not be made in time.
    Connect,
    Tls,
    /// The answer's headers did not arrive within `timeout_ms`.
    Timeout,
    /// The connection broke after the request was sent and before the answer's headers arrived.
    Broken,
    /// The address is in a range that is not allowed, or the cost is above a limit: nothing was sent.
    Forbidden,
}

impl Failure {
    /// Every kind. The stores save the index in this list, so a new kind must be added at the end.
    pub const ALL: [Self; 6] = [Self::Dns, Self::Connect, Self::Tls, Self::Timeout, Self::Broken, Self::Forbidden];

    /// The name in metrics and filters.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// The failure with this name.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// The kind of error of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There was no usable answer.
    Failure(Failure),
    /// The answer was of this status class, which is not 2: 4 is `4xx`.
    Answer(u8),
    /// The outcome of the attempt was not recorded.
    Unknown,
}

impl ErrorKind {
    /// The kind of error of a recorded attempt; `None` when the attempt delivered.
    pub fn of(outcome: AttemptOutcome, failure: Option<Failure>, status_code: Option<u16>) -> Option<Self> {
        match (outcome, failure, status_code) {
            (AttemptOutcome::Delivered, ..) => None,
            (AttemptOutcome::Unknown, ..) => Some(Self::Unknown),
            (_, Some(failure), _) => Some(Self::Failure(failure)),
            (_, None, Some(status)) => u8::try_from(status / 100).ok().map(Self::Answer),
            (_, None, None) => None,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failure(failure) => f.write_str(failure.as_str()),
            Self::Answer(class) => write!(f, "{class}xx"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The text is not a kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be one of dns, connect, tls, timeout, broken, forbidden, unknown, 3xx, 4xx, 5xx")]
pub struct InvalidErrorKind;

impl FromStr for ErrorKind {
    type Err = InvalidErrorKind;

    fn from_str(text: &str) -> Result<Self, InvalidErrorKind> {
        match text {
            "unknown" => Ok(Self::Unknown),
            "3xx" => Ok(Self::Answer(3)),
            "4xx" => Ok(Self::Answer(4)),
            "5xx" => Ok(Self::Answer(5)),
            _ => Failure::parse(text).map(Self::Failure).ok_or(InvalidErrorKind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_parsed_from_its_name() {
        let failures = Failure::ALL.map(ErrorKind::Failure);
        for kind in failures.into_iter().chain([3, 4, 5].map(ErrorKind::Answer)).chain([ErrorKind::Unknown]) {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for text in ["", "2xx", "4XX", "503", "delivered", "Timeout"] {
            assert_eq!(text.parse::<ErrorKind>(), Err(InvalidErrorKind), "{text}");
        }
    }

    #[test]
    fn the_recorded_attempt_determines_the_kind_of_error() {
        use AttemptOutcome::{Delivered, Rejected, Retryable, Unknown};
        let table = [
            (Delivered, None, Some(204), None),
            (Retryable, None, Some(503), Some(ErrorKind::Answer(5))),
            (Rejected, None, Some(302), Some(ErrorKind::Answer(3))),
            (Retryable, Some(Failure::Tls), None, Some(ErrorKind::Failure(Failure::Tls))),
            (Unknown, None, None, Some(ErrorKind::Unknown)),
        ];
        for (outcome, failure, status, kind) in table {
            assert_eq!(ErrorKind::of(outcome, failure, status), kind, "{outcome:?} {failure:?} {status:?}");
        }
    }
}
