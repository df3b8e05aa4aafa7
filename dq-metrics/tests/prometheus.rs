//! Checks the metrics, the rules and the dashboard with Prometheus's own tools.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{Countdown, block_on, runner, schedule};
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

fn scrape(dq: Dq, countdown: Countdown) -> String {
    let builder = PrometheusBuilder::new().set_buckets(dq_metrics::BUCKETS).unwrap();
    let recorder = builder.build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let runner = runner(&dq, &countdown).concurrency(2);
        block_on(runner.run_until(countdown.finished.cancelled())).unwrap();
    });
    recorder.handle().render()
}

#[test]
fn three_runners_add_up() {
    const JOBS: usize = 600;
    let dq = block_on(Dq::connect("memory:")).unwrap();
    block_on(schedule(&dq, &vec!["done"; JOBS]));
    let countdown = Countdown::new(JOBS);
    let processes: Vec<_> = (0..3)
        .map(|_| {
            let (dq, countdown) = (dq.clone(), countdown.clone());
            std::thread::spawn(move || scrape(dq, countdown))
        })
        .collect();
    let scrapes: Vec<String> =
        processes.into_iter().map(|process| process.join().unwrap()).collect();

    let mut series = Vec::new();
    for (instance, scrape) in scrapes.iter().enumerate() {
        expect_success(&["check", "metrics"], scrape);
        for line in scrape.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = match name.strip_suffix('}') {
                Some(name) => format!("{name},instance=\"{instance}\"}}"),
                None => format!("{name}{{instance=\"{instance}\"}}"),
            };
            series.push(json!({ "series": name, "values": value }));
        }
    }
    let sample = |expr: &str, value: usize| {
        json!({
            "expr": expr, "eval_time": "0s", "exp_samples": [{ "labels": "{}", "value": value }],
        })
    };
    let test = json!({
        "evaluation_interval": "15s",
        "tests": [{
            "interval": "15s",
            "input_series": series,
            "promql_expr_test": [
                sample("sum(dq_jobs_total{queue=\"OBEDIENT\",outcome=\"done\"})", JOBS),
                sample("sum(dq_lateness_seconds_count{queue=\"OBEDIENT\"})", JOBS),
                sample("sum(dq_run_seconds_bucket{le=\"3600\"})", JOBS),
                // All processes have the same bounds, and +Inf.
                sample(
                    "count(count by (le) (dq_run_seconds_bucket))",
                    dq_metrics::BUCKETS.len() + 1,
                ),
            ],
        }],
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sums.yml");
    std::fs::write(&file, test.to_string()).unwrap();
    expect_success(&["test", "rules", file.to_str().unwrap()], "");
}

#[test]
fn rules_are_valid_and_fire_when_they_should() {
    expect_success(&["check", "rules", grafana().join("dq.rules.yml").to_str().unwrap()], "");
    expect_success(&["test", "rules", grafana().join("dq.rules.test.yml").to_str().unwrap()], "");
}

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
        "dq_oldest_ready_seconds",
        "dq_queue_lateness_missed",
        "dq_queue_runners",
    ];
    for word in questions
        .join(" ")
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .chain(rules.split(|c: char| !(c.is_alphanumeric() || c == '_')))
    {
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
