//! A server whose memory is full: it takes nothing, nothing is half there, and it can be emptied.

use std::time::Duration;

use dq_core::{Due, ErrorKind, Scheduled};

use crate::rig::{LATER, NOTES, ORDER, Rig, TARGET, TIMEOUT, job, keyed, open, queue};

/// All that is there, as the server counts and keeps it.
fn state_of(rig: &Rig) -> Vec<Vec<u8>> {
    let keys = rig.redis.command(&["KEYS", "*"]);
    let mut dumps: Vec<Vec<u8>> = keys
        .list()
        .iter()
        .map(|key| {
            let dump = rig.redis.command_bytes(&[b"DUMP", key.bytes()]);
            [key.bytes(), dump.bytes()].concat()
        })
        .collect();
    dumps.sort();
    dumps
}

#[tokio::test]
async fn a_full_server_takes_nothing_and_can_be_emptied() {
    for options in ["", "?order_list=lazy", "?order_list=strict", "?fair_with_java=true"] {
        let rig = Rig::with(options).await;
        let own = (0..20).map(|_| job(Due::NOW, "own"));
        rig.backend.schedule(own.chain([keyed(Due::NOW, "own", "k")]).collect()).await.unwrap();
        for n in 0..20 {
            rig.java_offers(n, 1_000, b"java");
        }
        rig.redis.command(&["ZADD", TIMEOUT, "1", "no member"]);
        rig.redis.command(&["RPUSH", TARGET, "listed"]);
        rig.redis.command(&["ZADD", "dq:due:{q}", "1", "no job"]);
        rig.redis.command(&["CONFIG", "SET", "maxmemory", "1"]);

        let before = state_of(&rig);
        let new = keyed(LATER, "new", "other");
        for jobs in [
            vec![new.clone()],
            vec![job(LATER, "x"), job(Due::NOW, "y"), keyed(LATER, "z", "another")],
            vec![keyed(LATER, "kept", "k"), job(LATER, "x")],
        ] {
            let error = rig.backend.schedule(jobs).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{options}: {error}");
            assert!(error.is_retryable());
        }
        assert!(state_of(&rig) == before, "{options}: something was half stored");
        // One can still connect, look, and work off what is there.
        let again = open(&rig.redis, options).await;
        assert!(again.stats(&[queue()]).await.unwrap()[0].ready >= 42);
        let mut done = 0;
        for _ in 0..10 {
            done += rig.drain(20).await.len();
        }
        assert_eq!(done, 42, "{options}");
        assert_eq!(rig.len("ZCARD", TIMEOUT) + rig.len("LLEN", TARGET), 0, "{options}");
        if !options.contains("fair") {
            assert_eq!(rig.len("HLEN", NOTES), 0, "{options}");
        }
        if options.contains("strict") {
            assert_eq!(rig.len("LLEN", ORDER), 0);
        }
        rig.redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let answer = rig.backend.schedule(vec![new]).await.unwrap();
        assert!(matches!(answer[..], [Scheduled::Created(_)]), "{answer:?}");
    }
}

#[tokio::test]
async fn leases_lapse_on_a_full_server_too() {
    let rig = Rig::with("").await;
    rig.backend.schedule((0..5).map(|_| job(Due::NOW, "x")).collect()).await.unwrap();
    let lease_for = Duration::from_millis(30);
    let wants = [dq_core::Want { queue: queue(), max: 5, lease_for }];
    let params = dq_core::ClaimParams { wants: &wants, limit: 5, worker: "test" };
    assert_eq!(rig.backend.claim(params).await.unwrap().jobs.len(), 5);
    rig.redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    tokio::time::sleep(lease_for).await;
    let again = rig.drain(9).await;
    assert_eq!(again.len(), 5);
    assert!(again.iter().all(|leased| leased.job.losses == 1));
    assert_eq!(rig.backend.stats(&[queue()]).await.unwrap()[0].stored(), 0);
}
