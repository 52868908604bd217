//! A limit as people write it.

use std::str::FromStr;

use serde::Serialize;
use weir_core::{
    Period, RateLimit,
    limit::{Shape, Unit},
};

/// A limit, written `10/second` or, with a burst, `300/minute:5`, or `300/minute:window` in the window shape, or
/// `1000/minute:cost` in costs; a margin follows: `10/second+50ms`. The period may be short, as in `10/s`, or any
/// number of seconds: `190/10s`. In JSON it is the object of the API.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitText(pub weir_api_types::RateLimit);

impl LimitText {
    /// A limit without a margin.
    pub fn new(limit: u32, period: Period, burst: u32) -> Self {
        Self(weir_api_types::RateLimit {
            limit,
            period: period.to_string(),
            window_s: period.unnamed_seconds(),
            burst,
            margin_ms: 0,
            shape: None,
            unit: None,
        })
    }
}

impl std::fmt::Display for LimitText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let weir_api_types::RateLimit { limit, period, burst, margin_ms, shape, unit, .. } = &self.0;
        write!(f, "{limit}/{period}")?;
        // A limit in costs has the window shape.
        if let Some(counts) = unit.as_ref().or(shape.as_ref()) {
            write!(f, ":{counts}")?;
        }
        if *burst > 1 {
            write!(f, ":{burst}")?;
        }
        if *margin_ms > 0 { write!(f, "+{margin_ms}ms") } else { Ok(()) }
    }
}

impl FromStr for LimitText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, margin) = text.split_once('+').unwrap_or((text, "0ms"));
        let (rate, burst) = text.split_once(':').unwrap_or((text, "1"));
        let in_costs = Unit::parse(burst.trim()) == Some(Unit::Cost);
        let (shape, burst) = match Shape::parse(burst.trim()) {
            _ if in_costs => (Shape::Window, "1"),
            Some(shape) => (shape, "1"),
            None => (Shape::Even, burst),
        };
        let (limit, period) = rate.split_once('/').unwrap_or((rate, ""));
        let margin_ms = margin.trim().strip_suffix("ms").and_then(|margin| margin.trim().parse().ok());
        let parsed = (limit.trim().parse().ok(), period_of(period.trim()), burst.trim().parse().ok(), margin_ms);
        let (Some(limit), Some(period), Some(burst), Some(margin_ms)) = parsed else {
            return Err(
                "use a number and second, minute, hour, day or a number of seconds, such as 10/second, 10/s or \
                        190/10s; a burst follows a colon: 300/minute:5; so does `window`, for sends that need not be \
                        even: 300/minute:window, and `cost`, for a limit that counts the costs of events: \
                        1000/minute:cost; a margin follows a plus sign: 10/second+50ms"
                    .to_owned(),
            );
        };
        RateLimit::with_burst(limit, period, burst)
            .ok_or_else(|| "limit and burst must be from 1 to 1000000".to_owned())?
            .with_margin(margin_ms)
            .and_then(|parsed| if in_costs { parsed.in_costs() } else { parsed.with_shape(shape) })
            .map(|parsed| {
                let (shape, unit) = (parsed.unusual_shape(), parsed.unusual_unit());
                Self(weir_api_types::RateLimit { margin_ms, shape, unit, ..Self::new(limit, period, burst).0 })
            })
            .ok_or_else(|| "a margin must be from 0 to 10000 ms".to_owned())
    }
}

/// A period by its name, or by a short form of it.
fn period_of(text: &str) -> Option<Period> {
    let text = text.to_ascii_lowercase();
    match text.as_str() {
        "s" | "sec" | "secs" | "seconds" => Some(Period::SECOND),
        "m" | "min" | "mins" | "minutes" => Some(Period::MINUTE),
        "h" | "hr" | "hrs" | "hours" => Some(Period::HOUR),
        "d" | "days" => Some(Period::DAY),
        name => Period::parse(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_as_it_is_written() {
        for text in [
            "10/second",
            "190/10s",
            "300/minute:5",
            "1/day",
            "1000000/hour:1000000",
            "10/second+50ms",
            "9/day:2+10000ms",
            "300/minute:window",
            "190/10s:window+50ms",
            "1000/minute:cost",
            "500/10s:cost+50ms",
        ] {
            assert_eq!(text.parse::<LimitText>().unwrap().to_string(), text);
        }
        let json = serde_json::to_value("300/minute:5".parse::<LimitText>().unwrap()).unwrap();
        assert_eq!(json, serde_json::json!({"limit": 300, "period": "minute", "burst": 5, "margin_ms": 0}));
        assert_eq!("5/s:even".parse::<LimitText>().unwrap().to_string(), "5/second");
        let json = serde_json::to_value("300/min:window".parse::<LimitText>().unwrap()).unwrap();
        let window =
            serde_json::json!({"limit": 300, "period": "minute", "burst": 1, "margin_ms": 0, "shape": "window"});
        assert_eq!(json, window);
        for wrong in [
            "10/second:windows",
            "10/second:request",
            "10/second:5:cost",
            "10/second:5:window",
            "10",
            "10/week",
            "10/0s",
            "10/86401s",
            "10/+5s",
            "/second",
            "ten/second",
            "10/second:",
            "0/second",
            "10/second:0",
            "1000001/day",
            "1/day+50",
            "1/day+10001ms",
            "1/day+ms",
        ] {
            assert!(wrong.parse::<LimitText>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_period_may_be_short() {
        let short = ["20/s", "20/sec", "20/S", "600/min:5", "600/m", "9/h", "9/hr", "7/d+50ms", "7/days", "5/60s"];
        let long = [
            "20/second",
            "20/second",
            "20/second",
            "600/minute:5",
            "600/minute",
            "9/hour",
            "9/hour",
            "7/day+50ms",
            "7/day",
            "5/minute",
        ];
        for (short, long) in short.into_iter().zip(long) {
            assert_eq!(short.parse::<LimitText>().unwrap().to_string(), long);
        }
        for wrong in ["20/ms", "20/mo", "20/w", "20/"] {
            assert!(wrong.parse::<LimitText>().unwrap_err().contains("10/s"), "{wrong}");
        }
    }
}
