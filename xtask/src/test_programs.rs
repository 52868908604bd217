//! The test programs of a step. Cargo builds them; they run from here, because cargo runs one after the other, although
//! most of them wait, or use one core.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::{step::now, timing::Timing};

/// A test program that cargo has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    package: String,
    /// The name of the library, the binary or the integration tests.
    target: String,
    executable: PathBuf,
    /// The folder of the package, in which cargo would run the program.
    folder: PathBuf,
    how: How,
}

/// How a program runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct How {
    pub(crate) arguments: Vec<String>,
    /// Runs at a low priority: it gets only the processor time that other programs do not use.
    pub(crate) yields: bool,
}

/// What the programs of a step have shown.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The last lines of the programs that ran a test.
    pub(crate) summary: Vec<String>,
    pub(crate) timing: Timing,
}

/// The wanted test programs, by package and target, in the messages of `cargo test --no-run --message-format=json`.
pub(crate) fn built(
    messages: &str,
    is_wanted: impl Fn(&str, &str) -> bool,
    how: &How,
) -> anyhow::Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of cargo is not JSON")?;
        let text = |at: &str| message.pointer(at).and_then(Value::as_str);
        // Other artifacts, such as dependencies, are no test programs.
        if message["profile"]["test"] != true {
            continue;
        }
        let Some(executable) = text("/executable") else { continue };
        // The names of the package and the target decide whether the program is wanted.
        let (package, manifest) = (text("/package_id").unwrap_or_default(), text("/manifest_path").unwrap_or_default());
        let package = package_name(package).to_owned();
        let target = text("/target/name").unwrap_or_default().to_owned();
        if !is_wanted(&package, &target) {
            continue;
        }
        programs.push(TestProgram {
            package,
            target,
            executable: executable.into(),
            folder: Path::new(manifest).parent().context("cargo names no manifest")?.to_owned(),
            how: how.clone(),
        });
    }
    Ok(programs)
}

/// `weir-core` of `path+file:///weir/crates/weir-core#0.1.0`, `xtask` of `path+file:///elsewhere#xtask@0.1.0`.
fn package_name(id: &str) -> &str {
    let (path, version) = id.rsplit_once('#').unwrap_or((id, ""));
    version.split_once('@').map_or_else(|| path.rsplit('/').next().unwrap_or(path), |(name, _)| name)
}

/// Runs the programs in order, `at_once` of them at one time, until one fails. The output of a program is printed when
/// it ends, or, if only one runs at a time, at once.
pub(crate) fn run(
    programs: Vec<TestProgram>,
    at_once: usize,
    env: &[(&'static str, String)],
) -> anyhow::Result<Outcome> {
    // Every thread takes the next program from one list.
    let waiting = Mutex::new(VecDeque::from(programs));
    let outcome = Mutex::new(Outcome::default());
    let next = || lock(&waiting).pop_front();
    thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            while let Some(program) = next() {
                let ended = run_one(&program, at_once <= 1, env);
                // After a failure no further program starts. The running ones end by themselves.
                if !ended.as_ref().is_ok_and(|ended| ended.status.success()) {
                    lock(&waiting).clear();
                }
                let Ended { status, summary, took, slowest } = ended?;
                if !status.success() {
                    bail!("the tests `{}` of {} failed ({status})", program.target, program.package);
                }
                let mut outcome = lock(&outcome);
                outcome.summary.extend(summary);
                outcome.timing.add(&program.package, took);
                outcome.timing.add_tests(slowest);
            }
            Ok(())
        };
        // Wait for all threads. A panic of a thread is passed on. If a thread returns an error, the error is the
        // result.
        let threads: Vec<_> = (0..at_once.max(1)).map(|_| scope.spawn(work)).collect();
        let ends =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ends.collect::<anyhow::Result<()>>()
    })?;
    Ok(outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

struct Ended {
    status: ExitStatus,
    summary: Vec<String>,
    took: Duration,
    /// The duration of each test, if the tests ran one at a time.
    slowest: Vec<(String, Duration)>,
}

fn run_one(program: &TestProgram, prints_at_once: bool, env: &[(&'static str, String)]) -> anyhow::Result<Ended> {
    let heading = format!("\n     Running {} of {}", program.target, program.package);
    let mut output = String::new();
    // Beside other programs the output is kept until the end, so that outputs do not mix.
    let mut print = |line: &str| {
        if prints_at_once {
            println!("{line}");
        } else {
            // Writing to a string does not fail.
            let _ = writeln!(output, "{line}");
        }
    };
    print(&heading);

    // Both outputs of the program go into one pipe, so that its lines stay in order.
    let (read, write) = io::pipe().context("could not make a pipe for the output of a program")?;
    // `nice` leaves the program only the processor time that others do not use.
    let How { arguments, yields } = &program.how;
    let mut command = if *yields { Command::new("nice") } else { Command::new(&program.executable) };
    if *yields {
        command.args(["-n", "19"]).arg(&program.executable);
    }
    command.args(arguments).current_dir(&program.folder).envs(env.iter().cloned());
    // Cargo sets these variables for the tests that it runs.
    command.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
    command.stdout(write.try_clone()?).stderr(write);
    let began = now();
    let mut child = command.spawn().with_context(|| format!("could not start {}", program.executable.display()))?;
    // Closes this process's ends of the pipe, which the command holds.
    drop(command);
    // Read until the program closes its output. The times of its tests come from the times of its lines.
    let mut tests = TestTimes::starting(began);
    let mut summary = Vec::new();
    for line in BufReader::new(read).split(b'\n') {
        let line = line.context("could not read the output of a program")?;
        let line = String::from_utf8_lossy(&line);
        print(&line);
        tests.read(&line, now());
        if is_summary(&line) {
            summary.push(line.into_owned());
        }
    }
    let status = child.wait().context("could not wait for a program")?;
    let took = now() - began;
    if !prints_at_once {
        println!("{output}");
    }

    // Side by side, the time between two lines is not the time of one test.
    let one_at_a_time = arguments.iter().any(|argument| argument == "--test-threads=1");
    let slowest = if one_at_a_time { tests.times } else { Vec::new() };
    Ok(Ended { status, summary, took, slowest })
}

/// How long each test took. libtest prints a line when a test ends, so this is true only if tests run one at a time.
struct TestTimes {
    began: Instant,
    times: Vec<(String, Duration)>,
}

impl TestTimes {
    fn starting(began: Instant) -> Self {
        Self { began, times: Vec::new() }
    }

    /// Reads a line that was printed at `now`: `test alone::caps::a_burst_is_bounded ... ok`.
    fn read(&mut self, line: &str, now: Instant) {
        if let Some((name, _)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            self.times.push((name.to_owned(), now - self.began));
            self.began = now;
        }
    }
}

/// Whether this is the last line of a test program that ran a test.
fn is_summary(line: &str) -> bool {
    line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed; 0 ignored;")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = concat!(
        r#"{"reason":"compiler-artifact","package_id":"registry+https://example.com#serde@1.0.0","manifest_path":"/r/serde/Cargo.toml","target":{"name":"serde"},"profile":{"test":false},"executable":null}"#,
        "\n",
        r#"{"reason":"compiler-artifact","package_id":"path+file:///weir/crates/weir-core#0.1.0","manifest_path":"/weir/crates/weir-core/Cargo.toml","target":{"name":"weir_core"},"profile":{"test":true},"executable":"/t/weir_core-1"}"#,
        "\n",
        r#"{"reason":"compiler-artifact","package_id":"path+file:///weir/load-tests#weir-load-tests@0.1.0","manifest_path":"/weir/load-tests/Cargo.toml","target":{"name":"weir_load_tests"},"profile":{"test":true},"executable":"/t/weir_load_tests-2"}"#,
        "\n",
        r#"{"reason":"build-finished","success":true}"#,
    );

    /// A program that runs a script, which is in its folder inside of `parent`.
    fn shell(parent: &Path, target: &str, script: &str) -> TestProgram {
        let folder = parent.join(target);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("script"), script).unwrap();
        let how = How { arguments: vec!["script".to_owned()], yields: target == "yields" };
        TestProgram {
            package: "shell".to_owned(),
            target: target.to_owned(),
            executable: "/bin/sh".into(),
            folder,
            how,
        }
    }

    #[test]
    fn test_programs_are_found_with_their_package_and_folder() {
        let how = How { arguments: vec!["--skip".to_owned()], yields: true };
        let programs = built(MESSAGES, |_, _| true, &how).unwrap();
        assert!(programs.iter().all(|one| one.how == how));
        assert_eq!(built(MESSAGES, |package, _| package == "weir-core", &how).unwrap(), programs[..1]);
        let seen: Vec<_> = programs.iter().map(|one| (one.package.as_str(), one.target.as_str())).collect();
        assert_eq!(seen, [("weir-core", "weir_core"), ("weir-load-tests", "weir_load_tests")]);
        assert_eq!(programs[0].folder, Path::new("/weir/crates/weir-core"));
        assert_eq!(programs[1].executable, Path::new("/t/weir_load_tests-2"));
    }

    /// Each of the two programs waits for the other.
    #[test]
    fn programs_run_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let meet = |own: &str, other: &str| {
            let script = format!("touch here; until [ -e ../{other}/here ]; do sleep 0.01; done");
            let summary = format!("echo 'test result: ok. 1 passed; 0 failed; 0 ignored; of {own}'");
            shell(folder.path(), own, &format!("{script}; {summary}"))
        };
        let mut outcome = run(vec![meet("one", "yields"), meet("yields", "one")], 2, &[]).unwrap();
        outcome.summary.sort();
        assert!(outcome.summary[0].ends_with("of one") && outcome.summary[1].ends_with("of yields"), "{outcome:?}");
    }

    #[test]
    fn a_failed_program_is_named_and_no_further_program_starts() {
        let folder = tempfile::tempdir().unwrap();
        let (fails, never) =
            (shell(folder.path(), "fails", "exit 101"), shell(folder.path(), "never", "touch started"));
        let error = run(vec![fails, never], 1, &[]).unwrap_err().to_string();
        assert_eq!(error, "the tests `fails` of shell failed (exit status: 101)");
        assert!(!folder.path().join("never/started").exists());
    }

    #[test]
    fn the_time_of_a_test_is_from_the_end_of_the_one_before() {
        let start = now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut times = TestTimes::starting(start);
        for (line, seconds) in [("running 2 tests", 0), ("test a::b ... ok", 3), ("test a::c ... FAILED", 10), ("", 11)]
        {
            times.read(line, at(seconds));
        }
        let seconds: Vec<_> = times.times.iter().map(|(name, time)| (name.as_str(), time.as_secs())).collect();
        assert_eq!(seconds, [("a::b", 3), ("a::c", 7)]);
    }

    #[test]
    fn summary_lines_of_programs_without_tests_are_left_out() {
        let line = |counts: &str| format!("test result: ok. {counts}; 0 measured; 44 filtered out; finished in 0.03s");
        assert!(is_summary(&line("29 passed; 0 failed; 0 ignored")));
        assert!(is_summary(&line("0 passed; 0 failed; 2 ignored")));
        assert!(!is_summary(&line("0 passed; 0 failed; 0 ignored")));
        assert!(!is_summary("test audit::tests::nothing ... ok"));
    }
}
