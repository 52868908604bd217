//! Reads destinations and their audits from a server.

use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::StatusCode;
use serde::{Deserialize, de::DeserializeOwned};
use url::Url;
use weir_core::audit::AuditReport;

use super::Audited;
use crate::cli::{AuditArgs, Misuse};

/// An audit reads every send of a destination.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(super) struct Client {
    http: reqwest::Client,
    server: Url,
    key: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    data: Vec<Destination>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Destination {
    id: String,
    name: String,
}

#[derive(Deserialize)]
struct Problem {
    title: String,
    detail: Option<String>,
}

impl Client {
    pub(super) fn new(arguments: &AuditArgs) -> anyhow::Result<Self> {
        let from_environment = || {
            let keys = std::env::var("WEIR_API_KEYS").ok()?;
            keys.split(',').map(str::trim).find(|key| !key.is_empty()).map(str::to_owned)
        };
        let key = arguments.api_key.clone().or_else(from_environment);
        let http = reqwest::Client::builder().timeout(TIMEOUT).build()?;
        Ok(Self { http, server: arguments.url.clone(), key })
    }

    /// The audits of the destinations asked for, or of all, oldest destination first.
    pub(super) async fn audits(&self, arguments: &AuditArgs) -> anyhow::Result<Vec<Audited>> {
        let mut destinations = self.destinations().await?;
        if !arguments.destinations.is_empty() {
            for wanted in &arguments.destinations {
                if !destinations.iter().any(|destination| destination.is(wanted)) {
                    return Err(Misuse(format!("no destination has the id or name `{wanted}` (--destination)")).into());
                }
            }
            destinations.retain(|destination| arguments.destinations.iter().any(|wanted| destination.is(wanted)));
        }
        let range: Vec<_> = [("from", arguments.from), ("to", arguments.to)]
            .into_iter()
            .filter_map(|(name, at)| Some((name, at?.to_string())))
            .collect();
        let mut audited = Vec::with_capacity(destinations.len());
        for Destination { id, name } in destinations.into_iter().rev() {
            let report: AuditReport = self.get(&format!("v1/destinations/{id}/audit"), &range).await?;
            audited.push(Audited { id, name, report });
        }
        Ok(audited)
    }

    async fn destinations(&self) -> anyhow::Result<Vec<Destination>> {
        let mut destinations = Vec::new();
        let mut query = vec![("limit", "200".to_owned())];
        loop {
            let page: Page = self.get("v1/destinations", &query).await?;
            destinations.extend(page.data);
            let Some(cursor) = page.next_cursor else { return Ok(destinations) };
            query.truncate(1);
            query.push(("cursor", cursor));
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<T> {
        let mut url = self.server.join(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.get(url);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.with_context(|| format!("cannot reach a server at {} (--url)", self.server))?;
        match response.status() {
            status if status.is_success() => Ok(response.json().await?),
            StatusCode::UNAUTHORIZED => {
                Err(Misuse("the server asks for a key: give --api-key or WEIR_API_KEYS".to_owned()).into())
            }
            status => match response.json::<Problem>().await {
                Ok(problem) => bail!("{}: {}", problem.title, problem.detail.unwrap_or_default()),
                Err(_) => bail!("{path} answered {status}; is that a Weir server?"),
            },
        }
    }
}

impl Destination {
    fn is(&self, wanted: &str) -> bool {
        self.id == wanted || self.name == wanted
    }
}
