//! The file with the variables on top, each value with the place it comes from.

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::DeserializeOwned;

use super::fault::{self, Fault};
use super::interpolate::interpolated;
use super::variables::Variable;
use crate::error::{Error, ErrorKind, Result};

/// What is read, before it has a type.
pub(super) struct Layers {
    figment: Figment,
    /// The lowest layer: the only one with `${…}`, and where something missing should stand.
    file: Metadata,
    values: Value,
}

impl Layers {
    /// A file, and the variables that win over it.
    pub(super) fn new(
        file: impl Provider,
        variables: impl IntoIterator<Item = Variable>,
    ) -> Result<Self> {
        let metadata = file.metadata();
        let figment = variables.into_iter().fold(Figment::from(file), Figment::merge);
        let mut layers = Self { figment, file: metadata, values: Dict::new().into() };
        // The empty path means all of it.
        let all = layers.figment.find_value("");
        let mut values = all.map_err(|error| layers.refuse(&[], fault::syntax(&error)))?;
        layers.expand(&mut values, &mut Vec::new())?;
        layers.values = values;
        Ok(layers)
    }

    /// Puts variables and files in the place of `${…}` where it stands in the file. A value that
    /// is a variable's is left alone: it may be a password with `${` in it.
    fn expand(&self, value: &mut Value, path: &mut Vec<String>) -> Result<()> {
        let mut inside = |key: String, value: &mut Value| {
            path.push(key);
            self.expand(value, path)?;
            path.pop();
            Ok(())
        };
        match value {
            Value::Dict(_, dict) => {
                dict.iter_mut().try_for_each(|(key, value)| inside(key.clone(), value))
            }
            Value::Array(_, values) => {
                let mut values = values.iter_mut().enumerate();
                values.try_for_each(|(index, value)| inside(index.to_string(), value))
            }
            Value::String(tag, text) => {
                let layer = self.figment.get_metadata(*tag);
                if layer == Some(&self.file) {
                    *text = interpolated(text).map_err(|fault| self.refuse(path, fault))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Everything, with its type.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        // The values keep the marks of the layers that they come from.
        self.figment.clone().merge(Whole(&self.values)).extract().map_err(|error| {
            let (path, fault) = fault::found(error, &self.values);
            self.refuse(&path, fault)
        })
    }

    /// `file: key: what (remedy)`
    pub(super) fn refuse(&self, path: &[String], fault: Fault) -> Error {
        let layer = fault::value_at(&self.values, path).and_then(|value| self.layer(value));
        let layer = layer.unwrap_or(&self.file);
        let source = match layer.source.as_ref().and_then(|source| source.file_path()) {
            Some(file) => file.display().to_string(),
            None => layer.name.to_string(),
        };
        let place = if path.is_empty() { source } else { format!("{source}: {}", path.join(".")) };
        let error = Error::new(ErrorKind::Config, format!("{place}: {}", fault.what));
        let error = if fault.remedy.is_empty() { error } else { error.remedy(fault.remedy) };
        error.operation("read the configuration")
    }

    /// Where a value comes from; a table that more than one layer has contributed to, from the
    /// lowest, since that is where its reader looks for what is missing.
    fn layer(&self, value: &Value) -> Option<&Metadata> {
        let lowest = |mut layers: &mut dyn Iterator<Item = &Value>| {
            let layers = (&mut layers).filter_map(|value| self.layer(value));
            layers.reduce(|one, other| if *one == self.file { one } else { other })
        };
        let inside = match value {
            Value::Dict(_, dict) => lowest(&mut dict.values()),
            Value::Array(_, values) => lowest(&mut values.iter()),
            _ => None,
        };
        inside.or_else(|| self.figment.get_metadata(value.tag()))
    }
}

/// Values as the top layer.
struct Whole<'a>(&'a Value);

impl Provider for Whole<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::default()
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.0.as_dict().cloned().unwrap_or_default()))
    }
}
