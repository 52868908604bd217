//! Weir's HTTP API as the harness uses it.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use bytes::Bytes;
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_core::audit::AuditReport;

use crate::client::Connection;

/// Where it answers, and the key to it.
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
        let host = url.strip_prefix("http://").with_context(|| format!("{url}: a target is http://HOST:PORT"))?;
        let host = host.trim_end_matches('/');
        let mut addresses = tokio::net::lookup_host(host).await.with_context(|| format!("cannot find {host}"))?;
        let address = addresses.next().with_context(|| format!("{host} has no address"))?;
        Ok(Self::new(address, key))
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        Ok(Connection::open(self.address).await?.with_key(self.key.as_deref()))
    }

    pub(crate) async fn create_destination(&self, settings: &Value) -> anyhow::Result<String> {
        let answer: Value = self.ask(Method::POST, "/v1/destinations", settings).await?;
        Ok(answer["id"].as_str().context("a destination without an id")?.to_owned())
    }

    pub(crate) async fn patch(&self, destination: &str, settings: &Value) -> anyhow::Result<()> {
        let _: Value = self.ask(Method::PATCH, &format!("/v1/destinations/{destination}"), settings).await?;
        Ok(())
    }

    /// What waits or is under way.
    pub(crate) async fn backlog(&self, connection: &mut Connection, destination: &str) -> anyhow::Result<u64> {
        let path = format!("/v1/destinations/{destination}/backlog");
        let answer: Value = serde_json::from_slice(&connection.send(Method::GET, &path, Bytes::new()).await?)?;
        let count = |name: &str| answer[name].as_u64().with_context(|| format!("{path} has no `{name}`"));
        Ok(count("pending")? + count("retrying")? + count("delivering")?)
    }

    pub(crate) async fn audit(&self, connection: &mut Connection, destination: &str) -> anyhow::Result<AuditReport> {
        let path = format!("/v1/destinations/{destination}/audit");
        Ok(serde_json::from_slice(&connection.send(Method::GET, &path, Bytes::new()).await?)?)
    }

    pub(crate) async fn delete(&self, connection: &mut Connection, destination: &str) -> anyhow::Result<()> {
        connection.send(Method::DELETE, &format!("/v1/destinations/{destination}"), Bytes::new()).await?;
        Ok(())
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<T> {
        let (status, answer) = self.connect().await?.exchange(method, path, body.to_string().into()).await?;
        if !(200..300).contains(&status) {
            bail!("{path} was answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(serde_json::from_slice(&answer)?)
    }
}
