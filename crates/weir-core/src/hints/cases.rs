//! The forms of headers that receivers send, one row each, with its source.

use proptest::prelude::*;

use super::*;
use crate::outcome::MAX_HOLD;

/// Sunday, 6 November 1994, 08:49:07 GMT.
const WALL: Timestamp = Timestamp::from_secs(784_111_747);

type Headers<'h> = &'h [(&'h str, &'h str)];

fn read(headers: Headers<'_>) -> Hints {
    read_at(WALL, headers)
}

fn read_at(wall: Timestamp, headers: Headers<'_>) -> Hints {
    Hints::read(headers.iter().map(|(name, value)| (*name, value.as_bytes())), wall)
}

fn longest(waits: &[Wait]) -> Option<Duration> {
    waits.iter().map(|wait| wait.delay).max()
}

/// The longest wait that `Retry-After` and its relatives ask for, in milliseconds.
fn retry_after_ms(headers: Headers<'_>) -> Option<u128> {
    longest(&read(headers).retry_after).map(|delay| delay.as_millis())
}

/// The longest wait for a used-up quota, in milliseconds.
fn used_up_ms(headers: Headers<'_>) -> Option<u128> {
    used_up_ms_at(WALL, headers)
}

fn used_up_ms_at(wall: Timestamp, headers: Headers<'_>) -> Option<u128> {
    read_at(wall, headers).used_up.iter().map(|used_up| used_up.wait.delay.as_millis()).max()
}

#[test]
fn every_form_of_retry_after_is_read() {
    #[rustfmt::skip]
    let table: [(Headers<'_>, u128, &str); 40] = [
        (&[("retry-after", "120")], 120_000, "RFC 9110, section 10.2.3: seconds"),
        (&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], 30_000, "RFC 9110, section 5.6.7: IMF-fixdate"),
        (&[("retry-after", "Sunday, 06-Nov-94 08:49:37 GMT")], 30_000, "RFC 9110, section 5.6.7: RFC 850"),
        (&[("retry-after", "Sun Nov  6 08:49:37 1994")], 30_000, "RFC 9110, section 5.6.7: asctime"),
        (&[("retry-after", "Sun, 06 Nov 1994 09:49:37 +0100")], 30_000, "RFC 5322: the date of an e-mail"),
        (&[("retry-after", " 5 ")], 5_000, "RFC 9110, section 5.5: white space around a value"),
        (&[("retry-after", "\"5\"")], 5_000, "seen: a quoted number"),
        (&[("retry-after", "2.0")], 2_000, "Shopify, REST Admin API rate limits"),
        (&[("retry-after", "2.5")], 2_500, "Discord, Rate Limits: seconds with a fraction"),
        (&[("retry-after", "0")], 0, "RFC 9110: at once"),
        (&[("retry-after", "5s")], 5_000, "seen: Go's time.Duration.String"),
        (&[("retry-after", "1m2.5s")], 62_500, "Go, time.Duration.String"),
        (&[("retry-after", "500ms")], 500, "Go, time.Duration.String"),
        (&[("retry-after", "250µs")], 0, "Go, time.Duration.String"),
        (&[("retry-after", "5 seconds")], 5_000, "seen: words"),
        (&[("retry-after", "PT1M30S")], 90_000, "ISO 8601 duration"),
        (&[("retry-after", "1994-11-06T08:49:37Z")], 30_000, "Zoom, API rate limits: ISO date"),
        (&[("retry-after", "1994-11-06T09:49:37.500+01:00")], 30_500, "RFC 3339 with an offset"),
        (&[("retry-after", "1994-11-06T08:49:37")], 30_000, "ISO 8601 without a zone: UTC"),
        (&[("retry-after", "1994-11-06 08:49:37")], 30_000, "ISO 8601 with a space"),
        (&[("retry-after", "5, 10")], 10_000, "RFC 9110, section 5.3: a list; the longest"),
        (&[("retry-after", "10"), ("retry-after", "5")], 10_000, "RFC 9110, section 5.3: two lines; the longest"),
        (&[("retry-after", "5, Sun, 06 Nov 1994 08:49:37 GMT")], 30_000, "a list with a date"),
        (&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT, 5")], 30_000, "a list with a date"),
        (&[("retry-after", "soon, 7")], 7_000, "a list with a malformed item"),
        (&[("retry-after", "99999999999999999999999")], u128::MAX, "a number that fits no integer"),
        (&[("retry-after-ms", "1500")], 1_500, "OpenAI and Azure OpenAI"),
        (&[("retry-after-ms", "12.5")], 12, "OpenAI's clients read a fraction"),
        (&[("x-ms-retry-after-ms", "43")], 43, "Azure Cosmos DB and Azure SQL"),
        (&[("x-retry-in", "7.8ms")], 7, "Traefik, RateLimit middleware"),
        (&[("x-retry-in", "1m2.5s")], 62_500, "Traefik, RateLimit middleware"),
        (&[("x-retry-in", "6m0s")], 360_000, "Traefik, RateLimit middleware"),
        (&[("x-retry-after", "3")], 3_000, "seen: before the header had no prefix"),
        (&[("x-rate-limit-retry-after-seconds", "9")], 9_000, "Bucket4j, Spring Boot starter"),
        (&[("x-rate-limit-retry-after-milliseconds", "900")], 900, "Bucket4j, Spring Boot starter"),
        (&[("x-ratelimit-retry-after", "4")], 4_000, "seen: PHP libraries"),
        (&[("beta-retry-after", "11")], 11_000, "Atlassian, Jira Cloud rate limiting"),
        (&[("retry-after", "1"), ("x-retry-in", "7.8ms")], 1_000, "both are read; the judgement chooses"),
        (&[("retry-after", "784111777")], 784_111_777_000, "below 10^9: seconds, however many"),
        (&[("retry-after", "1000000030")], 215_888_283_000, "from 10^9 on: Unix time"),
    ];
    for (headers, expected, source) in table {
        let delay = retry_after_ms(headers).unwrap_or_else(|| panic!("{headers:?} is not read: {source}"));
        if expected == u128::MAX {
            assert!(delay > MAX_HOLD.as_millis(), "{headers:?}: {source}");
        } else {
            assert_eq!(delay, expected, "{headers:?}: {source}");
        }
    }
}

/// 14 November 2023, 22:13:20 GMT: the Unix time 1,700,000,000.
const RECENT: Timestamp = Timestamp::from_secs(1_700_000_000);
const RECENT_DATE: (&str, &str) = ("date", "Tue, 14 Nov 2023 22:13:20 GMT");

#[test]
fn unix_times_are_read_in_every_unit() {
    for value in
        ["1700000005", "1700000005.0", "1700000005000", "1700000005000.0", "1700000005000000", "1700000005000000000"]
    {
        let hints = read_at(RECENT, &[("retry-after", value)]);
        assert_eq!(longest(&hints.retry_after), Some(Duration::from_secs(5)), "{value}");
        let reset = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", value)];
        assert_eq!(used_up_ms_at(RECENT, &reset), Some(5_000), "{value}");
    }
    assert_eq!(
        used_up_ms_at(RECENT, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1700000005.25")]),
        Some(5_250)
    );
    let in_millis = read_at(RECENT, &[("retry-after-ms", "1700000005000")]);
    assert_eq!(longest(&in_millis.retry_after), Some(Duration::from_secs(5)));
    let long = read_at(RECENT, &[("retry-after-ms", "2000000000")]);
    assert_eq!(longest(&long.retry_after), Some(Duration::from_secs(2_000_000)), "no Unix time in milliseconds");
}

#[test]
fn instants_are_compared_with_the_date_of_the_answer() {
    let instants = ["1700000005", "Tue, 14 Nov 2023 22:13:25 GMT", "2023-11-14T22:13:25Z", "1700000005000"];
    for value in instants {
        for skew in [-30, 30, -3_000, 3_000, 86_400 * 400, -86_400 * 400] {
            let wall = Timestamp::from_secs(1_700_000_000 + skew);
            let hints = read_at(wall, &[("retry-after", value), RECENT_DATE]);
            assert_eq!(longest(&hints.retry_after), Some(Duration::from_secs(5)), "{value}, {skew} s");
            let quota = [RECENT_DATE, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", value)];
            assert_eq!(used_up_ms_at(wall, &quota), Some(5_000), "{value}, {skew} s");
        }
        // A date that agrees is coarser than our own time.
        let half = RECENT + Duration::from_millis(500);
        let hints = read_at(half, &[("retry-after", value), RECENT_DATE]);
        assert_eq!(longest(&hints.retry_after), Some(Duration::from_millis(4_500)), "{value}");
        // No date, a malformed one, and one that makes no sense.
        for date in ["", "yesterday", "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"] {
            let hints = read_at(RECENT, &[("retry-after", value), ("date", date)]);
            assert_eq!(longest(&hints.retry_after), Some(Duration::from_secs(5)), "{value}, {date}");
        }
    }
    let past = read_at(RECENT, &[("retry-after", "Tue, 14 Nov 2023 22:13:15 GMT"), RECENT_DATE]);
    assert_eq!(longest(&past.retry_after), Some(Duration::ZERO));
}

#[test]
fn every_form_of_a_used_up_quota_is_read() {
    #[rustfmt::skip]
    let table: [(Headers<'_>, u128, &str); 46] = [
        (&[("ratelimit", r#""hourly";r=0;t=42"#)], 42_000, "draft-ietf-httpapi-ratelimit-headers-10"),
        (&[("ratelimit", r#""a;,b";r=0;t=5, "m";r=3;t=50, "d" ; r=0; t=20"#)], 20_000, "draft 10: a list; the longest"),
        (&[("ratelimit", r#""a";r=0;t=5"#), ("ratelimit", r#""d";r=0;t=20"#)], 20_000, "draft 10: two lines"),
        (&[("ratelimit", r#""a";r=0"#), ("ratelimit-policy", r#""a";q=9;w=30"#)], 30_000, "draft 10: no reset"),
        (&[("ratelimit", r#""b";r=0"#), ("ratelimit-policy", r#""a";q=9;w=3"#), ("ratelimit-policy", r#""b";q=9;w=40"#)], 40_000, "draft 10: policies in two lines"),
        (&[("ratelimit", r#""d";r=0"#), ("ratelimit-policy", r#""d";q=1000;w=86400"#)], 60_000, "a guess is a minute at most"),
        (&[("ratelimit", "default;r=0;t=3")], 3_000, "Cloudflare, API rate limits (draft 8, a token)"),
        (&[("ratelimit", "limit=100, remaining=0, reset=42")], 42_000, "drafts 3 to 7"),
        (&[("ratelimit", "limit=100,remaining=0,reset=42"), ("ratelimit-policy", "100;w=60")], 42_000, "express-rate-limit, draft-7"),
        (&[("ratelimit", "limit=10, remaining=3, reset=9"), ("ratelimit", "limit=100, remaining=0, reset=42")], 42_000, "draft 7: two lines"),
        (&[("ratelimit-limit", "100"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "7")], 7_000, "drafts 0 to 2"),
        (&[("ratelimit-limit", "10, 10;w=1, 1000;w=3600"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "1")], 1_000, "draft 0: with policies"),
        (&[("ratelimit-remaining", "0"), ("ratelimit-reset", "1700000005")], 915_888_258_000, "GitLab: Unix time"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "7")], 7_000, "fastify, Kong, Laravel"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1000000005")], 215_888_258_000, "GitHub, REST API rate limits"),
        (&[("x-ratelimit-remaining", "0.0"), ("x-ratelimit-reset", "120")], 120_000, "Reddit, Data API"),
        (&[("x-ratelimit-remaining", "-1"), ("x-ratelimit-reset", "5")], 5_000, "seen: counters that run below zero"),
        (&[("x-ratelimit-remaining", "-3.5"), ("x-ratelimit-reset", "5")], 5_000, "seen: token buckets with debt"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "5.5")], 5_500, "Discord"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "5")], 5_000, "Discord"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "784111750.25"), ("x-ratelimit-reset-after", "3.25")], 3_250, "Discord"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1994-11-06T08:49Z")], 0, "Atlassian: ISO date without seconds"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1994-11-06T08:50Z")], 53_000, "Atlassian, Jira Cloud"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1994-11-06T08:49:37+00:00")], 30_000, "Vimeo"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "Sun, 06 Nov 1994 08:49:37 GMT")], 30_000, "seen: HTTP date"),
        (&[("x-rate-limit-limit", "900"), ("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "1000000005")], 215_888_258_000, "X (Twitter), Okta"),
        (&[("x-rate-limit", "700"), ("x-rate-limit-remaining", "0"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "41")], 41_000, "Zendesk, Support API"),
        (&[("zendesk-ratelimit-tickets-index", "total=100; remaining=0; resets=41")], 41_000, "Zendesk, Support API"),
        (&[("x-rate-limit-limit", "1m"), ("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "1994-11-06T08:49:37.1234567Z")], 30_123, "AspNetCoreRateLimit"),
        (&[("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "6m0s")], 360_000, "OpenAI, rate limits"),
        (&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "20ms")], 20, "OpenAI, rate limits"),
        (&[("anthropic-ratelimit-requests-remaining", "0"), ("anthropic-ratelimit-requests-reset", "1994-11-06T08:49:37Z")], 30_000, "Anthropic, rate limits"),
        (&[("x-ratelimit-requests-remaining", "0"), ("x-ratelimit-requests-reset", "1000000005000")], 215_888_258_000, "Linear: Unix time in ms"),
        (&[("x-ratelimit-userremaining", "0"), ("x-ratelimit-userreset", "9")], 9_000, "Imgur, API rate limits"),
        (&[("x-ratelimit-limit-second", "10"), ("x-ratelimit-remaining-second", "0")], 1_000, "Kong, Rate Limiting"),
        (&[("x-ratelimit-limit-minute", "10"), ("x-ratelimit-remaining-minute", "0")], 60_000, "Kong, Rate Limiting"),
        (&[("x-hubspot-ratelimit-max", "100"), ("x-hubspot-ratelimit-remaining", "0"), ("x-hubspot-ratelimit-interval-milliseconds", "10000")], 10_000, "HubSpot, API usage"),
        (&[("x-hubspot-ratelimit-secondly", "10"), ("x-hubspot-ratelimit-secondly-remaining", "0")], 1_000, "HubSpot, API usage"),
        (&[("x-rate-limit-api-key-max", "300"), ("x-rate-limit-api-key-remaining", "0"), ("x-rate-limit-api-key-interval-ms", "10000")], 10_000, "Trello, API rate limits"),
        (&[("x-ratelimit-limit", "10, 10;w=1;name=\"edge\""), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")], 1_000, "Envoy, rate limit filter"),
        (&[("x-ratelimit-remaining", "5, 0"), ("x-ratelimit-reset", "60, 10")], 10_000, "a list: the reset of the used-up quota"),
        (&[("x-ratelimit-remaining", "5"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60"), ("x-ratelimit-reset", "10")], 10_000, "two lines"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60"), ("x-ratelimit-reset", "10")], 60_000, "two resets: the longest"),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "soon"), ("x-ratelimit-reset-after", "5")], 5_000, "one of two forms is malformed"),
        (&[("x-ratelimit-limit", "0"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "8")], 8_000, "Okta: concurrency"),
        (&[("ratelimit", r#""q";r=0;t=5"#), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")], 30_000, "two families; the longest"),
    ];
    for (headers, expected, source) in table {
        assert_eq!(used_up_ms(headers).unwrap_or_default(), expected, "{headers:?}: {source}");
    }
}

#[test]
fn the_announced_quota_and_its_window_are_read() {
    let second = Duration::from_secs(1);
    #[rustfmt::skip]
    let table: [(Headers<'_>, Option<u64>, Option<Duration>); 12] = [
        (&[("ratelimit", r#""d";r=0;t=1"#), ("ratelimit-policy", r#""d";q=10;w=1"#)], Some(10), Some(second)),
        (&[("ratelimit", "limit=10, remaining=0, reset=1"), ("ratelimit-policy", "10;w=1")], Some(10), Some(second)),
        (&[("ratelimit", "limit=10, remaining=0, reset=1")], Some(10), None),
        (&[("ratelimit-limit", "10"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "1"), ("ratelimit-policy", "10;w=1")], Some(10), Some(second)),
        (&[("ratelimit-limit", "10, 10;w=1;burst=5, 1000;w=3600"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "1")], Some(10), Some(second)),
        (&[("x-ratelimit-limit", "10;w=1"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")], Some(10), Some(second)),
        (&[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")], Some(10), None),
        (&[("x-rate-limit-limit", "1s"), ("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "1")], None, Some(second)),
        (&[("x-ratelimit-limit-second", "10"), ("x-ratelimit-remaining-second", "0")], Some(10), Some(second)),
        (&[("x-hubspot-ratelimit-daily", "250000"), ("x-hubspot-ratelimit-daily-remaining", "0")], Some(250_000), Some(86_400 * second)),
        (&[("x-rate-limit-api-key-max", "300"), ("x-rate-limit-api-key-remaining", "0"), ("x-rate-limit-api-key-interval-ms", "10000")], Some(300), Some(10 * second)),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")], None, None),
    ];
    for (headers, quota, window) in table {
        let hints = read(headers);
        let [used_up] = &hints.used_up[..] else { panic!("{headers:?}: {hints:?}") };
        assert_eq!((used_up.quota, used_up.window), (quota, window), "{headers:?}");
        assert_eq!(hints.malformed, None, "{headers:?}");
    }
}

#[test]
fn a_quota_that_is_left_or_reset_causes_no_delay_and_is_not_malformed() {
    for headers in [
        &[][..],
        &[("content-type", "text/plain"), ("date", "yesterday")],
        &[("ratelimit", r#""hourly";r=1;t=42"#), ("ratelimit-policy", r#""hourly";q=100;w=3600"#)],
        &[("ratelimit-remaining", "0")],
        &[("x-ratelimit-remaining", "4999"), ("x-ratelimit-limit", "5000"), ("x-ratelimit-resource", "core")],
        &[("x-ratelimit-used", "1"), ("x-ratelimit-bucket", "abcd"), ("x-ratelimit-scope", "user")],
        &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "784111740"), ("x-ratelimit-nearlimit", "true")],
        &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")],
        &[("x-ratelimit-remaining", "0.1"), ("x-ratelimit-reset", "5")],
        &[("x-rate-limit", "700")],
    ] {
        let hints = read(headers);
        // A reset of 784,111,740 s is below 10^9 and so a delay; everything else is no hint.
        let is_long = hints.used_up.iter().any(|used_up| used_up.wait.delay > MAX_HOLD);
        assert!(hints.used_up.is_empty() || is_long, "{headers:?}: {hints:?}");
        assert_eq!((hints.retry_after, hints.malformed), (vec![], None), "{headers:?}");
    }
}

#[test]
fn malformed_headers_are_ignored_and_noted() {
    let table = [
        ("retry-after", "soon"),
        ("retry-after", "-5"),
        ("retry-after", ""),
        ("retry-after", "1e3"),
        ("retry-after", "inf"),
        ("retry-after", "NaN"),
        ("retry-after", "1.2.3"),
        ("retry-after", "Sun, 06 Nov"),
        ("retry-after", "0x10"),
        ("x-retry-in", "ms"),
        ("ratelimit", "many"),
        ("ratelimit", r#""open;r=0;t=9"#),
        ("ratelimit", r#""d";r=none;t=9"#),
        ("ratelimit-policy", "fair use"),
        ("x-ratelimit-remaining", "few"),
        ("x-ratelimit-reset", "soon"),
    ];
    for (name, value) in table {
        let hints = read(&[(name, value)]);
        assert_eq!((&hints.retry_after[..], &hints.used_up[..]), (&[][..], &[][..]), "{name}: {value}");
        assert_eq!(hints.malformed.as_deref(), Some(format!("{name}: {value}").as_str()));
    }
    let several = read(&[("retry-after", "x, y"), ("x-ratelimit-reset", "later"), ("x-ratelimit-remaining", "0")]);
    assert_eq!(several.malformed.as_deref(), Some("retry-after: x, y, x-ratelimit-reset: later"));
    let bytes = Hints::read([("retry-after", &b"\xff5"[..])], WALL);
    assert_eq!((bytes.retry_after, bytes.malformed), (vec![], Some("retry-after: \u{fffd}5".to_owned())));
}

#[test]
fn the_rounding_of_a_value_is_known() {
    let rounding = |value| read(&[("retry-after", value)]).retry_after[0].rounding.as_millis();
    for value in ["1", "60", "5s", "Sun, 06 Nov 1994 08:49:37 GMT"] {
        assert_eq!(rounding(value), 1_000, "{value}");
    }
    for value in ["1.0", "2.5", "7.8ms", "1994-11-06T08:49:37.250Z"] {
        assert_eq!(rounding(value), 0, "{value}");
    }
    let dated = read_at(RECENT, &[("retry-after", "1700000005"), RECENT_DATE]);
    assert_eq!(dated.retry_after[0].rounding, Duration::from_secs(2), "both times are in whole seconds");
    assert_eq!(read(&[("retry-after-ms", "1000")]).retry_after[0].rounding, Duration::ZERO);
}

#[test]
fn the_header_is_shown_as_one_short_line() {
    assert_eq!(read(&[("retry-after", " 120 ")]).retry_after[0].header, "retry-after: 120");
    let quota = read(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "17")]);
    assert_eq!(quota.used_up[0].wait.header, "x-ratelimit-reset: 17");
    let long = format!("5,\t{}", "ü".repeat(300));
    let hints = read(&[("retry-after", &long)]);
    let shown = &hints.retry_after[0].header;
    assert!(shown.starts_with("retry-after: 5, ü") && shown.len() <= MAX_HEADER_TEXT, "{shown}");
    assert!(hints.malformed.unwrap().len() <= MAX_HEADER_TEXT);
}

const NAMES: [&str; 16] = [
    "date",
    "retry-after",
    "retry-after-ms",
    "x-retry-in",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining-second",
    "x-hubspot-ratelimit-remaining",
    "x-hubspot-ratelimit-interval-milliseconds",
];

proptest! {
    #[test]
    fn no_header_causes_a_panic(
        headers in prop::collection::vec((prop::sample::select(&NAMES[..]), prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "[-0-9.,;=wqrt\" :TZsmhµ]{0,40}".prop_map(String::into_bytes),
            any::<f64>().prop_map(|number| number.to_string().into_bytes()),
            any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        ]), 0..12),
        wall in any::<i64>(),
    ) {
        let hints = Hints::read(headers.iter().map(|(name, value)| (*name, &value[..])), Timestamp::from_nanos(wall));
        for wait in hints.retry_after.iter().chain(hints.used_up.iter().map(|used_up| &used_up.wait)) {
            prop_assert!(wait.at_least() <= wait.delay);
            prop_assert!(wait.header.len() <= MAX_HEADER_TEXT && !wait.header.contains(char::is_control));
        }
    }
}
