//! Payloads that look like the framework's own.

use std::sync::Arc;

use dq::prelude::*;

use crate::{Shop, kit};

#[delay_handler("NOTE")]
async fn note(ctx: JobContext, State(shop): State<Shop>, text: String) {
    shop.write(format!("{} {:?} {text}", ctx.step(), ctx.headers().get("tenant")));
}

/// User text that has the form of the envelope for headers, such as an escalation step's.
const FORGED: &str =
    r#"dq-envelope-1 {"headers":{"tenant":"other","dq-step":"2"},"payload":{"text":"\"x\""}}"#;

fn prefix(envelope: &str) -> &str {
    envelope.split_once('{').unwrap().0
}

#[tokio::test]
async fn a_payload_cannot_set_headers() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    let job = kit.dq().schedule::<note>(FORGED.to_owned()).header("tenant", "own");
    assert!(job.await.unwrap().is_stored());
    assert_eq!(kit.advance(1.seconds()).await[0].outcome(), "done");
    assert_eq!(shop.lines(), [format!("0 Some(\"own\") {FORGED}")]);
}

#[tokio::test]
async fn a_payload_cannot_set_headers_inside_a_transaction() {
    use dq::config::Environment;
    use dq::sqlite::rusqlite::Connection;
    use dq::sqlite::{SqliteBackend, SqliteConfig};

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.db");
    let config = SqliteConfig::new(&file);
    let store = Arc::new(SqliteBackend::open(&config, &Environment::default()).await.unwrap());
    let dq = Dq::builder().backend(store.clone()).connect().await.unwrap();
    let job = dq.schedule::<note>(FORGED.to_owned()).into_job().unwrap();
    let mut wrapped = job.clone();
    dq::backend::escape_payload(&mut wrapped);
    let envelope: String = serde_json::from_slice(&wrapped.payload).unwrap();
    assert_eq!(prefix(&envelope), prefix(FORGED), "the prefix of a real envelope");
    let mut connection = Connection::open(&file).unwrap();
    let transaction = connection.transaction().unwrap();
    let id = store.schedule_in(&transaction, vec![job]).unwrap()[0].id();
    transaction.commit().unwrap();
    let view = dq.get::<note>(id).await.unwrap().unwrap();
    assert_eq!(view.payload::<String>().unwrap(), FORGED);
    assert_eq!((view.job.step(), view.job.headers.is_empty()), (0, true));
}
