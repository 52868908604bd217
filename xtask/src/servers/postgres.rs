//! A private PostgreSQL: superuser `weir`, database `weir`, trust on loopback.
//!
//! Commits are written to disk like in production (`fsync=on`), because this server is also used for measurements.

use std::{
    os::unix::{fs::chown, process::CommandExt},
    path::Path,
    process::Command,
};

use anyhow::Context;
use weir_test_support::{Account, account};

use super::{
    guarded::Guarded,
    programs,
    server::{Plan, Server},
};

const NAME: &str = "weir";

/// Makes the data folder, then runs the server in its place: `sh -c THIS <folder of the programs> [setting…]`.
const INITDB_AND_SERVE: &str = r#"
    "$0/initdb" --pgdata=data --username=weir --auth=trust --encoding=UTF8 --locale=C --no-sync &&
    exec "$0/postgres" -D data "$@"
"#;

/// Connections for many tests at once, and no replication: `wal_level=minimal` requires `max_wal_senders=0`.
const SETTINGS: [&str; 7] = [
    "listen_addresses=127.0.0.1",
    // The parent of the data folder, which is the server's working folder.
    "unix_socket_directories=..",
    "fsync=on",
    "shared_buffers=256MB",
    "max_connections=300",
    "wal_level=minimal",
    "max_wal_senders=0",
];

/// Starts PostgreSQL. `programs` is the folder of `initdb` and the other programs.
pub(crate) fn start(programs: &Path) -> anyhow::Result<Server> {
    let server = Server::start("PostgreSQL", |folder, [port, _]| plan(programs, folder, port))?;
    programs::run(client(programs, "createdb", server.folder(), server.ports()[0]).arg(NAME))?;
    Ok(server)
}

fn plan(programs: &Path, folder: &Path, port: u16) -> anyhow::Result<Plan> {
    // TERM ends the shell, or makes the server wait for its clients; QUIT ends the server at once.
    let mut command = Guarded::command("TERM QUIT", Some(folder));
    if account::is_root() {
        // PostgreSQL refuses to run as root.
        let account = Account::unprivileged("postgres").context("no account to run PostgreSQL as")?;
        chown(folder, Some(account.user), Some(account.group)).context("could not give PostgreSQL its folder")?;
        command.uid(account.user).gid(account.group);
    }
    command.args(["sh", "-c", INITDB_AND_SERVE]).arg(programs).args(["-p", &port.to_string()]);
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    let ready = client(programs, "pg_isready", folder, port);
    Ok(Plan { command, ready, url: format!("postgres://{NAME}@127.0.0.1:{port}/{NAME}") })
}

/// One of the client programs, over the socket in the server's folder.
fn client(programs: &Path, program: &str, folder: &Path, port: u16) -> Command {
    let mut command = Command::new(programs.join(program));
    command.arg("--host").arg(folder).args(["--port", &port.to_string(), "--username", NAME]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_accepts_connections_until_it_is_dropped() {
        let programs = programs::POSTGRES.find().unwrap();
        let postgres = start(&programs).unwrap();
        let (url, folder) = (postgres.url().to_owned(), postgres.folder().to_owned());
        let ask = || programs::run(Command::new(programs.join("pg_isready")).args(["--dbname", &url]));
        ask().unwrap();
        let mut query = Command::new(programs.join("psql"));
        query.args(["--no-psqlrc", "--tuples-only", "--no-align", "--dbname", &url]);
        assert_eq!(programs::run(query.args(["--command", "SHOW fsync"])).unwrap(), "on");
        drop(postgres);
        assert!(ask().is_err());
        assert!(!folder.exists());
    }
}
