//! Rows that other programs have written, with any values: claims, listings and settlements go on.

use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Due, HistoryLimit, HistoryLimits, JobId, JobRef, JobState, Settled,
    Settlement, Verdict,
};
use dq_servers::shared_postgres;
use dq_testkit::fixture::{claim_for, job, queue};
use dq_testkit::fuzz;
use tokio::runtime::Runtime;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::common::{LEASE, client};
use crate::connect::connect_in;

/// The columns after the id: the state, numbers, and texts with a NUL between them.
const INSERT: &str = "
    INSERT INTO dq.job (id, seq, at, q, payload, state, due, created, first_due, max_attempts, since, token,
        remember, pinned, attempts, deliveries, losses, key, headers, last_error, kind, message)
    SELECT $1, nextval('dq.job_seq'), dq.now_ms(), q, '', $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
        $14, $15, $16, $17, $18 FROM dq.queue";

/// The largest that the table accepts.
const MAX_COUNT: i64 = 1_000_000_000;
const MAX_TOKEN: i64 = 9_000_000_000_000_000_000;

const LARGE: usize = 8;
const SMALL: usize = 3;
const TEXTS: usize = 5;

/// A job's byte with the token's number.
const TOKEN_AT: usize = 6;

/// Where `NUMBERS` has the two limits.
const MAX_COUNT_AT: u8 = 4;
const MAX_TOKEN_AT: u8 = 5;

/// A byte chooses one.
const NUMBERS: [i64; 11] = [
    0,
    1,
    -1,
    1_000,
    MAX_COUNT,
    MAX_TOKEN,
    i64::MIN,
    i64::MAX,
    i64::MAX / 4,
    i32::MAX as i64,
    i32::MIN as i64,
];

/// Stores a job from these bytes, of which there may be too few. Returns its state, if the table
/// accepts it.
async fn insert(client: &Client, id: Uuid, bytes: &[u8]) -> Option<i16> {
    let number = |at: usize| NUMBERS[usize::from(*bytes.get(at).unwrap_or(&0)) % NUMBERS.len()];
    let state = i16::from(bytes.first()? % 4);
    let large: Vec<i64> = (1..=LARGE).map(number).collect();
    let small: Vec<i32> = (LARGE + 1..=LARGE + SMALL)
        .map(|at| number(at).clamp(i32::MIN.into(), i32::MAX.into()) as i32)
        .collect();
    let texts = bytes.get(LARGE + SMALL + 1..).unwrap_or_default();
    let texts = String::from_utf8_lossy(texts);
    let mut texts: Vec<Option<&str>> = texts.split('\0').map(Some).collect();
    texts.resize(TEXTS, None);
    let mut params: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&id, Type::UUID), (&state, Type::INT2)];
    params.extend(large.iter().map(|number| (number as _, Type::INT8)));
    params.extend(small.iter().map(|number| (number as _, Type::INT4)));
    params.extend(texts.iter().map(|text| (text as _, Type::TEXT)));
    client.query_typed(INSERT, &params).await.is_ok().then_some(state)
}

/// Lists the job, and claims and settles it if it has not ended. Returns whether it could be read.
async fn run(backend: &dyn Backend, id: JobId, state: i16) -> bool {
    let target = JobRef::new(queue("q"), id);
    let view = async || backend.get(&target).await.unwrap().unwrap().state;
    for state in [JobState::Scheduled, JobState::Ready, JobState::Dead, JobState::Ended] {
        backend.browse(BrowseParams::new(&queue("q"), state).limit(10)).await.unwrap();
    }
    if state > 1 {
        assert_eq!(view().await, [JobState::Dead, JobState::Ended][usize::from(state == 3)]);
        return true;
    }
    for verdict in [Verdict::retry(Due::NOW, "again"), Verdict::Done] {
        let claimed = claim_for(backend, &["q"], 10, LEASE).await.unwrap();
        let [leased] = &claimed.jobs[..] else {
            assert_eq!((claimed.jobs.len(), claimed.quarantined.len()), (0, 1));
            assert_eq!(view().await, JobState::Dead);
            return false;
        };
        assert_eq!((leased.job.id, view().await), (id, JobState::Running));
        let settled = backend.settle(&[Settlement::new(leased.lease(), verdict)]).await.unwrap();
        assert_eq!(settled, [Settled::Accepted]);
    }
    assert_eq!(view().await, JobState::Ended);
    true
}

#[test]
fn rows_of_jobs() {
    let runtime = Runtime::new().unwrap();
    let url = shared_postgres().create_database();
    // Ended jobs are found.
    let history = HistoryLimits::all(HistoryLimit::default());
    let environment = Environment::default().history(history);
    let (backend, client) = runtime
        .block_on(async { (connect_in(&url, &environment).await.unwrap(), client(&url).await) });
    runtime.block_on(client.batch_execute("SELECT dq.add_queue('q')")).unwrap();
    let texts = "key\0{\"colour\":\"red\"}\0an error\0done\0so";
    let mut valid = [(0, 1), (1, 1), (2, 1), (3, 1), (0, MAX_COUNT_AT), (1, MAX_COUNT_AT)]
        .map(|(state, number)| [&[state], &[number; LARGE + SMALL][..], texts.as_bytes()].concat());
    valid[0][TOKEN_AT] = MAX_TOKEN_AT;
    fuzz::check("rows of jobs", &valid, |bytes| {
        let id = job("q").id;
        runtime.block_on(async {
            match insert(&client, Uuid::from_bytes(id.to_bytes()), bytes).await {
                Some(state) => run(&*backend, id, state).await,
                None => false,
            }
        })
    });
}
