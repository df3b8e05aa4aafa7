//! With full memory, `schedule` stores nothing; claims and settlements still work.

use dq_core::{Due, ErrorKind, Scheduled};

use crate::common::{HOUR, queue};
use crate::redisson::fixture::{DESTINATION, Fixture, INDEX, ORDER, TIMEOUT, job, keyed, open};

fn dump(fixture: &Fixture) -> Vec<Vec<u8>> {
    let keys = fixture.redis.command(&["KEYS", "*"]);
    let mut dumps: Vec<Vec<u8>> = keys
        .list()
        .iter()
        .map(|key| {
            let dump = fixture.redis.command_bytes(&[b"DUMP", key.bytes()]);
            [key.bytes(), dump.bytes()].concat()
        })
        .collect();
    dumps.sort();
    dumps
}

#[tokio::test]
async fn a_full_server_refuses_new_jobs_entirely_and_delivers_those_it_has() {
    for options in ["", "?java_visibility=approximate", "?java_visibility=exact"] {
        let fixture = Fixture::with(options).await;
        // 42 jobs: 21 from this backend (one keyed), 20 from Java, one in the destination list.
        let own = (0..20).map(|_| job(Due::NOW, "own"));
        fixture.schedule(own.chain([keyed(Due::NOW, "own", "k")]).collect()).await;
        for n in 0..20 {
            fixture.java_offers(n, 1_000, b"java");
        }
        // Entries that are no jobs count as ready until a claim drops them, also without memory.
        fixture.redis.command(&["ZADD", TIMEOUT, "1", "no member"]);
        fixture.redis.command(&["RPUSH", DESTINATION, "direct"]);
        fixture.redis.command(&["ZADD", "dq:due:{q}", "1", "no job"]);
        fixture.redis.command(&["CONFIG", "SET", "maxmemory", "1"]);

        let before = dump(&fixture);
        let new = keyed(HOUR, "new", "other");
        for jobs in [
            vec![new.clone()],
            vec![job(HOUR, "x"), job(Due::NOW, "y"), keyed(HOUR, "z", "another")],
            vec![keyed(HOUR, "kept", "k"), job(HOUR, "x")],
        ] {
            let error = fixture.backend.schedule(jobs).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{options}: {error}");
            assert!(error.is_retryable());
        }
        assert!(dump(&fixture) == before, "{options}: a call was stored in part");
        let reopened = open(&fixture.redis, options).await;
        assert!(reopened.stats(&[queue()]).await.unwrap()[0].ready >= 42);
        let mut done = 0;
        for _ in 0..10 {
            done += fixture.drain(20).await.len();
        }
        assert_eq!(done, 42, "{options}");
        assert_eq!(
            fixture.len("ZCARD", TIMEOUT) + fixture.len("LLEN", DESTINATION),
            0,
            "{options}"
        );
        assert_eq!(fixture.len("HLEN", INDEX), 0, "{options}");
        if options.contains("exact") {
            assert_eq!(fixture.len("LLEN", ORDER), 0);
        }
        fixture.redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let answer = fixture.backend.schedule(vec![new]).await.unwrap();
        assert!(matches!(answer[..], [Scheduled::Created(_)]), "{answer:?}");
    }
}
