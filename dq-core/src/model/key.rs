//! Job keys.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::name::{check_name, name_type};
use crate::error::{Error, Result};

/// An application's name for a job, such as `order-1001`.
///
/// It has 1 to 255 bytes of UTF-8 without control characters. At most one live (scheduled, ready or
/// running) job in a queue has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobKey(Arc<str>);

name_type!(JobKey, "key", 255);
