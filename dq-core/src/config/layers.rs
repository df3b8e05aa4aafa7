//! Configuration layers: a file below the environment variables, each a layer of its own.

use figment::error::Kind;
use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Provider};
use serde::de::DeserializeOwned;

use super::backend::missing_type;
use super::interpolate::interpolate;
use super::problem::{self, Problem};
use super::typed::TypedSettings;
use super::variables::Variable;
use crate::error::{Error, ErrorKind, Result};

pub(super) struct Layers {
    figment: Figment,
    /// The lowest layer: a file or text, or else empty. Only its strings are interpolated, and
    /// errors about missing keys name it.
    base: Metadata,
    values: Value,
}

impl Layers {
    /// Merges the variables over the base. Without a base, they are the only layers.
    pub(super) fn new(base: Option<impl Provider>, variables: Vec<Variable>) -> Result<Self> {
        let (base, figment) = match base {
            Some(base) => (base.metadata(), Figment::from(base)),
            None => (Metadata::named("the environment"), Figment::new()),
        };
        let figment = variables.into_iter().fold(figment, Figment::merge);
        let mut layers = Self { figment, base, values: Dict::new().into() };
        let mut values = layers
            .figment
            .find_value("")
            .map_err(|error| layers.error_at(&[], problem::syntax_problem(&error)))?;
        layers.interpolate_values(&mut values, &mut Vec::new())?;
        layers.values = values;
        Ok(layers)
    }

    /// Interpolates the base layer's strings. Variables keep their values, which may be passwords
    /// with `${`.
    fn interpolate_values(&self, value: &mut Value, path: &mut Vec<String>) -> Result<()> {
        let mut descend = |key: String, value: &mut Value| {
            path.push(key);
            self.interpolate_values(value, path)?;
            path.pop();
            Ok(())
        };
        match value {
            Value::Dict(_, dict) => {
                dict.iter_mut().try_for_each(|(key, value)| descend(key.clone(), value))
            }
            Value::Array(_, values) => {
                let mut values = values.iter_mut().enumerate();
                values.try_for_each(|(index, value)| descend(index.to_string(), value))
            }
            Value::String(tag, text) if self.figment.get_metadata(*tag) == Some(&self.base) => {
                *text = interpolate(text).map_err(|problem| self.error_at(path, problem))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn deserialize<T: DeserializeOwned>(&self) -> Result<T> {
        self.values.deserialize().map_err(|error| {
            let is_store = |table: &String| ["backend", "drain"].contains(&table.as_str());
            let is_store = error.path.first().is_some_and(is_store);
            let lacks_type =
                matches!(&error.kind, Kind::MissingField(key) if key == TypedSettings::TYPE);
            let (path, problem) = problem::locate(error, None);
            let problem = match is_store {
                true if lacks_type => missing_type(),
                true => problem.remedy(
                    "write a table with a `type` and its settings; a URL is for `Dq::connect`",
                ),
                false => problem,
            };
            self.error_at(&path, problem)
        })
    }

    /// Creates an error like `dq.toml: key: what (remedy)`.
    pub(super) fn error_at(&self, path: &[String], problem: Problem) -> Error {
        let layer = problem::value_at(&self.values, path).and_then(|value| self.layer_of(value));
        let layer = layer.unwrap_or(&self.base);
        let origin = match layer.source.as_ref().and_then(|source| source.file_path()) {
            Some(file) => file.display().to_string(),
            None => layer.name.to_string(),
        };
        let place = if path.is_empty() { origin } else { format!("{origin}: {}", path.join(".")) };
        let error = Error::new(ErrorKind::Config, format!("{place}: {}", problem.what));
        let error = if problem.remedy.is_empty() { error } else { error.remedy(problem.remedy) };
        error.operation("read the configuration")
    }

    /// Finds a value's layer. A table or list from several layers belongs to the base if that is
    /// among them, because a missing key is best added there.
    fn layer_of(&self, value: &Value) -> Option<&Metadata> {
        let lowest = |mut values: &mut dyn Iterator<Item = &Value>| {
            let layers = (&mut values).filter_map(|value| self.layer_of(value));
            layers.reduce(|lowest, next| if *lowest == self.base { lowest } else { next })
        };
        let layer_of_children = match value {
            Value::Dict(_, dict) => lowest(&mut dict.values()),
            Value::Array(_, values) => lowest(&mut values.iter()),
            _ => None,
        };
        layer_of_children.or_else(|| self.figment.get_metadata(value.tag()))
    }
}
