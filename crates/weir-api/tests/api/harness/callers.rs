//! Requests with API keys.

use axum::body::Body;
use http::{Request, header};
use serde_json::{Value, json};
use weir_api::SettingKeys;

use super::{Options, Reply, Server};

/// The key in the settings of the server.
pub(crate) const ROOT: &str = "sesame";
pub(crate) const OWN: &str = "acme";
pub(crate) const FOREIGN: &str = "globex";

impl Server {
    /// A server whose settings have the key [`ROOT`].
    pub(crate) async fn with_keys() -> Self {
        Self::start_with(Options { api_keys: SettingKeys::new([ROOT]), ..Options::default() }).await
    }

    /// Sends a request with a key.
    pub(crate) async fn ask(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let request =
            Request::builder().method(method).uri(path).header(header::AUTHORIZATION, format!("Bearer {key}"));
        let request = match body {
            Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        self.send(request.unwrap()).await
    }

    /// What [`ROOT`] gets, which must be a success.
    pub(crate) async fn root(&self, method: &str, path: &str, body: Value) -> Value {
        let reply = self.ask(ROOT, method, path, Some(&body)).await;
        assert!(reply.status.is_success(), "{method} {path}: {reply:?}");
        serde_json::from_slice(&reply.body).unwrap()
    }

    /// Creates a key and returns its secret.
    pub(crate) async fn key(&self, role: &str, tenants: Value) -> String {
        let created = self.root("POST", "/v1/keys", json!({"name": role, "role": role, "tenants": tenants})).await;
        created["secret"].as_str().unwrap().to_owned()
    }
}
