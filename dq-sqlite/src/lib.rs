//! One SQLite file as a store of delayed jobs.
