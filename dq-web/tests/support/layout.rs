use std::fs;

use super::browser::Window;

/// The script axe-core, which finds accessibility problems.
pub(crate) struct Axe(String);

impl Axe {
    pub(crate) fn load() -> Self {
        let package = dq_servers::python_package(dq_servers::PythonPackage::AxeCore);
        Self(fs::read_to_string(package.join("axe_playwright_python/axe.min.js")).unwrap())
    }

    pub(crate) async fn violations(&self, window: &Window) -> String {
        if window.run("return typeof axe").await == "undefined" {
            window.run(&self.0).await;
        }
        let script = "
            const done = arguments[0];
            const texts = (violation) => violation.nodes.map(
                (node) => `${violation.id}: ${node.html}: ${node.failureSummary}`);
            axe.run(document, {resultTypes: ['violations']}).then(
                (results) => done(results.violations.flatMap(texts)),
                (error) => done([String(error)]));
        ";
        window.run_async(script).await.to_string()
    }
}

/// Lists overflowing panels, and scroll bars other than the page's vertical one and payloads' own.
/// This browser's scroll bars take space, as on most desktops.
pub(crate) async fn misfits(window: &Window) -> Vec<String> {
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
    let found = window.run(script).await;
    let found = found.as_array().unwrap_or_else(|| panic!("{found}"));
    found.iter().map(ToString::to_string).collect()
}
