//! Chromium, driven by W3C WebDriver.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use dq_servers::Browser;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a test waits for the page.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two looks at the page.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Driver timeout: a page may load slowly on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(180);

/// Attempts of a command that can be repeated. The driver sometimes closes a connection without a
/// reply.
const ATTEMPTS: u32 = 3;

/// Commands that change the page or the driver, and the log, which a read empties.
const NOT_REPEATABLE: [&str; 5] = ["/element/", "/execute/", "/window/new", "/actions", "/se/log"];

/// The reply member with an element's identifier (W3C WebDriver, section 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub(crate) struct Window {
    driver: Child,
    http: reqwest::Client,
    session: String,
    _profile: TempDir,
}

impl Window {
    pub(crate) async fn open() -> Self {
        let browser = Browser::find();
        let profile = tempfile::tempdir().unwrap();
        let (driver, address) = start_driver(&browser);
        let arguments = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            // Plain HTTP to a host that is not local is no secure context, so browsers send no
            // `Sec-Fetch` headers.
            "--host-resolver-rules=MAP dq.test 127.0.0.1",
            "--disable-features=HttpsUpgrades",
            format!("--user-data-dir={}", profile.path().display()),
        ]);
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": browser.path(), "args": arguments},
        }}});
        let session = format!("{address}/session");
        let mut window = Self { driver, http: http_client(), session, _profile: profile };
        let created = window.send(1, Method::POST, "", &capabilities).await;
        let id = created["sessionId"].as_str().unwrap_or_else(|| panic!("{created}"));
        window.session = format!("{}/{id}", window.session);
        window.post("/timeouts", json!({"pageLoad": 120_000, "script": 120_000})).await;
        window
    }

    async fn get(&self, path: &str) -> Value {
        self.send(ATTEMPTS, Method::GET, path, &Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let is_repeatable = !NOT_REPEATABLE.iter().any(|part| path.contains(part));
        self.send(if is_repeatable { ATTEMPTS } else { 1 }, Method::POST, path, &body).await
    }

    /// Sends a command up to this many times; returns the `value` of the reply.
    async fn send(&self, attempts: u32, method: Method, path: &str, body: &Value) -> Value {
        let mut attempt = 1;
        loop {
            let command = self.http.request(method.clone(), format!("{}{path}", self.session));
            let command = if body.is_null() { command } else { command.body(body.to_string()) };
            let reply = async { command.send().await?.text().await };
            match reply.await {
                Ok(text) => {
                    let mut reply: Value = serde_json::from_str(&text).unwrap();
                    return reply["value"].take();
                }
                Err(error) if attempt == attempts || error.is_timeout() => {
                    panic!("{method} {path}: {error:?}")
                }
                Err(_) => attempt += 1,
            }
        }
    }

    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": parameters})).await
    }

    pub(crate) async fn go(&self, url: &str) {
        let result = self.post("/url", json!({"url": url})).await;
        assert!(result.is_null(), "{url}: {result}");
    }

    /// Runs a function body in the page, again if the driver does not reply; returns its result.
    pub(crate) async fn run(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.send(ATTEMPTS, Method::POST, "/execute/sync", &body).await
    }

    /// Runs a function body in the page; its last argument is a callback for the result.
    pub(crate) async fn run_async(&self, script: &str) -> Value {
        self.post("/execute/async", json!({"script": script, "args": []})).await
    }

    pub(crate) async fn another(&self) -> String {
        let created = self.post("/window/new", json!({"type": "window"})).await;
        created["handle"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
    }

    pub(crate) async fn switch(&self, handle: &str) {
        let result = self.post("/window", json!({"handle": handle})).await;
        assert!(result.is_null(), "{handle}: {result}");
    }

    /// Returns the page's text; empty while the browser replaces the page.
    pub(crate) async fn text(&self) -> String {
        let Some(body) = self.look_up("body").await else { return String::new() };
        let text = self.get(&format!("/element/{body}/text")).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    async fn look_up(&self, selector: &str) -> Option<String> {
        let query = json!({"using": "css selector", "value": selector});
        let found = self.post("/element", query).await;
        let id = found[ELEMENT].as_str().map(str::to_owned);
        assert!(id.is_some() || is_gone(&found), "{selector}: {found}");
        id
    }

    async fn act(&self, selector: &str, action: &str, body: Value) {
        let is_done = async || {
            let Some(element) = self.look_up(selector).await else { return false };
            let result = self.post(&format!("/element/{element}/{action}"), body.clone()).await;
            assert!(result.is_null() || is_gone(&result), "{selector}: {result}");
            result.is_null()
        };
        self.wait(selector, is_done).await;
    }

    pub(crate) async fn click(&self, selector: &str) {
        self.act(selector, "click", json!({})).await;
    }

    pub(crate) async fn enter(&self, selector: &str, text: &str) {
        self.act(selector, "value", json!({"text": text})).await;
    }

    /// Presses and releases a key: a character, or a WebDriver key code.
    pub(crate) async fn press(&self, key: &str) {
        let actions = ["keyDown", "keyUp"].map(|action| json!({"type": action, "value": key}));
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        let result = self.post("/actions", json!({"actions": [keyboard]})).await;
        assert!(result.is_null(), "{key:?}: {result}");
    }

    pub(crate) async fn wait_for(&self, text: &str) {
        self.wait(text, async || self.text().await.contains(text)).await;
    }

    pub(crate) async fn wait_until(&self, script: &str) {
        self.wait(script, async || self.run(script).await == true).await;
    }

    async fn wait(&self, awaited: &str, is_there: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_there().await {
            if Instant::now() > deadline {
                let (url, text) = (self.get("/url").await, self.text().await);
                panic!("{awaited:?} does not come true on {url}:\n{text}");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Returns the console lines since the last call.
    pub(crate) async fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", json!({"type": "browser"})).await;
        let entries = entries.as_array().unwrap_or_else(|| panic!("{entries}"));
        entries.iter().map(|entry| entry["message"].to_string()).collect()
    }

    /// Gives the page this size, and the user's preferred colour scheme.
    pub(crate) async fn size(&self, width: u32, height: u32, dark: bool) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let set = self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        assert_eq!(set, json!({}));
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        let set = self.devtools("Emulation.setEmulatedMedia", media).await;
        assert_eq!(set, json!({}));
    }

    /// Captures the whole page as PNG, without scroll bars, which hide a part of it.
    pub(crate) async fn screenshot(&self) -> Vec<u8> {
        self.devtools("Emulation.setScrollbarsHidden", json!({"hidden": true})).await;
        let size = self.run("return [innerWidth, document.documentElement.scrollHeight]").await;
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let options = json!({"captureBeyondViewport": true, "clip": clip});
        let shot = self.devtools("Page.captureScreenshot", options).await;
        self.devtools("Emulation.setScrollbarsHidden", json!({"hidden": false})).await;
        let data = shot["data"].as_str().unwrap_or_else(|| panic!("{shot}"));
        base64::engine::general_purpose::STANDARD.decode(data).unwrap()
    }
}

fn start_driver(browser: &Browser) -> (Child, String) {
    let mut driver = browser.driver();
    driver.args(["--port=0", "--allowed-ips=127.0.0.1"]);
    let mut driver = driver.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
    let port: u16 = lines
        .find_map(|line| {
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
        })
        .expect("the driver prints its port");
    (driver, format!("http://127.0.0.1:{port}"))
}

fn http_client() -> reqwest::Client {
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    // The driver closes idle connections, which then fail for the next command.
    client.pool_max_idle_per_host(0).timeout(COMMAND_TIMEOUT).build().unwrap()
}

/// Whether an element is missing or unreachable, perhaps because the page is being replaced.
fn is_gone(reply: &Value) -> bool {
    let errors = [
        "no such element",
        "stale element reference",
        "element click intercepted",
        "element not interactable",
    ];
    errors.iter().any(|error| reply["error"] == *error)
}

impl Drop for Window {
    fn drop(&mut self) {
        // Killing the driver leaves its browser running, so the session ends first.
        let end = self.http.delete(&self.session).timeout(Duration::from_secs(10)).send();
        let runtime = tokio::runtime::Handle::current();
        let _ = tokio::task::block_in_place(|| runtime.block_on(end));
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
