//! Collects errors, so that one compilation reports all of them.

/// Collects errors, so that one compilation reports all of them.
#[derive(Default)]
pub(crate) struct Errors {
    all: Option<syn::Error>,
}

impl Errors {
    /// Adds an error.
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.all {
            Some(all) => all.combine(error),
            None => self.all = Some(error),
        }
    }

    /// Returns the value, or collects the error and returns `None`.
    pub(crate) fn keep<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// All collected errors as one, if there are any.
    pub(crate) fn finish(self) -> syn::Result<()> {
        self.all.map_or(Ok(()), Err)
    }
}
