//! API keys in several processes: a change in one of them takes effect in the others within a second.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{App, Fleet, now};

const SECOND: Duration = Duration::from_secs(1);
const ROOT: &str = "sesame";

async fn status(app: &App, key: &str) -> u16 {
    let request = app.http.get(format!("{}/v1/events", app.url)).bearer_auth(key);
    request.send().await.unwrap().status().as_u16()
}

/// Asks again and again until the API accepts the key. If `expected` is false: until it refuses the key. Returns how long
/// that took.
async fn accepts(app: &App, key: &str, expected: bool) -> Duration {
    let began = now();
    loop {
        let is_accepted = match status(app, key).await {
            200 => true,
            // A key that is not valid yet is throttled like any other wrong key.
            401 | 429 => false,
            other => panic!("the API answers {other}"),
        };
        if is_accepted == expected {
            return now() - began;
        }
        assert!(now() - began < SECOND * 10, "the key is still {}", if expected { "refused" } else { "accepted" });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_is_valid_and_a_deleted_key_refused_in_every_process_within_a_second() {
    let fleet = Fleet::new().await;
    let environment = [("WEIR_API_KEYS", ROOT)];
    let (first, second) = (fleet.launch_with("api", &environment).await, fleet.launch_with("api", &environment).await);
    let keys = format!("{}/v1/keys", first.url);
    let request = first.http.post(&keys).bearer_auth(ROOT).json(&json!({"name": "reader", "role": "read"}));
    let created: Value = request.send().await.unwrap().json().await.unwrap();
    let secret = created["secret"].as_str().unwrap();
    assert_eq!(status(&first, secret).await, 200);
    let known_after = accepts(&second, secret, true).await;

    let path = format!("{keys}/{}", created["id"].as_str().unwrap());
    assert_eq!(first.http.delete(path).bearer_auth(ROOT).send().await.unwrap().status(), 204);
    assert_eq!(status(&first, secret).await, 401);
    let refused_after = accepts(&second, secret, false).await;
    // The change takes effect within a second. A second more is allowed for a busy machine.
    assert!(known_after < SECOND * 2 && refused_after < SECOND * 2, "{known_after:?}, {refused_after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_one_process_is_valid_in_every_other_one() {
    let fleet = Fleet::new().await;
    let environment = [("WEIR_API_KEYS", ROOT)];
    // Each may be the first that needs the secret of sessions.
    let (first, second) = tokio::join!(fleet.launch_with("api", &environment), fleet.launch_with("api", &environment));
    for (one, other) in [(&first, &second), (&second, &first)] {
        let login = one.http.post(format!("{}/v1/session", one.url)).json(&json!({"key": ROOT})).send().await.unwrap();
        assert_eq!(login.status(), 201);
        let cookie = login.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        for app in [one, other] {
            let me = app.http.get(format!("{}/v1/me", app.url)).header("cookie", &cookie).send().await.unwrap();
            assert_eq!(me.status(), 200);
        }
    }
}
