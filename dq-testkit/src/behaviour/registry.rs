//! The registry of runners. A store has only one, so each trial uses unique names.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{Announced, Announcement};

use super::client::Client;
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "registry":
    announced_runner_is_listed [registry],
    info_is_unchanged [registry],
    later_announcement_replaces_the_earlier_one [registry],
    announcement_ends_with_its_time [registry],
    announcement_ends_to_the_millisecond [registry, virtual_time],
    announcement_can_be_withdrawn [registry],
    runners_are_listed_by_name [registry],
    runners_of_every_process_are_listed [registry, shared],
}

async fn announce(client: &Client, name: &str, info: &'static str, ttl: Duration) -> TrialResult {
    Ok(client.backend().announce(Announcement::new(name, info.as_bytes(), ttl)).await?)
}

async fn runners(store: &TrialStore) -> TrialResult<Vec<Announced>> {
    runners_seen_by(store, store).await
}

async fn runners_seen_by(client: &Client, store: &TrialStore) -> TrialResult<Vec<Announced>> {
    let mut runners = client.backend().runners().await?;
    ensure!(runners.is_sorted_by(|a, b| a.name < b.name), "runners are listed once, by name");
    runners.retain(|runner| runner.name.starts_with(&store.name("")));
    Ok(runners)
}

async fn only_runner(store: &TrialStore) -> TrialResult<Announced> {
    let mut runners = runners(store).await?;
    ensure_eq!(runners.len(), 1, "one runner was announced: {runners:?}");
    Ok(runners.remove(0))
}

async fn announced_runner_is_listed(store: TrialStore) -> TrialResult {
    ensure_eq!(runners(&store).await?, [], "no runner was announced");
    let name = store.name("a");
    let before = store.now().await?;
    announce(&store, &name, "{\"slots\":4}", LATER).await?;
    let after = store.now().await?;
    let runner = only_runner(&store).await?;
    ensure_eq!((&*runner.name, &runner.info[..]), (&*name, &b"{\"slots\":4}"[..]), "name and info");
    ensure!(
        before <= runner.at && runner.at <= after,
        "the time of the announcement is that of the store's clock: {}",
        runner.at
    );
    ensure_eq!(runner.until, runner.at + LATER, "it is valid for as long as it says");
    Ok(())
}

async fn info_is_unchanged(store: TrialStore) -> TrialResult {
    let mut largest = vec![b' '; Announcement::MAX_BYTES - 2];
    largest.splice(0..0, *b"\"");
    largest.push(b'"');
    let infos = [
        Bytes::from_static(b"{}"),
        Bytes::from_static("{\"host\":\"сервер 🚚\",\"text\":\"a\\u0000\\n'\\\"\"}".as_bytes()),
        Bytes::from_static(b"{ \"order\" : 1.0, \"Order\" : 1e3 }"),
        Bytes::from(largest),
    ];
    let name = store.name("работник 'a' \"b\" {c} 🚚");
    for info in infos {
        let announcement = Announcement::new(&*name, info.clone(), LATER);
        store.checked().backend().announce(announcement).await?;
        let runner = only_runner(&store).await?;
        ensure_eq!(runner.name, name, "the name is unchanged");
        ensure!(
            runner.info == info,
            "an info of {} bytes is unchanged; {} bytes were returned",
            info.len(),
            runner.info.len()
        );
    }
    Ok(())
}

async fn later_announcement_replaces_the_earlier_one(store: TrialStore) -> TrialResult {
    let name = store.name("a");
    announce(&store, &name, "1", SOON).await?;
    let first = only_runner(&store).await.ok();
    store.wait_for(Duration::from_millis(2)).await?;
    announce(&store, &name, "2", LATER).await?;
    store.wait_for(SOON).await?;
    let second = only_runner(&store).await?;
    ensure_eq!(&second.info[..], b"2", "the info of the later announcement");
    ensure!(first.is_none_or(|first| second.at > first.at), "the time of the later announcement");
    announce(&store, &name, "3", SOON).await?;
    store.wait_for(SOON).await?;
    ensure_eq!(runners(&store).await?, [], "a later announcement may end earlier");
    Ok(())
}

async fn announcement_ends_with_its_time(store: TrialStore) -> TrialResult {
    announce(&store, &store.name("brief"), "1", SOON).await?;
    announce(&store, &store.name("long"), "2", LATER).await?;
    store.wait_for(SOON).await?;
    let runner = only_runner(&store).await?;
    ensure_eq!(runner.name, store.name("long"), "the time of the other has passed");
    Ok(())
}

async fn announcement_ends_to_the_millisecond(store: TrialStore) -> TrialResult {
    announce(&store, &store.name("a"), "1", SOON).await?;
    let runner = only_runner(&store).await?;
    store.wait_until(runner.until - Duration::from_millis(1)).await?;
    only_runner(&store).await?;
    store.wait_until(runner.until).await?;
    ensure_eq!(runners(&store).await?, [], "the announcement has ended");
    Ok(())
}

async fn announcement_can_be_withdrawn(store: TrialStore) -> TrialResult {
    for name in ["a", "b"] {
        announce(&store, &store.name(name), "1", LATER).await?;
    }
    announce(&store, &store.name("a"), "", Duration::ZERO).await?;
    ensure_eq!(only_runner(&store).await?.name, store.name("b"), "the other was withdrawn");
    announce(&store, &store.name("a"), "", Duration::ZERO).await?;
    announce(&store, &store.name("unknown"), "", Duration::ZERO).await?;
    ensure_eq!(runners(&store).await?.len(), 1, "an unknown name withdraws nothing");
    announce(&store, &store.name("a"), "2", LATER).await?;
    ensure_eq!(runners(&store).await?.len(), 2, "it can be announced again");
    Ok(())
}

async fn runners_are_listed_by_name(store: TrialStore) -> TrialResult {
    let mut names = ["b", "a", "B", "é", "a:1", "10", "9", "ab", ""].map(|name| store.name(name));
    for name in &names {
        announce(&store, name, "1", LATER).await?;
    }
    let found: Vec<String> = runners(&store).await?.into_iter().map(|runner| runner.name).collect();
    names.sort_unstable();
    ensure_eq!(found, names, "runners are listed by the bytes of their names");
    Ok(())
}

async fn runners_of_every_process_are_listed(store: TrialStore) -> TrialResult {
    let other = store.second_client().await?;
    announce(&store, &store.name("a"), "1", LATER).await?;
    announce(&other, &store.name("b"), "2", LATER).await?;
    for client in [&*store, &other] {
        let runners = runners_seen_by(client, &store).await?;
        ensure_eq!(runners.len(), 2, "every process sees the runners of all: {runners:?}");
    }
    announce(&other, &store.name("a"), "", Duration::ZERO).await?;
    let last = only_runner(&store).await?;
    ensure_eq!(last.name, store.name("b"), "any process may withdraw an announcement");
    Ok(())
}
