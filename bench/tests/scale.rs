//! `dq-bench scale` with few jobs: checks that the report is complete, not the figures.

use std::fs;
use std::process::Command;

const PENDING: usize = 1_200;

fn run(store: &str, queues: usize, name: &str, title: &str) {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dq-bench"))
        .args(["scale", "--backend", store, "--pending", &PENDING.to_string()])
        .args(["--queues", &queues.to_string(), "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |extension: &str| {
        let path = dir.path().join(format!("{name}.{extension}"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let report: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
    let points = report["points"].as_array().unwrap();
    let pending: Vec<_> = points.iter().map(|it| it["pending"].as_u64().unwrap()).collect();
    assert_eq!(pending, [120, 1_200]);
    for point in points {
        assert!(point["bulk_rate"].as_f64().unwrap() > 0.0, "{point}");
        for name in ["schedule", "cancel", "claim_and_settle", "stats", "lateness"] {
            let of = |share: &str| point[name][share].as_f64().unwrap();
            assert!(0.0 < of("p50") && of("p50") <= of("p99") && of("p99") <= of("max"), "{point}");
        }
    }
    // At least the 100-byte payloads. A write-ahead log may be as large as all of them.
    let bytes = points[1]["store_bytes"].as_f64().unwrap();
    assert!((100.0..100_000.0).contains(&bytes), "{bytes} bytes for each job");
    let table = read("md");
    assert!(table.contains(&format!("| {title}, pending jobs | 120 | 1,200 |")), "{table}");
    assert!(table.contains("QUICK"), "figures of an unoptimized build say so: {table}");
    assert_eq!(read("svg").matches("<circle").count(), 4 * 2);
}

#[test]
fn scale_of_sqlite() {
    run("sqlite", 1, "sqlite-1200", "`sqlite`");
}

#[test]
fn scale_of_redis() {
    run("redis", 1, "redis-1200", "`redis`");
}

#[test]
fn scale_of_postgres() {
    run("postgres", 1, "postgres-1200", "`postgres`");
}

#[test]
fn scale_with_many_queues() {
    run("sqlite", 300, "sqlite-1200-300-queues", "`sqlite`, 300 queues");
}
