//! A headless browser for tests: Debian's Chromium and its WebDriver.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian;
use crate::package::Package;
use crate::program::Program;

/// With a font that has Chinese characters.
const PACKAGE: Package = Package {
    directory: "chromium",
    programs: &[("chromium", "--version"), ("chromedriver", "--version")],
    debian_packages: &["chromium", "chromium-driver", "fonts-wqy-microhei"],
};

/// Chromium and its driver, from the `PATH` or unpacked.
#[derive(Clone, Debug)]
pub struct Browser {
    browser: Program,
    driver: Program,
    /// For Fontconfig, which looks for `fonts` there; `None` if the machine's fonts are used.
    data: Option<PathBuf>,
}

impl Browser {
    /// Finds the browser. Panics with a remedy if there is none.
    pub fn find() -> Self {
        Self::on_machine()
            .or_else(|| Self::unpacked(&PACKAGE.unpacked()))
            .unwrap_or_else(|| panic!("chromium is not installed: run `cargo xtask servers`"))
    }

    fn on_machine() -> Option<Self> {
        let browser = Program::on_machine("chromium")?;
        Some(Self { browser, driver: Program::on_machine("chromedriver")?, data: None })
    }

    fn unpacked(root: &Path) -> Option<Self> {
        Some(Self {
            // The script in `usr/bin` expects an installed system.
            browser: Program::unpacked_at(root, "usr/lib/chromium/chromium")?,
            driver: Program::unpacked(root, "chromedriver")?,
            data: Some(root.join("usr/share")),
        })
    }

    fn runs(&self) -> bool {
        self.browser.runs("--version") && self.driver.runs("--version")
    }

    /// Returns the browser's path.
    pub fn path(&self) -> &Path {
        &self.browser.path
    }

    /// Returns a command for the driver, which passes its environment to browsers.
    pub fn driver(&self) -> Command {
        let mut driver = self.driver.command();
        driver.envs(self.data.as_ref().map(|data| ("XDG_DATA_HOME", data)));
        driver
    }
}

/// Unpacks the browser unless the machine has one that starts.
pub(crate) fn install() -> debian::Result {
    if Browser::on_machine().is_some_and(|browser| browser.runs()) {
        return Ok(());
    }
    PACKAGE.unpack(|root| Browser::unpacked(root).is_some_and(|found| found.runs()))
}
