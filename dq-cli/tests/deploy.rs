//! The files in `deploy/`: what they set and ask exists, as far as no container engine is needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use dq_servers::{PythonPackage, python_package};
use serde_json::Value;

use crate::support::{Server, code, dq, ok, text};

/// Prints a YAML file's documents as a JSON list.
const TO_JSON: &str = "import json, sys, ruamel.yaml; \
    print(json.dumps(list(ruamel.yaml.YAML(typ='safe', pure=True).load_all(open(sys.argv[1])))))";

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

fn yaml(name: &str) -> Vec<Value> {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", python_package(PythonPackage::OpenapiClient));
    let output = python.args(["-c", TO_JSON]).arg(deploy(name)).output().unwrap();
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap()
}

/// Checks that a server accepts these settings, with a file in place of each secret.
fn assert_accepted(settings: &str, secrets: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (mut settings, mut files) = (settings.to_owned(), 0);
    while let Some(at) = settings.find(&format!("${{file:{secrets}/")) {
        let end = at + settings[at..].find('}').unwrap();
        let file = path.join(format!("secret-{files}"));
        let is_url = settings[at..end].contains("database-url");
        let secret =
            if is_url { "postgres://dq:1@127.0.0.1:1/dq" } else { "0123456789abcdef0123456789" };
        std::fs::write(&file, format!("{secret}{files}")).unwrap();
        settings.replace_range(at..=end, &format!("${{file:{}}}", file.display()));
        files += 1;
    }
    assert!(files > 0, "{settings}");
    std::fs::write(path.join("dq.toml"), &settings).unwrap();
    assert!(ok(path, &["migrate", "--print"]).contains("CREATE"));
    // Unknown settings of the server are refused before it connects.
    let (status, error) = code(path, &["serve", "--address", "127.0.0.1:0"]);
    assert_eq!(status, 5, "only the database is missing: {error}");
}

#[test]
fn a_server_tells_whether_it_is_healthy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &[]);
    assert_eq!(ok(path, &["health", "--api", &server.address]), "healthy\n");
    let api = format!("{}/", server.address.trim_end_matches('/'));
    assert!(dq(path).arg("health").env("DQ_API", api).status().unwrap().success());
    let (status, error) = code(path, &["health", "--api", "http://127.0.0.1:1"]);
    assert_eq!(status, 5, "{error}");
    let (status, error) = code(path, &["health", "--url", "sqlite://dq.db"]);
    assert!(status == 2 && error.contains("--url"), "{status}: {error}");
}

#[test]
fn compose_starts_a_server_with_its_secrets() {
    let [compose] = &yaml("compose.yaml")[..] else { panic!("one document") };
    let settings = std::fs::read_to_string(deploy("dq.toml")).unwrap();
    let service = &compose["services"]["dq"];
    for secret in service["secrets"].as_array().unwrap() {
        let secret = secret.as_str().unwrap();
        assert!(settings.contains(&format!("${{file:/run/secrets/{secret}}}")), "{secret}");
        assert_eq!(compose["secrets"][secret]["file"], format!("secrets/{secret}"));
    }
    assert_eq!(service["volumes"][0], "./dq.toml:/var/lib/dq/dq.toml:ro");
    assert_accepted(&settings, "/run/secrets");
}

#[test]
fn kubernetes_asks_a_server_what_it_answers() {
    let documents = yaml("kubernetes.yaml");
    let settings = of_kind(&documents, "ConfigMap")["data"]["dq.toml"].as_str().unwrap();
    let readme = std::fs::read_to_string(deploy("README.md")).unwrap();
    for secret in ["database-url", "lease-secret", "ops-token", "monitoring-token"] {
        assert!(settings.contains(&format!("/run/secrets/dq/{secret}}}")), "{secret}");
        assert!(readme.contains(&format!("--from-literal={secret}=")), "{secret}");
    }
    assert_accepted(settings, "/run/secrets/dq");

    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let status = |path: &str| {
        let url = format!("{}{path}", server.address.trim_end_matches('/'));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { reqwest::get(url).await.unwrap().status() })
    };
    let pod = &of_kind(&documents, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(status(path), 200, "{probe}: {path}, without a token");
    }
    let port = &of_kind(&documents, "Service")["spec"]["ports"][0]["port"];
    assert_eq!(port, &container["ports"][0]["containerPort"]);

    let scaled = of_kind(&yaml("keda.yaml"), "ScaledObject").clone();
    let metadata = &scaled["spec"]["triggers"][0]["metadata"];
    let (host, path) = metadata["url"].as_str().unwrap().split_once("svc:7373").unwrap();
    assert!(host.starts_with("http://dq."), "{host}");
    ok(directory.path(), &server.api(&["enqueue", "MAIL", "1"]));
    let answer: Value = serde_json::from_str(&server.get(path.trim_start_matches('/'))).unwrap();
    assert_eq!(answer[metadata["valueLocation"].as_str().unwrap()], 1, "{answer}");
}

#[test]
fn prometheus_accepts_the_documented_scrape_configuration() {
    let readme = std::fs::read_to_string(deploy("README.md")).unwrap();
    let from = readme.find("scrape_configs:").unwrap();
    let length = readme[from..].find("```").unwrap();
    // Debian builds it without Kubernetes.
    let (discovery, others): (Vec<&str>, Vec<&str>) = readme[from..from + length]
        .lines()
        .partition(|line| line.contains("kubernetes_sd_configs"));
    assert_eq!(discovery.len(), 1, "{discovery:?}");
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("prometheus.yml"), others.join("\n")).unwrap();
    let mut promtool = dq_servers::promtool();
    promtool.current_dir(directory.path());
    // The token's file is in Prometheus' container only.
    let checked = promtool.args(["check", "config", "--syntax-only", "prometheus.yml"]).output();
    let checked = checked.unwrap();
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
}

/// Skips nothing: the arguments are accepted, so the missing file is what fails.
#[test]
fn the_service_and_the_image_start_the_program_as_it_is() {
    let unit = std::fs::read_to_string(deploy("dq.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/dq "));
    let mut arguments: Vec<&str> = start.unwrap().split(' ').collect();
    let directory = tempfile::tempdir().unwrap();
    let file = arguments.iter_mut().find(|argument| **argument == "/etc/dq/dq.toml").unwrap();
    *file = "missing.toml";
    let (status, error) = code(directory.path(), &arguments);
    assert!(status == 2 && error.contains("missing.toml"), "{status}: {error}");
    assert!(!error.contains("Usage"), "{error}");

    let image = std::fs::read_to_string(deploy("Containerfile")).unwrap();
    let command = image.lines().find_map(|line| line.strip_prefix("CMD "));
    arguments = serde_json::from_str(command.unwrap()).unwrap();
    let (status, error) = code(directory.path(), &arguments);
    assert!(status == 2 && error.contains("token"), "no address for all without one: {error}");
    assert!(image.contains(r#"CMD ["/dq", "health"]"#));
}
