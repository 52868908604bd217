//! The command line: exit codes, and errors that name the setting and the remedy.

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::ChildStdout,
};
use weir_test_support::{HeldPort, Postgres, Redis};

use crate::support::{App, Fleet, Receiver, servers};

async fn run(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = App::command(folder);
    command.args(arguments).envs(environment.iter().copied()).kill_on_drop(true);
    tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").expect("it runs")
}

async fn refused(folder: &Path, arguments: &[&str], environment: &[(&str, &str)], words: &[&str]) -> String {
    let output = run(folder, arguments, environment).await;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?} {environment:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{arguments:?} {environment:?} should name `{word}`: {error}");
    }
    error
}

#[tokio::test]
async fn invalid_settings_exit_with_2_and_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    refused(path, &["serve", "--listen", "nowhere"], &[], &["--listen"]).await;
    refused(path, &["serve", "--listen", "0.0.0.0:0"], &[], &["WEIR_API_KEYS"]).await;
    let short = [("WEIR_API_KEYS", "fifteen-letters")];
    refused(path, &["serve", "--listen", "0.0.0.0:0"], &short, &["WEIR_API_KEYS", "16 characters"]).await;
    refused(path, &["serve", "--nonsense"], &[], &["--nonsense"]).await;
    refused(path, &["serve"], &[("WEIR_ALLOW_NETWORKS", "10.0.0.0/99")], &["WEIR_ALLOW_NETWORKS"]).await;
    refused(path, &["serve"], &[("WEIR_LISTN", "127.0.0.1:1")], &["WEIR_LISTN", "WEIR_LISTEN"]).await;
    refused(path, &["serve"], &[("WEIR_REDIS_URL", "redis://127.0.0.1")], &["WEIR_REDIS_URL", "postgres://"]).await;
    refused(path, &["serve"], &[("WEIR_DATABASE_URL", "sqlite://missing/folder/weir.db")], &["database"]).await;
    std::fs::write(path.join("weir.toml"), "listne = \"127.0.0.1:0\"\n").unwrap();
    refused(path, &["serve"], &[], &["listne", "weir.toml"]).await;
}

#[tokio::test]
async fn a_role_without_its_servers_is_refused_and_the_setting_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (postgres, redis) = (servers::database().await, Redis::start().await.unwrap());
    let redis_url = redis.url();
    let (database, queue) = (("WEIR_DATABASE_URL", postgres.as_str()), ("WEIR_REDIS_URL", redis_url.as_str()));
    for role in ["api", "scheduler", "worker"] {
        refused(path, &[role], &[], &["WEIR_DATABASE_URL", "WEIR_REDIS_URL"]).await;
        refused(path, &[role], &[database], &["WEIR_REDIS_URL"]).await;
        refused(path, &[role], &[queue], &["WEIR_DATABASE_URL"]).await;
        // No process listens on port 1.
        let nowhere = ("WEIR_DATABASE_URL", "postgres://weir:hush@127.0.0.1:1/weir");
        refused_without_secret(path, &[role], &[nowhere, queue], &["database_url", "127.0.0.1:1"], "hush").await;
        let nowhere = ("WEIR_REDIS_URL", "redis://:hush@127.0.0.1:1");
        refused_without_secret(path, &[role], &[database, nowhere], &["redis_url", "127.0.0.1:1"], "hush").await;
    }
    let missing = format!("{postgres}_missing");
    refused(path, &["worker"], &[("WEIR_DATABASE_URL", &missing), queue], &["database_url", "createdb"]).await;
    refused(path, &["migrate"], &[("WEIR_DATABASE_URL", &missing)], &["database_url", "createdb"]).await;
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let postgres = Postgres::start_with_password("open sesame").await.unwrap();
    let redis = Redis::start_with(&["--requirepass", "open-sesame"]).await.unwrap();
    let (right, wrong) = (postgres.url_with("open%20sesame"), postgres.url_with("hush"));
    let with_redis = |password: &str| redis.url().replace("redis://", &format!("redis://:{password}@"));
    let (opens, closed) = (with_redis("open-sesame"), with_redis("hush"));
    for (database, queue, setting) in
        [(&right, &closed, "redis_url"), (&right, &redis.url(), "redis_url"), (&wrong, &opens, "database_url")]
    {
        let settings = [("WEIR_DATABASE_URL", database.as_str()), ("WEIR_REDIS_URL", queue.as_str())];
        refused_without_secret(path, &["worker"], &settings, &[setting, "password"], "hush").await;
    }
    let mut right_both = App::command(path);
    right_both.arg("worker").env("WEIR_DATABASE_URL", &right).env("WEIR_REDIS_URL", &opens);
    assert!(App::launch(right_both).await.is_ok(), "the right passwords open both");
}

/// Like [`refused`]; the error must not contain the secret.
async fn refused_without_secret(
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
    words: &[&str],
    secret: &str,
) {
    let error = refused(folder, arguments, environment, words).await;
    assert!(!error.contains(secret), "a password is shown: {error}");
}

#[tokio::test]
async fn a_database_that_is_in_use_or_foreign_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _app = App::start(folder.path()).await;
    refused(folder.path(), &["serve"], &[], &["database_url", "in use"]).await;
    let foreign = folder.path().join("foreign.db");
    std::fs::write(&foreign, vec![b'x'; 8192]).unwrap();
    let url = format!("sqlite://{}", foreign.display());
    refused(folder.path(), &["serve"], &[("WEIR_DATABASE_URL", &url)], &["database"]).await;
}

#[tokio::test]
async fn a_port_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(folder.path(), &["serve", "--listen", &address], &[], &["listen", &address]).await;
}

#[tokio::test]
async fn migrate_prepares_a_database_and_may_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let output = run(folder.path(), &["migrate"], &[]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    assert!(folder.path().join("weir.db").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_keys_are_required_when_configured() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start_with(folder.path(), &[("WEIR_API_KEYS", "first,second")]).await;
    let url = format!("{}/v1/destinations", app.url);
    for (key, status) in [("", 401), ("third", 401), ("first", 200), ("second", 200)] {
        let answer = app.http.get(&url).bearer_auth(key).send().await.unwrap();
        assert_eq!(answer.status(), status, "key {key:?}");
    }
    assert_eq!(app.http.get(format!("{}/healthz", app.url)).send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_asks_the_listener_of_the_settings_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let (listen, metrics) = (HeldPort::hold().unwrap(), HeldPort::hold().unwrap());
    let [listen, metrics] = [&listen, &metrics].map(|port| format!("127.0.0.1:{}", port.number()));
    let both = [("WEIR_LISTEN", listen.as_str()), ("WEIR_METRICS_LISTEN", metrics.as_str())];
    let asked = async |environment: &[(&str, &str)]| {
        let output = run(folder.path(), &["health"], environment).await;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = asked(&both).await;
    assert_eq!(code, Some(1), "no process listens: {text}");
    assert!(text.contains(&format!("no answer from http://{metrics}/readyz")), "{text}");

    let mut fleet = Fleet::new().await;
    let worker = fleet.launch_with("worker", &both).await;
    for (environment, address) in [(&both[..], &metrics), (&both[..1], &listen)] {
        assert_eq!(asked(environment).await, (Some(0), format!("http://{address}/readyz is ready\n")));
    }
    fleet.redis.kill().await.unwrap();
    let (code, text) = asked(&both).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("http://{metrics}/readyz answered 503")) && text.contains("queue"), "{text}");
    drop(worker);

    let any_port = [("WEIR_LISTEN", "127.0.0.1:0")];
    refused(folder.path(), &["health"], &any_port, &["WEIR_METRICS_LISTEN", "WEIR_LISTEN"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_shows_a_running_server_as_a_table_as_json_and_as_a_chart() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    let limits = json!([{"limit": 50, "period": "second"}]);
    let id = app.destination(json!({"url": receiver.url("/audited"), "name": "Acme", "rate_limits": limits})).await;
    app.events("audited", 60).await;
    app.drained(&id, Duration::from_secs(10)).await;
    let picture = folder.path().join("audit.svg");
    let picture = picture.to_str().unwrap();
    let output = run(folder.path(), &["audit", "--server", &app.url, "--svg", picture], &[]).await;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(table.contains("Acme") && table.contains("60"), "{table}");
    assert!(std::fs::read_to_string(picture).unwrap().contains("<svg"));
    let output = run(folder.path(), &["audit", "--server", &app.url, "--json"], &[]).await;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(json.to_string().contains("worst_sliding_window"), "{json}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_holds_every_cap_and_ends_with_exit_code_0() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("demo.svg");
    let output = run(folder.path(), &["demo", "--seconds", "6", "--svg", picture.to_str().unwrap()], &[]).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("p99 ms") && text.contains("Growing partner"), "{text}");
    assert!(picture.exists());
    // Without a terminal: no escapes, and few lines, none of which wraps.
    assert!(!text.contains('\u{1b}') && text.lines().count() < 30, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[tokio::test]
async fn a_configuration_is_checked_as_a_whole_without_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("password");
    std::fs::write(&secret, "hush/#@\n").unwrap();
    let good = [
        ("WEIR_DATABASE_URL", "postgres://weir:hush@127.0.0.1:1/weir"),
        ("WEIR_REDIS_URL", "redis://127.0.0.1:1"),
        ("WEIR_REDIS_PASSWORD_FILE", secret.to_str().unwrap()),
    ];
    let output = run(folder.path(), &["config", "check", "--role", "worker"], &good).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.contains("postgres://weir:•••@127.0.0.1:1/weir") && !text.contains("hush"), "{text}");
    assert!(text.contains(secret.to_str().unwrap()) && text.contains("weir worker"), "{text}");

    let wrong = [("WEIR_LISTN", "x"), ("WEIR_LISTEN", "nowhere"), ("WEIR_LOG", "inof")];
    let error = refused(folder.path(), &["config", "check"], &wrong, &["WEIR_LISTN", "nowhere", "inof"]).await;
    assert!(error.contains("3 faults"), "{error}");
    assert!(!folder.path().join("weir.db").exists(), "nothing was opened");
    // A start names the first of them.
    refused(folder.path(), &["serve"], &wrong, &["WEIR_LISTN"]).await;
}

#[tokio::test]
async fn passwords_with_any_character_come_from_files_and_are_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let password = "p/a?s#s@w%41:or d";
    let postgres = Postgres::start_with_password(password).await.unwrap();
    let redis = Redis::start_with(&["--requirepass", password]).await.unwrap();
    let file = path.join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    let (file, queue, database) = (file.to_str().unwrap(), redis.url(), postgres.url());
    let files = [("WEIR_DATABASE_PASSWORD_FILE", file), ("WEIR_REDIS_PASSWORD_FILE", file)];
    let mut worker = App::command(path);
    worker.arg("worker").env("WEIR_DATABASE_URL", &database).env("WEIR_REDIS_URL", &queue).envs(files);
    assert!(App::launch(worker).await.is_ok(), "the passwords open both");

    // In the URL such a password ends too early: what follows is not shown as a host.
    for secret in ["12/hush", "hu?hush", "12#hush", "hu@s/hush"] {
        let url = postgres.url_with(secret);
        let settings = [("WEIR_DATABASE_URL", url.as_str()), ("WEIR_REDIS_URL", queue.as_str())];
        refused_without_secret(path, &["worker"], &settings, &["WEIR_DATABASE_URL", "%2F"], "hush").await;
        let url = queue.replace("redis://", &format!("redis://:{secret}@"));
        let settings = [("WEIR_DATABASE_URL", database.as_str()), ("WEIR_REDIS_URL", url.as_str())];
        refused_without_secret(path, &["worker"], &settings, &["WEIR_REDIS_URL", "%2F"], "hush").await;
    }
}

#[tokio::test]
async fn a_database_over_tls_is_used_with_a_private_authority_and_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let made = certificates();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ca, cert, key) =
        (file("ca.pem", &made.authority), file("cert.pem", &made.client.0), file("key.pem", &made.client.1));
    let postgres = Postgres::start_with_tls(&made.authority, &made.server.0, &made.server.1).await.unwrap();
    let url = format!("postgres://weir@localhost:{}/weir", postgres.port());
    let trusted = [("WEIR_DATABASE_URL", url.as_str()), ("WEIR_DATABASE_TLS_CA", &ca)];
    let with_certificate =
        [&trusted[..], &[("WEIR_DATABASE_TLS_CERT", &cert), ("WEIR_DATABASE_TLS_KEY", &key)]].concat();
    let output = run(folder.path(), &["migrate"], &with_certificate).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    refused(folder.path(), &["migrate"], &trusted, &["database_url", "certificate"]).await;
    let other = file("other.pem", &certificates().authority);
    let untrusted = [&with_certificate[..], &[("WEIR_DATABASE_TLS_CA", other.as_str())]].concat();
    refused(folder.path(), &["migrate"], &untrusted, &["database_url"]).await;
}

/// Certificates with their keys, in PEM.
struct Certificates {
    authority: String,
    server: (String, String),
    client: (String, String),
}

fn certificates() -> Certificates {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let signed = |names: Vec<String>, common_name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    Certificates {
        server: signed(vec!["localhost".to_owned()], "localhost"),
        client: signed(Vec::new(), "weir"),
        authority: authority.pem(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_of_the_demo_can_be_looked_at_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = App::command(folder.path());
    command.args(["demo", "--seconds", "3", "--dashboard"]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut demo = command.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let address = line_with(&mut lines, "http://127.0.0.1:").await;
    let (_, address) = address.split_once("http://").unwrap();
    line_with(&mut lines, "Every cap held").await;
    line_with(&mut lines, "until Ctrl-C").await;

    let http = crate::support::http_client().build().unwrap();
    let page = http.get(format!("http://{address}/")).header("accept", "text/html").send().await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(page.text().await.unwrap().contains("Growing partner"));
    let pid = demo.id().unwrap().to_string();
    assert!(tokio::process::Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    assert_eq!(demo.wait().await.unwrap().code(), Some(0));
}

/// The next line that contains these words.
async fn line_with(lines: &mut Lines<BufReader<ChildStdout>>, words: &str) -> String {
    let found = async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap_or_else(|| panic!("no line contains `{words}`"));
            if line.contains(words) {
                return line;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.unwrap_or_else(|_| panic!("no line contains `{words}`"))
}
