//! The broker loses streams, or records of the directory.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::sync::lock;
use dq_core::{Backend, Cancelled, ErrorKind, Finding, JobRef, Operation, Severity};
use dq_testkit::fixture::{assert_helpful, claim_for, dead_ids, poll, wait_until};
use lapin::BasicProperties;

use super::{
    Books, CHANGES_TIMEOUT, assert_kept, delete_generations, found, generation, open, sized, small,
    write, write_until,
};
use crate::RabbitBackend;
use crate::log::generation::Generation;
use crate::parts::fixture::{finding, queue, topology};
use crate::topology::names::DIRECTORY_KEY;

/// A single node may lose this with its power.
#[derive(Debug, Clone, Copy)]
enum Lost {
    Declaration,
    Messages,
}

async fn loss(backend: &RabbitBackend) -> Option<Finding> {
    finding(backend, "rabbitmq.log-lost").await
}

async fn falls_back_after(lost: Lost) {
    let config = small(&format!("fall-back-{lost:?}"));
    let books = Mutex::new(Books::default());
    let process = open(&config).await;
    // It ends before it deletes the generation before.
    let announced = process.log().crash_at("announced");
    let mut kept = HashSet::new();
    let writing = async {
        loop {
            write(&process, &books).await;
            if generation(&process) == 0 {
                kept.clone_from(&lock(&books).kept);
            }
        }
    };
    let until_announced = announced.run_until_cancelled(writing);
    tokio::time::timeout(CHANGES_TIMEOUT, until_announced).await.expect("a change of generation");
    drop(process);

    delete_generations(&config, 1..=1).await;
    if let Lost::Messages = lost {
        let (_connection, topology) = topology(&config);
        topology.declare_generation(Generation::new(1)).await.unwrap();
    }
    let backends = [open(&config).await, open(&config).await];
    for backend in &backends {
        assert!(kept.is_subset(&found(backend).await), "{lost:?}: jobs are lost");
        // No process is left that had read it.
        wait_until("the loss is told", async || loss(backend).await.is_some()).await;
    }
    let books = Mutex::new(Books { kept, ..Books::default() });
    let [one, other] = &backends;
    write_until("two more changes", &[one, other], &books, || generation(one) >= 5).await;
    let fresh = open(&config).await;
    let found = found(&fresh).await;
    assert!(lock(&books).kept.is_subset(&found), "{lost:?}: jobs are lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_falls_back_to_the_generation_before_one_that_is_lost() {
    tokio::join!(falls_back_after(Lost::Declaration), falls_back_after(Lost::Messages));
}

/// Cancels are undone, as by `rabbitmqctl delete_queue` of the newest stream.
#[tokio::test(flavor = "multi_thread")]
async fn lost_calls_are_told_by_every_process_until_an_operator_has_seen_it() {
    let config = small("told");
    let books = Mutex::new(Books::default());
    let processes = [open(&config).await, open(&config).await];
    let is_announced = || processes[0].log().announced() == Some(Generation::new(1));
    write_until("a change of generation", &[&processes[0]], &books, is_announced).await;
    assert_eq!(loss(&processes[0]).await, None);
    let cancelled: Vec<_> = {
        let kept = &lock(&books).kept;
        kept.iter().map(|id| JobRef::new(queue("q"), *id)).collect()
    };
    let results = processes[1].cancel(&cancelled).await.unwrap();
    assert!(results.iter().all(|result| *result == Cancelled::Cancelled), "{results:?}");

    delete_generations(&config, 1..=1).await;
    let fresh = open(&config).await;
    for backend in processes.iter().chain([&fresh]) {
        wait_until("check finds the loss", async || loss(backend).await.is_some()).await;
    }
    assert_eq!(loss(&fresh).await.unwrap().severity, Severity::Error);
    for backend in &processes {
        let lease = Duration::from_secs(30);
        let told = async || claim_for(&**backend, &["other"], 1, lease).await.err();
        let error = poll("the loss is reported", told).await;
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_helpful(&error, &["dq.v1.log.1", "acknowledged", "cancelled"]);
        claim_for(&**backend, &["other"], 1, lease).await.expect("it is reported once");
    }
    let losses = queue("log-losses");
    let notes = dead_ids(&*fresh, &losses).await;
    assert_eq!(notes.len(), 1, "all processes tell of the same loss");
    fresh.operate(Operation::Remove { queue: &losses, jobs: &notes }).await.unwrap();
    for backend in processes.iter().chain([&fresh]) {
        assert_eq!(loss(backend).await, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_begins_beside_one_whose_directory_has_lost_its_records() {
    let config = small("no-records");
    let books = Mutex::new(Books::default());
    let backend = open(&config).await;
    write(&backend, &books).await;
    let (connection, topology) = topology(&config);
    let channel = connection.channel("test").await.unwrap();
    channel.confirm_select().await.unwrap();
    for _ in 0..40 {
        let (exchange, body) = (topology.names().generations(), vec![0; 60_000]);
        let properties = BasicProperties::default();
        let key = DIRECTORY_KEY.into();
        let sent = channel.publish(exchange, key, true, &body, properties).await.unwrap();
        sent.received().await.unwrap();
    }
    let mut impatient = config.clone();
    impatient.response_timeout = Duration::from_secs(5);
    wait_until("the records are deleted", async || {
        match RabbitBackend::connect(&impatient, &Environment::default()).await {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::Config => {
                assert_helpful(&error, &["records"]);
                true
            }
            Err(_) => false,
        }
    })
    .await;
    // The process that knows the log announces it again.
    write_until("a change of generation", &[&backend], &books, || generation(&backend) > 0).await;
    for backend in [&backend, &open(&config).await] {
        assert_kept(backend, &books).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_generation_is_replaced() {
    let config = small("lost");
    let backend = open(&config).await;
    let other = open(&config).await;
    let books = Mutex::new(Books::default());
    write_until("a change of generation", &[&backend], &books, || generation(&backend) > 0).await;
    wait_until("the generation is announced", async || {
        let newest = generation(&*open(&config).await);
        newest == generation(&backend)
    })
    .await;
    delete_generations(&config, 0..=generation(&backend)).await;
    wait_until("the log is empty", async || {
        backend.stats(&[queue("q")]).await.is_ok_and(|all| all[0].scheduled == 0)
    })
    .await;
    wait_until("a job is stored", async || backend.schedule(vec![sized(10)]).await.is_ok()).await;
    let kept = found(&backend).await;
    assert_eq!(found(&other).await, kept);
    assert_eq!(found(&*open(&config).await).await, kept);
    assert!(generation(&backend) >= 1_000 && generation(&backend).is_multiple_of(2));
}
