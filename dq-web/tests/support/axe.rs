//! Accessibility checks with axe-core.

use std::fs;

use super::browser::Window;

pub(crate) fn source() -> String {
    let package = dq_servers::python_package(dq_servers::PythonPackage::AxeCore);
    fs::read_to_string(package.join("axe_playwright_python/axe.min.js")).unwrap()
}

/// Returns the page's violations as JSON.
pub(crate) async fn violations(window: &Window, source: &str) -> String {
    if window.run("return typeof axe").await == "undefined" {
        window.run(source).await;
    }
    let script = "
        const done = arguments[0];
        const texts = (violation) =>
            violation.nodes.map((node) => `${violation.id}: ${node.html}: ${node.failureSummary}`);
        axe.run(document, {resultTypes: ['violations']}).then(
            (results) => done(results.violations.flatMap(texts)), (error) => done([String(error)]));
    ";
    window.run_async(script).await.to_string()
}
