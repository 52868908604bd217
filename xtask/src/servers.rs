//! Private servers for tests, measurements and development: Redis, a Redis Cluster of three nodes, PostgreSQL.
//!
//! Each server has its own ports on loopback and its own folder, so several runs can go on at the same time. No server
//! outlives this process (see [`guarded`]). If the caller has set a variable, its value is used and no server is
//! started.

pub(crate) mod guarded;
mod postgres;
pub(crate) mod programs;
pub(crate) mod prometheus;
mod redis;
pub(crate) mod server;

use std::path::Path;

use anyhow::Context;

use server::Server;

use crate::tools;

/// Looks a variable up in the caller's environment.
pub(crate) type Given = fn(&str) -> Option<String>;

/// Running servers and the variables with their URLs. Dropping this value stops the servers and removes their data.
#[derive(Debug)]
pub(crate) struct Servers {
    given: Given,
    running: Vec<Server>,
    env: Vec<(&'static str, String)>,
}

impl Servers {
    /// Everything that the tests need: every kind of server; the programs, for tests that kill their own servers, shift
    /// clocks or run the example receivers; and the tools that read the files in `deploy/` and `k8s/`.
    pub(crate) fn for_tests(given: Given) -> anyhow::Result<Self> {
        let mut servers = Self::none(given);
        let redis = servers.name("WEIR_TEST_REDIS_SERVER", || utf8(&programs::REDIS.find()?.join("redis-server")))?;
        let postgres = servers.name("WEIR_TEST_POSTGRES_BIN", || utf8(&programs::POSTGRES.find()?))?;
        // The tests know where its library is.
        programs::FAKETIME.find()?;
        servers.name("WEIR_TEST_PYTHON", || utf8(&programs::PYTHON.find()?.join("python3")))?;
        servers.name("WEIR_TEST_NODE", || utf8(&programs::NODE.find()?.join("node")))?;
        for (variable, find) in tools::ALL {
            servers.name(variable, || utf8(&find()?))?;
        }
        let (redis, postgres) = (Path::new(&redis), Path::new(&postgres));
        servers.serve("WEIR_TEST_POSTGRES_URL", || Ok(vec![postgres::start(postgres)?]))?;
        servers.serve("WEIR_TEST_REDIS_URL", || Ok(vec![redis::start(redis)?]))?;
        servers.serve("WEIR_TEST_REDIS_CLUSTER_URL", || redis::start_cluster(redis))?;
        Ok(servers)
    }

    /// The programs of the servers, for a harness that starts, kills and restarts its own servers.
    pub(crate) fn programs(given: Given) -> anyhow::Result<Self> {
        let mut servers = Self::none(given);
        servers.name("WEIR_TEST_REDIS_SERVER", || utf8(&programs::REDIS.find()?.join("redis-server")))?;
        servers.name("WEIR_TEST_POSTGRES_BIN", || utf8(&programs::POSTGRES.find()?))?;
        Ok(servers)
    }

    /// The real rate limiters, and the programs of the servers if Weir runs in several processes.
    pub(crate) fn receivers(given: Given, is_scaled: bool) -> anyhow::Result<Self> {
        let mut servers = if is_scaled { Self::programs(given)? } else { Self::none(given) };
        for (variable, find) in tools::RECEIVERS {
            servers.name(variable, || utf8(&find()?))?;
        }
        Ok(servers)
    }

    /// The generators of the clients' types.
    pub(crate) fn client_types(given: Given) -> anyhow::Result<Self> {
        let mut servers = Self::none(given);
        for (variable, find) in tools::CLIENT_TYPES {
            servers.name(variable, || utf8(&find()?))?;
        }
        Ok(servers)
    }

    /// The servers of a Weir of several processes.
    pub(crate) fn for_weir(given: Given) -> anyhow::Result<Self> {
        let mut servers = Self::none(given);
        servers.serve("WEIR_DATABASE_URL", || Ok(vec![postgres::start(&programs::POSTGRES.find()?)?]))?;
        servers.serve("WEIR_REDIS_URL", || Ok(vec![redis::start(&programs::REDIS.find()?.join("redis-server"))?]))?;
        Ok(servers)
    }

    /// The variables that the caller has not set.
    pub(crate) fn env(&self) -> &[(&'static str, String)] {
        &self.env
    }

    fn none(given: Given) -> Self {
        Self { given, running: Vec::new(), env: Vec::new() }
    }

    /// Starts servers and sets the variable to their URLs, unless the caller has set it.
    fn serve(
        &mut self,
        variable: &'static str,
        start: impl FnOnce() -> anyhow::Result<Vec<Server>>,
    ) -> anyhow::Result<()> {
        let mut started = Vec::new();
        self.name(variable, || {
            started = start()?;
            Ok(started.iter().map(Server::url).collect::<Vec<_>>().join(","))
        })?;
        self.running.append(&mut started);
        Ok(())
    }

    /// The value of the variable: the caller's, or a found one, which is then set.
    fn name(
        &mut self,
        variable: &'static str,
        find: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<String> {
        if let Some(value) = (self.given)(variable) {
            return Ok(value);
        }
        let value = find().with_context(|| format!("{variable} is not set, and no value was found for it"))?;
        self.env.push((variable, value.clone()));
        Ok(value)
    }
}

/// A variable of this process that is set and not empty.
pub(crate) fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

pub(crate) fn utf8(path: &Path) -> anyhow::Result<String> {
    Ok(path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_server_is_started_if_the_caller_has_set_every_variable() {
        let servers = Servers::for_tests(|variable| Some(format!("the caller's {variable}"))).unwrap();
        assert!(servers.running.is_empty() && servers.env().is_empty(), "{servers:?}");
    }

    #[test]
    fn a_server_is_started_only_for_a_variable_that_is_not_set() {
        let given: Given = |variable| (variable != "WEIR_REDIS_URL").then(|| "elsewhere".to_owned());
        let servers = Servers::for_weir(given).unwrap();
        assert_eq!(servers.running.len(), 1);
        assert_eq!(servers.env(), [("WEIR_REDIS_URL", servers.running[0].url().to_owned())]);
    }

    #[test]
    fn an_unavailable_server_is_named_by_its_variable() {
        let error = Servers::none(|_| None).serve("WEIR_REDIS_URL", || anyhow::bail!("no Redis")).unwrap_err();
        assert_eq!(format!("{error:#}"), "WEIR_REDIS_URL is not set, and no value was found for it: no Redis");
    }
}
