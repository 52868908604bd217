//! A client of Weir's HTTP API.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, anyhow};
use bytes::Bytes;
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_api_types::{Backlog, CreatedDestination};
use weir_core::audit::AuditReport;

use crate::{client::Connection, clock::now};

/// How long the API may be unavailable.
const TIMEOUT: Duration = Duration::from_secs(20);
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// The address of the API and the API key.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    address: SocketAddr,
    key: Option<String>,
}

impl Api {
    pub(crate) fn new(address: SocketAddr, key: Option<String>) -> Self {
        Self { address, key }
    }

    /// From `http://host:port`.
    pub(crate) async fn at(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let host = url.strip_prefix("http://").with_context(|| format!("{url}: a target must be http://HOST:PORT"))?;
        let host = host.trim_end_matches('/');
        let mut addresses = tokio::net::lookup_host(host).await.with_context(|| format!("cannot find {host}"))?;
        let address = addresses.next().with_context(|| format!("{host} has no address"))?;
        Ok(Self::new(address, key))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        Ok(Connection::open(self.address).await?.with_key(self.key.as_deref()))
    }

    pub(crate) async fn create_destination(&self, settings: &Value) -> anyhow::Result<String> {
        let created: CreatedDestination = self.ask(Method::POST, "/v1/destinations", settings).await?;
        Ok(created.destination.id)
    }

    pub(crate) async fn patch(&self, destination: &str, settings: &Value) -> anyhow::Result<()> {
        let _: Value = self.ask(Method::PATCH, &format!("/v1/destinations/{destination}"), settings).await?;
        Ok(())
    }

    pub(crate) async fn create_limit_group(&self, settings: &Value) -> anyhow::Result<String> {
        let created: weir_api_types::LimitGroup = self.ask(Method::POST, "/v1/limit-groups", settings).await?;
        Ok(created.id)
    }

    pub(crate) async fn edit_limit_group(&self, id: &str, settings: &Value) -> anyhow::Result<()> {
        let _: Value = self.ask(Method::PATCH, &format!("/v1/limit-groups/{id}"), settings).await?;
        Ok(())
    }

    /// The number of deliveries that are waiting or in flight.
    pub(crate) async fn backlog(&self, destination: &str) -> anyhow::Result<u64> {
        let path = format!("/v1/destinations/{destination}/backlog");
        let Backlog { pending, retrying, delivering, .. } = self.ask(Method::GET, &path, &Value::Null).await?;
        Ok(pending + retrying + delivering)
    }

    pub(crate) async fn audit(&self, destination: &str) -> anyhow::Result<AuditReport> {
        self.ask(Method::GET, &format!("/v1/destinations/{destination}/audit"), &Value::Null).await
    }

    pub(crate) async fn audit_of_limit_group(&self, id: &str) -> anyhow::Result<AuditReport> {
        self.ask(Method::GET, &format!("/v1/limit-groups/{id}/audit"), &Value::Null).await
    }

    /// The sum of these gauges; `None` while one of them is missing.
    pub(crate) async fn gauges(&self, names: &[&str]) -> anyhow::Result<Option<u64>> {
        let text = self.answer(Method::GET, "/metrics", &Value::Null).await?;
        Ok(sum_of(&String::from_utf8_lossy(&text), names))
    }

    pub(crate) async fn delete(&self, destination: &str) -> anyhow::Result<()> {
        self.answer(Method::DELETE, &format!("/v1/destinations/{destination}"), &Value::Null).await?;
        Ok(())
    }

    pub(crate) async fn delete_limit_group(&self, id: &str) -> anyhow::Result<()> {
        self.answer(Method::DELETE, &format!("/v1/limit-groups/{id}"), &Value::Null).await?;
        Ok(())
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<T> {
        Ok(serde_json::from_slice(&self.answer(method, path, body).await?)?)
    }

    /// Repeats the request while there is no answer or the answer is 503: a scenario may have stopped a process or
    /// server.
    async fn answer(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Bytes> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let deadline = now() + TIMEOUT;
        loop {
            let refusal = match self.exchange(method.clone(), path, body.clone()).await {
                Ok((status, answer)) if (200..300).contains(&status) => return Ok(answer),
                Ok((status, answer)) => {
                    let refusal = anyhow!("{path} was answered {status}: {}", String::from_utf8_lossy(&answer));
                    if status != 503 {
                        return Err(refusal);
                    }
                    refusal
                }
                Err(error) => error,
            };
            if now() >= deadline {
                return Err(refusal);
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(u16, Bytes)> {
        self.connect().await?.exchange(method, path, body).await
    }
}

/// The sum of all series with these names; `None` when a name has no series.
fn sum_of(text: &str, names: &[&str]) -> Option<u64> {
    let of = |name: &&str| {
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next() == Some(*name)).then(|| value.parse::<f64>().ok())?
        };
        text.lines().filter_map(value).reduce(|a, b| a + b)
    };
    names.iter().map(of).sum::<Option<f64>>().map(|sum| sum as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_summed_and_a_missing_gauge_is_not_zero() {
        let text = "# TYPE a gauge\na{shard=\"1\"} 2\na{shard=\"2\"} 3\nab 40\nb 1\n";
        assert_eq!(sum_of(text, &["a", "b"]), Some(6));
        assert_eq!(sum_of(text, &["a", "c"]), None);
    }
}
