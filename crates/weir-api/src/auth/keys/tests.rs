//! Keys and sessions of a key ring, without a server.

use axum::response::IntoResponse as _;
use weir_core::{
    ApiKeyId,
    access::{Role, TenantScope},
};

use super::*;
use crate::auth::Credential;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECRET: SessionSecret = [5; 32];
const HOUR: Duration = Duration::from_secs(3_600);

fn stored(key: &str, role: Role, expires_at: Option<Timestamp>) -> ApiKey {
    let (id, name, digest) = (ApiKeyId::new(NOW, 1), "stored".to_owned(), digest(key));
    ApiKey {
        id,
        name,
        role,
        tenants: TenantScope::All,
        digest,
        created_at: NOW,
        expires_at,
        created_by: None,
        last_used_at: None,
    }
}

fn with_stored(keys: KeyRing, stored: impl IntoIterator<Item = ApiKey>) -> KeyRing {
    *keys.stored.write() = Some(StoredKeys::new(SECRET, stored));
    keys
}

fn caller(
    keys: &KeyRing,
    path: &'static str,
    headers: &[(&str, String)],
    now: Timestamp,
) -> Result<Option<Caller>, u16> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    let found = keys.caller(&Uri::from_static(path), &map, SessionCookie::of(None), now);
    found.map_err(|no_caller| match no_caller {
        NoCaller::WrongKey(_) => 401,
        NoCaller::Refused(problem) => problem.into_response().status().as_u16(),
    })
}

fn admitted(keys: &KeyRing, path: &'static str, authorization: Option<&str>) -> bool {
    let headers: Vec<_> = authorization.map(|value| ("authorization", value.to_owned())).into_iter().collect();
    caller(keys, path, &headers, NOW).is_ok()
}

/// The caller of a request with the token as its cookie.
fn with_cookie(keys: &KeyRing, token: &str, now: Timestamp) -> Result<Caller, u16> {
    let cookie = format!("weir_session={token}");
    caller(keys, "/v1/events", &[("cookie", cookie)], now).map(Option::unwrap)
}

fn log_in(keys: &KeyRing, key: &str) -> String {
    keys.log_in(key, NOW).unwrap().unwrap().1.to_text()
}

#[test]
fn guarded_paths_need_a_valid_key() {
    let configured = SettingKeys::new(["alpha", " beta ", "", " "]);
    assert_eq!(format!("{configured:?}"), "SettingKeys(2)");
    let gamma = stored("wk_gamma", Role::Read, Some(NOW + Duration::from_nanos(1)));
    let keys = with_stored(KeyRing::new(configured), [gamma, stored("wk_expired", Role::Read, Some(NOW))]);
    let table = [
        ("/v1/events", Some("Bearer alpha"), true),
        ("/v1/events", Some("bearer beta"), true),
        ("/v1/events", Some("Bearer wk_gamma"), true),
        ("/v1/events", Some("Bearer wk_expired"), false),
        ("/v1/events", Some("Bearer alph"), false),
        ("/v1/events", Some("Bearer "), false),
        ("/v1/events", Some("Bearer"), false),
        ("/v1/events", Some("Basic alpha"), false),
        ("/v1/events", None, false),
        ("/v1", None, false),
        ("/v1/me", None, false),
        ("/v1/sessions", None, false),
        ("/v1/nothing-here", None, false),
        ("/v1/session", None, true),
        ("/healthz", None, true),
        ("/metrics", None, true),
    ];
    for (path, authorization, expected) in table {
        assert_eq!(admitted(&keys, path, authorization), expected, "{path} {authorization:?}");
    }
}

#[test]
fn without_configured_keys_no_path_needs_one_but_a_given_key_must_be_valid() {
    let keys = KeyRing::new(SettingKeys::new([""; 1]));
    assert!(!admitted(&keys, "/v1/events", Some("Bearer anything")), "the stored keys are not known yet");
    let keys = with_stored(keys, []);
    assert!(admitted(&keys, "/v1/events", None));
    assert!(admitted(&keys, "/v1/events", Some("Bearer anything")), "there are no keys at all");
    let keys = with_stored(keys, [stored("wk_gamma", Role::Read, None)]);
    assert!(admitted(&keys, "/v1/events", None));
    assert!(admitted(&keys, "/v1/events", Some("Bearer wk_gamma")));
    assert!(!admitted(&keys, "/v1/events", Some("Bearer wk_deleted")), "a deleted key must not become an admin");
}

#[test]
fn a_session_has_the_rights_and_the_name_of_its_key_for_twelve_hours() {
    let key = stored("wk_gamma", Role::Read, None);
    let keys = with_stored(KeyRing::new(SettingKeys::new(["alpha"])), [key.clone()]);
    let end = NOW + 12 * HOUR;
    for (secret, role, name, key_id) in
        [("wk_gamma", Role::Read, "stored", Some(key.id)), (" alpha ", Role::Admin, "WEIR_API_KEYS", None)]
    {
        let token = log_in(&keys, secret);
        let caller = with_cookie(&keys, &token, end - Duration::from_nanos(1)).unwrap();
        assert_eq!((caller.role(), caller.credential()), (role, Credential::Session { expires_at: end }));
        assert_eq!((caller.actor().name(), caller.actor().key_id().copied()), (name, key_id));
        assert_eq!(with_cookie(&keys, &token, end).unwrap_err(), 401);
    }
}

#[test]
fn a_session_ends_with_its_key() {
    let soon = NOW + HOUR;
    let keys = with_stored(
        KeyRing::new(SettingKeys::new(["alpha"])),
        [stored("wk_forever", Role::Read, None), stored("wk_hour", Role::Read, Some(soon))],
    );
    let (forever, hour, alpha) = (log_in(&keys, "wk_forever"), log_in(&keys, "wk_hour"), log_in(&keys, "alpha"));
    assert_eq!(with_cookie(&keys, &hour, soon - Duration::from_nanos(1)).unwrap().role(), Role::Read);
    assert_eq!(with_cookie(&keys, &hour, soon).unwrap_err(), 401);
    // Deleted, and created again with the same name: another secret is another key.
    let keys = with_stored(keys, [stored("wk_other", Role::Admin, None)]);
    assert_eq!(with_cookie(&keys, &forever, NOW).unwrap_err(), 401);
    // Another secret: every session has ended.
    *keys.stored.write() = Some(StoredKeys::new([6; 32], [stored("wk_forever", Role::Read, None)]));
    assert_eq!(with_cookie(&keys, &forever, NOW).unwrap_err(), 401);
    assert_eq!(with_cookie(&keys, &alpha, NOW).unwrap_err(), 401);
    // A key that the settings no longer have.
    let other = with_stored(KeyRing::new(SettingKeys::new(["beta"])), []);
    assert_eq!(with_cookie(&other, &alpha, NOW).unwrap_err(), 401);
}

#[test]
fn a_changed_role_takes_effect_in_open_sessions() {
    let keys = with_stored(KeyRing::new(SettingKeys::new(["alpha"])), [stored("wk_gamma", Role::Admin, None)]);
    let token = log_in(&keys, "wk_gamma");
    let keys = with_stored(keys, [stored("wk_gamma", Role::Ingest, None)]);
    assert_eq!(with_cookie(&keys, &token, NOW).unwrap().role(), Role::Ingest);
}

#[test]
fn only_tokens_that_this_server_has_signed_are_accepted() {
    let keys = with_stored(KeyRing::new(SettingKeys::new(["alpha"])), [stored("wk_gamma", Role::Read, None)]);
    let token = log_in(&keys, "wk_gamma");
    // Signed by a key that is not stored; by the zero digest; and nothing at all.
    let foreign = Token::sign(&SECRET, &digest("wk_deleted"), NOW + HOUR).to_text();
    let guessed = Token::sign(&SECRET, &KeyDigest::default(), NOW + HOUR).to_text();
    // Signed as sessions once were, with what the keys' table has.
    let of_digest = Token::sign(&digest("wk_gamma"), &digest("wk_gamma"), NOW + HOUR).to_text();
    let of_setting = Token::sign(&digest("alpha"), &digest("alpha"), NOW + HOUR).to_text();
    for forged in [&*foreign, &guessed, &of_digest, &of_setting, &token[..70], "", "wk_gamma", "fixed-by-an-attacker"] {
        assert_eq!(with_cookie(&keys, forged, NOW).unwrap_err(), 401, "{forged}");
    }
    // A forged cookie before the own one does not hide it.
    let cookies = format!("weir_session={foreign}; weir_session={token}");
    assert!(caller(&keys, "/v1/events", &[("cookie", cookies)], NOW).is_ok());
}

#[test]
fn a_key_overrides_the_cookie_even_if_the_key_is_not_valid() {
    let keys = with_stored(KeyRing::new(SettingKeys::new(["alpha"])), [stored("wk_gamma", Role::Read, None)]);
    let cookie = ("cookie", format!("weir_session={}", log_in(&keys, "wk_gamma")));
    let with = |value: &str| caller(&keys, "/v1/events", &[cookie.clone(), ("authorization", value.to_owned())], NOW);
    assert_eq!(with("Bearer alpha").unwrap().unwrap().role(), Role::Admin);
    assert_eq!(with("Bearer wrong").unwrap_err(), 401);
    // The password of a reverse proxy is not for Weir.
    assert_eq!(with("Basic bWU6cHc=").unwrap().unwrap().role(), Role::Read);
}

#[test]
fn a_server_without_keys_ignores_the_cookie_of_another_server() {
    let keys = with_stored(KeyRing::new(SettingKeys::default()), [stored("wk_gamma", Role::Read, None)]);
    let other = Token::sign(&SECRET, &digest("of another server"), NOW + HOUR).to_text();
    assert_eq!(with_cookie(&keys, &other, NOW).unwrap().credential(), Credential::Nothing);
    assert_eq!(with_cookie(&keys, &log_in(&keys, "wk_gamma"), NOW).unwrap().role(), Role::Read);
}

#[test]
fn an_empty_key_never_logs_in() {
    for keys in [KeyRing::new(SettingKeys::default()), KeyRing::new(SettingKeys::new(["alpha"]))] {
        let keys = with_stored(keys, []);
        for key in ["", " ", "alph"] {
            assert!(keys.log_in(key, NOW).unwrap().is_none(), "{key:?}");
        }
    }
}
