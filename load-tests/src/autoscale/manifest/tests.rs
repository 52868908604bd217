use std::path::PathBuf;

use super::*;

const SCALED_OBJECT: &str = r#"
apiVersion: v1
kind: Service
metadata: { name: weir-worker }
spec: { ports: [{ port: 9464 }] }
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: { name: weir-worker }
spec:
  scaleTargetRef: { name: weir-worker }
  minReplicaCount: 2
  maxReplicaCount: 20
  fallback: { failureThreshold: 3, replicas: 4, behavior: currentReplicasIfHigher }
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp: { policies: [{ type: Pods, value: 4, periodSeconds: 15 }] }
        scaleDown:
          stabilizationWindowSeconds: 300
          selectPolicy: Min
          policies: [{ type: Percent, value: 25, periodSeconds: 60 }]
  triggers:
    - type: prometheus
      metadata: { query: sum(busy), threshold: "0.7", ignoreNullValues: "false" }
    - type: prometheus
      name: lag
      metricType: Value
      metadata: { query: "rate(lag[1m])", threshold: 1 }
"#;

fn project(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[test]
fn a_scaled_object_is_found_among_other_manifests_and_read() {
    let scaling = Scaling::of(&parse(SCALED_OBJECT).unwrap()).unwrap();
    assert_eq!((scaling.bounds.min, scaling.bounds.max), (2, 20));
    assert_eq!(scaling.bounds.up.window, Duration::ZERO);
    let down = &scaling.bounds.down;
    assert_eq!((down.window, down.select), (Duration::from_secs(300), Select::Min));
    assert_eq!(down.policies, [Policy { amount: Amount::Percent(25), period: Duration::from_secs(60) }]);
    let targets: Vec<_> = scaling.metrics.iter().map(|metric| (metric.name.as_str(), metric.target)).collect();
    assert_eq!(targets, [("s0-prometheus", Target::AverageValue(700)), ("lag", Target::Value(1_000))]);
    assert_eq!([scaling.metrics[0].is_null_zero, scaling.metrics[1].is_null_zero], [false, true]);
    let behavior = FallbackBehavior::CurrentReplicasIfHigher;
    assert_eq!(scaling.fallback, Some(Fallback { failures: 3, replicas: 4, behavior }));
}

#[test]
fn a_speed_up_of_ten_divides_all_times_and_changes_nothing_else() {
    let real = Scaling::of(&parse(SCALED_OBJECT).unwrap()).unwrap();
    let short = real.clone().sped_up(10.0);
    assert_eq!(short.bounds.down.window, Duration::from_secs(30));
    assert_eq!(short.bounds.down.policies[0].period, Duration::from_secs(6));
    assert_eq!(short.sync, Duration::from_millis(1_500));
    assert_eq!(short.metrics[1].query, "rate(lag[6s])");
    assert_eq!(short.metrics[1].target, real.metrics[1].target);
    assert_eq!(real.clone().sped_up(1.0), real);
}

#[test]
fn an_unsupported_value_is_refused_by_name() {
    let refused = |from: &str, to: &str| {
        let documents = parse(&SCALED_OBJECT.replace(from, to)).unwrap();
        format!("{:#}", Scaling::of(&documents).unwrap_err())
    };
    assert!(refused("type: prometheus\n      name", "type: cron\n      name").contains("trigger lag is of type cron"));
    assert!(refused("metricType: Value", "metricType: Utilization").contains("metricType Utilization"));
    assert!(refused("threshold: 1 }", "threshold: much }").contains("trigger lag: threshold: much is not a quantity"));
    assert!(refused("minReplicaCount: 2", "minReplicaCount: 21").contains("not valid bounds"));
    assert!(refused("name: weir-worker }\n  min", "name: other }\n  min").contains("there is no ScaledObject"));
}

#[test]
fn quantities_are_read_in_thousandths() {
    let rows = [("0.7", 700), ("700m", 700), ("1000", 1_000_000), ("1k", 1_000_000), ("2.5M", 2_500_000_000)];
    for (text, expected) in rows {
        assert_eq!(quantity(&documents::Quantity::Text(text.to_owned())).unwrap(), expected, "{text}");
    }
}

#[test]
fn the_scaled_object_and_the_hpa_have_the_same_bounds_and_metrics() {
    let keda = Scaling::read(&project("k8s/components/keda/scaledobject.yaml")).unwrap();
    let hpa = Scaling::read(&project("k8s/components/hpa-external/hpa.yaml")).unwrap();
    assert_eq!(keda.bounds, hpa.bounds);
    let essence = |scaling: &Scaling| {
        let without_spaces = |query: &str| query.split_whitespace().collect::<String>();
        scaling.metrics.iter().map(|metric| (without_spaces(&metric.query), metric.target)).collect::<Vec<_>>()
    };
    assert_eq!(essence(&keda), essence(&hpa));
}
