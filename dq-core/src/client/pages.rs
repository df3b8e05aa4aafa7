//! Reads a listing page by page.

use crate::backend::{Backend, BrowseParams, Checked, Page};
use crate::error::Result;

/// The pages of a listing, in order.
pub(crate) struct Pages<'a> {
    store: &'a Checked,
    params: BrowseParams<'a>,
    has_more: bool,
}

impl<'a> Pages<'a> {
    pub(crate) const fn new(store: &'a Checked, params: BrowseParams<'a>) -> Self {
        Self { store, params, has_more: true }
    }

    pub(crate) const fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns the next page; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Page>> {
        if !self.has_more {
            return Ok(None);
        }
        let page = self.store.browse(self.params).await?;
        self.params = self.params.after(page.next);
        self.has_more = page.next.is_some();
        Ok(Some(page))
    }
}
