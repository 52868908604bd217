//! A database on the shared PostgreSQL for each test. The environment names the programs and the server, as `cargo
//! xtask test` sets it. Tests that stop their servers have their own (`weir_test_support`).

use std::path::{Path, PathBuf};

use tokio::process::Command;

pub(crate) fn provided(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("these tests need servers: run them with `cargo xtask test`, which provides them, or set {variable}")
    })
}

fn postgres_program(name: &str) -> PathBuf {
    Path::new(&provided("WEIR_TEST_POSTGRES_BIN")).join(name)
}

/// Runs a program, which must succeed, and returns its output.
async fn run(command: &mut Command) -> String {
    let output = command.output().await.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Creates an empty database on the shared PostgreSQL. It is removed with the server.
pub(crate) async fn database() -> String {
    let server = provided("WEIR_TEST_POSTGRES_URL");
    // Each test is a process, and processes get the ids of earlier ones.
    let name = format!("weir_e2e_{:016x}", rand::random::<u64>());
    run(Command::new(postgres_program("createdb")).args(["--maintenance-db", &server, &name])).await;
    let (base, _) = server.rsplit_once('/').expect("the URL names a database");
    format!("{base}/{name}")
}

/// Dumps a database into a file, as a backup does.
pub(crate) async fn dump(database_url: &str, file: &Path) {
    run(Command::new(postgres_program("pg_dump")).args(["--format=custom", "--file"]).arg(file).arg(database_url))
        .await;
}

/// Every row of a database as text.
pub(crate) async fn dump_text(database_url: &str) -> String {
    run(Command::new(postgres_program("pg_dump")).args(["--inserts", database_url])).await
}

/// A new database restored from a dump.
pub(crate) async fn restored(file: &Path) -> String {
    let database_url = database().await;
    let mut restore = Command::new(postgres_program("pg_restore"));
    run(restore.args(["--no-owner", "--exit-on-error", "--dbname", &database_url]).arg(file)).await;
    database_url
}

/// A new role of the server.
pub(crate) async fn role(kind: &str) -> String {
    let name = format!("weir_role_{:016x}", rand::random::<u64>());
    sql(&provided("WEIR_TEST_POSTGRES_URL"), &format!("CREATE ROLE {name} {kind}")).await;
    name
}

/// A new database with this owner, restored from a dump by an administrator. Its URL has this user, who is a member of the
/// owner. The commands are those of `docs/operations/backup.md`.
pub(crate) async fn restored_for(file: &Path, owner: &str, user: &str) -> String {
    let server = provided("WEIR_TEST_POSTGRES_URL");
    let name = format!("weir_e2e_{:016x}", rand::random::<u64>());
    run(Command::new(postgres_program("createdb")).args(["--maintenance-db", &server, "--owner", owner, &name])).await;
    let (base, _) = server.rsplit_once('/').expect("the URL names a database");
    let administered = format!("{base}/{name}");
    let mut restore = Command::new(postgres_program("pg_restore"));
    restore.args(["--no-owner", "--no-privileges", "--exit-on-error", "--role", owner, "--dbname", &administered]);
    run(restore.arg(file)).await;
    sql(&administered, &format!("GRANT {owner} TO {user}")).await;
    let (_, address) = administered.rsplit_once('@').expect("the URL names a user");
    format!("postgres://{user}@{address}")
}

/// Runs SQL on a database.
pub(crate) async fn sql(database_url: &str, text: &str) {
    run(&mut psql(database_url, text)).await;
}

/// The command that runs SQL on a database.
pub(crate) fn psql(database_url: &str, text: &str) -> Command {
    let mut psql = Command::new(postgres_program("psql"));
    psql.args(["--quiet", "--set=ON_ERROR_STOP=1", "--command", text, database_url]);
    psql
}
