//! A headless browser for tests: Debian's Chromium and its WebDriver.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{BROWSER, Program, library_path, on_path, unpacked_programs};

/// Chromium and its driver, from the `PATH` or unpacked.
#[derive(Clone, Debug)]
pub struct Browser {
    browser: Program,
    driver: Program,
    fonts: Option<PathBuf>,
}

impl Browser {
    /// Finds the browser. Panics with a remedy if there is none.
    pub fn find() -> Self {
        Self::on_machine()
            .or_else(|| Self::unpacked(&unpacked_programs().join(BROWSER)))
            .unwrap_or_else(|| panic!("chromium is not installed: run `cargo xtask servers`"))
    }

    /// The browser on the `PATH`, if its driver is there too.
    pub(crate) fn on_machine() -> Option<Self> {
        let program =
            |name| on_path(name).map(|path| Program { path, libraries: None, environment: None });
        Some(Self { browser: program("chromium")?, driver: program("chromedriver")?, fonts: None })
    }

    pub(crate) fn unpacked(root: &Path) -> Option<Self> {
        let libraries = libraries(root);
        let program = |path: &str| {
            let path = root.join(path);
            let found = path.is_file();
            found.then(|| Program { path, libraries: libraries.clone(), environment: None })
        };
        Some(Self {
            // The script in `usr/bin` expects an installed system.
            browser: program("usr/lib/chromium/chromium")?,
            driver: program("usr/bin/chromedriver")?,
            fonts: Some(root.join("usr/share")),
        })
    }

    pub(crate) fn runs(&self) -> bool {
        self.browser.runs("--version") && self.driver.runs("--version")
    }

    /// Returns the browser's path.
    pub fn path(&self) -> &Path {
        &self.browser.path
    }

    /// Returns a command for the driver, which passes its environment to browsers.
    pub fn driver(&self) -> Command {
        let mut driver = self.driver.command();
        if let Some(fonts) = &self.fonts {
            // Fontconfig looks for `fonts` there.
            driver.env("XDG_DATA_HOME", fonts);
        }
        driver
    }
}

/// The sound library has its own directory.
fn libraries(root: &Path) -> Option<OsString> {
    let libraries = library_path(root)?;
    let dirs: Vec<PathBuf> = env::split_paths(&libraries).collect();
    let sound = dirs.iter().map(|dir| dir.join("pulseaudio")).filter(|dir| dir.is_dir());
    env::join_paths(dirs.iter().cloned().chain(sound)).ok()
}
