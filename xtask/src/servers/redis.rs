//! A private Redis, and a private Redis Cluster of three masters. Neither writes to disk.

use std::{path::Path, process::Command};

use anyhow::ensure;

use super::{
    guarded::Guarded,
    programs,
    server::{Plan, Server, until},
};

/// The hash slots of a cluster, split among its masters.
const SLOTS: usize = 16384;
const MASTERS: usize = 3;
const SOCKET: &str = "redis.sock";

/// Starts one Redis. `server` is the program; `redis-cli` is in the same folder.
pub(crate) fn start(server: &Path) -> anyhow::Result<Server> {
    Server::start("Redis", |folder, [port, _]| Ok(plan(server, folder, port)))
}

/// Starts the nodes of a cluster, joins them, and waits until each node reports that the cluster is complete.
pub(crate) fn start_cluster(server: &Path) -> anyhow::Result<Vec<Server>> {
    let nodes: Vec<Server> = (0..MASTERS).map(|_| start_node(server)).collect::<anyhow::Result<_>>()?;
    for (n, node) in nodes.iter().enumerate() {
        let (first, end) = (n * SLOTS / MASTERS, (n + 1) * SLOTS / MASTERS);
        cluster(server, node, &["addslotsrange", &first.to_string(), &(end - 1).to_string()])?;
        // Different epochs from the start: otherwise the nodes resolve the conflicts of their epochs one after the
        // other.
        cluster(server, node, &["set-config-epoch", &(n + 1).to_string()])?;
    }
    for node in &nodes[1..] {
        let [port, bus] = node.ports().map(|port| port.to_string());
        cluster(server, &nodes[0], &["meet", "127.0.0.1", &port, &bus])?;
    }
    for node in &nodes {
        until_complete(server, node)?;
    }
    Ok(nodes)
}

fn start_node(server: &Path) -> anyhow::Result<Server> {
    Server::start("A node of Redis Cluster", |folder, [port, bus]| {
        let mut plan = plan(server, folder, port);
        plan.command.args(["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]);
        // The default is the port plus 10,000, which may be in use or above 65,535.
        plan.command.args(["--cluster-port", &bus.to_string()]);
        Ok(plan)
    })
}

fn plan(server: &Path, folder: &Path, port: u16) -> Plan {
    let mut command = Guarded::command("KILL", Some(folder));
    command.arg(server).args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--unixsocket", SOCKET]);
    command.args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]);
    let mut ready = cli(server, folder);
    ready.arg("ping");
    Plan { command, ready, url: format!("redis://127.0.0.1:{port}") }
}

fn cli(server: &Path, folder: &Path) -> Command {
    let mut command = Command::new(server.with_file_name("redis-cli"));
    command.arg("-s").arg(folder.join(SOCKET));
    command
}

fn cluster(server: &Path, node: &Server, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = cli(server, node.folder());
    let answer = programs::run(command.arg("cluster").args(arguments))?;
    ensure!(answer == "OK", "`cluster {}` was answered with: {answer}", arguments.join(" "));
    Ok(())
}

/// A node serves every slot once it knows all masters, but not in its first two seconds.
fn until_complete(server: &Path, node: &Server) -> anyhow::Result<()> {
    until("Redis Cluster", || {
        let info = programs::run(cli(server, node.folder()).args(["cluster", "info"]))?;
        Ok(info.lines().any(|line| line.trim() == "cluster_state:ok"))
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use super::*;

    fn program() -> std::path::PathBuf {
        programs::REDIS.find().unwrap().join("redis-server")
    }

    /// Asks over TCP, like the clients of the tests.
    fn ask(port: u16, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        write!(stream, "{command}\r\nQUIT\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn redis_answers_until_it_is_dropped() {
        let redis = start(&program()).unwrap();
        let ([port, _], folder) = (redis.ports(), redis.folder().to_owned());
        assert_eq!(redis.url(), format!("redis://127.0.0.1:{port}"));
        assert_eq!(ask(port, "PING").unwrap(), "+PONG\r\n+OK\r\n");
        drop(redis);
        assert!(ask(port, "PING").is_err());
        assert!(!folder.exists());
    }

    #[test]
    fn every_node_reports_a_complete_cluster() {
        let nodes = start_cluster(&program()).unwrap();
        assert_eq!(nodes.len(), MASTERS);
        for node in nodes {
            let info = ask(node.ports()[0], "CLUSTER INFO").unwrap();
            for line in ["cluster_state:ok", "cluster_slots_assigned:16384", "cluster_size:3"] {
                assert!(info.contains(line), "{info}");
            }
        }
    }
}
