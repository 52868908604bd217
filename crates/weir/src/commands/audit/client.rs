//! The HTTP client of `weir audit`.

use std::time::Duration;

use anyhow::Context;
use reqwest::{StatusCode, header};
use serde::{Deserialize, de::DeserializeOwned};
use url::Url;
use weir_core::audit::AuditReport;

use crate::cli::{AuditArgs, Misuse};

/// An audit reads every send of its range. The server aborts after 100 s and reports that.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The largest page size of the server.
const PAGE: &str = "200";

/// The fields of a destination that an audit needs.
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

/// The fields of a problem document (RFC 9457).
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
            // The server is often on loopback or in a private network, where an internet proxy cannot reach it.
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

    /// The destinations with these ids or names, or all destinations if none is named; the oldest first.
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
        // The path is appended to the path of the server's URL, which may end in a slash.
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
            format!("no response from {}; is `weir serve` running there? Set another server with --url", self.server)
        })?;
        let status = response.status();
        if status.is_success() {
            return response.json().await.with_context(|| format!("the response of {url} is not from a Weir server"));
        }
        // A refusal has a problem document. The response of a proxy may have none.
        let problem: Problem = response.json().await.unwrap_or_default();
        Err(refused(&url, status, &problem))
    }
}

fn refused(url: &Url, status: StatusCode, problem: &Problem) -> anyhow::Error {
    if status == StatusCode::UNAUTHORIZED {
        let message = "the server requires a valid API key; set --api-key or WEIR_API_KEYS";
        return Misuse(message.to_owned()).into();
    }
    let reason = problem.detail.as_deref().or(problem.title.as_deref()).unwrap_or("no reason given");
    anyhow::anyhow!("{url} answered {status}: {reason}")
}

/// The destinations of `all` whose id or name is wanted, or all of them if none is. A wanted destination that does not
/// exist is an error: an audit of nothing must not pass.
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
    fn destinations_are_selected_by_id_or_name() {
        assert_eq!(chosen(&[]), ["dst_1", "dst_2", "dst_3"]);
        assert_eq!(chosen(&["dst_2"]), ["dst_2"]);
        assert_eq!(chosen(&["Acme"]), ["dst_1", "dst_3"]);
    }

    #[test]
    fn an_unknown_destination_is_wrong_use() {
        let error = select(destinations(), &["Zeta".to_owned()]).unwrap_err();
        assert_eq!(Exit::of_error(&error), Exit::Misuse);
        assert!(error.to_string().contains("`Zeta`"), "{error}");
    }

    #[test]
    fn a_missing_key_is_wrong_use_and_a_failing_server_is_not() {
        let url: Url = "http://127.0.0.1:8080/v1/destinations".parse().unwrap();
        let unauthorized = refused(&url, StatusCode::UNAUTHORIZED, &Problem::default());
        assert_eq!(Exit::of_error(&unauthorized), Exit::Misuse);
        let problem = Problem { title: None, detail: Some("the store is gone".to_owned()) };
        let unavailable = refused(&url, StatusCode::SERVICE_UNAVAILABLE, &problem);
        assert_eq!(Exit::of_error(&unavailable), Exit::Failure);
        assert!(unavailable.to_string().ends_with("503 Service Unavailable: the store is gone"), "{unavailable}");
    }
}
