//! Two servers of one store behind nginx are restarted in turn, while workers run jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use dq_servers::{Nginx, shared_postgres};
use tokio::task::spawn_blocking;

use crate::programs::{Language, Starter};
use crate::runs::Notes;
use crate::server::{Server, schedule, wait_until_done, work};

/// At least; jobs are scheduled until the last restart.
const JOBS: usize = 400;

/// How often each server is restarted.
const ROUNDS: usize = 4;

/// Longer than any answer takes. A job whose claim gets none waits for so long.
const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restarts_lose_no_job_and_run_none_twice() {
    let (mut servers, nginx, workers, notes) = spawn_blocking(move || {
        let notes = Notes::new(&[Language::Python, Language::TypeScript]);
        let store = shared_postgres().create_database();
        let servers = [Server::start(&store), Server::start(&store)];
        let nginx = Nginx::balance(&servers.each_ref().map(|it| it.address.parse().unwrap()));
        let address = nginx.address().to_string();
        // 50 workers with a long poll each.
        let start = |language, processes| {
            let starter = Starter::build(language, &address, &notes, LEASE, (10, 2));
            (0..processes).map(move |_| starter.start())
        };
        let workers = start(Language::Python, 3).chain(start(Language::TypeScript, 2));
        let workers: Vec<_> = workers.collect();
        (servers, nginx, workers, notes)
    })
    .await
    .unwrap();
    let address = nginx.address().to_string();

    let restarts = spawn_blocking(move || {
        for _round in 0..ROUNDS {
            for server in &mut servers {
                server.stop();
                server.restart();
            }
        }
        servers
    });
    let mut count = 0;
    while count < JOBS || !restarts.is_finished() {
        let queue = ["A", "B"][count % 2];
        let payload = work(50 + count as u64 % 10 * 100, "done");
        schedule(&address, queue, payload, count as u64 % 7 * 300).await;
        count += 1;
    }
    let _servers = restarts.await.unwrap();
    wait_until_done(&address, count).await;
    drop(workers);

    let runs = notes.read();
    let mut jobs = BTreeMap::<_, Vec<_>>::new();
    for ((job, token), run) in &runs {
        jobs.entry(job).or_default().push((token, run));
    }
    assert_eq!(jobs.len(), count, "jobs that have run");
    for (job, runs) in jobs {
        let has_ended = runs[0].1.end.is_some();
        assert!(runs.len() == 1 && has_ended, "job {job} runs once, and to its end: {runs:?}");
    }
}
