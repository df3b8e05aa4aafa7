//! Selects the store from arguments, configuration or current directory.

use std::env;
use std::path::{Path, PathBuf};

use dq_core::client::DqBuilder;
use dq_core::config::{BackendConfig, Config, QueueSettings, ServeSettings};
use dq_core::{Backend, Dq, HistoryLimit};

use crate::args::TargetArgs;
use crate::failure::{Failure, Result};

const CONFIG: &str = "dq.toml";
const FILE: &str = "dq.db";

pub(crate) struct Store {
    pub(crate) builder: DqBuilder,
    /// How many ended jobs this program keeps, for queues without their own setting. None if the
    /// store has the limits.
    pub(crate) history: Option<HistoryLimit>,
    pub(crate) serve: ServeSettings,
    /// A name for people; the URL may contain a password.
    pub(crate) origin: String,
    /// The default file, if nothing names a store.
    pub(crate) default_file: Option<PathBuf>,
}

/// Selects the store: the one that the arguments name; else the one in `dq.toml` or the
/// environment; else the file `dq.db`.
pub(crate) fn configured(target: &TargetArgs) -> Result<Store> {
    let given = [target.config.is_some(), target.url.is_some(), target.api.is_some()];
    if given.iter().filter(|is_given| **is_given).count() > 1 {
        return Err(Failure::usage("--config, --url and --api exclude each other", "give one"));
    }
    if let Some(url) = &target.url {
        return of_url(url, "--url".to_owned());
    }
    let file = target.config.as_deref();
    let file = file.or_else(|| Some(Path::new(CONFIG)).filter(|path| path.is_file()));
    if let Some(file) = file {
        return Ok(of_config(Config::from_path(file)?, file.display().to_string()));
    }
    if env::var_os("DQ_BACKEND__TYPE").is_some() {
        return Ok(of_config(Config::from_env()?, "the environment".to_owned()));
    }
    let path = env::current_dir().unwrap_or_default().join(FILE);
    let store = of_url(&format!("sqlite://{FILE}"), path.display().to_string())?;
    Ok(Store { default_file: Some(path), ..store })
}

pub(crate) fn with_history(builder: DqBuilder, history: Option<HistoryLimit>) -> DqBuilder {
    let mut settings = QueueSettings::new();
    settings.history = history;
    builder.defaults(settings)
}

/// A history, because people who inspect a store want to see ended jobs. A store in a schema has
/// the limits there, for all programs.
fn own_history(backend: &dyn BackendConfig) -> Option<HistoryLimit> {
    backend.schema_sql(None).is_err().then(HistoryLimit::default)
}

/// Uses this store, and all other settings of the environment.
fn of_url(url: &str, origin: String) -> Result<Store> {
    let backend = Dq::builder().url(url).into_backend_config()?;
    Ok(of_config(Config::from_env_with(backend)?, origin))
}

/// Uses the configured store, with a history unless the configuration says otherwise.
fn of_config(mut config: Config, origin: String) -> Store {
    let serve = std::mem::take(&mut config.serve);
    let history = config.defaults.history.or_else(|| own_history(&*config.backend));
    config.defaults.history = history;
    Store { builder: Dq::builder().config(config), history, serve, origin, default_file: None }
}

impl Store {
    pub(crate) async fn open(self) -> Result<Dq> {
        Ok(self.builder.connect().await?)
    }

    /// Opens the store if it exists. A command must not create a store at a misspelt path.
    pub(crate) async fn open_existing(self) -> Result<Dq> {
        if self.default_file.as_ref().is_some_and(|file| !file.exists()) {
            return Err(Failure::new(
                "config",
                format!("there is no store: the current directory has neither {CONFIG} nor {FILE}"),
                "give --config, --url or --api, or start `dq serve` here",
            ));
        }
        let dq = self.builder.existing().connect().await?;
        if dq.backend().name() == "memory" {
            return Err(Failure::usage(
                "a store in memory is empty, and ends with this command",
                "name a store that is kept, or a server",
            ));
        }
        Ok(dq)
    }
}
