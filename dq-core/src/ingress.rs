//! Message sources from the configuration (`[[ingress]]`), registered by other crates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Dq;
use crate::config::{TypedSettings, registration};
use crate::error::{BoxError, Result};
use crate::handler::panics;
use crate::model::QueueName;

/// The delay after a source's first failure; it doubles with each further one.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// The longest delay between two failures.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// The time that sources have to stop after the shutdown signal.
const GRACE: Duration = Duration::from_secs(10);

/// A source of messages that become jobs.
#[async_trait]
pub trait IngressSource: Send + Sync {
    /// Returns the jobs' queue.
    fn queue(&self) -> &QueueName;

    /// Describes the source in the log, without passwords.
    fn name(&self) -> String;

    /// Takes messages until `stop` fires or something fails.
    ///
    /// It acknowledges a message when its job is stored.
    ///
    /// # Errors
    /// The connection or the store failed. The source runs again after a delay, and unacknowledged
    /// messages come again.
    async fn run(&self, stop: &CancellationToken) -> Result<(), BoxError>;
}

/// An `[[ingress]]` type; created by [`register_ingress!`](crate::register_ingress).
#[derive(Debug)]
pub struct IngressRegistration {
    /// The value of `type`.
    pub name: &'static str,
    /// Creates a source without connecting.
    pub open: fn(&Dq, &TypedSettings) -> Result<Arc<dyn IngressSource>>,
    /// The registration's source location, as `file:line`.
    pub location: &'static str,
}

inventory::collect!(IngressRegistration);

/// Registers an `[[ingress]]` type.
///
/// `open` makes a source from a client and [`TypedSettings`](crate::config::TypedSettings).
#[macro_export]
macro_rules! register_ingress {
    (name: $name:literal, open: $open:expr $(,)?) => {
        $crate::__private::inventory::submit! {
            $crate::IngressRegistration {
                name: $name,
                open: $open,
                location: ::core::concat!(::core::file!(), ":", ::core::line!()),
            }
        }
    };
}

/// The configured message sources, `[[ingress]]`.
///
/// [`Runner::run_until`](crate::Runner::run_until) runs them. Without a runner, create them with
/// [`Ingress::new`]. Several processes may take messages from the same source.
pub struct Ingress {
    dq: Dq,
    sources: Vec<Arc<dyn IngressSource>>,
}

impl Ingress {
    /// Creates the client's configured sources, without connecting.
    ///
    /// # Errors
    /// `Config` naming the ingress and the unusable setting, or if no linked crate has registered
    /// the type; `Unsupported` if the store cannot pin ids; `Duplicate` if two crates have
    /// registered a type.
    pub fn new(dq: &Dq) -> Result<Self> {
        Self::of(dq, None)
    }

    /// Creates the sources for `queues`, or all. Other queues' sources are skipped, because the
    /// program may not link their types.
    pub(crate) fn of(dq: &Dq, queues: Option<&[QueueName]>) -> Result<Self> {
        let is_used = |settings: &TypedSettings| match (queues, settings.text("queue")) {
            (Some(queues), Some(queue)) => queues.iter().any(|served| served.as_str() == queue),
            // Without a queue, `open` reports the mistake.
            (None, _) | (_, None) => true,
        };
        let all = dq.shared().ingress.iter().enumerate();
        let sources = all.filter(|(_, settings)| is_used(settings)).map(|(number, settings)| {
            open(dq, settings).map_err(|error| error.within(&format!("ingress.{number}")))
        });
        Ok(Self { dq: dq.clone(), sources: sources.collect::<Result<_>>()? })
    }

    pub(crate) fn none(dq: &Dq) -> Self {
        Self { dq: dq.clone(), sources: Vec::new() }
    }

    /// Returns the number of sources.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// Returns whether there are no sources.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Takes messages until `shutdown` completes.
    ///
    /// A source that fails or panics runs again after up to 10 s.
    ///
    /// **Cancellation safety:** if you drop the future, unacknowledged messages come again.
    pub async fn run_until<T>(self, shutdown: impl Future<Output = T>) {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for source in self.sources {
            let (dq, stop) = (self.dq.clone(), stop.clone());
            tasks.spawn(async move { repeat(&dq, &*source, &stop).await });
        }
        shutdown.await;
        stop.cancel();
        let ended = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            () = ended => {}
            () = self.dq.sleep(GRACE) => {
                tracing::warn!("an ingress has not ended in time; its messages come again");
            }
        }
    }
}

impl fmt::Debug for Ingress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.sources.iter().map(|source| source.name()).collect();
        f.debug_tuple("Ingress").field(&names).finish()
    }
}

fn open(dq: &Dq, settings: &TypedSettings) -> Result<Arc<dyn IngressSource>> {
    let all = inventory::iter::<IngressRegistration>;
    let found = registration("ingress", settings.kind(), all, |it| (it.name, it.location))?;
    (found.open)(dq, settings)
}

/// Runs a source until it is stopped, with growing delays after failures.
async fn repeat(dq: &Dq, source: &dyn IngressSource, stop: &CancellationToken) {
    let clock = &dq.shared().environment.clock;
    let mut delay = MIN_DELAY;
    tracing::info!(from = source.name(), queue = %source.queue(), "messages become jobs");
    while !stop.is_cancelled() {
        let started = clock.elapsed();
        let error = match panics::catch_future(source.run(stop)).await {
            Ok(Ok(())) if stop.is_cancelled() => return,
            Ok(Ok(())) => "it has ended without being stopped".into(),
            Ok(Err(error)) => error,
            Err(panic) => format!("panicked: {panic}").into(),
        };
        if stop.is_cancelled() {
            tracing::warn!(from = source.name(), %error, "an ingress has failed while it stopped");
            return;
        }
        // It has worked in between, so this is a new failure.
        if clock.elapsed().saturating_sub(started) > MAX_DELAY {
            delay = MIN_DELAY;
        }
        tracing::warn!(from = source.name(), %error, "an ingress has failed; trying again");
        let _ = stop.run_until_cancelled(dq.sleep(delay)).await;
        delay = (delay * 2).min(MAX_DELAY);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::handler::{DelayHandler, HandlerResult, JobContext, Outcome};
    use crate::model::QueueCode;

    struct Flaky {
        queue: QueueName,
        runs: AtomicUsize,
        third: tokio::sync::Notify,
    }

    #[async_trait]
    impl IngressSource for Flaky {
        fn queue(&self) -> &QueueName {
            &self.queue
        }

        fn name(&self) -> String {
            "test".to_owned()
        }

        async fn run(&self, stop: &CancellationToken) -> Result<(), BoxError> {
            match self.runs.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("a bug"),
                1 => Err("the server is away".into()),
                _ => {
                    self.third.notify_one();
                    stop.cancelled().await;
                    Ok(())
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_fails_is_run_again_until_it_is_stopped() {
        let dq = Dq::connect("memory:").await.unwrap();
        let (queue, runs) = (QueueName::new("Q").unwrap(), AtomicUsize::new(0));
        let source = Arc::new(Flaky { queue, runs, third: tokio::sync::Notify::new() });
        let ingress = Ingress { dq, sources: vec![Arc::clone(&source) as _] };
        ingress.run_until(source.third.notified()).await;
        assert_eq!(source.runs.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_type_that_no_crate_registers_is_refused_by_its_place() {
        let text = "[backend]\ntype = \"memory\"\n[[ingress]]\ntype = \"amqp\"\nqueue = \"Q\"";
        let config = crate::config::Config::from_toml(text).unwrap();
        let dq = Dq::builder().config(config).connect().await.unwrap();
        let error = Ingress::new(&dq).unwrap_err().to_string();
        assert!(error.contains("ingress.0: no ingress is called \"amqp\"; known: none"), "{error}");
        let of = |queue| Ingress::of(&dq, Some(&[QueueName::new(queue).unwrap()]));
        assert!(of("OTHER").unwrap().is_empty());
        assert!(of("Q").is_err());
        let runner = || dq.runner().without_linked_handlers().handler(Done);
        assert!(runner().build().is_err());
        assert!(runner().without_ingress().build().is_ok());
    }

    struct Done;

    impl DelayHandler for Done {
        type Payload = ();

        fn code(&self) -> impl QueueCode {
            "Q"
        }

        async fn handle(&self, _: JobContext, (): ()) -> HandlerResult {
            Ok(Outcome::Done)
        }
    }
}
