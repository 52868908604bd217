//! The standard variables of OpenTelemetry that Weir reads. The SDK and the exporter read other variables themselves
//! (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`).

use opentelemetry::{TraceId, trace::SpanKind};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample as _};
use url::Url;
use weir_core::TraceParent;

use crate::exit::Misuse;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";

/// The settings of the trace export.
#[derive(Debug)]
pub(crate) struct TraceSettings {
    pub(crate) endpoint: Url,
    /// Whether the environment names the service; otherwise its name is `weir`.
    pub(crate) service_is_named: bool,
    pub(crate) sampling: Sampling,
}

/// Which traces are recorded.
#[derive(Debug)]
pub(crate) struct Sampling {
    root: Sampler,
    /// Whether the decision of a parent span is followed, if there is a parent.
    follows_parent: bool,
}

impl TraceSettings {
    /// `None` if no endpoint is set or if the variables disable the export.
    pub(crate) fn load() -> Result<Option<Self>, Misuse> {
        Self::from(|name| std::env::var(name).ok())
    }

    /// Empty variables count as unset, as the specification says.
    fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Misuse> {
        let read = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let is = |name: &str, value: &str| read(name).is_some_and(|text| text.eq_ignore_ascii_case(value));

        // The specification's two ways to disable the export.
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        // The endpoint of traces is used as it is. It overrides the common endpoint.
        let endpoint = match (read(TRACES_ENDPOINT), read(ENDPOINT)) {
            (Some(text), _) => endpoint(TRACES_ENDPOINT, &text)?,
            (None, Some(text)) => {
                // The signal's path is appended to the common endpoint.
                let base = endpoint(ENDPOINT, &text)?;
                let path = format!("{}/v1/traces", base.path().trim_end_matches('/'));
                let mut endpoint = base;
                endpoint.set_path(&path);
                endpoint
            }
            (None, None) => return Ok(None),
        };
        // The exporter supports only this protocol. Another one is refused, not ignored.
        for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            if let Some(protocol) = read(name).filter(|protocol| protocol != "http/protobuf") {
                return Err(Misuse(format!("{name}: must be http/protobuf, not `{protocol}`")));
            }
        }

        // The default is that of the specification.
        let sampler = read(SAMPLER).unwrap_or_else(|| "parentbased_always_on".to_owned());
        let sampling = sampling(&sampler, read(SAMPLER_ARG).as_deref())?;
        // The SDK reads these variables itself. Here they decide only whether Weir sets its own service name.
        let attributes = read("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let service_is_named = read("OTEL_SERVICE_NAME").is_some()
            || attributes.split(',').any(|one| one.trim().starts_with("service.name="));
        Ok(Some(Self { endpoint, service_is_named, sampling }))
    }
}

/// The error does not repeat the text, which may hold a password.
fn endpoint(name: &str, text: &str) -> Result<Url, Misuse> {
    let fits = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    let url = Url::parse(text).ok().filter(fits);
    url.ok_or_else(|| {
        Misuse(format!("{name} in the environment: must be an http or https URL, such as http://localhost:4318"))
    })
}

fn sampling(name: &str, argument: Option<&str>) -> Result<Sampling, Misuse> {
    // With the prefix, the decision of a parent span is followed.
    let (follows_parent, root) = match name.strip_prefix("parentbased_") {
        Some(root) => (true, root),
        None => (false, name),
    };
    // The rest names the sampler for the spans that no parent decides.
    let root = match root {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => {
            // The default ratio of the specification is 1.
            let ratio: Option<f64> = argument.unwrap_or("1").parse().ok();
            let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
            Sampler::TraceIdRatioBased(
                ratio
                    .ok_or_else(|| Misuse(format!("{SAMPLER_ARG} in the environment: must be a number from 0 to 1")))?,
            )
        }
        _ => {
            return Err(Misuse(format!(
                "{SAMPLER} in the environment: must be always_on, always_off or traceidratio, with or without the prefix parentbased_"
            )));
        }
    };
    Ok(Sampling { root, follows_parent })
}

impl Sampling {
    /// Whether a new span under `parent` is recorded.
    pub(super) fn records(&self, parent: Option<TraceParent>, trace_id: [u8; 16], name: &str, kind: &SpanKind) -> bool {
        if let Some(parent) = parent.filter(|_| self.follows_parent) {
            return parent.is_sampled();
        }
        let result = self.root.should_sample(None, TraceId::from_bytes(trace_id), name, kind, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<Option<TraceSettings>, Misuse> {
        TraceSettings::from(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_an_endpoint_nothing_is_exported() {
        for variables in [
            &[][..],
            &[(ENDPOINT, "")],
            &[(SAMPLER, "always_on")],
            &[(ENDPOINT, "http://a:4318"), ("OTEL_SDK_DISABLED", "true")],
            &[(ENDPOINT, "http://a:4318"), ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert!(load(variables).unwrap().is_none(), "{variables:?}");
        }
    }

    #[test]
    fn the_traces_path_is_appended_to_the_common_endpoint_only() {
        for (variables, url) in [
            (&[(ENDPOINT, "http://a:4318")][..], "http://a:4318/v1/traces"),
            (&[(ENDPOINT, "https://a/otlp/")], "https://a/otlp/v1/traces"),
            (&[(TRACES_ENDPOINT, "https://a/x")], "https://a/x"),
            (&[(TRACES_ENDPOINT, "https://a/x"), (ENDPOINT, "http://b")], "https://a/x"),
        ] {
            assert_eq!(load(variables).unwrap().unwrap().endpoint.as_str(), url);
        }
    }

    #[test]
    fn an_error_names_its_variable() {
        let with = |name, value| load(&[(ENDPOINT, "http://a"), (name, value)]).unwrap_err().0;
        for (name, value) in [
            (TRACES_ENDPOINT, "collector:4318"),
            (TRACES_ENDPOINT, "/v1/traces"),
            (TRACES_ENDPOINT, "ftp://a/"),
            (SAMPLER, "sometimes"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ] {
            assert!(with(name, value).starts_with(name), "{name}={value}");
        }
        assert!(load(&[(ENDPOINT, "nonsense")]).unwrap_err().0.starts_with(ENDPOINT));
        let ratio = load(&[(ENDPOINT, "http://a"), (SAMPLER, "traceidratio"), (SAMPLER_ARG, "2")]);
        assert!(ratio.unwrap_err().0.starts_with(SAMPLER_ARG));
    }

    #[test]
    fn a_parent_decides_only_with_a_parent_based_sampler() {
        let parent = |sampled| TraceParent::new([9; 16], [1; 8], sampled);
        for (name, argument, parent, recorded) in [
            ("parentbased_always_on", None, None, true),
            ("parentbased_always_on", None, parent(false), false),
            ("parentbased_always_off", None, None, false),
            ("parentbased_always_off", None, parent(true), true),
            ("parentbased_traceidratio", Some("0"), parent(true), true),
            ("parentbased_traceidratio", Some("0"), None, false),
            ("traceidratio", None, None, true),
            ("always_on", None, parent(false), true),
            ("always_off", None, parent(true), false),
        ] {
            let sampling = sampling(name, argument).unwrap();
            assert_eq!(sampling.records(parent, [9; 16], "POST", &SpanKind::Server), recorded, "{name} {parent:?}");
        }
    }
}
