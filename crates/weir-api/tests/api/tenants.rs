//! Keys that are bound to tenants: data of other tenants does not exist for them, in no answer and no figure.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde_json::{Value, json};
use weir_core::outcome::Verdict;

use crate::harness::{FOREIGN, OWN, ROOT, Server};

#[tokio::test]
async fn data_without_a_tenant_belongs_to_the_only_tenant_of_the_key() {
    let server = Server::with_keys().await;
    let (one, two) = (server.key("operate", json!([OWN])).await, server.key("operate", json!([OWN, FOREIGN])).await);
    let destination = json!({"url": "https://acme.example/"});
    let event = json!({"type": "t", "data": 1});
    let created = server.ask(&one, "POST", "/v1/destinations", Some(&destination)).await.expect(StatusCode::CREATED);
    assert_eq!(created["tenant"], OWN);
    let accepted = server.ask(&one, "POST", "/v1/events", Some(&event)).await.expect(StatusCode::ACCEPTED);
    assert_eq!((&accepted["tenant"], &accepted["deliveries"]), (&json!(OWN), &json!(1)));
    for (path, body) in [("/v1/destinations", &destination), ("/v1/events", &event)] {
        assert_eq!(server.ask(&two, "POST", path, Some(body)).await.pointers(), ["/tenant"]);
    }
    // In lists a key with several tenants need not name one. A third tenant stays hidden.
    let third = json!({"url": "https://third.example/", "tenant": "third"});
    let third = server.root("POST", "/v1/destinations", third).await["id"].clone();
    let verify = json!({"destination": third, "headers": {}, "body": ""});
    server.ask(&two, "POST", "/v1/verify", Some(&verify)).await.problem(404);
    server.root("POST", "/v1/events", json!({"type": "t", "data": 1, "tenant": "third"})).await;
    server.root("POST", "/v1/destinations", json!({"url": "https://globex.example/", "tenant": FOREIGN})).await;
    server.root("POST", "/v1/events", json!({"type": "t", "data": 1, "tenant": FOREIGN})).await;
    for (path, of_one, of_two, of_all) in
        [("/v1/destinations", 1, 2, 3), ("/v1/events", 1, 2, 3), ("/v1/deliveries?count=true", 1, 2, 3)]
    {
        for (key, expected) in [(one.as_str(), of_one), (&two, of_two), (ROOT, of_all)] {
            let list = server.ask(key, "GET", path, None).await.expect(StatusCode::OK);
            assert_eq!(list["data"].as_array().unwrap().len(), expected, "{path}: {list}");
            assert!(list["count"].is_null() || list["count"] == json!({"value": expected, "capped": false}), "{list}");
        }
    }
    // The same for replays: a replay of two tenants is hidden from a key of only one of them.
    let replay = server.ask(&two, "POST", "/v1/replays", Some(&json!({}))).await.expect(StatusCode::ACCEPTED);
    assert_eq!((&replay["tenant"], &replay["tenants"]), (&Value::Null, &json!([OWN, FOREIGN])));
    let path = format!("/v1/replays/{}", replay["id"].as_str().unwrap());
    server.ask(&two, "GET", &path, None).await.expect(StatusCode::OK);
    server.ask(&one, "GET", &path, None).await.problem(404);
    let path = format!("/v1/destinations?tenant={OWN}");
    assert_eq!(server.ask(&two, "GET", &path, None).await.expect(StatusCode::OK)["data"][0]["id"], created["id"]);
    // A destination keeps its tenant.
    let path = format!("/v1/destinations/{}", created["id"].as_str().unwrap());
    for key in [&one, &two] {
        server.ask(key, "PATCH", &path, Some(&json!({"tenant": FOREIGN}))).await.problem(409);
        let same = server.ask(key, "PATCH", &path, Some(&json!({"tenant": OWN}))).await.expect(StatusCode::OK);
        assert_eq!(same["tenant"], OWN);
    }
}

#[tokio::test]
async fn the_pages_of_replays_have_only_those_of_the_own_tenant() {
    let server = Server::with_keys().await;
    let key = server.key("read", json!([OWN])).await;
    let mut own = Vec::new();
    for number in 0..7 {
        server.clock.advance(Duration::from_millis(1));
        let tenant = if number % 3 == 0 { OWN } else { FOREIGN };
        let replay = server.root("POST", "/v1/replays", json!({"tenant": tenant})).await;
        own.extend((tenant == OWN).then(|| replay["id"].clone()));
    }
    let (mut path, mut pages) = ("/v1/replays?limit=1".to_owned(), Vec::new());
    loop {
        let page = server.ask(&key, "GET", &path, None).await.expect(StatusCode::OK);
        pages.push(page["data"].as_array().unwrap().iter().map(|replay| replay["id"].clone()).collect::<Vec<_>>());
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/replays?limit=1&cursor={cursor}");
    }
    own.reverse();
    assert_eq!(pages, own.into_iter().map(|id| vec![id]).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_replay_of_one_destination_belongs_to_its_tenant() {
    let server = Server::with_keys().await;
    let (own, foreign) = (server.key("read", json!([OWN])).await, server.key("read", json!([FOREIGN])).await);
    let destination = server.loaded(OWN, 1).await;
    let replay = server.root("POST", "/v1/replays", json!({"destination": destination})).await;
    assert_eq!(replay["tenant"], OWN);
    let path = format!("/v1/replays/{}", replay["id"].as_str().unwrap());
    server.ask(&own, "GET", &path, None).await.expect(StatusCode::OK);
    server.ask(&foreign, "GET", &path, None).await.problem(404);
}

impl Server {
    /// A destination of a tenant with this number of deliveries.
    async fn loaded(&self, tenant: &str, deliveries: usize) -> String {
        let body = json!({"url": "https://example.com/", "tenant": tenant});
        let id = self.root("POST", "/v1/destinations", body).await["id"].as_str().unwrap().to_owned();
        let event = json!({"type": "t", "data": 1, "tenant": tenant});
        let mut missing = deliveries;
        while missing > 0 {
            let events = vec![event.clone(); missing.min(1_000)];
            missing -= events.len();
            self.clock.advance(Duration::from_millis(1));
            self.root("POST", "/v1/events/batch", json!({"events": events})).await;
        }
        id
    }
}

#[tokio::test]
async fn the_groups_of_failures_do_not_count_those_of_other_tenants() {
    let server = Server::with_keys().await;
    let bound = server.key("read", json!([OWN])).await;
    for (tenant, failures) in [(OWN, 1), (FOREIGN, 3)] {
        let id = server.loaded(tenant, failures).await;
        for claimed in server.claim(&id).await {
            server.settle(&claimed, 503, Verdict::Dead).await;
        }
    }
    for (key, groups, scanned) in [(bound.as_str(), 1, 1), (ROOT, 2, 4)] {
        let shown = server.ask(key, "GET", "/v1/deliveries/groups", None).await.expect(StatusCode::OK);
        assert_eq!((shown["data"].as_array().unwrap().len(), &shown["scanned"]), (groups, &json!(scanned)), "{shown}");
    }
}

/// A page examines 5000 deliveries, and its cursor names the last of them. The answers about a hidden destination with
/// 5001 deliveries must not show this.
#[tokio::test]
async fn a_destination_of_another_tenant_looks_like_one_that_does_not_exist() {
    let server = Server::with_keys().await;
    let bound = server.key("read", json!([OWN])).await;
    let foreign = server.loaded(FOREIGN, 5_001).await;
    let lists =
        ["/v1/deliveries?count=true&", "/v1/deliveries?state=dead,failed&", "/v1/deliveries/groups?", "/v1/activity?"];
    for path in lists {
        let mut answers = Vec::new();
        for id in [&*foreign, "dst_01h2xcejqtf2nbrexx3vqjhp41"] {
            let path = format!("{path}destination={id}");
            answers.push(server.ask(&bound, "GET", &path, None).await.expect(StatusCode::OK));
        }
        assert_eq!(answers[0], answers[1], "{path}");
        assert_eq!(answers[0]["data"], json!([]), "{path}");
    }
    // The holder of a key for all tenants sees them.
    let path = format!("/v1/deliveries?count=true&destination={foreign}");
    let shown = server.ask(ROOT, "GET", &path, None).await.expect(StatusCode::OK);
    assert_eq!(shown["count"], json!({"value": 5_001, "capped": false}));
}

/// Each page here ends with rows of another tenant. Its cursor must not contain the id of such a row.
#[tokio::test]
async fn a_cursor_does_not_have_the_id_of_a_hidden_row_and_the_pages_are_complete() {
    let server = Server::with_keys().await;
    let bound = server.key("read", json!([OWN])).await;
    server.loaded(OWN, 2).await;
    server.loaded(FOREIGN, 5_001).await;
    for list in ["/v1/deliveries", "/v1/events"] {
        let (mut path, mut rows, mut pages) = (list.to_owned(), 0, 0);
        loop {
            let page = server.ask(&bound, "GET", &path, None).await.expect(StatusCode::OK);
            (rows, pages) = (rows + page["data"].as_array().unwrap().len(), pages + 1);
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            let named: [u8; 16] = URL_SAFE_NO_PAD.decode(cursor).unwrap()[1..].try_into().unwrap();
            // All random bits of the cursor are set: it names the end of a millisecond and not the id of a row.
            let random = u128::from_be_bytes(named) & 0x3fff_ffff_ffff_ffff;
            assert_eq!(random, 0x3fff_ffff_ffff_ffff, "{list}: {cursor}");
            path = format!("{list}?cursor={cursor}");
        }
        assert_eq!((rows, pages), (2, 2), "{list}");
    }
}
