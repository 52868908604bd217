//! A private Prometheus that scrapes Weir's roles and has the rules of `deploy/prometheus`.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use anyhow::Context;

use super::{
    guarded::Guarded,
    server::{Plan, Server},
};

/// Starts Prometheus from the programs in `folder`, with the rules in the file `rules`. Each target is a job and a port
/// on loopback.
pub(crate) fn start(folder: &Path, rules: &Path, targets: &[(&str, u16)]) -> anyhow::Result<Server> {
    Server::start("Prometheus", |own, [port, _]| {
        let configuration = own.join("prometheus.yml");
        fs::write(&configuration, configuration_of(rules, targets)).context("could not configure Prometheus")?;
        let mut command = Guarded::command("TERM", Some(own));
        command.arg(folder.join("prometheus")).arg("--config.file").arg(configuration);
        command.args(["--storage.tsdb.path", "data", "--log.level", "warn"]);
        command.args(["--web.listen-address", &format!("127.0.0.1:{port}")]);
        let url = format!("http://127.0.0.1:{port}");
        let mut ready = Command::new(folder.join("promtool"));
        ready.args(["query", "instant", &url, "1"]);
        Ok(Plan { command, ready, url })
    })
}

fn configuration_of(rules: &Path, targets: &[(&str, u16)]) -> String {
    let mut text = format!(
        "global: {{ scrape_interval: 5s, evaluation_interval: 5s }}\nrule_files: [{rules:?}]\nscrape_configs:\n  - job_name: weir\n    static_configs:\n"
    );
    for (job, port) in targets {
        // Writing to a string does not fail.
        let _ = writeln!(text, "      - {{ targets: [\"127.0.0.1:{port}\"], labels: {{ job: {job} }} }}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{servers::programs, tools::PROMETHEUS};

    #[test]
    fn prometheus_accepts_the_configuration_and_the_rules() {
        let folder = PROMETHEUS.find().unwrap();
        let rules =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus/rules.yaml").canonicalize().unwrap();
        let prometheus = start(&folder, &rules, &[("weir-api", 1), ("weir-worker", 2), ("weir-worker", 3)]).unwrap();
        let mut promtool = Command::new(folder.join("promtool"));
        let targets =
            programs::run(promtool.args(["query", "instant", prometheus.url(), "count(ALERTS) or vector(7)"]));
        assert!(targets.unwrap().contains("=>"));
    }
}
