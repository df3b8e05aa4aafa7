use dq_core::{DeadKind, Due, ErrorKind, JobState};

use crate::common::{HOUR, list, queue};
use crate::redisson::fixture::{Fixture, TIMEOUT, job, open_with};

#[tokio::test]
async fn a_payload_that_the_codec_cannot_write_is_refused_and_nothing_is_stored() {
    for (codec, payload, word) in [
        ("string", "{\"a\":1}", "json"),
        ("json", "not json", "raw"),
        ("kryo5", "{\"a\":1}", "codec"),
        ("jackson", "{\"a\":1}", "class"),
    ] {
        let fixture = Fixture::with(&format!("?codec={codec}")).await;
        let jobs = vec![job(HOUR, "\"fits\""), job(HOUR, payload)];
        let error = fixture.backend.schedule(jobs).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Codec, "{codec}: {error}");
        assert!(error.to_string().contains(word), "{codec}: {error}");
        assert_eq!(fixture.len("EXISTS", TIMEOUT), 0, "{codec}");
    }
}

#[tokio::test]
async fn a_job_whose_payload_the_codec_cannot_read_is_dead_with_its_bytes_and_the_codec_to_choose()
{
    // An object written by Kryo 5, and one by Java's serialization.
    let kryo: &[u8] = &[1, 0, b'i', b'n', b't', b'e', b'r', b'o', b'p', b'.', b'O', 0xf2, 1];
    let serialized: &[u8] = &[0xac, 0xed, 0, 5, b's', b'r'];
    for payload in [kryo, serialized] {
        let fixture = Fixture::with("?codec=kryo5").await;
        fixture.java_offers(1, 1_000, payload);
        // The Long 42 in Kryo 5.
        fixture.java_offers(2, 1_001, &[0x09, 0x54]);
        let jobs = fixture.claim(10).await;
        assert_eq!(jobs.len(), 1, "an unreadable job does not hold up the others");
        assert_eq!(jobs[0].job.payload, "42");
        let dead = list(&*fixture.backend, &queue(), JobState::Dead, 9).await;
        assert_eq!(dead[0].job.payload, payload, "its bytes are unchanged");
        let (reason, _) = dead[0].dead.clone().unwrap();
        assert_eq!(reason.kind, DeadKind::Undecodable);
        // Only Java can read such objects: the remedy is another codec on both sides.
        assert!(reason.message.contains("choose the codec `json`"), "{}", reason.message);
    }
}

#[tokio::test]
async fn each_queue_may_have_its_own_codec() {
    let redis = dq_servers::Redis::start();
    let backend = open_with(&redis, |config| {
        config.codec = dq_redis::Codec::Text;
        config.codecs.insert(queue(), dq_redis::Codec::Json);
    });
    let fixture = Fixture { backend: backend.await, redis };
    fixture.schedule(vec![job(Due::NOW, "{\"a\":1}")]).await;
    assert_eq!(fixture.drain(1).await[0].job.payload, "{\"a\":1}");
}
