//! Converts a caller's values to job keys and job references.

use std::borrow::Cow;

use crate::backend::Scheduled;
use crate::error::Result;
use crate::model::{JobId, JobKey, JobRef, QueueName, Target};

/// A value that can be a job's key: text or an integer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a job's key",
    label = "expected text, an integer or a `JobKey`",
    note = "write `.key(value.to_string())` for any other type that implements `Display`"
)]
pub trait IntoKey {
    /// Converts to a validated key.
    ///
    /// # Errors
    /// `InvalidInput` if the text is empty, longer than 255 bytes, or has a control character.
    fn into_key(self) -> Result<JobKey>;
}

/// A value that selects one job: its key (text or integer), its id, or its `Scheduled` result.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not select a job",
    label = "expected a key (text or an integer), a `JobId`, or `&Scheduled`",
    note = "write `value.to_string()` for a key of any other type that implements `Display`"
)]
pub trait IntoTarget {
    /// Converts to a validated target.
    ///
    /// # Errors
    /// `InvalidInput` if the text is not a valid key.
    fn into_target(self) -> Result<Target>;
}

/// Implements both traits for types whose text is the key.
macro_rules! keys {
    ($($type:ty),*) => {$(
        impl IntoKey for $type {
            fn into_key(self) -> Result<JobKey> {
                JobKey::new(self.to_string())
            }
        }

        impl IntoTarget for $type {
            fn into_target(self) -> Result<Target> {
                self.into_key().map(Target::Key)
            }
        }
    )*};
}

keys!(&str, String, Cow<'_, str>);
keys!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

impl IntoKey for JobKey {
    fn into_key(self) -> Result<JobKey> {
        Ok(self)
    }
}

impl<T: IntoKey + Clone> IntoKey for &T {
    fn into_key(self) -> Result<JobKey> {
        self.clone().into_key()
    }
}

macro_rules! targets {
    ($($type:ty: |$value:ident| $target:expr;)*) => {$(
        impl IntoTarget for $type {
            fn into_target(self) -> Result<Target> {
                let $value = self;
                Ok($target)
            }
        }
    )*};
}

targets! {
    JobKey: |key| Target::Key(key);
    JobId: |id| Target::Id(id);
    Scheduled: |scheduled| Target::Id(scheduled.id());
    Target: |target| target;
}

impl<T: IntoTarget + Clone> IntoTarget for &T {
    fn into_target(self) -> Result<Target> {
        self.clone().into_target()
    }
}

/// Converts a caller's value to a reference to a job of this queue.
pub(super) fn job_ref(queue: &QueueName, target: impl IntoTarget) -> Result<JobRef> {
    Ok(JobRef { queue: queue.clone(), target: target.into_target()? })
}
