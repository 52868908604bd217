//! A page that Prometheus scrapes instead of the pods, in the short form.
//!
//! Prometheus reads a new list of targets only after five to ten seconds, and no setting changes that. This is too slow
//! when time runs ten times as fast. So it scrapes one page for each job. The page asks all pods at that moment and
//! gives their series the labels that Prometheus would give them. For a pod that does not answer the page says `up` 0,
//! as Prometheus would.

use std::{
    convert::Infallible,
    fmt::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::{net::TcpListener, task::JoinSet};

use crate::client::Connection;

/// The namespace in the manifests' queries.
pub(super) const NAMESPACE: &str = "weir";

/// An entry of a `file_sd` list of targets.
#[derive(Debug, Deserialize)]
struct Target {
    targets: Vec<String>,
    labels: Labels,
}

#[derive(Debug, Deserialize)]
struct Labels {
    pod: String,
}

/// Serves `/JOB` as long as the process lives, and returns the port.
pub(super) async fn start(folder: PathBuf, timeout: Duration) -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot listen for Prometheus")?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let folder = folder.clone();
            let answer = service_fn(move |request| answer(request, folder.clone(), timeout));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    Ok(port)
}

async fn answer(
    request: Request<Incoming>,
    folder: PathBuf,
    timeout: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let job = request.uri().path().trim_start_matches('/').to_owned();
    let page = page(&folder, &job, timeout).await.unwrap_or_default();
    Ok(Response::builder().header("content-type", "text/plain; version=0.0.4").body(page.into()).unwrap_or_default())
}

/// The metrics of all pods of a job.
async fn page(folder: &Path, job: &str, timeout: Duration) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(folder.join(targets_file(job)))?;
    let mut scrapes = JoinSet::new();
    for target in serde_json::from_str::<Vec<Target>>(&text)? {
        for address in target.targets {
            let pod = target.labels.pod.clone();
            scrapes.spawn(async move {
                let scraped = tokio::time::timeout(timeout, scrape(&address)).await;
                (pod, address, scraped.ok().and_then(Result::ok))
            });
        }
    }
    let mut page = String::new();
    while let Some(Ok((pod, address, exposition))) = scrapes.join_next().await {
        let labels = format!(r#"namespace="{NAMESPACE}",pod="{pod}",instance="{address}""#);
        let up = u8::from(exposition.is_some());
        let _ = writeln!(page, "up{{{labels}}} {up}");
        page += &labelled(&exposition.unwrap_or_default(), &labels);
    }
    Ok(page)
}

async fn scrape(address: &str) -> anyhow::Result<String> {
    let mut connection = Connection::open(address.parse()?).await?;
    let body = connection.send(Method::GET, "/metrics", Bytes::new()).await?;
    Ok(String::from_utf8(body.to_vec())?)
}

/// Adds labels to every sample. Comments are left out, because Prometheus does not need them.
fn labelled(exposition: &str, labels: &str) -> String {
    let mut out = String::with_capacity(exposition.len() * 2);
    for line in exposition.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        // The name of a metric contains neither character. Label values may, but they come later.
        let Some(at) = line.find(['{', ' ']) else { continue };
        let (name, rest) = line.split_at(at);
        let _ = match rest.strip_prefix('{') {
            Some(own) if own.starts_with('}') => writeln!(out, "{name}{{{labels}{own}"),
            Some(own) => writeln!(out, "{name}{{{labels},{own}"),
            None => writeln!(out, "{name}{{{labels}}}{rest}"),
        };
    }
    out
}

/// The file that lists the pods of a job.
pub(super) fn targets_file(job: &str) -> String {
    format!("{job}.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_get_the_labels_of_their_pod() {
        let exposition = "# HELP a what\n# TYPE a gauge\na 1\nb{c=\"{ d\",e=\"f\"} 2.5\ng{} 3\n\n";
        let expected = "a{pod=\"p\"} 1\nb{pod=\"p\",c=\"{ d\",e=\"f\"} 2.5\ng{pod=\"p\"} 3\n";
        assert_eq!(labelled(exposition, "pod=\"p\""), expected);
    }

    #[tokio::test]
    async fn a_pod_that_does_not_answer_is_down() {
        let folder = tempfile::tempdir().unwrap();
        // No process listens on port 1.
        let targets = r#"[{"targets":["127.0.0.1:1"],"labels":{"namespace":"weir","pod":"weir-worker-7"}}]"#;
        std::fs::write(folder.path().join(targets_file("weir-worker")), targets).unwrap();
        let page = page(folder.path(), "weir-worker", Duration::from_secs(1)).await.unwrap();
        assert_eq!(page, "up{namespace=\"weir\",pod=\"weir-worker-7\",instance=\"127.0.0.1:1\"} 0\n");
    }
}
