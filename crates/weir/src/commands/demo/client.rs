//! The producer of the demo. It uses only the HTTP API of Weir.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail};
use reqwest::Method;
use serde_json::{Value, json};
use weir_core::{audit::AuditReport, signing::Secret};

use super::DemoDestination;

/// Events posted in one batch.
const BATCH: usize = 500;

pub(super) struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    pub(super) fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
        Ok(Self { http, base: format!("http://{address}") })
    }

    async fn request(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.base));
        if let Some(body) = &body {
            request = request.json(body);
        }
        let response = request.send().await.with_context(|| format!("{method} {path}"))?;
        let (status, body) = (response.status(), response.json::<Value>().await?);
        if !status.is_success() {
            bail!("{method} {path} answered {status}: {body}");
        }
        Ok(body)
    }

    /// Creates a destination and returns its id and its secret.
    pub(super) async fn create(&self, destination: &DemoDestination, url: &str) -> anyhow::Result<(String, Secret)> {
        let settings = json!({
            "url": url,
            "name": destination.name,
            "rate_limits": destination.limits,
            "max_in_flight": destination.max_in_flight,
        });
        let created = self.request(Method::POST, "/v1/destinations", Some(settings)).await?;
        let text = |field: &str| created[field].as_str().map(str::to_owned).with_context(|| format!("no {field}"));
        Ok((text("id")?, text("secret")?.parse()?))
    }

    pub(super) async fn burst(&self, destination: &str, count: usize) -> anyhow::Result<()> {
        let event = |n| json!({"type": "video.created", "data": {"video": n}, "destinations": [destination]});
        for first in (0..count).step_by(BATCH) {
            let events: Vec<_> = (first..count.min(first + BATCH)).map(event).collect();
            self.request(Method::POST, "/v1/events/batch", Some(json!({ "events": events }))).await?;
        }
        Ok(())
    }

    pub(super) async fn edit(&self, destination: &str, limits: &Value) -> anyhow::Result<()> {
        let path = format!("/v1/destinations/{destination}");
        self.request(Method::PATCH, &path, Some(json!({ "rate_limits": limits }))).await.map(drop)
    }

    /// Waits up to one second until the last results are recorded.
    pub(super) async fn wait_until_settled(&self, destination: &str) -> anyhow::Result<()> {
        for _ in 0..50 {
            let backlog = self.request(Method::GET, &format!("/v1/destinations/{destination}/backlog"), None).await?;
            if ["pending", "retrying", "delivering"].iter().all(|state| backlog[state] == 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub(super) async fn audit(&self, destination: &str) -> anyhow::Result<AuditReport> {
        let audit = self.request(Method::GET, &format!("/v1/destinations/{destination}/audit"), None).await?;
        serde_json::from_value(audit).context("the audit does not have the expected fields")
    }
}
