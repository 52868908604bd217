//! The alert thresholds, what is wrong now, and destinations of operators.

use std::{collections::BTreeSet, sync::Arc};

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, outcome::Verdict};

use crate::harness::{FOREIGN, OWN, ROOT, Server, json_request};

const ALERTS: &str = "/v1/alerts";

#[tokio::test]
async fn thresholds_are_the_defaults_until_they_are_set() {
    let server = Server::start().await;
    let defaults = json!({"backlog_depth": null, "oldest_age_s": null, "drain_beyond_ttl": true, "dead_letters": 1});
    assert_eq!(server.get(ALERTS).await.expect(StatusCode::OK), defaults);
    for (body, expected) in [
        (
            json!({"backlog_depth": 1_000, "drain_beyond_ttl": false, "dead_letters": null}),
            json!({"backlog_depth": 1_000, "oldest_age_s": null, "drain_beyond_ttl": false, "dead_letters": null}),
        ),
        (
            json!({"oldest_age_s": 60}),
            json!({"backlog_depth": null, "oldest_age_s": 60, "drain_beyond_ttl": true, "dead_letters": 1}),
        ),
        (json!({}), defaults.clone()),
    ] {
        let set = server.send(json_request("PUT", ALERTS, &body)).await.expect(StatusCode::OK);
        assert_eq!(set, expected, "{body}");
        assert_eq!(server.get(ALERTS).await.expect(StatusCode::OK), expected);
    }
}

#[tokio::test]
async fn invalid_thresholds_are_refused_by_name_and_nothing_changes() {
    let server = Server::start().await;
    let kept = json!({"backlog_depth": 5, "oldest_age_s": 6, "drain_beyond_ttl": false, "dead_letters": 7});
    server.send(json_request("PUT", ALERTS, &kept)).await.expect(StatusCode::OK);
    for (body, pointers) in [
        (json!({"backlog_depth": 0}), vec!["/backlog_depth"]),
        (json!({"backlog_depth": 1_000_000_001_u64, "dead_letters": 0}), vec!["/backlog_depth", "/dead_letters"]),
        (json!({"oldest_age_s": 31_536_001, "drain_beyond_ttl": "yes"}), vec!["/oldest_age_s", "/drain_beyond_ttl"]),
        (json!({"backlog_depth": 9, "depth": 1}), vec!["/depth"]),
        (json!([]), vec![""]),
    ] {
        let reply = server.send(json_request("PUT", ALERTS, &body)).await;
        reply.problem(422);
        assert_eq!(reply.pointers(), pointers, "{body}");
    }
    server.send(json_request("PUT", ALERTS, "{")).await.problem(400);
    server.get("/v1/alerts?tenant=a").await.problem(422);
    assert_eq!(server.get(ALERTS).await.expect(StatusCode::OK), kept);
}

#[tokio::test]
async fn a_destination_has_its_own_thresholds_until_they_are_removed() {
    let server = Server::start().await;
    let body = json!({"url": "https://example.com/", "alerts": {"backlog_depth": 9, "dead_letters": null}});
    let path = format!("/v1/destinations/{}", server.destination(body).await);
    let created = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(created["alerts"], json!({"backlog_depth": 9, "dead_letters": null}));
    for (patch, expected) in [
        (json!({"name": "other"}), json!({"backlog_depth": 9, "dead_letters": null})),
        (
            json!({"alerts": {"oldest_age_s": 60}}),
            json!({"backlog_depth": 9, "oldest_age_s": 60, "dead_letters": null}),
        ),
        (
            json!({"alerts": {"backlog_depth": null}}),
            json!({"backlog_depth": null, "oldest_age_s": 60, "dead_letters": null}),
        ),
        (json!({"alerts": null}), json!({})),
    ] {
        let patched = server.patch(&path, &patch).await.expect(StatusCode::OK);
        assert_eq!(patched["alerts"], expected, "{patch}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_are_recorded_one_after_the_other() {
    let server = Arc::new(Server::start().await);
    let changes: Vec<_> = (1..=20)
        .map(|depth| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.send(json_request("PUT", ALERTS, json!({"backlog_depth": depth}))).await })
        })
        .collect();
    for change in changes {
        change.await.unwrap().expect(StatusCode::OK);
    }
    let listed = server.get("/v1/activity").await.expect(StatusCode::OK);
    let rows = listed["data"].as_array().unwrap();
    let values =
        |field: &str| -> BTreeSet<String> { rows.iter().map(|row| row[field]["backlog_depth"].to_string()).collect() };
    // Each value is replaced once: the first is the default, and the last is the current one.
    let (before, after) = (values("before"), values("after"));
    assert_eq!((rows.len(), before.len(), after.len()), (20, 20, 20), "{listed}");
    let current = server.get(ALERTS).await.expect(StatusCode::OK)["backlog_depth"].to_string();
    assert_eq!(after.difference(&before).collect::<Vec<_>>(), [&current]);
}

/// The types of the alerts that are true now, with the names of their destinations.
async fn active(server: &Server, key: &str, query: &str) -> Vec<(String, String)> {
    let listed = server.ask(key, "GET", &format!("/v1/alerts/active{query}"), None).await.expect(StatusCode::OK);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = listed["data"].as_array().unwrap();
    rows.iter().map(|alert| (text(&alert["destination_name"]), text(&alert["type"]))).collect()
}

#[tokio::test]
async fn what_is_wrong_now_needs_no_subscriber_and_is_listed_for_the_tenants_of_the_key() {
    let server = Server::with_keys().await;
    for tenant in [OWN, FOREIGN] {
        let destination = json!({"url": "https://example.com/", "name": tenant, "tenant": tenant});
        let made = server.root("POST", "/v1/destinations", destination).await;
        for _ in 0..3 {
            server.root("POST", "/v1/events", json!({"type": "t", "data": 1, "tenant": tenant})).await;
        }
        let claimed = server.claim(made["id"].as_str().unwrap()).await;
        server.settle(&claimed[0], 503, Verdict::Dead).await;
        server.settle(&claimed[1], 503, Verdict::Retry { at: server.clock.now() }).await;
    }
    server.ask(ROOT, "PUT", ALERTS, Some(&json!({"backlog_depth": 1}))).await.expect(StatusCode::OK);
    let of = |name: &str| {
        ["weir.delivery.dead", "weir.backlog.high"].map(|alert_type| (name.to_owned(), alert_type.to_owned()))
    };
    let own = server.key("read", json!([OWN])).await;
    assert_eq!(active(&server, &own, "").await, of(OWN));
    let all = active(&server, ROOT, "").await;
    assert_eq!(all, [&of(OWN)[0], &of(FOREIGN)[0], &of(OWN)[1], &of(FOREIGN)[1]].map(Clone::clone));
    assert_eq!(active(&server, ROOT, "?type=weir.backlog.high&tenant=globex").await, of(FOREIGN)[1..]);
    assert_eq!(active(&server, ROOT, "?type=weir.breaker.opened").await, []);
    // Page by page, with the counts of all.
    let first = server.ask(ROOT, "GET", "/v1/alerts/active?limit=3", None).await.expect(StatusCode::OK);
    assert_eq!(first["counts"], json!({"weir.delivery.dead": 2, "weir.backlog.high": 2}));
    assert_eq!(first["data"][0]["data"]["dead_letters"], 1);
    let cursor = first["next_cursor"].as_str().unwrap();
    assert_eq!(active(&server, ROOT, &format!("?limit=3&cursor={cursor}")).await, all[3..]);
    server.ask(&own, "GET", "/v1/alerts/active?tenant=globex", None).await.problem(404);
    assert_eq!(server.ask(ROOT, "GET", "/v1/alerts/active?type=weir.test", None).await.pointers(), ["/type"]);
}

#[tokio::test]
async fn only_an_admin_of_all_tenants_makes_and_changes_a_destination_of_operators() {
    let server = Server::with_keys().await;
    let operators = json!({"url": "https://ops.example.com/", "name": "ops", "tenant": "*"});
    let (bound, operate) = (server.key("admin", json!([OWN])).await, server.key("operate", Value::Null).await);
    server.ask(&bound, "POST", "/v1/destinations", Some(&operators)).await.problem(404);
    server.ask(&operate, "POST", "/v1/destinations", Some(&operators)).await.problem(403);
    let made = server.root("POST", "/v1/destinations", operators.clone()).await;
    assert_eq!((&made["tenant"], &made["event_types"]), (&json!("*"), &json!(["weir.*"])));
    let path = format!("/v1/destinations/{}", made["id"].as_str().unwrap());
    let edit = json!({"url": "https://elsewhere.example.com/"});
    for (key, status) in [(&bound, 404), (&operate, 403)] {
        server.ask(key, "PATCH", &path, Some(&edit)).await.problem(status);
        server.ask(key, "DELETE", &path, None).await.problem(status);
        let body = Some(&edit);
        server.ask(key, "PUT", "/v1/destinations/by-name/*/ops", body).await.problem(status);
    }
    server.ask(&bound, "GET", &path, None).await.problem(404);
    server.ask(&operate, "GET", &path, None).await.expect(StatusCode::OK);
    // It gets nothing but alerts, and no event has its tenant.
    let everything = json!({"event_types": ["weir.*", "*"]});
    assert_eq!(server.ask(ROOT, "PATCH", &path, Some(&everything)).await.pointers(), ["/event_types"]);
    let event = json!({"type": "t", "data": 1, "tenant": "*"});
    assert_eq!(server.ask(ROOT, "POST", "/v1/events", Some(&event)).await.pointers(), ["/tenant"]);
    let named = json!({"type": "t", "data": 1, "destinations": [made["id"]]});
    assert_eq!(server.ask(ROOT, "POST", "/v1/events", Some(&named)).await.pointers(), ["/destinations/0"]);
    let key = json!({"name": "k", "role": "read", "tenants": ["*"]});
    assert_eq!(server.ask(ROOT, "POST", "/v1/keys", Some(&key)).await.pointers(), ["/tenants/0"]);
    assert_eq!(
        server.ask(ROOT, "GET", "/v1/destinations?tenant=*", None).await.expect(StatusCode::OK)["data"][0]["id"],
        made["id"]
    );
    server.ask(ROOT, "PATCH", &path, Some(&edit)).await.expect(StatusCode::OK);
    assert_eq!(server.ask(ROOT, "DELETE", &path, None).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn one_alert_tells_of_all_members_that_a_limit_group_holds_back() {
    let server = Server::with_keys().await;
    let mut groups = Vec::new();
    for (name, tenant) in [("own", json!(OWN)), ("shared", Value::Null)] {
        let limits = json!([{"limit": 5, "period": "minute"}]);
        let group = json!({"name": name, "tenant": tenant, "rate_limits": limits});
        let group = server.root("POST", "/v1/limit-groups", group).await;
        for number in 1..=2 {
            let name = format!("{name} {number}");
            let member =
                json!({"url": "https://example.com/", "name": name, "tenant": OWN, "limit_group": group["id"]});
            let member = server.root("POST", "/v1/destinations", member).await;
            for _ in 0..3 {
                let event = json!({"type": "t", "data": 1, "tenant": OWN, "destinations": [member["id"]]});
                server.root("POST", "/v1/events", event).await;
            }
        }
        groups.push(group["id"].clone());
    }
    let listed = async |key: &str| {
        let listed = server.ask(key, "GET", "/v1/alerts/active", None).await.expect(StatusCode::OK);
        let rows = listed["data"].as_array().unwrap().clone();
        let name = |row: &Value| {
            let name = [&row["limit_group_name"], &row["destination_name"]].into_iter().find(|name| !name.is_null());
            format!("{} {}", row["type"].as_str().unwrap(), name.unwrap().as_str().unwrap())
        };
        (rows.iter().map(name).collect::<Vec<_>>(), rows, listed["counts"].clone())
    };
    assert_eq!(listed(ROOT).await.0, [""; 0]);
    // By its own threshold one member is high, and its group speaks for it.
    server.ask(ROOT, "PUT", ALERTS, Some(&json!({"backlog_depth": 3}))).await.expect(StatusCode::OK);
    let (names, rows, counts) = listed(ROOT).await;
    let members = ["weir.backlog.high shared 1", "weir.backlog.high shared 2"];
    assert_eq!(names[..2], ["weir.limit_group.behind own", "weir.limit_group.behind shared"]);
    // The tenants of the members of a group for all tenants do not see it, so each of them alerts too.
    assert_eq!(names[2..], members);
    assert_eq!(counts, json!({"weir.limit_group.behind": 2, "weir.backlog.high": 2}));
    assert_eq!((&rows[0]["limit_group_id"], &rows[0]["destination_id"]), (&groups[0], &Value::Null));
    assert_eq!((&rows[0]["tenant"], &rows[1]["tenant"]), (&json!(OWN), &json!("*")));
    let data = &rows[0]["data"];
    assert_eq!(
        (&data["members"], &data["backlog"]["waiting"], &data["reasons"]),
        (&json!(2), &json!(6), &json!(["backlog_depth"]))
    );
    let key = server.key("read", json!([OWN])).await;
    assert_eq!(listed(&key).await.0, [&["weir.limit_group.behind own"][..], &members].concat());
}
