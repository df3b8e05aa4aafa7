//! Connections that are cut at each step of a call's transaction: before the server has the
//! request, between the request's messages, and after the commit.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Backend, ErrorKind, Scheduled, Settled};
use dq_servers::shared_postgres;
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{
    assert_error, blocking, by_id, claim_for, done_settlements, in_an_hour, job, retry, stats,
};

use crate::connect::open;

const LEASE: Duration = Duration::from_secs(3_600);

type Cut = fn(&TcpProxy, u64);

/// How to cut, and whether the call has then taken effect.
const CUTS: [(Cut, bool); 2] =
    [(TcpProxy::cut_request_after, false), (TcpProxy::cut_reply_after, true)];

struct Setup {
    proxy: TcpProxy,
    /// Its one connection is cut.
    cut: Arc<dyn Backend>,
    /// Sees what has taken effect.
    other: Arc<dyn Backend>,
}

async fn start() -> Setup {
    let url = blocking(|| shared_postgres().create_database()).await;
    let proxy = TcpProxy::to(shared_postgres().address()).await;
    let cut = open(&format!("{}?connections=1", proxy.url(&url))).await;
    Setup { proxy, cut, other: open(&url).await }
}

/// No call is as short as this many bytes.
const SHORTEST: u64 = 30;

/// Makes calls to cut after 0, 5, 10, … bytes, until some have passed; not the first, because a cut
/// may hit the backend's maintenance instead. The message that commits has 5 bytes, so one cut is
/// in it.
async fn at_each_step(mut call: impl AsyncFnMut(u64) -> bool) {
    let (mut bytes, mut cut, mut passed) = (0, 0, 0);
    while passed < 3 {
        match call(bytes).await {
            true if bytes > SHORTEST => passed += 1,
            true => {}
            false => cut += 1,
        }
        bytes += 5;
    }
    assert!(cut > 1, "all calls but the first have passed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_stored_by_the_call_or_by_its_repetition() {
    let Setup { proxy, cut, other } = start().await;
    for (cut_after, takes_effect) in CUTS {
        at_each_step(async |bytes| {
            retry(|| cut.now()).await;
            let new = in_an_hour(job("q"));
            cut_after(&proxy, bytes);
            let stored = cut.schedule(vec![new.clone()]).await;
            if stored.is_ok() {
                return true;
            }
            assert_error(stored, ErrorKind::OutcomeUnknown, &["same job ids"]);
            let found = other.get(&by_id(&new)).await.unwrap();
            assert_eq!(found.is_some(), takes_effect, "after {bytes} bytes");
            let again = retry(|| cut.schedule(vec![new.clone()])).await;
            assert!(matches!(again[..], [Scheduled::Created(it)] if it.id == new.id), "{again:?}");
            false
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_leased_by_the_call_or_left() {
    let Setup { proxy, cut, other } = start().await;
    other.schedule((0..1_000).map(|_| job("q")).collect()).await.unwrap();
    for (cut_after, takes_effect) in CUTS {
        at_each_step(async |bytes| {
            retry(|| cut.now()).await;
            let running = stats(&*other, "q").await.running;
            cut_after(&proxy, bytes);
            let claimed = claim_for(&*cut, &["q"], 1, LEASE).await;
            if claimed.is_ok() {
                return true;
            }
            assert_error(claimed, ErrorKind::Unavailable, &[]);
            let leased = stats(&*other, "q").await.running - running;
            assert_eq!(leased, u64::from(takes_effect), "after {bytes} bytes");
            false
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_settled_by_the_call_or_by_its_repetition() {
    let Setup { proxy, cut, other } = start().await;
    other.schedule((0..1_000).map(|_| job("q")).collect()).await.unwrap();
    for (cut_after, takes_effect) in CUTS {
        at_each_step(async |bytes| {
            retry(|| cut.now()).await;
            let claimed = claim_for(&*other, &["q"], 1, LEASE).await.unwrap();
            let done = done_settlements(&claimed);
            let before = stats(&*other, "q").await.totals.unwrap().done;
            cut_after(&proxy, bytes);
            let settled = cut.settle(&done).await;
            if settled.is_ok() {
                return true;
            }
            assert_error(settled, ErrorKind::OutcomeUnknown, &["same job ids"]);
            let ended = stats(&*other, "q").await.totals.unwrap().done - before;
            assert_eq!(ended, u64::from(takes_effect), "after {bytes} bytes");
            let again = retry(|| cut.settle(&done)).await;
            let expected = if takes_effect { Settled::LostLease } else { Settled::Accepted };
            assert_eq!(again, [expected]);
            false
        })
        .await;
    }
    // None was counted twice.
    let counts = stats(&*other, "q").await;
    assert_eq!(counts.adds_up(), Some(true), "{counts:?}");
}
