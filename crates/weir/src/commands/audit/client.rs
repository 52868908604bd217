//! The audit's way to the server: two kinds of request, and errors that say what to do.

use std::time::Duration;

use anyhow::Context;
use reqwest::{StatusCode, header};
use serde::{Deserialize, de::DeserializeOwned};
use url::Url;
use weir_core::audit::AuditReport;

use crate::cli::{AuditArgs, Misuse};

/// An audit reads every send of its range. The server gives up after 100 s, and says so.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The most the server gives in one page.
const PAGE: &str = "200";

/// A destination, as far as an audit needs it.
#[derive(Debug, Deserialize)]
pub(super) struct Destination {
    pub(super) id: String,
    #[serde(default)]
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
struct Page {
    data: Vec<Destination>,
    next_cursor: Option<String>,
}

/// What an answer that is not a success says of itself (RFC 9457).
#[derive(Debug, Default, Deserialize)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
}

pub(super) struct Client {
    http: reqwest::Client,
    server: Url,
    key: Option<String>,
    from_to: Vec<(&'static str, String)>,
}

impl Client {
    pub(super) fn new(args: &AuditArgs) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            // The server is one's own, often on loopback: a proxy for the internet would not reach it.
            .no_proxy()
            .user_agent(concat!("weir-audit/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("cannot make an HTTP client")?;
        let first_key = || {
            let keys = std::env::var("WEIR_API_KEYS").ok()?;
            keys.split(',').map(str::trim).find(|key| !key.is_empty()).map(str::to_owned)
        };
        let times = [("from", args.from), ("to", args.to)];
        let from_to = times.into_iter().filter_map(|(name, time)| Some((name, time?.to_string()))).collect();
        Ok(Self { http, server: args.url.clone(), key: args.api_key.clone().or_else(first_key), from_to })
    }

    /// The destinations with these ids or names, or all of them; the oldest first.
    pub(super) async fn destinations(&self, wanted: &[String]) -> anyhow::Result<Vec<Destination>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = vec![("limit", PAGE)];
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Page = self.get(&["v1", "destinations"], &query).await?;
            all.extend(page.data);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        all.reverse();
        select(all, wanted)
    }

    pub(super) async fn audit(&self, destination: &Destination) -> anyhow::Result<AuditReport> {
        let query: Vec<_> = self.from_to.iter().map(|(name, time)| (*name, time.as_str())).collect();
        self.get(&["v1", "destinations", &destination.id, "audit"], &query).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<T> {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.get(url.clone()).header(header::ACCEPT, "application/json");
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.with_context(|| {
            format!("no answer from {}; is `weir serve` running there? Name another server with --url", self.server)
        })?;
        let status = response.status();
        if status.is_success() {
            return response.json().await.with_context(|| format!("{url} did not answer as a Weir server does"));
        }
        let problem: Problem = response.json().await.unwrap_or_default();
        Err(refused(&url, status, &problem))
    }
}

fn refused(url: &Url, status: StatusCode, problem: &Problem) -> anyhow::Error {
    if status == StatusCode::UNAUTHORIZED {
        let message = "the server wants an API key it knows; give it with --api-key or in WEIR_API_KEYS";
        return Misuse(message.to_owned()).into();
    }
    let said = problem.detail.as_deref().or(problem.title.as_deref()).unwrap_or("no reason given");
    anyhow::anyhow!("{url} answered {status}: {said}")
}

/// Those of `all` that were asked for, by id or name. Asking for one that is not there is an error: an audit that looked at
/// nothing must not pass.
fn select(all: Vec<Destination>, wanted: &[String]) -> anyhow::Result<Vec<Destination>> {
    let is = |destination: &Destination, wanted: &String| destination.id == *wanted || destination.name == *wanted;
    if let Some(missing) = wanted.iter().find(|wanted| !all.iter().any(|destination| is(destination, wanted))) {
        return Err(Misuse(format!("no destination has the id or name `{missing}` (--destination)")).into());
    }
    let chosen = |destination: &Destination| wanted.is_empty() || wanted.iter().any(|wanted| is(destination, wanted));
    Ok(all.into_iter().filter(chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;

    fn destinations() -> Vec<Destination> {
        [("dst_1", "Acme"), ("dst_2", "Bolt"), ("dst_3", "Acme")]
            .map(|(id, name)| Destination { id: id.to_owned(), name: name.to_owned() })
            .into()
    }

    fn chosen(wanted: &[&str]) -> Vec<String> {
        let wanted: Vec<_> = wanted.iter().copied().map(str::to_owned).collect();
        select(destinations(), &wanted).unwrap().into_iter().map(|destination| destination.id).collect()
    }

    #[test]
    fn destinations_are_chosen_by_id_or_name() {
        assert_eq!(chosen(&[]), ["dst_1", "dst_2", "dst_3"]);
        assert_eq!(chosen(&["dst_2"]), ["dst_2"]);
        assert_eq!(chosen(&["Acme"]), ["dst_1", "dst_3"]);
    }

    #[test]
    fn a_destination_that_is_not_there_is_wrong_use() {
        let error = select(destinations(), &["Zeta".to_owned()]).unwrap_err();
        assert_eq!(Exit::of_error(&error), Exit::Misuse);
        assert!(error.to_string().contains("`Zeta`"), "{error}");
    }

    #[test]
    fn a_key_that_is_missing_is_wrong_use_and_a_failing_server_is_not() {
        let url: Url = "http://127.0.0.1:8080/v1/destinations".parse().unwrap();
        let unauthorized = refused(&url, StatusCode::UNAUTHORIZED, &Problem::default());
        assert_eq!(Exit::of_error(&unauthorized), Exit::Misuse);
        let problem = Problem { title: None, detail: Some("the store is gone".to_owned()) };
        let unavailable = refused(&url, StatusCode::SERVICE_UNAVAILABLE, &problem);
        assert_eq!(Exit::of_error(&unavailable), Exit::Failure);
        assert!(unavailable.to_string().ends_with("503 Service Unavailable: the store is gone"), "{unavailable}");
    }
}
