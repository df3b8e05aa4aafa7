//! Checks the metrics, the rules and the dashboard with Prometheus's own tools.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{record, runner, schedule};
use dq_core::Dq;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};

fn grafana() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../grafana")
}

fn promtool(arguments: &[&str], input: &str) -> Output {
    let mut promtool: Command = dq_servers::promtool();
    promtool.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("promtool starts");
    promtool.stdin.take().unwrap().write_all(input.as_bytes()).expect("promtool reads");
    promtool.wait_with_output().unwrap()
}

fn expect_success(arguments: &[&str], input: &str) {
    let output = promtool(arguments, input);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}\n{input}");
}

#[test]
fn a_scrape_is_valid_and_its_histograms_have_the_published_bounds() {
    let builder = PrometheusBuilder::new().set_buckets(dq_metrics::BUCKETS).unwrap();
    let recorder = builder.build_recorder();
    record(&recorder, async {
        let dq = Dq::connect("memory:").await.unwrap();
        schedule(&dq, &["done", "skip"]).await;
        let (runner, finished) = runner(&dq, 2);
        runner.run_until(finished.cancelled()).await.unwrap();
    });

    let scrape = recorder.handle().render();

    expect_success(&["check", "metrics"], &scrape);
    let buckets = scrape.lines().filter(|line| line.starts_with("dq_run_seconds_bucket"));
    let infinity = 1;
    assert_eq!(buckets.count(), dq_metrics::BUCKETS.len() + infinity, "{scrape}");
}

#[test]
fn rules_are_valid_and_fire_when_they_should() {
    expect_success(&["check", "rules", grafana().join("dq.rules.yml").to_str().unwrap()], "");
    expect_success(&["test", "rules", grafana().join("dq.rules.test.yml").to_str().unwrap()], "");
}

/// Collects all texts under `key`, at any depth.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value {
                    Value::String(text) if name == key => found.push(text),
                    _ => all(value, key, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| all(value, key, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_valid_questions_about_metrics_that_exist() {
    let text = std::fs::read_to_string(grafana().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut questions = Vec::new();
    all(&dashboard, "expr", &mut questions);
    assert!(questions.len() >= 15, "{questions:?}");
    let rules = std::fs::read_to_string(grafana().join("dq.rules.yml")).unwrap();
    let known = [
        dq_metrics::JOBS,
        dq_metrics::LATENESS,
        dq_metrics::RUN,
        dq_metrics::STORE,
        dq_metrics::SLOTS,
        dq_metrics::LEASES_LOST,
        dq_metrics::STORE_FAILURES,
        // From dq-web, whose names are not public.
        "dq_queue_jobs",
        "dq_queue_max_running",
        "dq_queue_held_back",
        "dq_oldest_ready_seconds",
        "dq_queue_lateness_missed",
        "dq_queue_runners",
    ];
    let text = format!("{} {rules}", questions.join(" "));
    for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
        let name = word.strip_suffix("_bucket").unwrap_or(word);
        assert!(!name.starts_with("dq_") || known.contains(&name), "{name}");
    }
    let as_rules: Vec<Value> = questions
        .iter()
        .enumerate()
        .map(|(number, question)| {
            let question = question.replace("$__rate_interval", "5m").replace("$queue", ".*");
            json!({ "record": format!("question_{number}"), "expr": question })
        })
        .collect();
    let rules = json!({ "groups": [{ "name": "dashboard", "rules": as_rules }] });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dashboard.yml");
    std::fs::write(&file, rules.to_string()).unwrap();
    expect_success(&["check", "rules", file.to_str().unwrap()], "");
}
