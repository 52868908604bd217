//! Runs kustomize and Helm. Each test has a process of its own, so the objects are kept in a file, whose name has a digest
//! of everything that they are made from.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{BASE, CHART, COMPONENTS, Composition, NAMESPACE, OVERLAYS};
use crate::{documents, project, run, tool};

/// The folders that the objects are made from.
const SOURCES: [&str; 4] = ["k8s", CHART, "deploy/grafana", "deploy/prometheus"];
/// Where the objects are kept.
const KEPT: &str = "target/manifests";

pub(super) fn all() -> anyhow::Result<Vec<Composition>> {
    let mut digest = DefaultHasher::new();
    // What is rendered, and by which tools.
    (OVERLAYS, COMPONENTS, tool("WEIR_TEST_KUBECTL")?, tool("WEIR_TEST_HELM")?).hash(&mut digest);
    for folder in SOURCES {
        add(&project().join(folder), &mut digest)?;
    }
    let kept = project().join(KEPT).join(format!("{:016x}.json", digest.finish()));
    if let Ok(text) = fs::read(&kept) {
        let read: Vec<(String, Vec<Value>)> = serde_json::from_slice(&text).context("could not read kept manifests")?;
        return Ok(read.into_iter().map(|(name, objects)| Composition { name, objects }).collect());
    }
    let all = render_all()?;
    keep(&kept, &all)?;
    Ok(all)
}

/// Adds the names and contents of all files of a folder.
fn add(folder: &Path, digest: &mut DefaultHasher) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            add(&path, digest)?;
        } else {
            (&path, fs::read(&path).with_context(|| format!("could not read {}", path.display()))?).hash(digest);
        }
    }
    Ok(())
}

fn keep(file: &Path, all: &[Composition]) -> anyhow::Result<()> {
    let folder = file.parent().context("the file has a folder")?;
    fs::create_dir_all(folder)?;
    // Objects of earlier sources. Another test may remove them at the same time.
    for old in fs::read_dir(folder)?.filter_map(Result::ok).filter(|old| old.path() != file) {
        let _ = fs::remove_file(old.path());
    }
    let all: Vec<_> = all.iter().map(|composition| (&composition.name, &composition.objects)).collect();
    // Outside the folder until it is complete, so that no other test removes or reads a part of it.
    let part = tempfile::NamedTempFile::new_in(project().join("target"))?;
    serde_json::to_writer(part.as_file(), &all)?;
    part.persist(file)?;
    Ok(())
}

fn render_all() -> anyhow::Result<Vec<Composition>> {
    let kubernetes = project().join("k8s");
    let overlays = OVERLAYS.map(|name| kustomize(name.to_owned(), &kubernetes.join("overlays").join(name)));
    let combinations = COMPONENTS.iter().flat_map(|(root, combinations)| combinations.iter().map(move |of| (root, of)));
    let combined = combinations.map(|(root, components)| {
        let folder = tempfile::tempdir().context("could not make a temporary folder")?;
        let name = format!("{root} + {}", components.join(" + "));
        fs::write(folder.path().join("kustomization.yaml"), combination(folder.path(), root, components)?)?;
        kustomize(name, folder.path())
    });
    let of_chart = values()?.into_iter().map(|values| helm(&values));
    overlays.into_iter().chain(combined).chain(of_chart).collect()
}

/// A kustomization with components on the base or an overlay. kustomize accepts only relative paths.
fn combination(folder: &Path, root: &str, components: &[&str]) -> anyhow::Result<String> {
    let up = "../".repeat(folder.canonicalize()?.components().count() - 1);
    let kubernetes = project().canonicalize()?.join("k8s");
    let path = |part: &str| format!("{up}{}/{part}", kubernetes.display().to_string().trim_start_matches('/'));
    let components: String =
        components.iter().map(|name| format!("  - {}\n", path(&format!("components/{name}")))).collect();
    let root = if root == BASE { BASE.to_owned() } else { format!("overlays/{root}") };
    Ok(format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: {NAMESPACE}\n\
         resources:\n  - {}\ncomponents:\n{components}",
        path(&root)
    ))
}

fn kustomize(name: String, folder: &Path) -> anyhow::Result<Composition> {
    let text = run(Command::new(tool("WEIR_TEST_KUBECTL")?).arg("kustomize").arg(folder))
        .with_context(|| format!("could not render {name}"))?;
    parse(name, &text)
}

/// The files of values that the chart is tested with.
fn values() -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(project().join(CHART).join("ci"))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

fn helm(values: &Path) -> anyhow::Result<Composition> {
    let name = format!("chart: {}", values.file_stem().unwrap_or_default().display());
    let mut template = Command::new(tool("WEIR_TEST_HELM")?);
    template.args(["template", "weir", "--namespace", NAMESPACE, "--values"]).arg(values);
    let text = run(template.arg(project().join(CHART))).with_context(|| format!("could not render {name}"))?;
    parse(name, &text)
}

fn parse(name: String, text: &str) -> anyhow::Result<Composition> {
    let objects = documents(text).with_context(|| format!("could not read {name}"))?;
    ensure!(!objects.is_empty(), "{name} is empty");
    Ok(Composition { name, objects })
}
