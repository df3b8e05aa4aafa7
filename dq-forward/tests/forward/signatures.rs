//! The Standard Webhooks Python library verifies signatures with the guide's recipe.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use dq_core::Verdict;

use crate::common::{Running, client, schedule};
use crate::receiver::{Receiver, Request};

/// Runs the recipe in its argument on a Flask request from stdin: three header lines, then the
/// body.
const PROGRAM: &str = "\
import sys, types
names = ['Webhook-Id', 'Webhook-Timestamp', 'Webhook-Signature']
read = lambda: sys.stdin.buffer.readline().decode().rstrip('\\n')
headers = {name: read() for name in names}
body = sys.stdin.buffer.read()
request = types.SimpleNamespace(headers=headers, get_data=lambda: body)
sys.modules['flask'] = types.SimpleNamespace(request=request)
exec(sys.argv[1])
try:
    assert verified_body() == body
    print('valid')
except Exception as error:
    print('invalid:', error)
";

fn recipe() -> &'static str {
    let page = include_str!("../../../docs/guide/forwarding.md");
    let (_, recipe) = page.split_once("```python\n").unwrap();
    recipe.split_once("```").unwrap().0
}

fn verify(library: &Path, secret: &str, request: &Request) -> String {
    let mut python = Command::new("python3");
    python.args(["-c", PROGRAM, recipe()]);
    python.env("PYTHONPATH", library).env("BILLING_WEBHOOK_SECRET", secret);
    let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = python.stdin.take().unwrap();
    let header = |name| request.header(name).unwrap();
    let lines = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(header);
    writeln!(input, "{}", lines.join("\n")).unwrap();
    input.write_all(&request.body).unwrap();
    drop(input);
    let output = python.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn the_library_of_others_accepts_each_key_and_refuses_every_change() {
    let library = dq_servers::python_package(dq_servers::PythonPackage::StandardWebhooks);
    let [old, new, other] = [
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDpLjDg0kI1xk=",
        "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ];
    let receiver = Receiver::start("127.0.0.1:0", &["HTTP/1.1 200 OK\r\n\r\n"]).await;
    let dq = client(&format!(
        "[queues.HOOK.forward]\ntype = \"http\"\nurl = \"{}\"\nallow = [\"127.0.0.1\"]\n\
         secrets = [\"{new}\", \"{old}\"]",
        receiver.url("/")
    ))
    .await;
    let mut running = Running::start(dq.runner());
    for payload in ["", "no JSON: zwölf", "{\"text\":\"zwölf Ü € 😀\"}"] {
        let id = schedule(&dq, "HOOK", payload).await;
        assert_eq!(running.next().await, (id, Verdict::Done));
    }
    running.stop().await;
    let [empty, text, request] = receiver.requests().try_into().unwrap();
    assert_eq!(verify(&library, new, &empty), "valid");
    assert_eq!(verify(&library, new, &text), "valid");
    assert_eq!(verify(&library, old, &request), "valid");
    assert_eq!(verify(&library, new, &request), "valid");
    assert!(verify(&library, other, &request).starts_with("invalid"));

    let mut changed = request.clone();
    changed.body[2] ^= 1;
    assert!(verify(&library, old, &changed).starts_with("invalid"), "another body");
    let change = |name: &str, value: &str| {
        let mut changed = request.clone();
        let header = changed.headers.iter_mut().find(|(other, _)| other == name).unwrap();
        header.1 = value.to_owned();
        changed
    };
    let replayed = change("webhook-id", &dq.new_id().to_string());
    assert!(verify(&library, old, &replayed).starts_with("invalid"), "another id");
    let seconds: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
    let later = change("webhook-timestamp", &(seconds + 1).to_string());
    assert!(verify(&library, old, &later).starts_with("invalid"), "another time");
}
