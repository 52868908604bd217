//! Actions that ask first: replays, purges, keys; and the pages around them.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS, problem};

const AT: &str = "2025-11-21T07:30:00.000Z";

fn replay(state: &str) -> Value {
    json!({
        "id": "rpl_1", "state": state, "states": ["dead"], "destination": null, "tenant": "acme", "event_type": null,
        "error": "5xx", "from": null, "to": null, "total": 200, "delivered": 90, "failed": 10, "cancelled": 0,
        "remaining": 100, "eta_s": 12, "created_at": AT, "ended_at": null,
    })
}

#[tokio::test]
async fn a_replay_starts_only_after_the_typed_confirmation() {
    let api = FakeApi::for_role("operate");
    api.on("POST", "/v1/replays", 200, json!({"total": 137}));
    let page = api.dashboard().get("/replays/new?state=dead&error=5xx").await;
    let counted = &api.seen("POST", "/v1/replays")[0];
    assert_eq!(counted.path, "/v1/replays?dry_run=true");
    assert_eq!((&counted.body["states"], &counted.body["error"]), (&json!(["dead"]), &json!("5xx")));
    // What arrives after the count is not replayed.
    assert_eq!(counted.body["to"], json!(AT));
    page.has(&["<strong>137</strong> deliveries match", "data-expect=\"replay 137\"", "name=\"error\" value=\"5xx\""]);

    let form = format!("state=dead&error=5xx&counted_until={AT}&total=137&form=form-1&confirm=");
    let unsure = api.dashboard().post("/replays", &format!("{form}replay+13")).await;
    unsure.has(&["Nothing was replayed.", "name=\"error\" value=\"5xx\""]);
    for nothing in ["state=dead&counted_until=2025-11-21T07:30:00.000Z&total=0", "state=dead&total=3"] {
        let confirmed = format!("{nothing}&confirm=replay+{}", &nothing[nothing.len() - 1..]);
        api.dashboard().post("/replays", &confirmed).await.has(&["Nothing was counted."]);
    }
    assert!(api.seen("POST", "/v1/replays").iter().all(|seen| seen.path.ends_with("?dry_run=true")));

    api.on("POST", "/v1/replays", 202, replay("running"));
    let page = api.dashboard().post("/replays", &format!("{form}replay+137")).await;
    assert_eq!(page.location(), "/replays/rpl_1");
    let sent = api.seen("POST", "/v1/replays").pop().unwrap();
    assert_eq!(sent.body, counted.body, "what was counted is replayed");
    assert_eq!((sent.path.as_str(), sent.headers["idempotency-key"].to_str().unwrap()), ("/v1/replays", "form-1"));
}

#[tokio::test]
async fn a_replay_shows_its_progress_beside_live_traffic() {
    let api = FakeApi::for_role("operate");
    api.on("GET", "/v1/replays/rpl_1", 200, replay("running"));
    let totals =
        json!({"destinations": 1, "backlog": 5, "undelivered": 0, "achieved_per_s": 9.5, "arrivals_per_s": 4.0});
    api.on("GET", "/v1/overview", 200, json!({"as_of": AT, "totals": totals, "data": [], "next_cursor": null}));
    let page = api.dashboard().get("/replays/rpl_1").await;
    page.has(&["50 %", "9.5/s", "12 s", "hx-get=\"/fragments/replays/rpl_1\"", "action=\"/replays/rpl_1/cancel\""]);
    api.dashboard().get("/fragments/replays/rpl_1").await.has(&["50 %"]).has_not(&["<html"]);
    api.on("GET", "/v1/replays", 200, json!({"data": [replay("cancelled")], "next_cursor": null}));
    api.dashboard().get("/replays").await.has(&["href=\"/replays/rpl_1\"", "cancelled"]);
    api.on("POST", "/v1/replays/rpl_1/cancel", 200, replay("cancelled"));
    assert_eq!(api.dashboard().post("/replays/rpl_1/cancel", "").await.location(), "/replays/rpl_1");
}

#[tokio::test]
async fn a_backlog_is_purged_only_after_the_typed_confirmation() {
    let api = FakeApi::for_role("operate");
    api.on("GET", "/v1/destinations/dst_1", 200, json!({"id": "dst_1", "name": XSS, "url": "https://example.com"}));
    api.on("POST", "/v1/destinations/dst_1/purge", 200, json!({"total": 1}));
    let page = api.dashboard().get("/destinations/dst_1/purge?state=pending&event_type=video.*").await;
    let counted = &api.seen("POST", "/v1/destinations/dst_1/purge")[0];
    assert_eq!(counted.path, "/v1/destinations/dst_1/purge?dry_run=true");
    assert_eq!(counted.body, json!({"states": ["pending"], "event_type": "video.*", "before": AT}));
    page.has(&["delivery matches", "data-expect=\"purge 1\""]).has_not(&["<script>alert"]);

    let form = format!("state=pending&event_type=video.*&counted_until={AT}&total=1&confirm=");
    let unsure = api.dashboard().post("/destinations/dst_1/purge", &format!("{form}purge")).await;
    unsure.has(&["Nothing was cancelled.", "name=\"state\" value=\"pending\"", "data-expect=\"purge 1\""]);
    let nothing = api.dashboard().post("/destinations/dst_1/purge", "total=0&confirm=purge+0").await;
    nothing.has(&["Nothing was counted."]);
    assert!(api.seen("POST", "/v1/destinations/dst_1/purge").iter().all(|seen| seen.path.ends_with("?dry_run=true")));
    api.on("POST", "/v1/destinations/dst_1/purge", 200, json!({"cancelled": 1}));
    let page = api.dashboard().post("/destinations/dst_1/purge", &format!("{form}purge+1")).await;
    assert_eq!(page.location(), "/destinations/dst_1");
    assert!(page.flash().contains("1 waiting delivery is cancelled"), "{}", page.flash());
    let purged = api.seen("POST", "/v1/destinations/dst_1/purge").pop().unwrap();
    assert_eq!(purged.body, counted.body, "what was counted is cancelled");
}

#[tokio::test]
async fn a_count_ends_now_or_at_the_earlier_instant_that_was_given() {
    let api = FakeApi::for_role("operate");
    api.on("GET", "/v1/destinations/dst_1", 200, json!({"id": "dst_1", "name": "a", "url": "https://example.com"}));
    api.on("POST", "/v1/destinations/dst_1/purge", 200, json!({"total": 3}));
    api.on("POST", "/v1/replays", 200, json!({"total": 3}));
    let cases = [("", AT), ("2025-11-21T07:00", "2025-11-21T07:00:00Z"), ("2099-01-01T00:00", AT)];
    for (given, until) in cases {
        let page = api.dashboard().get(&format!("/destinations/dst_1/purge?before={given}")).await;
        page.has(&[&format!("name=\"counted_until\" value=\"{until}\"")]);
        assert_eq!(api.seen("POST", "/v1/destinations/dst_1/purge").pop().unwrap().body["before"], until);
        api.dashboard().get(&format!("/replays/new?to={given}")).await.has(&["name=\"counted_until\""]);
        assert_eq!(api.seen("POST", "/v1/replays").pop().unwrap().body["to"], until);
    }
}

#[tokio::test]
async fn a_link_of_another_site_leads_to_the_pages_that_count() {
    let api = FakeApi::for_role("operate");
    api.on("GET", "/v1/destinations/dst_1", 200, json!({"id": "dst_1", "name": "a", "url": "https://example.com"}));
    let calls = ["/v1/replays", "/v1/destinations/dst_1/purge"];
    for (page, call) in ["/replays/new?state=dead", "/destinations/dst_1/purge"].into_iter().zip(calls) {
        api.on("POST", call, 200, json!({"total": 3}));
        for headers in [&[("sec-fetch-site", "cross-site")][..], &[]] {
            assert_eq!(api.dashboard().get_with(page, headers).await.status, 200);
        }
        // The form is refused all the same.
        let form = "state=dead&total=3&form=form-1&confirm=";
        for confirmed in ["replay+3", "purge+3"] {
            let headers = [("sec-fetch-site", "cross-site")];
            let to = call.trim_start_matches("/v1");
            assert_eq!(api.dashboard().post_with(to, &format!("{form}{confirmed}"), &headers).await.status, 403);
        }
        let seen = api.seen("POST", call);
        assert_eq!(seen.len(), 2);
        for count in seen {
            let sites: Vec<_> =
                count.headers.get_all("sec-fetch-site").iter().map(|site| site.to_str().unwrap()).collect();
            assert_eq!((count.path, sites), (format!("{call}?dry_run=true"), vec!["same-origin"]));
        }
    }
}

#[tokio::test]
async fn the_secret_of_a_new_key_is_shown_once_and_stored_nowhere() {
    let api = FakeApi::for_role("admin");
    let key = json!({
        "id": "key_1", "name": XSS, "role": "read", "tenants": ["acme"], "created_at": AT, "expires_at": AT,
    });
    api.on("GET", "/v1/keys", 200, json!({"data": [key.clone()], "next_cursor": null}));
    let page = api.dashboard().get("/keys").await;
    page.has(&["expired", "acme", "key_1"]).has_not(&["<script>alert", "wk_"]);
    let mut created = key;
    created["secret"] = json!("wk_secret");
    api.on("POST", "/v1/keys", 201, created);
    let form = "name=video&role=read&tenants=acme,+globex&expires=2026-11-21T07:30&form=form-1";
    let page = api.dashboard().post("/keys", form).await;
    page.has(&["wk_secret"]);
    assert_eq!((page.status.as_u16(), page.header("cache-control")), (201, "no-store"));
    let sent = &api.seen("POST", "/v1/keys")[0];
    let expected = json!({
        "name": "video", "role": "read", "tenants": ["acme", "globex"], "expires_at": "2026-11-21T07:30:00Z",
    });
    assert_eq!((&sent.body, sent.headers["idempotency-key"].to_str().unwrap()), (&expected, "form-1"));

    let mut refusal = problem("Invalid", "the request is invalid");
    refusal["errors"] = json!([{"pointer": "/name", "detail": "must be 1 to 100 characters"}]);
    api.on("POST", "/v1/keys", 422, refusal);
    let page = api.dashboard().post("/keys", "name=&role=operate").await;
    page.has(&["id=\"fault-name\">Must be 1 to 100 characters.</span>", "value=\"operate\" checked"]);
    assert_eq!(page.status, 422);
}

#[tokio::test]
async fn a_key_that_is_bound_to_tenants_makes_keys_for_them() {
    let api = FakeApi::for_role("admin");
    let me = json!({
        "name": "billing", "role": "admin", "tenants": ["acme", "globex"], "session_expires_at": null,
        "keys_required": true, "version": "0.1.0",
    });
    api.on("GET", "/v1/me", 200, me);
    api.on("GET", "/v1/keys", 200, json!({"data": [], "next_cursor": null}));
    api.dashboard().get("/keys").await.has(&["name=\"tenants\" value=\"acme, globex\""]).has_not(&["all; or"]);
}

#[tokio::test]
async fn a_key_is_deleted_after_the_ticked_box() {
    let api = FakeApi::for_role("admin");
    api.on("DELETE", "/v1/keys/key_1", 204, Value::Null);
    assert!(api.dashboard().post("/keys/key_1/delete", "").await.flash().contains("Nothing was deleted"));
    assert!(api.seen("DELETE", "/v1/keys/key_1").is_empty());
    assert!(api.dashboard().post("/keys/key_1/delete", "sure=on").await.flash().contains("is deleted"));
}

#[tokio::test]
async fn an_empty_threshold_turns_its_alert_off() {
    let api = FakeApi::for_role("admin");
    let policy = json!({"backlog_depth": 500, "oldest_age_s": null, "drain_beyond_ttl": true, "dead_letters": 1});
    api.on("GET", "/v1/alerts", 200, policy.clone());
    let no_events = json!({"data": [], "next_cursor": null});
    api.on("GET", "/v1/events", 200, no_events.clone());
    api.on("GET", "/v1/alerts/active", 200, no_events.clone());
    api.dashboard().get("/alerts").await.has(&["value=\"500\"", "weir.backlog.high", "name=\"drain_beyond_ttl\""]);
    api.on("PUT", "/v1/alerts", 200, policy);
    let page = api.dashboard().post("/alerts", "backlog_depth=&oldest_age_s=1+min&dead_letters=5").await;
    assert_eq!(page.location(), "/alerts");
    let expected = json!({"backlog_depth": null, "oldest_age_s": 60, "dead_letters": 5, "drain_beyond_ttl": false});
    assert_eq!(api.seen("PUT", "/v1/alerts")[0].body, expected);
    let mut refusal = problem("Invalid", "the request is invalid");
    refusal["errors"] = json!([
        {"pointer": "/oldest_age_s", "detail": "must be a whole number from 1 to 31536000"},
        {"pointer": "/dead_letters", "detail": "must be a whole number from 1 to 1000000000"},
    ]);
    api.on("PUT", "/v1/alerts", 422, refusal);
    let page = api.dashboard().post("/alerts", "backlog_depth=70&oldest_age_s=15&dead_letters=many").await;
    assert_eq!(page.status, 422);
    page.has(&[
        "Needs a unit, such as 500 ms, 15 s or 72 h.",
        "Must be a whole number from 1 to 1,000,000,000.",
        "value=\"70\"",
        "value=\"15\" placeholder=\"off; or 15 min\" autocomplete=\"off\" aria-invalid=\"true\"",
        "value=\"many\"",
    ]);
    let reader = FakeApi::for_role("read");
    reader.on("GET", "/v1/alerts", 200, expected);
    reader.on("GET", "/v1/events", 200, no_events.clone());
    reader.on("GET", "/v1/alerts/active", 200, no_events);
    reader.dashboard().get("/alerts").await.has(&["<fieldset disabled>"]).has_not(&[">Save<"]);
}

#[tokio::test]
async fn the_activity_shows_who_changed_what() {
    let api = FakeApi::for_role("read");
    let entry = json!({
        "id": "act_1", "at": AT, "actor": XSS, "actor_kind": "key", "actor_key_id": "key_1", "action": "destination.edited", "tenant": "acme",
        "subject": {"type": "destination", "id": "dst_1", "name": "Acme"}, "request_id": "r1",
        "before": {"rate_limits": [{"limit": 10, "period": "second", "burst": 1}]},
        "after": {"rate_limits": [{"limit": 20, "period": "second", "burst": 1}]},
    });
    api.on("GET", "/v1/activity", 200, json!({"data": [entry], "next_cursor": "n"}));
    let page = api.dashboard().get("/activity?actor=billing&destination=dst_1").await;
    assert_eq!(api.seen("GET", "/v1/activity")[0].path, "/v1/activity?destination=dst_1&actor=billing");
    page.has(&["<del>10/s</del>", "<ins>20/s</ins>", "destination edited", "href=\"/destinations/dst_1\">Acme</a>"]);
    page.has_not(&["<script>alert"]);
}

#[tokio::test]
async fn the_activity_shows_what_each_actor_is() {
    let api = FakeApi::for_role("read");
    let entry = |kind: &str, key_id: Option<&str>| {
        json!({
            "id": "act_1", "at": AT, "actor": "weir", "actor_kind": kind, "actor_key_id": key_id,
            "action": "destination.paused", "request_id": null,
        })
    };
    for (kind, key_id, shown, hidden) in [
        ("key", Some("key_1"), ">key_1</a>", "Weir itself"),
        ("setting", None, "key of the settings", "Weir itself"),
        ("anonymous", None, "without a key", "Weir itself"),
        ("system", None, "Weir itself", "key_1"),
    ] {
        api.on("GET", "/v1/activity", 200, json!({"data": [entry(kind, key_id)], "next_cursor": null}));
        api.dashboard().get("/activity").await.has(&[shown]).has_not(&[hidden]);
    }
}

#[tokio::test]
async fn the_activity_of_a_destination_is_found_by_its_name() {
    let api = FakeApi::for_role("read");
    let found = json!({"destination": {"id": "dst_1", "name": "Acme", "url": "https://example.com"}});
    api.on("GET", "/v1/overview", 200, json!({"data": [found], "next_cursor": null}));
    let page = api.dashboard().get("/activity?destination=Acme&actor=billing").await;
    assert_eq!(page.location(), "/activity?destination=dst_1&actor=billing");
    api.on("GET", "/v1/overview", 200, json!({"data": [], "next_cursor": null}));
    api.on("GET", "/v1/activity", 200, json!({"data": [], "next_cursor": null}));
    let page = api.dashboard().get("/activity?destination=Acme").await;
    page.has(&["No destination has “Acme”", "name=\"destination\" value=\"Acme\"", "No change matches"]);
    assert!(api.seen("GET", "/v1/activity").is_empty(), "a filter that names nothing matches nothing");
}

#[tokio::test]
async fn the_activity_of_a_destination_stays_on_its_page() {
    let api = FakeApi::for_role("read");
    api.on("GET", "/v1/destinations/dst_1", 200, json!({"id": "dst_1", "name": "Acme", "url": "https://example.com"}));
    let entry = json!({
        "id": "act_1", "at": AT, "actor": "ann", "actor_kind": "key", "actor_key_id": "key_1", "action": "destination.edited",
        "before": {"retry": {"max_attempts": 16, "max_age_s": 259_200}}, "request_id": "r1",
        "after": {"retry": {"max_attempts": 16, "max_age_s": 3_600}},
    });
    api.on("GET", "/v1/activity", 200, json!({"data": [entry], "next_cursor": "c2"}));
    let page = api.dashboard().get("/destinations/dst_1/activity?actor=ann&destination=dst_2").await;
    assert_eq!(api.seen("GET", "/v1/activity")[0].path, "/v1/activity?destination=dst_1&actor=ann");
    page.has(&[
        "<h1>Acme</h1>",
        "href=\"/destinations/dst_1/activity\" aria-current=\"page\">Activity</a>",
        "<span class=\"soft\">Longest age</span> <del>72 h</del> → <ins>1 h</ins>",
        "href=\"/destinations/dst_1/activity?actor=ann&#38;cursor=c2\" rel=\"next\"",
        "href=\"/activity/export?destination=dst_1&#38;actor=ann&#38;format=csv\"",
    ]);
    page.has_not(&["name=\"destination\"", "max_attempts"]);
    let fragment = page
        .text
        .split("hx-get=\"")
        .find(|part| part.contains("seen="))
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .replace("&#38;", "&");
    let (fragment, _) = fragment.split_once("seen=").unwrap();
    let part = api.dashboard().get(fragment.trim_end_matches('&')).await;
    part.has(&["href=\"/destinations/dst_1/activity?actor=ann&#38;cursor=c2\" rel=\"next\""]).has_not(&["<html"]);
}

#[tokio::test]
async fn a_new_replay_is_chosen_on_its_page_and_a_wrong_choice_stays_there() {
    let api = FakeApi::for_role("operate");
    api.on("GET", "/v1/replays", 200, json!({"data": [], "next_cursor": null}));
    api.dashboard().get("/replays").await.has(&["href=\"/replays/new\">New replay</a>"]);
    let page = api.dashboard().get("/replays/new").await;
    page.has(&["<h1>New replay</h1>", "value=\"dead\" checked", "value=\"failed\" checked", "value=\"cancelled\">"]);
    assert!(api.seen("POST", "/v1/replays").is_empty(), "nothing is counted before something is chosen");

    api.on("GET", "/v1/overview", 200, json!({"data": [], "next_cursor": null}));
    let page = api.dashboard().get("/replays/new?destination=Nobody&state=dead&tenant=acme").await;
    assert_eq!(page.status, 422);
    page.has(&[
        "id=\"fault-destination\">No destination has “Nobody” in its name or URL.</span>",
        "name=\"destination\" value=\"Nobody\"",
        "name=\"tenant\" value=\"acme\"",
        "value=\"failed\">",
    ]);
    let mut refusal = problem("Invalid", "the request is invalid");
    refusal["errors"] = json!([{"pointer": "/error", "detail": "must be a status, such as `503`"}]);
    api.on("POST", "/v1/replays", 422, refusal);
    let page = api.dashboard().get("/replays/new?error=often").await;
    page.has(&["id=\"fault-error\">Must be a status, such as 503.</span>", "name=\"error\" value=\"often\""]);

    let reader = FakeApi::for_role("read");
    reader.on("GET", "/v1/replays", 200, json!({"data": [], "next_cursor": null}));
    reader.dashboard().get("/replays").await.has_not(&["New replay"]);
}

#[tokio::test]
async fn a_key_shows_who_made_it_and_when_it_was_last_used() {
    let api = FakeApi::for_role("admin");
    let made = json!({"id": "key_2", "name": "b", "created_by": XSS, "created_by_key_id": "key_1", "last_used_at": AT});
    let by_setting = json!({"id": "key_1", "name": "a", "created_by": "WEIR_API_KEYS"});
    api.on("GET", "/v1/keys", 200, json!({"data": [made, by_setting], "next_cursor": null}));
    let page = api.dashboard().get("/keys").await;
    page.has(&["by <a href=\"/activity?actor=key_1\">", "by WEIR_API_KEYS", "no use recorded"])
        .has_not(&["<script>alert"]);
    assert_eq!(page.text.matches("data-label=\"Last used\"").count(), 2);
}

#[tokio::test]
async fn a_key_without_tenants_may_see_all_of_them() {
    let api = FakeApi::for_role("admin");
    let entry = json!({
        "id": "act_1", "at": AT, "actor": "billing", "actor_kind": "key", "actor_key_id": "key_1", "action": "key.created", "before": null, "request_id": null,
        "after": {"role": "read", "tenants": null}, "subject": {"type": "key", "id": "key_1", "name": "video"},
    });
    api.on("GET", "/v1/activity", 200, json!({"data": [entry], "next_cursor": null}));
    api.dashboard().get("/activity").await.has(&["<ins>all tenants</ins>"]).has_not(&["<ins>none</ins>"]);
}

#[tokio::test]
async fn the_status_shows_what_is_away() {
    let api = FakeApi::for_role("read");
    let mut status = json!({
        "as_of": AT, "version": "0.2.0", "store": {"kind": "postgres", "is_reachable": true, "answered_in_ms": 0.4},
        "queue": {"kind": "redis", "is_reachable": false, "answered_in_ms": null}, "queue_depths": null,
        "processes": [
            {"id": 1, "role": "worker", "version": "0.1.0", "started_at": "2025-11-21T07:00:00.000Z", "host": "web-1",
             "clock_ahead_s": 40.04},
            {"id": 2, "role": null, "version": null, "started_at": null},
        ],
    });
    api.on("GET", "/v1/status", 200, status.clone());
    let page = api.dashboard().get("/status").await;
    page.has(&["PostgreSQL", "Redis", "unreachable", "30 min", "Processes of several versions run", "older version"]);
    page.has(&["web-1", "40.0 s ahead of Redis"]);
    status["processes"] = Value::Null;
    api.on("GET", "/v1/status", 200, status);
    api.dashboard().get("/fragments/status").await.has(&["cannot be read"]).has_not(&["<html"]);
}

#[tokio::test]
async fn dead_letters_are_discarded_only_after_the_typed_confirmation() {
    let api = FakeApi::for_role("operate");
    api.on("POST", "/v1/deliveries/discard", 200, json!({"total": 137}));
    let page = api.dashboard().get("/dead-letters/discard?state=dead&error=5xx").await;
    let counted = &api.seen("POST", "/v1/deliveries/discard")[0];
    assert_eq!(counted.path, "/v1/deliveries/discard?dry_run=true");
    assert_eq!((&counted.body["states"], &counted.body["error"]), (&json!(["dead"]), &json!("5xx")));
    assert_eq!(counted.body["to"], json!(AT));
    page.has(&["<strong>137</strong> dead letters match", "data-expect=\"discard 137\"", "name=\"reason\""]);

    let form = format!("state=dead&error=5xx&counted_until={AT}&total=137&reason=by+hand&confirm=");
    let unsure = api.dashboard().post("/dead-letters/discard", &format!("{form}discard+13")).await;
    unsure.has(&["Nothing was discarded.", "value=\"by hand\"", "name=\"error\" value=\"5xx\""]);
    assert!(api.seen("POST", "/v1/deliveries/discard").iter().all(|seen| seen.path.ends_with("?dry_run=true")));
    api.on("POST", "/v1/deliveries/discard", 200, json!({"discarded": 137}));
    let done = api.dashboard().post("/dead-letters/discard", &format!("{form}discard+137")).await;
    assert_eq!((done.location(), done.flash().as_str()), ("/dead-letters", "done.137 dead letters are discarded."));
    let sent = api.seen("POST", "/v1/deliveries/discard").pop().unwrap();
    assert_eq!((&sent.body["to"], &sent.body["reason"]), (&json!(AT), &json!("by hand")));
}

#[tokio::test]
async fn one_dead_letter_is_discarded_on_its_page() {
    let api = FakeApi::for_role("operate");
    let dead = json!({"id": "dlv_1", "state": "dead", "destination_id": "dst_1", "event_id": "evt_1"});
    api.on("GET", "/v1/deliveries/dlv_1", 200, dead.clone());
    api.dashboard().get("/deliveries/dlv_1").await.has(&["action=\"/deliveries/dlv_1/discard\""]);
    api.on("POST", "/v1/deliveries/dlv_1/discard", 202, dead);
    let done = api.dashboard().post("/deliveries/dlv_1/discard", "reason=a+duplicate").await;
    assert_eq!((done.location(), done.flash().as_str()), ("/deliveries/dlv_1", "done.The dead letter is discarded."));
    assert_eq!(api.seen("POST", "/v1/deliveries/dlv_1/discard")[0].body, json!({"reason": "a duplicate"}));
    api.on("GET", "/v1/deliveries/dlv_1", 200, json!({"state": "delivered"}));
    api.dashboard().get("/deliveries/dlv_1").await.has_not(&["/discard"]);
}
