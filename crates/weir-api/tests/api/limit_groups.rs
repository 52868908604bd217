//! Limit groups: the resource, destinations that join and leave, figures, previews and audits.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::Clock as _;

use crate::harness::{FOREIGN, OWN, Server};

const LIST: &str = "/v1/limit-groups";
const URL: &str = "https://example.com/hooks";

fn per_second(limit: u32) -> Value {
    json!([{"limit": limit, "period": "second"}])
}

impl Server {
    /// Creates a group of the default tenant, and returns its id.
    async fn limit_group(&self, body: Value) -> String {
        self.post(LIST, body).await.expect(StatusCode::CREATED)["id"].as_str().unwrap().to_owned()
    }

    async fn member(&self, group: &str, weight: u32, limits: Value) -> String {
        self.destination(json!({"url": URL, "limit_group": group, "weight": weight, "rate_limits": limits})).await
    }

    async fn overview_of(&self, group: &str) -> Value {
        self.get(&format!("{LIST}/{group}/overview")).await.expect(StatusCode::OK)
    }

    async fn posted(&self, destination: &str, count: usize) {
        let event = json!({"type": "t", "data": 1, "destinations": [destination]});
        let events = vec![event; count];
        self.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    }
}

#[tokio::test]
async fn a_limit_group_is_created_edited_and_deleted_by_its_version() {
    let server = Server::start().await;
    let created = server.post(LIST, json!({"name": "Stripe", "rate_limits": per_second(100)})).await;
    let etag = created.header("etag").to_owned();
    let path = created.header("location").to_owned();
    let created = created.expect(StatusCode::CREATED);
    assert_eq!(path, format!("{LIST}/{}", created["id"].as_str().unwrap()));
    assert_eq!((&created["tenant"], &created["max_in_flight"]), (&json!("default"), &Value::Null));
    assert_eq!(server.queue.edited_groups().len(), 1);
    let shown = server.get(&path).await;
    assert_eq!((shown.header("etag"), shown.expect(StatusCode::OK)), (etag.as_str(), created.clone()));
    server.post(LIST, json!({"name": "Stripe"})).await.problem(409);
    let edit = async |body: Value, if_match: &str| {
        let mut request = crate::harness::json_request("PATCH", &path, body);
        request.headers_mut().insert("if-match", if_match.parse().unwrap());
        server.send(request).await
    };
    let edited = edit(json!({"max_in_flight": 5, "rate_limits": per_second(20)}), &etag).await;
    let newer = edited.header("etag").to_owned();
    assert_eq!(edited.expect(StatusCode::OK)["max_in_flight"], 5);
    edit(json!({"name": "Other"}), &etag).await.problem(412);
    let bare = edit(json!({"max_in_flight": null, "rate_limits": null}), &newer).await.expect(StatusCode::OK);
    assert_eq!((&bare["max_in_flight"], &bare["rate_limits"]), (&Value::Null, &json!([])));
    let announced = server.queue.edited_groups();
    assert!(announced.last().unwrap().rate_limits.is_unlimited());
    server.patch(&path, json!({"tenant": "acme"})).await.problem(409);
    for (body, pointer) in [
        (json!({"name": ""}), "/name"),
        (json!({"max_in_flight": 0}), "/max_in_flight"),
        (json!({"colour": 1}), "/colour"),
    ] {
        assert_eq!(server.patch(&path, &body).await.pointers(), [pointer], "{body}");
    }
    assert_eq!(server.delete(&path).await.status, StatusCode::NO_CONTENT);
    server.get(&path).await.problem(404);
    let actions = server.get("/v1/activity").await.expect(StatusCode::OK);
    let actions: Vec<&str> =
        actions["data"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["limit_group.deleted", "limit_group.edited", "limit_group.edited", "limit_group.created"]);
}

#[tokio::test]
async fn a_put_creates_a_limit_group_and_then_replaces_it() {
    let server = Server::start().await;
    let path = format!("{LIST}/by-name/*/Stripe%20EU");
    let created = server.put(&path, json!({"rate_limits": per_second(5), "max_in_flight": 9}), &[]).await;
    let created = created.expect(StatusCode::CREATED);
    assert_eq!((&created["tenant"], &created["name"]), (&Value::Null, &json!("Stripe EU")));
    server.put(&path, json!({}), &[("if-none-match", "*")]).await.problem(412);
    let replaced = server.put(&path, json!({"rate_limits": per_second(6)}), &[]).await;
    let etag = replaced.header("etag").to_owned();
    let replaced = replaced.expect(StatusCode::OK);
    assert_eq!((&replaced["id"], &replaced["max_in_flight"]), (&created["id"], &Value::Null));
    let same = server.put(&path, json!({"rate_limits": per_second(6)}), &[]).await;
    assert_eq!(same.header("etag"), etag, "nothing has changed");
    assert_eq!(server.put(&path, json!({"name": "a"}), &[]).await.pointers(), ["/name"]);
}

#[tokio::test]
async fn a_destination_joins_a_limit_group_and_leaves_it() {
    let server = Server::start().await;
    let group = server.limit_group(json!({"name": "a", "rate_limits": per_second(10)})).await;
    let member = server.member(&group, 5, json!([])).await;
    let path = format!("/v1/destinations/{member}");
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!((&shown["limit_group"], &shown["weight"]), (&json!(group), &json!(5)));
    server.delete(&format!("{LIST}/{group}")).await.problem(409);
    server.queue.edited();
    let left = server.patch(&path, json!({"limit_group": null, "weight": null})).await.expect(StatusCode::OK);
    assert_eq!((&left["limit_group"], &left["weight"]), (&Value::Null, &json!(1)));
    assert_eq!(server.queue.edited().len(), 1, "a move is announced as an edit");
    let foreign = server.limit_group(json!({"name": "a", "tenant": "acme"})).await;
    let unknown = "lgr_01h2xcejqtf2nbrexx3vqjhp41";
    for body in [json!({"limit_group": foreign}), json!({"limit_group": unknown}), json!({"limit_group": "a"})] {
        assert_eq!(server.patch(&path, &body).await.pointers(), ["/limit_group"], "{body}");
        let mut new = body.clone();
        new["url"] = URL.into();
        assert_eq!(server.post("/v1/destinations", &new).await.pointers(), ["/limit_group"], "{body}");
    }
    assert_eq!(server.patch(&path, json!({"weight": 1_001})).await.pointers(), ["/weight"]);
    server.patch(&path, json!({"limit_group": group})).await.expect(StatusCode::OK);
    assert_eq!(server.delete(&path).await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.delete(&format!("{LIST}/{group}")).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_destination_that_nobody_sends_to_leaves_few_groups() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "paused": true})).await;
    for n in 0..9 {
        let group = server.limit_group(json!({"name": format!("{n}")})).await;
        let moved = server.patch(&format!("/v1/destinations/{id}"), json!({"limit_group": group})).await;
        if n < 8 {
            moved.expect(StatusCode::OK);
        } else {
            assert!(moved.problem(409)["detail"].as_str().unwrap().contains("resume it"));
        }
    }
}

#[tokio::test]
async fn limit_groups_of_other_tenants_do_not_exist_and_those_of_all_are_for_admins() {
    let server = Server::with_keys().await;
    let own = server.key("operate", json!([OWN])).await;
    let all = server.root("POST", LIST, json!({"name": "all", "tenant": null})).await["id"].clone();
    let foreign = server.root("POST", LIST, json!({"name": "a", "tenant": FOREIGN})).await["id"].clone();
    let mine = server.ask(&own, "POST", LIST, Some(&json!({"name": "a"}))).await.expect(StatusCode::CREATED);
    assert_eq!(mine["tenant"], OWN);
    for id in [&all, &foreign] {
        for (method, body) in [("GET", None), ("PATCH", Some(json!({"name": "b"}))), ("DELETE", None)] {
            let path = format!("{LIST}/{}", id.as_str().unwrap());
            server.ask(&own, method, &path, body.as_ref()).await.problem(404);
        }
        let body = json!({"url": URL, "limit_group": id});
        let refused = server.ask(&own, "POST", "/v1/destinations", Some(&body)).await;
        assert!(!refused.status.is_success());
    }
    server.ask(&own, "POST", LIST, Some(&json!({"name": "x", "tenant": null}))).await.problem(403);
    let list = server.ask(&own, "GET", LIST, None).await.expect(StatusCode::OK);
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    // A destination that an admin has put into the group of all tenants does not leave it by its tenant's key.
    let member = json!({"url": URL, "tenant": OWN, "limit_group": all});
    let member = server.root("POST", "/v1/destinations", member).await["id"].clone();
    let path = format!("/v1/destinations/{}", member.as_str().unwrap());
    server.ask(&own, "PATCH", &path, Some(&json!({"limit_group": null}))).await.problem(403);
    server.ask(&own, "PATCH", &path, Some(&json!({"max_in_flight": 3}))).await.expect(StatusCode::OK);
    let operate = server.key("operate", Value::Null).await;
    server.ask(&operate, "PATCH", &path, Some(&json!({"limit_group": null}))).await.problem(403);
}

/// As for a destination ([`crate::overrides`]).
#[tokio::test]
async fn an_override_and_a_hold_of_a_limit_group_end_by_themselves() {
    let server = Server::start().await;
    let group = server.limit_group(json!({"name": "a", "rate_limits": per_second(10)})).await;
    let member = server.member(&group, 1, json!([])).await;
    server.posted(&member, 5).await;
    server.queue.edited_groups();
    let path = format!("{LIST}/{group}");
    let minute = Duration::from_secs(60);
    let begin = async |what: &str, mut body: Value| {
        (body["for_s"], body["reason"]) = (60.into(), "launch day".into());
        server.post(&format!("{path}/{what}"), body).await.expect(StatusCode::OK)
    };
    let begun = begin("override", json!({"rate_limits": per_second(50), "max_in_flight": 9})).await;
    assert_eq!((&begun["override"]["max_in_flight"], &begun["replaced"]), (&json!(9), &Value::Null));
    assert_eq!((&begun["rate_limits"][0]["limit"], &begun["max_in_flight"]), (&json!(10), &Value::Null), "they stay");
    let announced = server.queue.edited_groups().remove(0);
    assert_eq!(announced.at(server.clock.now()).rate_limits.per_second(), Some(50.0));
    let by_name = format!("{LIST}/by-name/default/a");
    let put = server.put(&by_name, json!({"rate_limits": per_second(20)}), &[]).await.expect(StatusCode::OK);
    assert_eq!(put["override"], begun["override"], "an edit leaves it");
    let overview = server.overview_of(&group).await;
    assert_eq!((&overview["configured_per_s"], &overview["override"]), (&json!(50.0), &begun["override"]));

    let again = begin("override", json!({"rate_limits": []})).await;
    assert_eq!(again["replaced"], begun["override"]);
    let held = begin("hold", json!({})).await;
    assert_eq!((&held["hold"]["reason"], &held["override"]), (&json!("launch day"), &again["override"]));
    let ended = server.delete(&format!("{path}/hold")).await.expect(StatusCode::OK);
    assert_eq!((&ended["hold"], &ended["override"]), (&Value::Null, &again["override"]));
    begin("hold", json!({})).await;
    server.clock.advance(Duration::from_secs(3));
    let overview = server.overview_of(&group).await;
    assert_eq!((&overview["data"][0]["reason"], &overview["data"][0]["share_per_s"]), (&json!("held"), &json!(0.0)));

    server.clock.advance(minute);
    let after = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!((&after["override"], &after["hold"]), (&Value::Null, &Value::Null));
    // An edit renews the sample, and drops what is over.
    server.patch(&path, json!({"max_in_flight": 7})).await.expect(StatusCode::OK);
    assert_eq!(server.overview_of(&group).await["configured_per_s"], 20.0);
    let changes = server.store.limit_group_changes(group.parse().unwrap()).await.unwrap();
    let rates: Vec<_> = changes.iter().map(|of| of.limits.as_slice().first().map(|limit| limit.limit.get())).collect();
    assert_eq!(rates, [Some(10), Some(50), None, Some(20)]);
    let wrong = json!({"for_s": 60, "reason": "r"});
    assert_eq!(server.post(&format!("{path}/override"), wrong).await.pointers(), ["/rate_limits"]);
}

#[tokio::test]
async fn the_overview_of_a_limit_group_divides_its_rate_by_weight() {
    let server = Server::start().await;
    let group = server.limit_group(json!({"name": "a", "rate_limits": per_second(80)})).await;
    let (one, two) = (server.member(&group, 1, json!([])).await, server.member(&group, 2, json!([])).await);
    let slow = server.member(&group, 5, per_second(10)).await;
    let idle = server.member(&group, 1, json!([])).await;
    for (id, count) in [(&one, 700), (&two, 500), (&slow, 300)] {
        server.posted(id, count).await;
    }
    let shown = server.overview_of(&group).await;
    assert_eq!((&shown["members"], &shown["backlog"]), (&json!(4), &json!(1_500)));
    assert_eq!(shown["binding"], json!({"limit": 80, "period": "second"}));
    let members: Vec<&Value> = shown["data"].as_array().unwrap().iter().collect();
    let ids: Vec<&Value> = members.iter().map(|member| &member["id"]).collect();
    assert_eq!(ids, [&json!(one), &json!(two), &json!(slow), &json!(idle)], "the largest backlog first");
    let share = |at: usize| members[at]["share_per_s"].as_f64().unwrap();
    // 80/s are 79.2 slots a second: the slow one takes its 9.9, and the others 23.1 and 46.2.
    assert!((share(2) - 9.9).abs() < 0.2, "{shown}");
    assert!((share(1) / share(0) - 2.0).abs() < 0.01, "{shown}");
    assert!((share(0) + share(1) + share(2) - 80.0).abs() < 1.0, "{shown}");
    let reasons: Vec<&Value> = members.iter().map(|member| &member["reason"]).collect();
    assert_eq!(reasons, [&json!("group"), &json!("group"), &json!("limit"), &Value::Null]);
    // The destination says the same, and its time is that of its share.
    let member = server.get(&format!("/v1/destinations/{one}/overview")).await.expect(StatusCode::OK);
    assert_eq!(member["reason"], "group");
    let eta = member["drain_eta_s"].as_f64().unwrap();
    assert!((25.0..40.0).contains(&eta), "700 by 23/s: {eta}");
    let list = server.get(LIST).await.expect(StatusCode::OK);
    assert_eq!((&list["data"][0]["backlog"], &list["data"][0]["members"]), (&json!(1_500), &json!(4)));
    // Its own limit bounds the slow one. With a higher one the group leaves it five eighths.
    let preview = format!("/v1/destinations/{slow}/preview");
    let shown = server.post(&preview, json!({"rate_limits": per_second(100)})).await.expect(StatusCode::OK);
    assert_eq!(shown["now"]["binding"], json!({"limit": 10, "period": "second"}));
    assert_eq!(shown["binding"], "group");
    let rate = shown["effective_per_s"].as_f64().unwrap();
    assert!((rate - 50.0).abs() < 1.0, "{shown}");
    let shown = server.post(&preview, json!({"rate_limits": per_second(20)})).await.expect(StatusCode::OK);
    assert_eq!(shown["binding"], json!({"limit": 20, "period": "second"}), "the group leaves more");
}

#[tokio::test]
async fn the_overview_of_a_limit_group_in_points_takes_the_mean_cost_of_what_waits() {
    let server = Server::start().await;
    let points = json!([{"limit": 600, "period": "minute", "unit": "cost"}]);
    let group = server.limit_group(json!({"name": "a", "rate_limits": points})).await;
    let (one, two) = (server.member(&group, 1, json!([])).await, server.member(&group, 1, json!([])).await);
    for id in [&one, &two] {
        for number in 0..20 {
            let event = json!({"type": "t", "data": number, "cost": 5, "destinations": [id]});
            server.post("/v1/events", event).await.expect(StatusCode::ACCEPTED);
        }
    }
    // 10 points a second are two sends a second, and one for each member.
    let shown = server.overview_of(&group).await;
    let near = |shown: &Value, expected: f64| (shown.as_f64().unwrap() - expected).abs() < expected / 8.0;
    assert!(near(&shown["configured_per_s"], 2.0) && near(&shown["drain_eta_s"], 20.0), "{shown}");
    assert!(near(&shown["data"][0]["share_per_s"], 1.0) && near(&shown["data"][0]["drain_eta_s"], 20.0), "{shown}");
}

/// A limit of the window shape may be used up in the first seconds of its window.
#[tokio::test]
async fn the_sends_of_the_members_of_a_group_in_points_are_averaged_over_a_minute() {
    let server = Server::start().await;
    let points = json!([{"limit": 600, "period": "minute", "unit": "cost"}]);
    let group = server.limit_group(json!({"name": "a", "rate_limits": points})).await;
    let id = server.member(&group, 1, json!([])).await;
    server.posted(&id, 30).await;
    let claimed = server.claim(&id).await;
    server.record_sends(&claimed, std::time::Duration::from_millis(50)).await;
    server.clock.advance(std::time::Duration::from_secs(30));
    let shown = server.overview_of(&group).await;
    let sent = shown["data"][0]["achieved_per_s"].as_f64().unwrap();
    assert!((0.3..0.7).contains(&sent), "30 in the last minute: {shown}");
    let member = server.get(&format!("/v1/destinations/{id}/backlog")).await.expect(StatusCode::OK);
    assert!((0.3..0.7).contains(&member["achieved_per_s"].as_f64().unwrap()), "{member}");
}

#[tokio::test]
async fn a_preview_of_a_limit_group_sends_the_backlogs_of_all_members() {
    let server = Server::start().await;
    let group = server.limit_group(json!({"name": "a", "rate_limits": per_second(10)})).await;
    for _ in 0..2 {
        let member = server.member(&group, 1, json!([])).await;
        server.posted(&member, 100).await;
    }
    let shown = server.post(&format!("{LIST}/{group}/preview"), json!({"rate_limits": per_second(100)})).await;
    let shown = shown.expect(StatusCode::OK);
    let eta = |forecast: &Value| forecast["drain_eta_s"].as_f64().unwrap();
    assert!((1.5..3.0).contains(&eta(&shown)) && (18.0..22.0).contains(&eta(&shown["now"])), "{shown}");
    assert_eq!(shown["binding"], json!({"limit": 100, "period": "second"}));
}

#[tokio::test]
async fn the_history_of_a_limit_group_adds_up_its_members_while_they_were_in_it() {
    let server = Server::start().await;
    let group = server.limit_group(json!({"name": "a", "rate_limits": per_second(10)})).await;
    let (one, two) = (server.member(&group, 1, json!([])).await, server.member(&group, 1, json!([])).await);
    let outside = server.destination(json!({"url": URL})).await;
    for (id, count) in [(&one, 3), (&two, 2), (&outside, 7)] {
        server.posted(id, count).await;
    }
    let raise = json!({"rate_limits": per_second(50), "for_s": 60, "reason": "launch day"});
    server.post(&format!("{LIST}/{group}/override"), raise).await.expect(StatusCode::OK);
    let history = async || server.get(&format!("{LIST}/{group}/history")).await.expect(StatusCode::OK);
    let sum = |history: &Value, of: &str| -> u64 {
        history["data"].as_array().unwrap().iter().map(|bucket| bucket[of].as_u64().unwrap()).sum()
    };
    let shown = history().await;
    assert_eq!((&shown["step"], shown["data"].as_array().unwrap().len()), (&json!("10s"), 90));
    assert_eq!((sum(&shown, "arrivals"), sum(&shown, "sends")), (5, 0));
    // What comes after a member has left is not that of the group.
    let left = server.patch(&format!("/v1/destinations/{two}"), json!({"limit_group": null})).await;
    left.expect(StatusCode::OK);
    server.clock.advance(Duration::from_secs(70));
    server.posted(&two, 4).await;
    server.posted(&one, 1).await;
    let shown = history().await;
    assert_eq!(sum(&shown, "arrivals"), 6);
    let changes = shown["limit_changes"].as_array().unwrap();
    let limits: Vec<&Value> = changes.iter().map(|change| &change["rate_limits"][0]["limit"]).collect();
    assert_eq!(limits, [&json!(10), &json!(50), &json!(10)], "the override has ended");
}

#[tokio::test]
async fn an_audit_of_a_limit_group_judges_the_sends_of_all_members_while_they_were_in_it() {
    let server = Server::start().await;
    let group = server.limit_group(json!({"name": "a", "rate_limits": per_second(10)})).await;
    let (first, sends) = server.claimed(json!([]), 10).await;
    let (_, others) = server.claimed(json!([]), 10).await;
    // Ten each in one second, before either is in the group.
    server.record_sends(&sends[..5], Duration::from_millis(20)).await;
    for id in [&first, others[0].claim.destination_id.to_string().as_str()] {
        server.patch(&format!("/v1/destinations/{id}"), json!({"limit_group": group})).await.expect(StatusCode::OK);
    }
    server.clock.advance(Duration::from_millis(100));
    let audit = async || server.get(&format!("{LIST}/{group}/audit")).await.expect(StatusCode::OK);
    let judged = audit().await;
    assert_eq!((&judged["sends"], &judged["rate_limits"][0]["violations"]), (&json!(0), &json!(0)));
    server.record_sends(&sends[5..], Duration::from_millis(100)).await;
    server.record_sends(&others[..5], Duration::from_millis(100)).await;
    let judged = audit().await;
    assert_eq!((&judged["sends"], &judged["rate_limits"][0]["violations"]), (&json!(10), &json!(0)), "{judged}");
    // One of them alone keeps ten a second; both together do not.
    server.record_sends(&others[5..], Duration::from_millis(20)).await;
    let judged = audit().await;
    assert_eq!(judged["sends"], 15);
    assert!(judged["rate_limits"][0]["violations"].as_u64().unwrap() > 0, "{judged}");
    // After it has left, its sends are its own.
    server.patch(&format!("/v1/destinations/{first}"), json!({"limit_group": null})).await.expect(StatusCode::OK);
    assert_eq!(audit().await["sends"], 15);
}
