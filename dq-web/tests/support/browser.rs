//! Chromium, driven by W3C WebDriver.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use dq_servers::Browser;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a test waits for the page.
const PATIENCE: Duration = Duration::from_secs(120);

/// Driver timeout: a page may load slowly on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(180);

/// The reply member with an element's identifier (W3C WebDriver, section 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

const NO_SUCH_ELEMENT: &str = "no such element";

/// A browser with one window.
pub(crate) struct Window {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Window {
    pub(crate) async fn open() -> Self {
        let browser = Browser::find();
        let profile = tempfile::tempdir().unwrap();
        let mut driver = browser.driver();
        driver
            .args(["--port=0", "--allowed-ips=127.0.0.1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut driver = driver.spawn().unwrap();
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines
            .filter_map(|line| {
                line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
            })
            .next()
            .expect("the driver prints its port");
        let mut window = Self { driver, port, session: String::new(), _profile: profile };
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
            format!("--user-data-dir={}", window._profile.path().display()),
        ]);
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": browser.path(), "args": arguments},
        }}});
        let created = window.call("POST", "/session", capabilities).await;
        window.session =
            created["sessionId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned();
        let timeouts = json!({"pageLoad": 120_000, "script": 120_000});
        window.command("POST", "/timeouts", timeouts).await;
        window
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        // The driver sometimes closes a connection without a reply. Repeatable commands are
        // retried. Commands that change the page or driver are not, and neither is the log, which
        // reading empties.
        let acts = ["/element/", "/execute/", "/window/new", "/actions", "/se/log"];
        let acts = acts.iter().any(|part| path.contains(part)) || path == "/session";
        let acts = method == "POST" && acts;
        self.call_up_to(if acts { 1 } else { 3 }, method, path, &body).await
    }

    async fn call_up_to(&self, mut attempts: u32, method: &str, path: &str, body: &str) -> Value {
        loop {
            let exchange = self.exchange(method, path, body);
            let reply = tokio::time::timeout(COMMAND_TIMEOUT, exchange).await;
            attempts -= 1;
            match reply {
                Ok(Ok(value)) => return value,
                Ok(Err(error)) if attempts == 0 => panic!("{method} {path}: {error}"),
                Ok(Err(_)) => {}
                Err(_) => panic!("the driver does not answer {method} {path}"),
            }
        }
    }

    async fn exchange(&self, method: &str, path: &str, body: &str) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        // The driver ignores `connection: close`.
        let mut reply = Vec::new();
        let body = loop {
            let mut part = [0; 16 * 1024];
            let length = stream.read(&mut part).await?;
            if length == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            reply.extend(&part[..length]);
            if let Some(body) = body_of(&reply) {
                break body;
            }
        };
        let mut reply: Value = serde_json::from_slice(body).unwrap();
        Ok(reply["value"].take())
    }

    async fn command(&self, method: &str, path: &str, body: Value) -> Value {
        self.call(method, &format!("/session/{}{path}", self.session), body).await
    }

    /// Sends a DevTools command.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.command("POST", "/goog/cdp/execute", body).await
    }

    pub(crate) async fn go(&self, url: &str) {
        let result = self.command("POST", "/url", json!({"url": url})).await;
        assert!(result.is_null(), "{url}: {result}");
    }

    pub(crate) async fn url(&self) -> String {
        self.command("GET", "/url", json!({})).await.as_str().unwrap_or_default().to_owned()
    }

    /// Runs a function body in the page, up to three times, and returns its result.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.execute(3, script).await
    }

    pub(crate) async fn run_once(&self, script: &str) -> Value {
        self.execute(1, script).await
    }

    /// Retries up to this many attempts if the driver does not reply.
    async fn execute(&self, attempts: u32, script: &str) -> Value {
        let path = format!("/session/{}/execute/sync", self.session);
        let body = json!({"script": script, "args": []}).to_string();
        self.call_up_to(attempts, "POST", &path, &body).await
    }

    /// Runs a function body in the page; its last argument is a callback for the result.
    pub(crate) async fn run_async(&self, script: &str) -> Value {
        self.command("POST", "/execute/async", json!({"script": script, "args": []})).await
    }

    /// Returns the current window's name.
    pub(crate) async fn handle(&self) -> String {
        self.command("GET", "/window", json!({})).await.as_str().unwrap().to_owned()
    }

    /// Opens another window without switching to it; returns its name.
    pub(crate) async fn another(&self) -> String {
        let created = self.command("POST", "/window/new", json!({"type": "window"})).await;
        created["handle"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
    }

    pub(crate) async fn switch(&self, handle: &str) {
        let result = self.command("POST", "/window", json!({"handle": handle})).await;
        assert!(result.is_null(), "{handle}: {result}");
    }

    /// Returns the page's text; empty while the browser replaces the page.
    pub(crate) async fn text(&self) -> String {
        let Some(body) = self.look_up("body").await else { return String::new() };
        let text = self.command("GET", &format!("/element/{body}/text"), json!({})).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Returns the first element that matches now.
    async fn look_up(&self, selector: &str) -> Option<String> {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.command("POST", "/element", body).await;
        if is_gone(&found) {
            return None;
        }
        let id = found[ELEMENT].as_str().unwrap_or_else(|| panic!("{selector}: {found}"));
        Some(id.to_owned())
    }

    /// Sends a command to an element, as soon as the page has it.
    async fn act(&self, selector: &str, action: &str, body: Value) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut result = json!({"error": NO_SUCH_ELEMENT});
            if let Some(element) = self.look_up(selector).await {
                let path = format!("/element/{element}/{action}");
                result = self.command("POST", &path, body.clone()).await;
            }
            if result.is_null() {
                return;
            }
            let in_time = Instant::now() < deadline;
            assert!(is_gone(&result) && in_time, "{selector}: {result}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
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
        let result = self.command("POST", "/actions", json!({"actions": [keyboard]})).await;
        assert!(result.is_null(), "{key:?}: {result}");
    }

    pub(crate) async fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.text().await;
            if shown.contains(text) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{text:?} does not appear on {}:\n{shown}",
                self.url().await
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a function body returns true in the page.
    pub(crate) async fn wait_until(&self, script: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.run(script).await != true {
            assert!(Instant::now() < deadline, "never true on {}: {script}", self.url().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the console lines since the last call.
    pub(crate) async fn console(&self) -> Vec<String> {
        let entries = self.command("POST", "/se/log", json!({"type": "browser"})).await;
        let entries = entries.as_array().unwrap_or_else(|| panic!("{entries}"));
        entries.iter().map(|entry| entry["message"].to_string()).collect()
    }

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

    /// Lists unwanted scroll bars, and panels that overflow. Allowed are scroll bars for the page
    /// height and in payloads. This browser's scroll bars take space, as on most desktops.
    pub(crate) async fn misfits(&self) -> Vec<String> {
        let script = "
            const root = document.documentElement;
            const found = innerHeight > root.clientHeight
                ? [`the window, ${root.scrollWidth - root.clientWidth} px too narrow`] : [];
            for (const element of document.body.querySelectorAll('*:not(pre)')) {
                const style = getComputedStyle(element);
                const edges = (one, other) => parseFloat(style[one]) + parseFloat(style[other]);
                const width = edges('borderLeftWidth', 'borderRightWidth');
                const height = edges('borderTopWidth', 'borderBottomWidth');
                const scrolls = /auto|scroll/.test(style.overflowX + style.overflowY);
                if (scrolls && element.offsetWidth - element.clientWidth > width + 1) {
                    found.push(`vertical: ${element.outerHTML.slice(0, 120)}`);
                }
                if (scrolls && element.offsetHeight - element.clientHeight > height + 1) {
                    found.push(`horizontal: ${element.outerHTML.slice(0, 120)}`);
                }
            }
            for (const panel of document.querySelectorAll('.panel')) {
                if (panel.scrollWidth > panel.clientWidth + 1) {
                    found.push(`too narrow: ${panel.outerHTML.slice(0, 200)}`);
                }
            }
            return found;
        ";
        let found = self.run(script).await;
        let found = found.as_array().unwrap_or_else(|| panic!("{found}"));
        found.iter().map(ToString::to_string).collect()
    }

    /// Captures the whole page as PNG, without scroll bars, which hide a part of it.
    pub(crate) async fn screenshot(&self) -> Vec<u8> {
        self.devtools("Emulation.setScrollbarsHidden", json!({"hidden": true})).await;
        let size = "return [innerWidth, document.documentElement.scrollHeight]";
        let size = self.run(size).await;
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let options = json!({"captureBeyondViewport": true, "clip": clip});
        let shot = self.devtools("Page.captureScreenshot", options).await;
        self.devtools("Emulation.setScrollbarsHidden", json!({"hidden": false})).await;
        let data = shot["data"].as_str().unwrap_or_else(|| panic!("{shot}"));
        base64::engine::general_purpose::STANDARD.decode(data).unwrap()
    }
}

/// Whether an element is missing or unreachable, perhaps because the browser is replacing the page.
fn is_gone(reply: &Value) -> bool {
    let errors = [
        NO_SUCH_ELEMENT,
        "stale element reference",
        "element click intercepted",
        "element not interactable",
    ];
    errors.iter().any(|error| reply["error"] == *error)
}

/// Returns a reply's body, if complete.
fn body_of(reply: &[u8]) -> Option<&[u8]> {
    let head = reply.windows(4).position(|window| window == b"\r\n\r\n")?;
    let lines = String::from_utf8_lossy(&reply[..head]).to_lowercase();
    let length = lines.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let length: usize = length.trim().parse().ok()?;
    reply[head + 4..].get(..length)
}

impl Drop for Window {
    fn drop(&mut self) {
        // Killing the driver leaves its browser running.
        let path = format!("/session/{}", self.session);
        let request = format!(
            "DELETE {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", self.port)) {
            use std::io::{Read as _, Write as _};
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.read(&mut [0; 1024]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
