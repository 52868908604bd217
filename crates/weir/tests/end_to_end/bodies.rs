//! The forms of a body, as a receiver gets them, and that their signatures are of what is sent.

use std::time::Duration;

use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::support::{App, Receiver};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// With spaces and a number that a JSON library would write in another way.
const DATA: &str = r#"{"b":  1.0e2, "a": "é"}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_gets_its_events_in_the_form_that_it_sets() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    let forms = [
        ("envelope", Value::Null, "application/json"),
        ("data", json!("application/vnd.acme+json"), "application/vnd.acme+json"),
        ("cloudevents", Value::Null, "application/cloudevents+json"),
        ("cloudevents-binary", Value::Null, "application/json"),
    ];
    for (format, content_type, _) in &forms {
        let body = json!({"format": format, "content_type": content_type});
        let settings = json!({"url": receiver.url(&format!("/{format}")), "secret": SECRET, "body": body});
        app.destination(settings).await;
    }
    let client = crate::support::http_client().build().unwrap();
    let event = format!(r#"{{"type": "video.created", "data": {DATA}}}"#);
    let post = client.post(format!("{}/v1/events", app.url)).header("content-type", "application/json").body(event);
    let accepted: Value = post.send().await.unwrap().json().await.unwrap();
    for (format, _, content_type) in forms {
        let path = format!("/{format}");
        let arrival = receiver.wait_for(&path, 1, Duration::from_secs(10)).await.remove(0);
        assert!(Webhook::new(SECRET).unwrap().verify(&arrival.body, &arrival.headers).is_ok(), "{format}");
        assert_eq!(arrival.header("content-type"), content_type);
        let text = std::str::from_utf8(&arrival.body).unwrap();
        match format {
            "data" | "cloudevents-binary" => assert_eq!(text, DATA),
            _ => assert!(text.ends_with(&format!("\"data\":{DATA}}}")), "{text}"),
        }
        let attributes = [
            ("specversion", json!("1.0")),
            ("id", accepted["id"].clone()),
            ("source", json!("/weir/default")),
            ("type", json!("video.created")),
            ("time", accepted["created_at"].clone()),
        ];
        for (name, value) in attributes {
            let header = arrival.headers.get(format!("ce-{name}")).map(|value| json!(value.to_str().unwrap()));
            assert_eq!(header, (format == "cloudevents-binary").then(|| value.clone()), "{format}: {name}");
            if format == "cloudevents" {
                let json: Value = serde_json::from_str(text).unwrap();
                assert_eq!((&json[name], &json["datacontenttype"]), (&value, &json!("application/json")));
            }
        }
    }
}
