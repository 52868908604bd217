//! Where the programs of the servers are, and how to install them.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use weir_test_support::account;

/// Programs in one folder, and the packages that contain them.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) programs: &'static [&'static str],
    /// The package, and also the service that it starts.
    pub(crate) debian: &'static str,
    pub(crate) fedora: &'static str,
    pub(crate) homebrew: &'static str,
}

pub(crate) const REDIS: Package = Package {
    name: "Redis",
    programs: &["redis-server", "redis-cli"],
    debian: "redis-server",
    fedora: "redis",
    homebrew: "redis",
};

pub(crate) const POSTGRES: Package = Package {
    name: "PostgreSQL",
    programs: &["initdb", "postgres", "pg_isready", "createdb"],
    debian: "postgresql",
    fedora: "postgresql-server",
    homebrew: "postgresql@17",
};

/// Starts a program with another wall clock. Redis needs another allocator with it, because its own allocator reads the
/// clock before libfaketime is ready.
pub(crate) const FAKETIME: Package = Package {
    name: "faketime",
    programs: &["faketime"],
    debian: "faketime libtcmalloc-minimal4",
    fedora: "libfaketime gperftools-libs",
    homebrew: "libfaketime",
};

/// Python and Node run the receivers under `examples/receivers`.
pub(crate) const PYTHON: Package =
    Package { name: "Python", programs: &["python3"], debian: "python3", fedora: "python3", homebrew: "python" };

pub(crate) const NODE: Package =
    Package { name: "Node", programs: &["node"], debian: "nodejs", fedora: "nodejs", homebrew: "node" };

impl Package {
    /// The folder of the programs. If they are missing, they are installed for root on Debian or Ubuntu; for any other
    /// user the error says how to install them.
    pub(crate) fn find(&self) -> anyhow::Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Some(folder) = self.find_in(&places(&path)) {
            return Ok(folder);
        }
        self.install()?;
        self.find_in(&places(&path)).with_context(|| self.missing())
    }

    /// Installs the Debian package for root on Debian or Ubuntu. For any other user the error says what to install.
    pub(crate) fn install(&self) -> anyhow::Result<()> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        ensure!(account::is_root() && contains(&path, "apt-get"), self.missing());
        self.install_with_apt().with_context(|| self.missing())
    }

    /// The folder of the programs, if they are installed.
    pub(crate) fn installed(&self) -> Option<PathBuf> {
        self.find_in(&places(&std::env::var_os("PATH").unwrap_or_default()))
    }

    fn find_in(&self, places: &[PathBuf]) -> Option<PathBuf> {
        places.iter().find(|place| self.programs.iter().all(|program| place.join(program).is_file())).cloned()
    }

    /// Installs the Debian package and stops its service, because only private servers are used here.
    fn install_with_apt(&self) -> anyhow::Result<()> {
        eprintln!("\n=== Installing {} with apt-get", self.debian);
        apt_get(&["update", "--quiet"])?;
        let install = ["install", "--yes", "--quiet", "--no-install-recommends"];
        apt_get(&install.into_iter().chain(self.debian.split(' ')).collect::<Vec<_>>())?;
        // A failure is fine: in a container no service was started.
        let _ =
            Command::new("service").args([self.debian, "stop"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        Ok(())
    }

    fn missing(&self) -> String {
        let Self { name, programs, debian, fedora, homebrew } = self;
        format!(
            "{name} is not installed here ({} were not found in one folder). Install it:\n  \
             Debian, Ubuntu   apt-get install {debian}\n  \
             Fedora           dnf install {fedora}\n  \
             macOS            brew install {homebrew}",
            programs.join(", ")
        )
    }
}

fn apt_get(arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let status = command.status().context("could not start apt-get")?;
    ensure!(status.success(), "`apt-get {}` failed ({status})", arguments.join(" "));
    Ok(())
}

fn contains(path: &OsStr, program: &str) -> bool {
    std::env::split_paths(path).any(|folder| folder.join(program).is_file())
}

/// The folders to search, those of PATH first. Packages install the programs of PostgreSQL outside PATH, by version.
fn places(path: &OsStr) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = std::env::split_paths(path).collect();
    // Where Debian puts servers such as nginx: in the PATH of root only.
    places.push("/usr/sbin".into());
    places.extend(versions("/usr/lib/postgresql", ""));
    places.extend(versions("/usr", "pgsql-"));
    for prefix in ["/usr/local", "/opt/homebrew"] {
        places.push(Path::new(prefix).join("bin"));
        places.extend(versions(&format!("{prefix}/opt"), "postgresql@"));
    }
    places
}

/// `parent/<prefix><version>/bin`, the newest first.
fn versions(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// Runs one of the programs and returns its output.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("could not start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        bail!("{command:?} failed ({}): {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first_by_number() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["pg-9", "pg-15", "pg-x", "other-16"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let found = versions(parent.path().to_str().unwrap(), "pg-");
        assert_eq!(found, [parent.path().join("pg-15/bin"), parent.path().join("pg-9/bin")]);
    }

    #[test]
    fn a_folder_is_found_only_if_it_contains_all_programs() {
        let (half, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(half.path().join("redis-cli"), "").unwrap();
        for program in REDIS.programs {
            fs::write(whole.path().join(program), "").unwrap();
        }
        let places = [half.path().to_owned(), whole.path().to_owned()];
        assert_eq!(REDIS.find_in(&places), Some(whole.path().to_owned()));
        assert_eq!(REDIS.find_in(&places[..1]), None);
    }

    #[test]
    fn a_missing_package_is_named_with_its_install_commands() {
        let message = POSTGRES.missing();
        for line in ["apt-get install postgresql", "dnf install postgresql-server", "brew install postgresql@17"] {
            assert!(message.contains(line), "{message}");
        }
        assert!(message.starts_with("PostgreSQL is not installed here (initdb, postgres,"), "{message}");
    }

    #[test]
    fn the_error_of_a_failed_program_contains_its_output() {
        let error = run(Command::new("sh").args(["-c", "echo no room >&2; exit 4"])).unwrap_err().to_string();
        assert!(error.contains("exit status: 4") && error.contains("no room"), "{error}");
    }
}
