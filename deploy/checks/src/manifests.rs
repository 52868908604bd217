//! The manifests that kustomize renders: each overlay, and each component on the base.

use std::{fs, path::Path, process::Command, sync::OnceLock};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{project, run, tool};

/// All overlays of the project. A test checks that none is missing.
pub const OVERLAYS: [&str; 3] = ["local", "minimal", "production"];

/// Each component with the components that it needs. A test checks that none is missing.
pub const COMPONENTS: [&[&str]; 9] = [
    &["gateway"],
    &["grafana"],
    &["hpa-cpu"],
    &["hpa-external"],
    &["ingress"],
    &["keda"],
    &["migrate-job"],
    &["prometheus-operator"],
    &["keda", "scale-to-zero"],
];

/// The objects that one `kubectl apply -k` applies.
#[derive(Debug)]
pub struct Composition {
    pub name: String,
    pub text: String,
    pub objects: Vec<Value>,
}

/// Overlays and components, rendered once for all tests of a process.
pub fn all() -> &'static [Composition] {
    static ALL: OnceLock<Vec<Composition>> = OnceLock::new();
    ALL.get_or_init(|| render_all().unwrap_or_else(|error| panic!("{error:?}")))
}

/// The composition with this name: an overlay, or for example `base + keda`.
pub fn named(name: &str) -> &'static Composition {
    all()
        .iter()
        .find(|composition| composition.name == name)
        .unwrap_or_else(|| panic!("there is no composition {name}"))
}

fn render_all() -> anyhow::Result<Vec<Composition>> {
    let kubernetes = project().join("k8s");
    let overlays = OVERLAYS.map(|name| render(name.to_owned(), &kubernetes.join("overlays").join(name)));
    let components = COMPONENTS.map(|components| {
        let folder = tempfile::tempdir().context("could not make a temporary folder")?;
        let name = format!("base + {}", components.join(" + "));
        fs::write(folder.path().join("kustomization.yaml"), on_base(folder.path(), components)?)?;
        render(name, folder.path())
    });
    overlays.into_iter().chain(components).collect()
}

/// A kustomization with components on the base. kustomize accepts only relative paths.
fn on_base(folder: &Path, components: &[&str]) -> anyhow::Result<String> {
    let up = "../".repeat(folder.canonicalize()?.components().count() - 1);
    let kubernetes = project().canonicalize()?.join("k8s");
    let path = |part: &str| format!("{up}{}/{part}", kubernetes.display().to_string().trim_start_matches('/'));
    let components: String =
        components.iter().map(|name| format!("  - {}\n", path(&format!("components/{name}")))).collect();
    Ok(format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: weir\n\
         resources:\n  - {}\ncomponents:\n{components}",
        path("base")
    ))
}

fn render(name: String, folder: &Path) -> anyhow::Result<Composition> {
    let text = run(Command::new(tool("WEIR_TEST_KUBECTL")?).arg("kustomize").arg(folder))
        .with_context(|| format!("could not render {name}"))?;
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&text).with_context(|| format!("{name} is not valid YAML"))?;
    ensure!(!objects.is_empty(), "{name} is empty");
    Ok(Composition { name, text, objects })
}

/// The kind and name of an object, such as `Deployment/weir-api`.
pub fn id(object: &Value) -> String {
    format!("{}/{}", kind(object), text(object, "/metadata/name"))
}

pub fn kind(object: &Value) -> &str {
    text(object, "/kind")
}

/// The text at a JSON pointer, or an empty one.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a JSON pointer, or an empty one.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Composition {
    pub fn of_kind(&self, wanted: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |object| kind(object) == wanted)
    }

    /// The objects that create pods, each with its pod template.
    pub fn workloads(&self) -> impl Iterator<Item = (&Value, &Value)> {
        let kinds = ["Deployment", "StatefulSet", "Job"];
        let workloads = self.objects.iter().filter(move |object| kinds.contains(&kind(object)));
        workloads.filter_map(|object| Some((object, object.pointer("/spec/template")?)))
    }

    /// The workloads of Weir itself, without the servers of `local`.
    pub fn roles(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.workloads().filter(|(_, template)| text(template, "/spec/containers/0/name") == "weir")
    }
}
