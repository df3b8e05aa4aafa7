//! Reference rates of the disk and plain SQLite.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dq::sqlite::rusqlite::{Connection, params};

use crate::measure::{Plan, Result, progress, rate};

/// Reference rates per second. Measured before and after each figure because a virtual machine's
/// speed drifts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    /// F: appends 4 KiB to a file and calls `fdatasync`.
    pub(crate) syncs: f64,
    /// R: appends rows to a table without indexes, 1,000 per commit, with the backend's settings.
    pub(crate) rows: f64,
}

#[derive(Debug)]
pub(crate) struct References {
    dir: PathBuf,
    duration: Duration,
    last: Option<(Instant, Rates)>,
}

/// Maximum age at which a measurement is reused as the "before" of the next figure.
const MAX_AGE: Duration = Duration::from_secs(2);

impl References {
    pub(crate) fn new(plan: &Plan) -> Self {
        let duration = plan.full_or_quick(Duration::from_millis(400), Duration::from_millis(20));
        Self { dir: plan.dir.clone(), duration, last: None }
    }

    pub(crate) fn around<T>(&mut self, run: impl FnOnce() -> Result<T>) -> Result<(T, Rates)> {
        let before = match self.last {
            Some((at, rates)) if at.elapsed() < MAX_AGE => rates,
            _ => self.measure()?,
        };
        let result = run()?;
        let after = self.measure()?;
        self.last = Some((Instant::now(), after));
        let syncs = f64::midpoint(before.syncs, after.syncs);
        let rows = f64::midpoint(before.rows, after.rows);
        Ok((result, Rates { syncs, rows }))
    }

    fn measure(&self) -> Result<Rates> {
        let rates = Rates { syncs: self.syncs()?, rows: self.rows()? };
        progress(format_args!("F = {:.0} syncs/s, R = {:.0} rows/s", rates.syncs, rates.rows));
        Ok(rates)
    }

    fn syncs(&self) -> Result<f64> {
        let path = self.dir.join("raw.bin");
        let mut file = File::create(&path)?;
        let page = [0x5a; 4_096];
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < self.duration {
            file.write_all(&page)?;
            file.sync_data()?;
            count += 1;
        }
        let rate = rate(count, start.elapsed());
        std::fs::remove_file(path)?;
        Ok(rate)
    }

    fn rows(&self) -> Result<f64> {
        let path = self.dir.join("raw.db");
        let mut conn = Connection::open(&path)?;
        conn.pragma_update(None, "page_size", 4_096)?;
        conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "fullfsync", true)?;
        conn.pragma_update(None, "checkpoint_fullfsync", true)?;
        conn.pragma_update(None, "wal_autocheckpoint", 4_000)?;
        conn.pragma_update(None, "cache_size", -64 * 1_024)?;
        conn.execute_batch(
            "CREATE TABLE raw (n INTEGER PRIMARY KEY, id BLOB, due INTEGER, payload BLOB)",
        )?;
        // The workload's mean payload length: (100 + 1,024) / 2.
        let payload = [0x5a_u8; 562];
        let start = Instant::now();
        let mut count = 0;
        while start.elapsed() < self.duration {
            let tx = conn.transaction()?;
            let mut insert =
                tx.prepare_cached("INSERT INTO raw (id, due, payload) VALUES (?1, ?2, ?3)")?;
            for _ in 0..1_000 {
                insert.execute(params![[0x5a_u8; 16], 1_700_000_000_000_i64, payload])?;
                count += 1;
            }
            drop(insert);
            tx.commit()?;
        }
        let rate = rate(count, start.elapsed());
        drop(conn);
        std::fs::remove_file(path)?;
        Ok(rate)
    }
}
