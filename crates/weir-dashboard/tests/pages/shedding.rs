//! Load shedding: what is refused, and the form of the limits.

use serde_json::json;

use crate::support::FakeApi;

const PATH: &str = "/v1/shedding";

#[tokio::test]
async fn what_is_refused_is_shown_with_suggested_limits() {
    let api = FakeApi::for_role("admin");
    let shedding = |now| api.on("GET", PATH, 200, json!({"now": now}));
    shedding(json!({"level": 2, "blind": true, "classes": [{}], "clients": [{}]}));
    let page = api.dashboard().get("/shedding").await;
    page.has(&["heavy requests and reads are refused", "The queue does not answer", "<b>billing</b>", "1,200", ">60<"]);
    page.has_not(&["A dry run"]);
    shedding(json!({"mode": "dry-run"}));
    api.dashboard().get("/fragments/shedding").await.has(&["A dry run", "nothing is relieved"]).has_not(&["<html"]);
}

#[tokio::test]
async fn limits_of_clients_are_set_and_those_of_classes_stay() {
    let api = FakeApi::for_role("admin");
    api.on("GET", PATH, 200, json!({}));
    let page = api.dashboard().get("/shedding").await;
    page.has(&["name=\"client-0\" value=\"acme\"", "name=\"in_flight-0\" min=\"0\" max=\"1000000\" value=\"32\""]);
    page.has(&["name=\"client-1\" value=\"\""]).has_not(&["client-2"]);
    api.on("PUT", PATH, 200, json!({}));
    let form = "mode=dry-run&target_ms=300&in_flight=&weight=1&client-0=&in_flight-0=32&weight-0=4&\
                client-1=key_7&in_flight-1=64&weight-1=";
    let page = api.dashboard().post("/shedding", form).await;
    assert_eq!(page.location(), "/shedding");
    let sent = &api.seen("PUT", PATH)[0].body;
    assert_eq!((&sent["mode"], &sent["target_ms"]), (&json!("dry-run"), &json!(300)));
    assert_eq!(sent["classes"]["heavy"]["in_flight"], 4);
    assert_eq!(sent["clients"]["overrides"], json!([{"key": "key_7", "in_flight": 64, "weight": null}]));
}

#[tokio::test]
async fn a_refused_limit_is_kept_and_named() {
    let api = FakeApi::for_role("admin");
    api.on("GET", PATH, 200, json!({}));
    let refusal = json!({
        "title": "x", "detail": "x", "errors": [{"pointer": "/clients/overrides/0/in_flight", "detail": "must be a whole number"}],
    });
    api.on("PUT", PATH, 422, refusal);
    let form = "mode=&target_ms=250&in_flight=&weight=1&client-0=acme&in_flight-0=many&weight-0=1";
    let page = api.dashboard().post("/shedding", form).await;
    assert_eq!(page.status, 422);
    page.has(&[
        "id=\"fault-in_flight-0\">Must be a whole number.</span>",
        "value=\"many\"",
        "href=\"#field-in_flight-0\"",
    ]);
}
