//! `cargo xtask dev`: Weir like in production, one process per role, over private servers, in one terminal.
//!
//! If Prometheus is installed, it scrapes the roles, with the rules of `deploy/prometheus`.
//!
//! Ctrl-C, SIGTERM, or a role that ends by itself stops everything: first the roles, gracefully, and then the servers
//! that the roles need until then. A second Ctrl-C does not wait for the roles.

use std::{
    env,
    io::{self, BufRead, BufReader, PipeReader},
    path::Path,
    process,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

use anyhow::{Context, bail};
use signal_hook::{consts::TERM_SIGNALS, iterator::Signals};
use weir_test_support::HeldPort;

use crate::{
    servers::{
        self, Servers,
        guarded::Guarded,
        prometheus,
        server::{self, Server},
    },
    step::{self, Step},
    tools::PROMETHEUS,
};

/// A process of Weir: the name before each line of its output, and the arguments of the program.
struct Role {
    name: &'static str,
    /// Its job name in Prometheus.
    job: &'static str,
    arguments: &'static [&'static str],
}

const ROLES: [Role; 4] = [
    Role { name: "api", job: "weir-api", arguments: &["api"] },
    Role { name: "scheduler", job: "weir-scheduler", arguments: &["scheduler", "--listen", "127.0.0.1:0"] },
    Role { name: "worker-1", job: "weir-worker", arguments: &["worker", "--listen", "127.0.0.1:0"] },
    Role { name: "worker-2", job: "weir-worker", arguments: &["worker", "--listen", "127.0.0.1:0"] },
];

/// A developer's receivers listen on the same machine, over plain HTTP. A variable that the caller has set is kept.
const SETTINGS: [(&str, &str); 2] = [("WEIR_ALLOW_HTTP", "true"), ("WEIR_ALLOW_NETWORKS", "127.0.0.0/8")];

/// Wide enough for the longest name of a role.
const NAME_WIDTH: usize = 9;

type Env = Vec<(&'static str, String)>;

enum Event {
    Signal,
    /// The role with this index has ended.
    Ended(usize),
}

struct Running {
    process: Guarded,
    /// Prints its output.
    output: JoinHandle<()>,
}

pub(crate) fn run() -> anyhow::Result<()> {
    // Servers that the caller's variables name are used; the others are started.
    let servers = Servers::for_weir(servers::given)?;
    let mut env: Env = servers.env().to_vec();
    let settings = SETTINGS.into_iter().filter(|(name, _)| servers::given(name).is_none());
    env.extend(settings.map(|(name, value)| (name, value.to_owned())));

    // Build once. Prepare the database before several processes open it.
    let steps = [
        Step::new("Build", &["build", "--package", "weir"]),
        Step::new("Prepare the database", &["run", "--quiet", "--package", "weir", "--", "migrate"]),
    ];
    step::run_all(&steps, &env)?;

    // Cargo builds the program into the folder of this one, because both have the same profile.
    let program = env::current_exe().context("could not find the path of this program")?.with_file_name("weir");
    // Signals and the ends of roles arrive on one channel.
    let (events, happened) = mpsc::channel();
    watch_signals(events.clone())?;
    let listen = servers::given("WEIR_LISTEN").unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    println!("\n=== Weir's API at http://{listen}, with its other roles and private servers.");
    println!("    Ctrl-C stops everything and removes the data of the servers.\n");
    // With these variables other commands can use the same servers.
    for (name, value) in &env {
        println!("    {name}={value}");
    }
    println!();

    // Hold the ports of the metrics, so that Prometheus knows its targets before the roles start.
    let held = ROLES.iter().map(|_| server::hold_port()).collect::<anyhow::Result<Vec<_>>>()?;
    let metrics: Vec<_> = held.iter().map(HeldPort::number).collect();
    let targets: Vec<_> = ROLES.iter().zip(&metrics).map(|(role, port)| (role.job, *port)).collect();
    // Dropped, and so stopped, after the roles have ended.
    let _prometheus = start_prometheus(&targets)?;
    run_roles(&program, &ROLES, &metrics, &env, &events, || happened.recv().context("every source of events has ended"))
}

/// Starts a Prometheus that scrapes the roles, if it is installed.
fn start_prometheus(targets: &[(&str, u16)]) -> anyhow::Result<Option<Server>> {
    let Some(folder) = PROMETHEUS.installed() else {
        println!(
            "    Prometheus is not installed. Install it (Debian: apt-get install prometheus) to see the metrics of the roles.\n"
        );
        return Ok(None);
    };
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus/rules.yaml");
    let rules = rules.canonicalize().context("could not find deploy/prometheus/rules.yaml")?;
    let prometheus = prometheus::start(&folder, &rules, targets)?;
    println!("    Prometheus scrapes the roles: {}, with the rules of deploy/prometheus.\n", prometheus.url());
    Ok(Some(prometheus))
}

/// Runs the roles until the next event, then stops all of them. A role that ended by itself is an error.
fn run_roles(
    program: &Path,
    roles: &[Role],
    metrics: &[u16],
    env: &Env,
    events: &Sender<Event>,
    next_event: impl FnOnce() -> anyhow::Result<Event>,
) -> anyhow::Result<()> {
    // Start the roles. If one cannot be started, the drop of the others stops them.
    let numbered = roles.iter().zip(metrics).enumerate();
    let mut running: Vec<Running> = numbered
        .map(|(n, (role, port))| start(program, role, *port, env, n, events.clone()))
        .collect::<anyhow::Result<_>>()?;
    let event = next_event()?;

    // Stop all roles before waiting for any of them.
    running.iter_mut().for_each(|role| role.process.release());
    let mut statuses = Vec::new();
    for role in running {
        let Running { mut process, output } = role;
        statuses.push(process.stop()?);
        // The thread ends with the process. A panic of the thread has already been printed.
        let _ = output.join();
    }
    match event {
        Event::Signal => Ok(()),
        Event::Ended(n) => {
            bail!("{} ended by itself ({}); see the last lines of its output", roles[n].name, statuses[n])
        }
    }
}

fn start(
    program: &Path,
    role: &Role,
    metrics: u16,
    env: &Env,
    n: usize,
    events: Sender<Event>,
) -> anyhow::Result<Running> {
    // Both outputs of the role go into one pipe, so that its lines stay in order.
    let (read, write) = io::pipe().context("could not make a pipe for the output of a role")?;
    // The guard stops the role even if this process is killed.
    let mut command = Guarded::command("TERM", None);
    command.arg(program).args(role.arguments).envs(env.iter().cloned());
    command.env("WEIR_METRICS_LISTEN", format!("127.0.0.1:{metrics}"));
    command.stdout(write.try_clone()?).stderr(write);
    let process = Guarded::spawn(command)?;
    // A thread prints the output. The output ends with the role, so its end is the event.
    let name = role.name;
    let output = thread::spawn(move || {
        print_lines(name, read);
        // Fails only while everything is being stopped.
        let _ = events.send(Event::Ended(n));
    });
    Ok(Running { process, output })
}

fn print_lines(name: &str, output: PipeReader) {
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        println!("{name:NAME_WIDTH$} │ {}", String::from_utf8_lossy(&line));
    }
}

fn watch_signals(events: Sender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new(TERM_SIGNALS).context("could not handle Ctrl-C")?;
    thread::spawn(move || {
        for (n, signal) in signals.forever().enumerate() {
            if n > 0 || events.send(Event::Signal).is_err() {
                // The status that a shell reports for a process that a signal ended. The guards stop the running
                // processes.
                process::exit(128 + signal);
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// Signals to the test that it handles TERM, then stops gracefully at TERM.
    const GRACEFUL: &str =
        r#"trap 'echo stopped > "$STOPPED"; exit 0' TERM; echo > "$READY"; while :; do sleep 0.01; done"#;

    #[test]
    fn a_role_that_ends_by_itself_stops_the_others_and_is_named() {
        let roles = [
            Role { name: "patient", job: "", arguments: &["-c", "exec sleep 600"] },
            Role { name: "hasty", job: "", arguments: &["-c", "echo out of memory; exit 7"] },
        ];
        let (events, happened) = mpsc::channel();
        let ended = run_roles(Path::new("sh"), &roles, &[0; 2], &Env::new(), &events, || Ok(happened.recv()?));
        let error = ended.unwrap_err().to_string();
        assert!(error.starts_with("hasty ended by itself (exit status: 7)"), "{error}");
    }

    #[test]
    fn roles_get_their_variables_and_are_stopped_gracefully() {
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let stopped = folder.path().join("stopped");
        let roles = [Role { name: "graceful", job: "", arguments: &["-c", GRACEFUL] }];
        assert!(Command::new("mkfifo").arg(&ready).status().unwrap().success());
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let env = vec![("READY", text(&ready)), ("STOPPED", text(&stopped))];
        let (events, _happened) = mpsc::channel();
        run_roles(Path::new("sh"), &roles, &[0], &env, &events, || {
            fs::read(&ready)?;
            Ok(Event::Signal)
        })
        .unwrap();
        assert_eq!(fs::read_to_string(stopped).unwrap(), "stopped\n");
    }
}
