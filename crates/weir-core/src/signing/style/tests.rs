use base64::{Engine as _, engine::general_purpose::STANDARD as STANDARD_BASE64};

use super::*;
use crate::{
    signing::{Message, Signing, StyleSpec},
    time::Timestamp,
};

const BODY: &str = r#"{"n":1}"#;
const URL: &str = "https://example.com/hooks";
/// `2023-11-14T22:13:20Z`.
const TIME: i64 = 1_700_000_000;
const TEXT: &str = "a text key of these tests";

fn spec(name: &str, header: Option<&str>, timestamp_header: Option<&str>) -> StyleSpec {
    let [header, timestamp_header] = [header, timestamp_header].map(|name| name.map(str::to_owned));
    StyleSpec { header, timestamp_header, ..StyleSpec::named(name) }
}

fn custom(signed: &str, value: &str) -> StyleSpec {
    let [signed, value] = [signed, value].map(|text| Some(text.to_owned()));
    StyleSpec { signed, value, ..StyleSpec::named(CUSTOM) }
}

/// The header of the signature of a request.
fn signed(spec: &StyleSpec, secret: &str, time: i64, body: &str) -> String {
    let mut signing = Signing::new(secret.parse().unwrap());
    signing.style = spec.resolve().unwrap();
    assert_eq!(signing.style.refusal_of(&signing.secret), None, "{spec:?}");
    let message = Message { id: "evt_1", unix_seconds: time, url: URL, body: body.as_bytes() };
    signing.sign(&message, Timestamp::MIN)
}

/// Computed with Python: `hmac.new(b"a text key of these tests", message, "sha256")`, as hex or in base64, and with
/// `cryptography` (Ed25519, the seed is 32 times 9; Svix, the key is 32 times 7). The messages are those of the
/// documentation that the preset names.
#[test]
fn every_preset_has_the_signature_that_its_receivers_verify() {
    const OF_BODY: &str = "d5bec476522e6655038b3936dfc02ef59708f275f7e83893c7ea5cabf76e9669";
    const BODY_IN_BASE64: &str = "1b7EdlIuZlUDizk238Au9ZcI8nX36DiTx+pcq/dulmk=";
    const V0: &str = "v0=153f5b0628d2ae935ee074522b4acbdc5b49361a3a36e382b53a62836a142c8e";
    let encoded = |prefix: &str, byte| format!("{prefix}{}", STANDARD_BASE64.encode([byte; 32]));
    let table: [(&str, String, String); 15] = [
        (
            "stripe",
            TEXT.into(),
            "t=1700000000,v1=b4f1ac1512b60db5dc69ecbde9b1081fcfacb903d2479d82bf5de7ef57887f43".into(),
        ),
        ("github", TEXT.into(), format!("sha256={OF_BODY}")),
        ("slack", TEXT.into(), V0.into()),
        ("zoom", TEXT.into(), V0.into()),
        ("shopify", TEXT.into(), BODY_IN_BASE64.into()),
        ("zendesk", TEXT.into(), "CGYioWleWazSqiT/k1pWDGffYHXzEAaqenr3YZ4XXSc=".into()),
        ("square", TEXT.into(), "zvzlr4C7t4QskomNR7vli4hNbK+zdWXIaKul2xKzX1Q=".into()),
        ("razorpay", TEXT.into(), OF_BODY.into()),
        ("linear", TEXT.into(), OF_BODY.into()),
        ("lemon-squeezy", TEXT.into(), OF_BODY.into()),
        ("pagerduty", TEXT.into(), format!("v1={OF_BODY}")),
        (
            "paddle",
            TEXT.into(),
            "ts=1700000000;h1=e5ead39f923c271b16af04f1663bfcd48cdb385a83bd4c42c3f45dae8dddc730".into(),
        ),
        (
            "discord",
            encoded("whsk_", 9),
            "3407e70a258ceb5fd8a01b7d6c45c207d7fd38d9576da2a4679d060f42bf01d2e3e439503ccd0861b9bfc2a45de1e0627f3d1a88616e4a83cd89b2e91e9a9e05".into(),
        ),
        ("svix", encoded("whsec_", 7), "v1,hhbHmwbkAgzcDBcgFf+MNJY4KsOdXrYalB+YnMXsI+8=".into()),
        (
            "twitch",
            TEXT.into(),
            "sha256=1f7d91623438a1a6f5eeeb8748ded75af417ad4397a07c2ae3330197460bf51d".into(),
        ),
    ];
    for (name, secret, expected) in &table {
        assert_eq!(signed(&StyleSpec::named(name), secret, TIME, BODY), *expected, "{name}");
    }
    // The two others are older than the presets, and have a test of their own.
    assert_eq!(PRESETS.len(), table.len() + 2);
    assert!(PRESETS[2..].iter().all(|preset| preset.source.starts_with("https://")));
}

/// From the pages that the presets name.
#[test]
fn the_published_examples_of_github_and_slack_are_computed() {
    let github = signed(&StyleSpec::named("github"), "It's a Secret to Everybody", TIME, "Hello, World!");
    assert_eq!(github, "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17");
    let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
                channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
                response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&\
                trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let slack = signed(&StyleSpec::named("slack"), "8f742231b10e8888abcd99yyyzzz85a5", 1_531_420_618, body);
    assert_eq!(slack, "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503");
}

/// Computed with Python's `hmac.new(b"…", message, "sha256").hexdigest()`.
const OLD_TIMED: &str = "aed26b8c522f7a0bb0afe21bc26a17c4ce07bb00847f14cbe1a234f35c162829";
const NEW_TIMED: &str = "62df7e865a8e7717f0a57453ca23ee39b0fd22ddfedebaa96b71a7611b724c51";
const OLD_BODY: &str = "f3f71077c937aeacb24deceeb71de05f055470288b4418445286911cbffdba81";
const NEW_BODY: &str = "9f190ef246ab30b81854d92833c6631d75a528552b5304ae730201b6577931f5";

/// The header of the signature, with one secret and during a rotation. The key is what the secrets encode.
fn rotated(spec: &StyleSpec) -> (String, String) {
    let secret = |text: &str| Secret::from_bytes(text.as_bytes().to_vec()).unwrap();
    let mut signing = Signing::new(secret("an old secret of some length"));
    signing.style = spec.resolve().unwrap();
    let rotated = signing.rotated(secret("a new secret of this length!"), Some(Timestamp::MAX));
    let message = Message { id: "evt_1", unix_seconds: TIME, url: URL, body: BODY.as_bytes() };
    (signing.sign(&message, Timestamp::MIN), rotated.sign(&message, Timestamp::MIN))
}

#[test]
fn the_styles_timestamped_and_prefixed_have_the_format_that_their_receivers_verify() {
    let expected = |one: String, both: String| (one, both);
    assert_eq!(
        rotated(&spec("timestamped", Some("x-signature"), None)),
        expected(format!("t=1700000000,v1={OLD_TIMED}"), format!("t=1700000000,v1={NEW_TIMED},v1={OLD_TIMED}"))
    );
    assert_eq!(
        rotated(&spec("prefixed", None, None)),
        expected(format!("sha256={OLD_BODY}"), format!("sha256={NEW_BODY},sha256={OLD_BODY}"))
    );
    assert_eq!(
        rotated(&spec("prefixed", None, Some("x-time"))),
        expected(format!("sha256={OLD_TIMED}"), format!("sha256={NEW_TIMED},sha256={OLD_TIMED}"))
    );
}

#[test]
fn a_custom_style_carries_two_signatures_where_it_has_a_separator_and_the_new_one_otherwise() {
    let decoded = |spec| StyleSpec { key: Some("decoded".to_owned()), ..spec };
    let single = decoded(custom("{body}", "sha256={signature}"));
    assert_eq!(rotated(&single).1, format!("sha256={NEW_BODY}"));
    let separator = Some(", ".to_owned());
    // The signature need not be the last part.
    let several = StyleSpec { separator, ..decoded(custom("{timestamp}.{body}", "v1={signature}, t={timestamp}")) };
    assert_eq!(rotated(&several).1, format!("v1={NEW_TIMED}, v1={OLD_TIMED}, t=1700000000"));
}

#[test]
fn a_style_is_resolved_from_what_it_shows() {
    let own = StyleSpec {
        separator: Some(";".to_owned()),
        encoding: Some("base64".to_owned()),
        algorithm: Some("hmac-sha512".to_owned()),
        timestamp_format: Some("unix_ms".to_owned()),
        timestamp_header: Some("X-Time".to_owned()),
        ..custom("POST\n{url}\n{timestamp}\n{body}", "a;s={signature}")
    };
    let named = style_names().filter(|name| *name != CUSTOM).map(StyleSpec::named);
    for spec in named.chain([own, custom("{body}", "{signature}"), spec("slack", Some("X-S"), Some("X-T"))]) {
        let style = spec.resolve().unwrap();
        assert_eq!(style.spec().resolve(), Ok(style.clone()), "{spec:?}");
        let stored = serde_json::to_string(&style).unwrap();
        assert_eq!(serde_json::from_str::<SignatureStyle>(&stored).unwrap(), style);
        assert_eq!(style.format().header, style.format().header.to_ascii_lowercase());
    }
}

#[test]
fn every_fault_of_a_style_is_named_by_its_field() {
    let fields = |spec: &StyleSpec| -> Vec<&'static str> {
        spec.resolve().map_or_else(|errors| errors.into_iter().map(|error| error.field).collect(), |_| Vec::new())
    };
    let with = |change: fn(&mut StyleSpec)| {
        let mut spec = custom("{body}", "{signature}");
        change(&mut spec);
        spec
    };
    let cases = [
        (StyleSpec::named("md5"), vec!["style"]),
        (spec(STANDARD, Some("x"), Some("y")), vec!["header", "timestamp_header"]),
        (spec("timestamped", None, Some("y")), vec!["timestamp_header"]),
        (spec("stripe", None, Some("y")), vec!["timestamp_header"]),
        (spec("github", None, Some("y")), vec!["timestamp_header"]),
        (spec("slack", Some("X-Slack-Request-Timestamp"), None), vec!["timestamp_header"]),
        (StyleSpec { id_header: Some("x".to_owned()), ..StyleSpec::named("slack") }, vec!["id_header"]),
        (StyleSpec { key: Some("text".to_owned()), ..StyleSpec::named("stripe") }, vec!["key"]),
        (StyleSpec::named(CUSTOM), vec!["signed"]),
        (custom("{timestamp}", "{signature}"), vec!["signed"]),
        (custom("{body}{body}", "{signature}"), vec!["signed"]),
        (custom("{body}{signature}", "{signature}"), vec!["signed"]),
        (custom("{body}é", "{signature}"), vec!["signed"]),
        (custom("{body}", "v1="), vec!["value"]),
        (custom("{body}", "{signature}{signature}"), vec!["value"]),
        (custom("{body}", "{timestamp}{signature}"), vec!["value"]),
        (custom("{body}", "{body}{signature}"), vec!["value"]),
        (custom("{body}", "a\r\nb: {signature}"), vec!["value"]),
        (with(|spec| spec.separator = Some(String::new())), vec!["separator"]),
        (with(|spec| spec.separator = Some("\n".to_owned())), vec!["separator"]),
        (with(|spec| spec.algorithm = Some("md5".to_owned())), vec!["algorithm"]),
        (with(|spec| spec.encoding = Some("base32".to_owned())), vec!["encoding"]),
        (with(|spec| spec.key = Some("hex".to_owned())), vec!["key"]),
        (with(|spec| spec.timestamp_format = Some("http".to_owned())), vec!["timestamp_format"]),
        (with(|spec| spec.id_header = Some("Webhook-Signature".to_owned())), vec!["id_header"]),
        (
            with(|spec| {
                spec.timestamp_format = Some("unix_ms".to_owned());
                spec.signed = Some("{timestamp}{body}".to_owned());
            }),
            vec!["timestamp_header"],
        ),
        (
            with(|spec| {
                spec.timestamp_format = Some("rfc3339".to_owned());
                spec.timestamp_header = Some("webhook-timestamp".to_owned());
            }),
            vec!["timestamp_header"],
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(fields(&spec), expected, "{spec:?}");
    }
}

#[test]
fn a_new_secret_fits_its_style_and_another_kind_does_not() {
    let secrets = ["a text of some length", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];
    let [text, encoded] = secrets.map(|text| text.parse::<Secret>().unwrap());
    let private = Secret::from_random(KeyKind::Ed25519, [5; 32]);
    for name in style_names().filter(|name| *name != CUSTOM) {
        let style = StyleSpec::named(name).resolve().unwrap();
        let made = style.new_secret(Some(&encoded), [7; 32]);
        assert_eq!(style.refusal_of(&made), None, "{name}");
        let expected = match name {
            STANDARD => [Some(Unfit::NeedsEncoded), None, None],
            "discord" => [Some(Unfit::NeedsPrivate), Some(Unfit::NeedsPrivate), None],
            "timestamped" | "prefixed" | "svix" => [Some(Unfit::NeedsEncoded), None, Some(Unfit::NeedsShared)],
            _ => [None, None, Some(Unfit::NeedsShared)],
        };
        assert_eq!([&text, &encoded, &private].map(|secret| style.refusal_of(secret)), expected, "{name}");
    }
    let standard = SignatureStyle::standard();
    assert_eq!(standard.new_secret(Some(&private), [7; 32]).kind(), KeyKind::Ed25519, "a secret of the same kind");
    let github = StyleSpec::named("github").resolve().unwrap();
    assert_eq!(github.new_secret(None, [0xab; 32]).reveal(), "ab".repeat(32));
}
