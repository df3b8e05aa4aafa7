use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::support::browser::Window;
use crate::support::layout::{Axe, misfits};
use crate::support::{ADMIN, Fixture, Server, sample};
use dq_core::{Due, DurationExt, JobId};
use dq_servers::Nginx;

/// A queue name that proxies like to change.
const QUEUE: &str = "a/../b?c#d";

/// The same name in an address.
const ENCODED: &str = "a%2F..%2Fb%3Fc%23d";

const PAGES: [(&str, &str); 18] = [
    ("overview", ""),
    ("queue", "queue?name=WEBHOOK_RETRY"),
    ("limits", "queue?name=IMPORT_ROW"),
    ("jobs", "jobs"),
    ("queue-jobs", "jobs?queue=ORDER_TIMEOUT&state=scheduled"),
    ("found", "jobs?find=lost-1"),
    ("dead-jobs", "jobs?queue=SEND_REMINDER&state=dead"),
    ("job", "job?queue=WEBHOOK_RETRY&key=order-4711"),
    ("bulk", "bulk?queue=SEND_REMINDER&do=replay&error=refused"),
    ("dead", "dead"),
    ("schedules", "schedules"),
    ("schedule", "schedule?name=nightly-report"),
    ("forecast", "forecast"),
    ("runners", "runners"),
    ("check", "check"),
    ("audit", "audit"),
    ("history", "jobs?queue=ORDER_TIMEOUT&state=ended"),
    ("problem", "job?queue=ORDER_TIMEOUT&key=nobody"),
];

fn address(server: SocketAddr, prefix: &str, page: &str) -> String {
    format!("http://ada:{ADMIN}@{server}{prefix}/{page}")
}

async fn open(fixture: &Fixture, page: &str) -> Window {
    let window = Window::open().await;
    window.go(&address(fixture.address, "/ops/dq", page)).await;
    window
}

/// A window that looks at pages, and keeps pictures of them in the target directory for you.
struct Inspector {
    window: Window,
    axe: Axe,
    pictures: PathBuf,
}

impl Inspector {
    async fn open() -> Self {
        let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
        fs::create_dir_all(&pictures).unwrap();
        Self { window: Window::open().await, axe: Axe::load(), pictures }
    }

    async fn go(&self, fixture: &Fixture, page: &str, lang: &str) {
        let separator = if page.contains('?') { '&' } else { '?' };
        let page = format!("{page}{separator}lang={lang}");
        self.window.go(&address(fixture.address, "/ops/dq", &page)).await;
        self.window.wait_until("return document.querySelector('#running') === null").await;
    }

    async fn assert_fits(&self, name: &str, (width, height): (u32, u32), dark: bool) {
        self.window.size(width, height, dark).await;
        let misfits = misfits(&self.window).await;
        assert_eq!(misfits, Vec::<String>::new(), "{name} at {width}, dark: {dark}");
    }

    async fn assert_accessible(&self, name: &str) {
        assert_eq!(self.axe.violations(&self.window).await, "[]", "{name}");
    }

    async fn keep_picture(&self, name: &str) {
        fs::write(self.pictures.join(format!("{name}.png")), self.window.screenshot().await)
            .unwrap();
    }
}

const DESKTOP: (u32, u32) = (1440, 900);
const PHONE: (u32, u32) = (390, 844);

#[tokio::test(flavor = "multi_thread")]
async fn every_page_fits_the_window_is_accessible_and_says_nothing_on_the_console() {
    let fixture = Fixture::start("/ops/dq").await;
    let ended = sample::fill(&fixture).await;
    let inspector = Inspector::open().await;
    let ended = format!("job?queue=ORDER_TIMEOUT&id={ended}");
    for (name, page) in PAGES.into_iter().chain([("ended-job", ended.as_str())]) {
        for lang in ["en", "zh"] {
            let name_lang = format!("{name}-{lang}");
            inspector.go(&fixture, page, lang).await;
            if name == "history" {
                let rows = "return document.querySelectorAll('tbody tr').length";
                let rows = inspector.window.run(rows).await;
                assert!(rows.as_u64() > Some(9), "{rows} ended jobs are listed");
            }
            for width in [1920, 1280, 1024, 800, 600] {
                inspector.assert_fits(&name_lang, (width, 900), false).await;
            }
            for size in [DESKTOP, PHONE] {
                inspector.assert_fits(&name_lang, size, false).await;
                if lang == "en" || size == DESKTOP {
                    inspector.assert_accessible(&name_lang).await;
                }
                if lang == "en" || name == "overview" {
                    inspector.keep_picture(&format!("{name_lang}-{}-light", size.0)).await;
                }
            }
            // The scheme changes colours only, whatever the language.
            if lang == "en" {
                inspector.assert_fits(&name_lang, DESKTOP, true).await;
                inspector.assert_accessible(&name_lang).await;
                inspector.keep_picture(&format!("{name_lang}-{}-dark", DESKTOP.0)).await;
            }
        }
    }
    // The browser logs a page with status 404 as a network error.
    let console = inspector.window.console().await;
    let is_the_page = |line: &String| line.contains("key=nobody") && line.contains("404");
    assert!(console.iter().all(is_the_page), "{console:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_queues_and_long_names_fit_the_window() {
    let fixture = Fixture::start("/ops/dq").await;
    let (long, job) = sample::crowd(&fixture).await;
    let inspector = Inspector::open().await;
    for (name, page) in [
        ("many-overview", "./?past=day".to_owned()),
        ("many-all", "./?all=1&sort=name".to_owned()),
        ("many-jobs", "jobs".to_owned()),
        ("many-ready", "jobs?state=ready".to_owned()),
        ("many-dead", "dead".to_owned()),
        ("many-forecast", "forecast".to_owned()),
        ("many-runners", "runners".to_owned()),
        ("many-schedules", "schedules".to_owned()),
        ("long-queue", format!("queue?name={long}")),
        ("long-jobs", format!("jobs?queue={long}")),
        ("long-job", format!("job?queue={long}&id={job}")),
        ("long-bulk", format!("bulk?queue={long}&do=replay")),
        ("long-schedule", format!("schedule?name={long}")),
        ("long-problem", format!("job?queue={long}&key={long}")),
        ("long-audit", "audit".to_owned()),
    ] {
        for (lang, dark) in [("en", false), ("zh", true)] {
            inspector.go(&fixture, &page, lang).await;
            for size in [DESKTOP, PHONE] {
                inspector.assert_fits(name, size, dark).await;
                if lang == "en" {
                    inspector.assert_accessible(name).await;
                }
                inspector.keep_picture(&format!("{name}-{lang}-{}", size.0)).await;
            }
        }
    }
}

async fn three_jobs(fixture: &Fixture) -> JobId {
    fixture.schedule(QUEUE, "first", "1", Due::After(1.hours())).await;
    fixture.schedule(QUEUE, "second", "1", Due::After(2.hours())).await;
    fixture.dead(QUEUE, "third", "boom").await
}

struct Operator {
    window: Window,
    /// The dashboard's address, with its final slash.
    dashboard: String,
    has_scripts: bool,
}

impl Operator {
    async fn with_scripts(server: SocketAddr) -> Self {
        let dashboard = address(server, "/ops/dq", "");
        Self { window: Window::open().await, dashboard, has_scripts: true }
    }

    /// Opens a window on a host name that is not local: without TLS, it gets fewer headers.
    async fn without_scripts(server: SocketAddr) -> Self {
        let dashboard = address(server, "/ops/dq", "").replace("127.0.0.1", "dq.test");
        let operator = Self { window: Window::open().await, dashboard, has_scripts: false };
        let disable = serde_json::json!({"value": true});
        operator.window.devtools("Emulation.setScriptExecutionDisabled", disable).await;
        operator
    }

    async fn go(&self, page: &str) {
        self.window.go(&format!("{}{page}", self.dashboard)).await;
    }

    async fn click(&self, selector: &str, shown: &str) {
        self.window.click(selector).await;
        self.window.wait_for(shown).await;
    }

    /// Clicks a button that changes something. With scripts, the page must not reload.
    async fn change(&self, selector: &str, shown: &str) {
        if !self.has_scripts {
            return self.click(selector, shown).await;
        }
        self.window.run("window.marker = 1").await;
        self.click(selector, shown).await;
        assert_eq!(self.window.run("return window.marker").await, 1, "{selector}");
    }

    /// On the queue's page.
    async fn change_limits(&self, fixture: &Fixture) {
        let in_force = async || {
            let stats = fixture.dq.queue(QUEUE).unwrap().stats().await.unwrap();
            stats.flow.in_force().to_string()
        };
        let summary = "details:has(button[value=limit]) summary";
        self.window.click(summary).await;
        for (name, value) in [("max_running", "3"), ("group_max_running", "2"), ("rate", "1/1h")] {
            self.window.enter(&format!("input[name={name}]"), value).await;
        }
        self.change("button[value=limit]", "The limits are set, for all processes.").await;
        assert_eq!(in_force().await, "max_running 3, group_max_running 2, rate 1/1h");
        self.window.wait_for("0 of 3 at once").await;
        self.go(&format!("queue?name={ENCODED}")).await;
        self.window.click(summary).await;
        self.change("button[value=unlimit]", "count again.").await;
        assert_eq!(in_force().await, "no limit");
    }

    async fn change_jobs(&self, fixture: &Fixture) {
        let window = &self.window;
        let dead = three_jobs(fixture).await;
        self.go("").await;
        // Without the final slash, as people type it.
        window.go(self.dashboard.trim_end_matches('/')).await;
        self.click("table.queues tbody th a", "Purge…").await;
        self.click(".tile.scheduled a", "first").await;

        let first_row = "#rows tbody tr:first-child";
        self.change(&format!("{first_row} button[value=cancel]"), "The job is cancelled.").await;
        assert!(!window.text().await.contains("first"));
        if self.has_scripts {
            // Changes by others appear without a reload.
            fixture.schedule(QUEUE, "fourth", "1", Due::After(3.hours())).await;
            window.wait_for("fourth").await;
        }
        self.click(&format!("{first_row} th a"), "It is not due yet").await;
        let reschedule = "button[value=reschedule]";
        if self.has_scripts {
            window.enter("input[name=due]", "yesterday").await;
            self.change(reschedule, "neither a delay nor a time").await;
            window.run("document.querySelector('input[name=due]').value = ''").await;
        }
        window.enter("input[name=due]", "5h").await;
        self.change(reschedule, "The job has a new due time.").await;
        window.wait_for("in 5h").await;

        self.go(&format!("job?queue={ENCODED}&id={dead}")).await;
        let replayed = "The job is due now, with all of its attempts.";
        self.change("button[value=replay]", replayed).await;

        self.go(&format!("jobs?queue={ENCODED}&state=scheduled")).await;
        window.enter("input[name=find]", "sec").await;
        self.click("form.filter button", "Clear").await;
        self.click("#rows .pager a:last-child", "job matches").await;
        self.click("form[action=act] button", "Done. Jobs that could not change stay").await;

        self.go(&format!("queue?name={ENCODED}")).await;
        self.change_limits(fixture).await;
        window.click("details.danger summary").await;
        if self.has_scripts {
            window.enter("input[name=confirm]", "a").await;
            self.change("button[value=purge]", "the confirmation is not").await;
            window.enter("input[name=confirm]", "/../b?c#d").await;
        } else {
            window.enter("input[name=confirm]", QUEUE).await;
        }
        self.change("button[value=purge]", "The queue is empty").await;
        assert_eq!(fixture.dq.queue(QUEUE).unwrap().stats().await.unwrap().stored(), 0);

        // With scripts, the browser logs the two refused forms as network errors. Without TLS, it
        // logs on every page that a header needs it.
        let expected: &[&str] = match self.has_scripts {
            true => &["status of 400", "status of 409"],
            false => &["Cross-Origin-Opener-Policy header has been ignored"],
        };
        let console = window.console().await;
        let is_expected = |line: &String| expected.iter().any(|text| line.contains(text));
        assert!(!console.is_empty() && console.iter().all(is_expected), "{console:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_changed_with_and_without_scripts_in_axum() {
    let fixture = Fixture::start("/ops/dq").await;
    Operator::with_scripts(fixture.address).await.change_jobs(&fixture).await;
    Operator::without_scripts(fixture.address).await.change_jobs(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_changed_with_and_without_scripts_in_actix_behind_a_proxy() {
    let fixture = Fixture::start_in(Server::Actix, "").await;
    let nginx = Nginx::strip_prefix("/ops/dq", fixture.address);
    Operator::with_scripts(nginx.address()).await.change_jobs(&fixture).await;
    Operator::without_scripts(nginx.address()).await.change_jobs(&fixture).await;
}

/// WebDriver key codes.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_suffices() {
    let fixture = Fixture::start("/ops/dq").await;
    three_jobs(&fixture).await;
    let window = open(&fixture, &format!("jobs?queue={ENCODED}")).await;
    window.wait_for("second").await;
    // The first tab stop skips the navigation.
    window.press(TAB).await;
    window.wait_until("return document.activeElement.className === 'skip'").await;
    window.press(ENTER).await;
    window.wait_until("return document.activeElement.id === 'main'").await;
    // `/` focuses the search from anywhere.
    window.press("/").await;
    window.wait_until("return document.activeElement.name === 'find'").await;
    for key in ["s", "e", "c"] {
        window.press(key).await;
    }
    window.press(ENTER).await;
    window.wait_until("return new URLSearchParams(location.search).get('find') === 'sec'").await;
    window.wait_until("return document.querySelectorAll('#rows tbody tr').length === 1").await;
    // Tab leads from there to the job's buttons.
    window.press("/").await;
    let at_cancel = "return document.activeElement.value === 'cancel'";
    let mut presses = 0;
    while window.run(at_cancel).await != true {
        presses += 1;
        assert!(presses < 30, "the button is not reached");
        window.press(TAB).await;
    }
    window.run("window.marker = 1").await;
    window.press(ENTER).await;
    window.wait_for("The job is cancelled.").await;
    assert_eq!(window.run("return window.marker").await, 1);
    // Focus stays where it was.
    assert_eq!(window.run("return document.activeElement !== document.body").await, true);
}

/// The navigation restores the list's filter; on the list, it shows all jobs.
#[tokio::test(flavor = "multi_thread")]
async fn the_window_remembers_which_jobs_it_showed() {
    let fixture = Fixture::start("/ops/dq").await;
    three_jobs(&fixture).await;
    let window = open(&fixture, &format!("jobs?queue={ENCODED}&state=scheduled&find=sec")).await;
    window.wait_for("second").await;
    window.go(&address(fixture.address, "/ops/dq", "schedules?lang=zh")).await;
    let link = "header nav a[href*=jobs]";
    let leads_back = format!("return document.querySelector('{link}').href.includes('find=sec')");
    window.wait_until(&leads_back).await;
    window.click(link).await;
    window.wait_until("return document.querySelector('input[name=find]')?.value === 'sec'").await;
    // In the language of the linking page.
    let lang = "return new URLSearchParams(location.search).get('lang') === 'zh'";
    window.wait_until(lang).await;
    window.click(link).await;
    window.wait_for("third").await;
    assert!(window.text().await.contains("first"), "all jobs are shown again");
    assert_eq!(window.console().await, Vec::<String>::new());
}

/// A form's answer can be a plain error instead of a page, such as a proxy's.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_without_a_page_is_shown() {
    let fixture = Fixture::start("/ops/dq").await;
    three_jobs(&fixture).await;
    let window = open(&fixture, &format!("jobs?queue={ENCODED}&state=scheduled")).await;
    window.wait_for("second").await;
    let fill = "document.querySelector('#rows input[name=back]').value = 'x'.repeat(3000000)";
    window.run(fill).await;
    window.click("#rows tbody tr:first-child button[value=cancel]").await;
    window.wait_for("The change was refused (413)").await;
    assert!(window.text().await.contains("first"), "it was not cancelled");
}

/// Browsers allow six connections per host, and an event stream takes one.
#[tokio::test(flavor = "multi_thread")]
async fn eight_windows_stay_live() {
    let fixture = Fixture::start("/ops/dq").await;
    let jobs = address(fixture.address, "/ops/dq", &format!("jobs?queue={ENCODED}"));
    fixture.schedule(QUEUE, "first", "1", Due::After(1.hours())).await;
    let window = Window::open().await;
    let mut handles = Vec::new();
    while handles.len() < 8 {
        handles.push(window.another().await);
    }
    for handle in &handles {
        window.switch(handle).await;
        window.go(&jobs).await;
        window.wait_for("first").await;
        window.run("window.marker = 1").await;
        assert_eq!(window.run("return document.visibilityState").await, "visible");
    }
    // When the window with the connection closes, another one connects.
    for number in 0..3 {
        let key = format!("job-{number}");
        fixture.schedule(QUEUE, &key, "1", Due::After(2.hours())).await;
        for handle in &handles[number..] {
            window.switch(handle).await;
            window.wait_for(&key).await;
            assert_eq!(window.run("return window.marker").await, 1);
        }
        window.switch(&handles[number]).await;
        assert_eq!(window.console().await, Vec::<String>::new());
        window.go("about:blank").await;
    }
}

/// A slow page is requested again only after it has arrived, and a search is not repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_costs_much_is_requested_once_at_a_time() {
    let fixture = Fixture::start("/ops/dq").await;
    fixture.schedule("MAIL", "first", "1", Due::After(1.hours())).await;
    let window = Window::open().await;
    for (query, expected) in [("queue=MAIL", 1), ("queue=MAIL&contains=1", 0)] {
        window.go(&address(fixture.address, "/ops/dq", &format!("jobs?{query}"))).await;
        window.wait_for("first").await;
        // From now on, the page's requests are dropped, so none gets an answer.
        let script = "
            // The driver may run this again.
            if (window.seen !== undefined) return;
            window.sent = 0;
            XMLHttpRequest.prototype.send = () => { window.sent += 1; };
            window.seen = 0;
            const events = new EventSource(new URL('v1/events', location.origin + location.pathname));
            events.addEventListener('overview', () => { window.seen += 1; });
        ";
        window.run(script).await;
        window.wait_until("return window.seen >= 1").await;
        for events in 2..=3 {
            let key = format!("{expected}-{events}");
            fixture.schedule("MAIL", &key, "1", Due::After(2.hours())).await;
            window.wait_until(&format!("return window.seen >= {events}")).await;
            window.wait_until(&format!("return window.sent >= {expected}")).await;
        }
        assert_eq!(window.run("return window.sent").await, expected, "{query}");
    }
}
