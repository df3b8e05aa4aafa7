//! Guide: metrics, dashboard and alerts.

use dq::prelude::*;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

fn install_metrics() -> Result<PrometheusHandle, Box<dyn std::error::Error>> {
    Ok(PrometheusBuilder::new().set_buckets(dq_metrics::BUCKETS)?.install_recorder()?)
}

fn with_metrics(dq: &Dq) -> dq::RunnerBuilder {
    dq.runner().observer(dq_metrics::RunnerMetrics::new())
}

#[test]
fn the_page_lists_the_bounds() {
    let page = include_str!("../../docs/guide/metrics.md").replace('\n', " ");
    let (_, list) = page.split_once("from 1 ms to 1 h: ").unwrap();
    let (list, _) = list.split_once(". Use").unwrap();
    let mut bounds = Vec::new();
    for group in list.split("; ") {
        let (numbers, unit) = group.rsplit_once(' ').unwrap();
        let factor = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "min" => 60.0,
            _ => panic!("{unit}"),
        };
        let numbers = numbers.replace(" and ", ", ");
        bounds.extend(numbers.split(", ").map(|number| number.parse::<f64>().unwrap() * factor));
    }
    assert_eq!(bounds.len(), dq_metrics::BUCKETS.len());
    for (bound, bucket) in bounds.into_iter().zip(dq_metrics::BUCKETS) {
        assert!((bound - bucket).abs() < 1e-9, "{bound} {bucket}");
    }
}
