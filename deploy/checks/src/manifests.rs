//! The manifests: what kustomize renders from `k8s/` (each overlay, and every combination with components to which the
//! guide invites), and what Helm renders from the chart with each file of values in `deploy/helm/weir/ci`.
//!
//! `rendered` runs the tools and keeps the results for the other tests.

mod rendered;

use std::{collections::BTreeMap, sync::OnceLock};

use serde_json::Value;

use crate::yaml;

/// All overlays of the project. A test checks that none is missing.
pub const OVERLAYS: [&str; 4] = ["custom", "local", "minimal", "production"];

/// The folder of the chart.
pub const CHART: &str = "deploy/helm/weir";
/// The namespace of a Helm release in the tests, which is that of the overlays, too.
pub const NAMESPACE: &str = "weir";

const BASE: &str = "base";
/// What may be added to the base, an overlay or both: each alone, and then all that do not exclude each other. A test
/// checks that no component is missing.
const COMPONENTS: [(&str, &[&[&str]]); 4] = [
    (
        BASE,
        &[
            &["backup"],
            &["gateway"],
            &["grafana"],
            &["hpa-cpu"],
            &["hpa-external"],
            &["ingress"],
            &["keda"],
            &["migrate-job"],
            &["prometheus-operator"],
            &["restored"],
            &["traces"],
            &["keda", "scale-to-zero"],
        ],
    ),
    (
        "local",
        &[
            &["gateway"],
            &["ingress"],
            &["backup", "gateway", "grafana", "ingress", "migrate-job", "prometheus-operator", "restored", "traces"],
        ],
    ),
    (
        "minimal",
        &[
            &["backup-embedded"],
            &["gateway"],
            &["grafana"],
            &["ingress"],
            &["prometheus-operator"],
            &["restored-embedded"],
            &["traces"],
            &["backup-embedded", "ingress", "restored-embedded"],
            &["backup-embedded", "gateway", "grafana", "prometheus-operator", "restored-embedded", "traces"],
        ],
    ),
    (
        "production",
        &[
            &["gateway"],
            &["ingress"],
            &["migrate-job"],
            &["scale-to-zero"],
            &["traces"],
            &["backup", "gateway", "grafana", "migrate-job", "restored", "scale-to-zero", "traces"],
        ],
    ),
];

/// Components that are tested in an overlay, because they need objects of it.
const ONLY_IN_OVERLAYS: [&str; 1] = ["cluster"];

/// Every component, in the order of the names.
pub fn components() -> Vec<&'static str> {
    let all = COMPONENTS.iter().flat_map(|(_, combinations)| combinations.iter().copied().flatten().copied());
    let mut all: Vec<_> = all.chain(ONLY_IN_OVERLAYS).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The objects that one `kubectl apply -k`, or one `helm upgrade`, applies.
#[derive(Debug)]
pub struct Composition {
    pub name: String,
    pub objects: Vec<Value>,
}

/// All compositions, read once for all tests of a process.
pub fn all() -> &'static [Composition] {
    static ALL: OnceLock<Vec<Composition>> = OnceLock::new();
    ALL.get_or_init(|| rendered::all().unwrap_or_else(|error| panic!("{error:?}")))
}

/// Those of kustomize.
pub fn of_kustomize() -> impl Iterator<Item = &'static Composition> {
    all().iter().filter(|composition| !composition.is_of_chart())
}

/// The composition with this name: an overlay, `base + keda`, or `chart: production`.
pub fn named(name: &str) -> &'static Composition {
    all()
        .iter()
        .find(|composition| composition.name == name)
        .unwrap_or_else(|| panic!("there is no composition {name}"))
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

/// Whether a workload runs until it is stopped; a Job ends by itself.
pub fn runs(workload: &Value) -> bool {
    !["Job", "CronJob"].contains(&kind(workload))
}

impl Composition {
    pub fn of_kind(&self, wanted: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |object| kind(object) == wanted)
    }

    /// The objects that create pods, each with its pod template.
    pub fn workloads(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.objects.iter().filter_map(|object| {
            let template = match kind(object) {
                "Deployment" | "StatefulSet" | "Job" => object.pointer("/spec/template"),
                "CronJob" => object.pointer("/spec/jobTemplate/spec/template"),
                _ => None,
            };
            Some((object, template?))
        })
    }

    /// The workloads of Weir itself, without the servers of `local` and without `pg_dump`.
    pub fn roles(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.workloads().filter(|(_, template)| text(template, "/spec/containers/0/name") == "weir")
    }

    /// Those that have the API.
    pub fn serving(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.roles().filter(|(_, template)| ["api", "serve"].contains(&text(template, "/spec/containers/0/args/0")))
    }

    /// Whether all of Weir is in one pod.
    pub fn is_embedded(&self) -> bool {
        self.of_kind("StatefulSet").any(|object| text(object, "/metadata/name") == "weir")
    }

    pub fn is_of_chart(&self) -> bool {
        self.name.starts_with("chart: ")
    }

    /// The namespace of Weir.
    pub fn namespace(&self) -> &str {
        self.of_kind("ServiceAccount").next().map_or("", |account| text(account, "/metadata/namespace"))
    }

    /// The variables of a pod with their values. Those from secrets have none.
    pub fn variables(&self, template: &Value) -> BTreeMap<String, Option<String>> {
        let container = &template["spec"]["containers"][0];
        let mut all = BTreeMap::new();
        for from in list(container, "/envFrom") {
            let named = |config: &&Value| config["metadata"]["name"] == from["configMapRef"]["name"];
            let data = self.of_kind("ConfigMap").find(named).and_then(|config| config["data"].as_object());
            let owned = |(name, value): (&String, &Value)| (name.clone(), value.as_str().map(str::to_owned));
            all.extend(data.into_iter().flatten().map(owned));
        }
        let listed = list(container, "/env").iter();
        all.extend(listed.map(|one| (text(one, "/name").to_owned(), one["value"].as_str().map(str::to_owned))));
        all
    }

    /// The value of a setting in the pods with the API.
    pub fn setting(&self, name: &str) -> Option<String> {
        let (_, template) = self.serving().next()?;
        self.variables(template).remove(name)?
    }

    /// The host names that Weir accepts: those of `WEIR_HOSTS`, and that of `WEIR_PUBLIC_URL`.
    pub fn hosts(&self) -> Vec<String> {
        let hosts = self.setting("WEIR_HOSTS").unwrap_or_default();
        let public = self.setting("WEIR_PUBLIC_URL").and_then(|url| Some(url.split('/').nth(2)?.to_owned()));
        hosts.split(',').map(str::to_owned).chain(public).collect()
    }
}

/// The adapter's rules, which kustomize does not apply.
pub fn adapter_rules() -> anyhow::Result<Value> {
    yaml("k8s/components/hpa-external/adapter-rules.yaml")
}
