//! The callers' side of the writer: work goes in, answers come out after the commit.

use std::sync::{Arc, mpsc};

use dq_core::{Error, ErrorKind, Result};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::{Failure, Outcome};
use crate::shared::{Shared, StoreId};
use crate::tx::Tx;
use crate::writer::Writer;

/// Calls that may wait in the channel; more wait outside it.
const CHANNEL: usize = 1_024;

/// How much of a transaction some work takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
}

impl Weight {
    pub(crate) const ONE: Self = Self::items(1);

    pub(crate) const fn items(items: usize) -> Self {
        Self { items, bytes: 0 }
    }

    pub(crate) const fn add(&mut self, more: Self) {
        self.items += more.items;
        self.bytes += more.bytes;
    }
}

/// Tells the caller, once it is known whether the transaction failed.
pub(crate) type Answer = Box<dyn FnOnce(Option<&Failure>) + Send>;

/// Work of any type, with its caller.
pub(crate) trait Task: Send {
    /// Does the work. The failure, if any, is returned besides the answer, since it may spoil the
    /// transaction.
    fn run(self: Box<Self>, tx: &mut Tx<'_>) -> (Answer, Option<Failure>);

    /// The answer to work that is not begun.
    fn refuse(self: Box<Self>) -> Answer;
}

struct Call<F, C, R> {
    work: F,
    confirmed: C,
    reply: oneshot::Sender<Outcome<R>>,
}

impl<F, C, T, R> Task for Call<F, C, R>
where
    F: FnOnce(&mut Tx<'_>) -> Outcome<T> + Send,
    C: FnOnce(T) -> R + Send + 'static,
    T: Send + 'static,
    R: Send + 'static,
{
    fn run(self: Box<Self>, tx: &mut Tx<'_>) -> (Answer, Option<Failure>) {
        let Self { work, confirmed, reply } = *self;
        let done = work(tx);
        let failure = done.as_ref().err().cloned();
        let answer = move |failed: Option<&Failure>| {
            let answer = match (done, failed) {
                (Ok(_), Some(failure)) => Err(failure.clone()),
                (Ok(done), None) => Ok(confirmed(done)),
                (Err(failure), _) => Err(failure),
            };
            // A caller that has gone needs no answer; what it was given undoes itself when dropped.
            let _ = reply.send(answer);
        };
        (Box::new(answer), failure)
    }

    fn refuse(self: Box<Self>) -> Answer {
        let reply = self.reply;
        Box::new(move |failed| {
            if let Some(failure) = failed {
                let _ = reply.send(Err(failure.clone()));
            }
        })
    }
}

/// One call on its way to the writer.
pub(crate) struct Ticket {
    pub(crate) weight: Weight,
    /// Its place in the channel; `None` for what the store itself sends.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) task: Box<dyn Task>,
}

/// What is said to the writer.
pub(crate) enum Message {
    Work(Ticket),
    /// Somebody began to listen.
    Look,
    Close(oneshot::Sender<()>),
}

/// The way to the writer.
#[derive(Debug)]
pub(crate) struct Submitter {
    shared: Arc<Shared>,
    // A bounded channel whose sender waits without blocking its thread, and whose receiver can
    // wait for a limited time: a semaphore before an unbounded one.
    places: Arc<Semaphore>,
    messages: mpsc::Sender<Message>,
    closed: OnceCell<()>,
    store: StoreId,
}

impl Submitter {
    /// Starts the writer and waits until it has opened the file.
    pub(crate) async fn start(shared: Arc<Shared>) -> Result<Self> {
        let (messages, received) = mpsc::channel();
        let (opened, answer) = oneshot::channel();
        let path = shared.config.path.clone();
        let for_writer = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("dq-sqlite".to_owned())
            .spawn(move || Writer::run(for_writer, received, opened))
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "no thread could be started")
                    .remedy("raise the limit of threads")
                    .source(error)
                    .operation("connect")
            })?;
        let store = match answer.await {
            Ok(opened) => opened.map_err(|failure| failure.into_error("connect", &path))?,
            Err(_) => return Err(shared.writer_died("connect")),
        };
        let places = Arc::new(Semaphore::new(CHANNEL));
        Ok(Self { shared, places, messages, closed: OnceCell::new(), store })
    }

    /// Has `work` done in the next transaction and waits for its commit.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        operation: &'static str,
        weight: Weight,
        work: impl FnOnce(&mut Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.submit_then(operation, weight, work, |done| done).await
    }

    /// The same. What was done becomes the answer by `confirmed`, which is called after the commit
    /// and only if it succeeded: the place for what must not happen to work that was undone.
    pub(crate) async fn submit_then<T: Send + 'static, R: Send + 'static>(
        &self,
        operation: &'static str,
        weight: Weight,
        work: impl FnOnce(&mut Tx<'_>) -> Outcome<T> + Send + 'static,
        confirmed: impl FnOnce(T) -> R + Send + 'static,
    ) -> Result<R> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let permit = Some(place.map_err(|_| closed(operation))?);
        let (reply, answer) = oneshot::channel();
        let task = Box::new(Call { work, confirmed, reply });
        let message = Message::Work(Ticket { weight, permit, task });
        self.messages.send(message).map_err(|_| self.gone(operation))?;
        match answer.await {
            Ok(done) => {
                done.map_err(|failure| failure.into_error(operation, &self.shared.config.path))
            }
            Err(_) => Err(self.gone(operation)),
        }
    }

    /// Which store was opened.
    pub(crate) const fn store_id(&self) -> StoreId {
        self.store
    }

    /// A way to leave work behind without waiting.
    pub(crate) fn errands(&self) -> Errands {
        Errands { messages: self.messages.clone() }
    }

    /// Tells the writer that somebody listens from now on.
    pub(crate) fn look(&self) {
        // A writer that has ended has nothing to look at.
        let _ = self.messages.send(Message::Look);
    }

    pub(crate) fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.places.is_closed() { Err(closed(operation)) } else { Ok(()) }
    }

    /// Lets the writer finish what it was given, and waits for its end.
    pub(crate) async fn close(&self) {
        self.places.close();
        self.closed
            .get_or_init(|| async {
                let (done, ended) = oneshot::channel();
                if self.messages.send(Message::Close(done)).is_ok() {
                    // Ends either way: with the word, or with the thread.
                    let _ = ended.await;
                }
            })
            .await;
    }

    /// Why the writer does not answer.
    fn gone(&self, operation: &'static str) -> Error {
        if self.places.is_closed() { closed(operation) } else { self.shared.writer_died(operation) }
    }
}

impl Shared {
    fn writer_died(&self, operation: &'static str) -> Error {
        let what = format!("{}: the thread that writes has died", self.config.path.display());
        Error::new(ErrorKind::Internal, what)
            .remedy("open the store anew, and please report the panic")
            .operation(operation)
    }
}

fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, "the store has been closed").operation(operation)
}

/// Work for the writer that nobody waits for.
#[derive(Debug, Clone)]
pub(crate) struct Errands {
    messages: mpsc::Sender<Message>,
}

impl Errands {
    pub(crate) fn leave(
        &self,
        weight: Weight,
        work: impl FnOnce(&mut Tx<'_>) -> Outcome<()> + Send + 'static,
    ) {
        let (reply, _) = oneshot::channel();
        let task = Box::new(Call { work, confirmed: |()| (), reply });
        // If the store is closed, leases lapse by themselves.
        let _ = self.messages.send(Message::Work(Ticket { weight, permit: None, task }));
    }
}
