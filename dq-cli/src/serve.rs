//! `dq serve`: the dashboard and the HTTP API as a program.

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;

use dq_core::config::ServeSettings;
use dq_core::{
    Backend as _, Dq, HistoryLimit, Ingress, QueueName, format_exact_duration, shutdown_signal,
};
// Links the crate, which registers forward and ingress types.
#[cfg(any(feature = "webhooks", feature = "redis", feature = "rabbitmq"))]
use dq_forward as _;
use dq_metrics::RunnerMetrics;
use dq_ops::{Actor, Ops, Role};
use dq_web::Auth;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::{ServeArgs, TargetArgs};
use crate::demo::Demo;
use crate::failure::{Failure, Result};
use crate::forwards::{Forwards, Metrics};
use crate::output::Output;
use crate::stores;

pub(crate) const ADDRESS: &str = "127.0.0.1:7373";

pub(crate) fn serve(target: &TargetArgs, args: &ServeArgs, output: &mut Output<'_>) -> Result<()> {
    if target.api.is_some() {
        return Err(Failure::usage(
            "a server does not serve another one",
            "give --config or --url instead of --api",
        ));
    }
    crate::source::runtime()?.block_on(async {
        let token = target.token.clone().or_else(|| std::env::var("DQ_TOKEN").ok());
        // A mistake in `[serve]` must not create a store, so the server binds first.
        if args.demo {
            let server = Server::bind(token.as_deref(), args, &ServeSettings::default()).await?;
            let history = Some(HistoryLimit::default());
            let builder = stores::with_history(Dq::builder().url("memory:"), history);
            let dq = builder.connect().await?;
            let ops = server.ops(&dq);
            let demo = Demo::start(&ops).await?;
            let served = server.run(&ops, "memory, gone at the end", history, output).await;
            demo.stop().await;
            return close(served, &dq).await;
        }
        let store = stores::configured(target)?;
        let server = Server::bind(token.as_deref(), args, &store.serve).await?;
        let (origin, history) = (store.origin.clone(), store.history);
        let dq = store.open().await?;
        let place = format!("{}, {origin}", dq.backend().name());
        let ops = server.ops(&dq);
        let served = server.run(&ops, &place, history, output).await;
        close(served, &dq).await
    })
}

/// Closes the store after the server. The server's failure is the one to report.
async fn close(served: Result<()>, dq: &Dq) -> Result<()> {
    let closed = dq.close().await;
    served.and_then(|()| Ok(closed?))
}

struct Server {
    listener: TcpListener,
    address: SocketAddr,
    auth: Auth,
    /// Signs the leases of workers; `None` for a key of this run.
    lease_secret: Option<Vec<u8>>,
    forward: bool,
    metrics: Metrics,
}

impl Server {
    async fn bind(token: Option<&str>, args: &ServeArgs, settings: &ServeSettings) -> Result<Self> {
        let auth = auth(token, settings)?;
        let address = args.address.as_deref().or(settings.address.as_deref()).unwrap_or(ADDRESS);
        let refused = |error: io::Error| {
            if error.kind() == io::ErrorKind::InvalidInput {
                let message = format!("{address:?} is not an address: {error}");
                return Failure::usage(message, "write it like 127.0.0.1:7373");
            }
            let message = format!("the server cannot listen on {address}: {error}");
            Failure::new("listen", message, "choose another address with --address HOST:PORT")
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        if !address.ip().is_loopback() && auth.generated_token().is_some() {
            return Err(Failure::new(
                "config",
                format!("{address} can be reached from other machines, and no token is configured"),
                "set DQ_TOKEN or [serve.tokens], or listen on 127.0.0.1",
            ));
        }
        raise_file_limit();
        Ok(Self {
            listener,
            address,
            auth,
            lease_secret: lease_secret(token, settings),
            forward: settings.forward,
            metrics: Metrics::record()?,
        })
    }

    fn ops(&self, dq: &Dq) -> Ops {
        let ops = Ops::builder(dq.clone()).work_observer(RunnerMetrics::new());
        match &self.lease_secret {
            Some(secret) => ops.lease_secret(secret).build(),
            None => ops.build(),
        }
    }

    async fn run(
        self,
        ops: &Ops,
        place: &str,
        history: Option<HistoryLimit>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let mut signal = Box::pin(shutdown_signal());
        // The first poll installs the signal handlers, so a signal after the announcement ends the
        // server cleanly.
        tokio::select! {
            biased;
            () = &mut signal => return Ok(()),
            () = std::future::ready(()) => {}
        }
        let dq = ops.dq();
        let ingress = Ingress::new(dq)?;
        let forwards = if self.forward { Forwards::new(dq)? } else { Forwards::default() };
        let (forwarded, sources) = (&forwards.queues, ingress.len());
        announce(place, self.address, &self.auth, history, forwarded, sources, output)?;
        let metrics = self.metrics.text();
        let stop = CancellationToken::new();
        // The runner's error, kept in case a signal ends the others.
        let failure = OnceCell::new();
        let server = async {
            // The first to end stops the others.
            let _stop_others = stop.clone().drop_guard();
            let stopped = stop.clone().cancelled_owned();
            let served =
                dq_web::serve_with_metrics(self.listener, ops.clone(), self.auth, metrics, stopped)
                    .await;
            served.map_err(|error| {
                Failure::new("serve", format!("the server has failed: {error}"), "")
            })
        };
        let forwarding = async {
            let _stop_others = stop.clone().drop_guard();
            match forwards.runner {
                Some(runner) => {
                    if let Err(error) = runner.run_until(stop.cancelled()).await {
                        let _ = failure.set(error.into());
                    }
                }
                None => stop.cancelled().await,
            }
        };
        let messages = ingress.run_until(stop.cancelled());
        let signals = async {
            tokio::select! {
                () = signal => stop.cancel(),
                () = stop.cancelled() => {}
            }
        };
        // A second signal ends a stopping server at once. A webhook that does not answer need not
        // delay it, because its job is sent again.
        let hurried = async {
            stop.cancelled().await;
            shutdown_signal().await;
        };
        let served = tokio::select! {
            (served, (), (), ()) =
                async { tokio::join!(server, forwarding, messages, signals) } => served,
            () = hurried => Ok(()),
            never = self.metrics.keep_up() => match never {},
        };
        served.and(failure.into_inner().map_or(Ok(()), Err))
    }
}

/// Accepts the configured tokens. Without any, accepts one person on this machine, with a token
/// generated for this run.
fn auth(token: Option<&str>, settings: &ServeSettings) -> Result<Auth> {
    let mut tokens = Vec::new();
    if let Some(token) = token {
        tokens.push((Actor::new("admin", Role::Admin), token, "--token or DQ_TOKEN".to_owned()));
    }
    for (name, owned) in &settings.tokens {
        let origin = format!("serve.tokens.{name}");
        let role = owned.role.parse().map_err(|error| named(&origin, error))?;
        let actor = match (role, owned.queues.is_empty()) {
            (Role::Worker, false) => Actor::worker(name, owned.queues.clone()),
            (Role::Worker, true) => {
                let message = format!("{origin}: the role worker has no queues");
                let remedy = "list those from which it may claim: queues = [\"MAIL\"]";
                return Err(Failure::new("config", message, remedy));
            }
            (_, true) => Actor::new(name, role),
            (_, false) => {
                let message = format!("{origin}: `queues` belongs to the role worker");
                return Err(Failure::new("config", message, "leave it out, or change the role"));
            }
        };
        tokens.push((actor, owned.token.expose(), origin));
    }
    let mut auth: Option<Auth> = None;
    for (index, (actor, token, origin)) in tokens.iter().enumerate() {
        if let Some((_, _, other)) = tokens[..index].iter().find(|(_, earlier, _)| earlier == token)
        {
            let message = format!("{other} and {origin} are the same token");
            return Err(Failure::new("config", message, "give each owner a token of its own"));
        }
        let added = match auth {
            None => Auth::token(actor.clone(), *token),
            Some(auth) => auth.and_token(actor.clone(), *token),
        };
        auth = Some(added.map_err(|error| named(origin, error))?);
    }
    Ok(auth.unwrap_or_else(Auth::loopback))
}

/// Returns the configured secret, or all tokens: a server that starts again has the same ones.
fn lease_secret(token: Option<&str>, settings: &ServeSettings) -> Option<Vec<u8>> {
    if let Some(secret) = &settings.secret {
        return Some(secret.expose().as_bytes().to_vec());
    }
    let owned = settings.tokens.values().map(|owned| owned.token.expose());
    let tokens: Vec<_> = token.into_iter().chain(owned).collect();
    // No token has a line break.
    (!tokens.is_empty()).then(|| tokens.join("\n").into_bytes())
}

/// Each worker that waits for a job has a connection. Many systems allow a program 1,024 files
/// unless it asks for more.
fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let highest = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, highest) {
            tracing::debug!(%error, "the limit of open files stays");
        }
    }
}

fn named(origin: &str, error: dq_core::Error) -> Failure {
    let remedy = error.remedy_text().unwrap_or_default();
    Failure::new("config", format!("{origin}: {}", error.message()), remedy)
}

/// Prints the server's address, token, history, forwarded queues and number of message sources.
fn announce(
    place: &str,
    bound: SocketAddr,
    auth: &Auth,
    history: Option<HistoryLimit>,
    forwarded: &[&QueueName],
    sources: usize,
    output: &mut Output<'_>,
) -> Result<()> {
    let (address, token) = (format!("http://{bound}/"), auth.generated_token());
    let line = json!({
        "address": address, "store": place, "token": token, "forwards": forwarded,
        "ingress": sources, "history": history.map(|history| history.max)
    });
    output.either(&line, || {
        let mut text = format!("store    {place}\naddress  {address}\n");
        text += &match history {
            None => "history  as the store's other programs have set it\n".to_owned(),
            Some(history) if history.max == 0 => {
                "history  none: jobs that have ended are not found\n".to_owned()
            }
            Some(history) => {
                let (max, age) = (history.max, format_exact_duration(history.age));
                format!("history  the last {max} ended jobs of each queue, for {age}\n")
            }
        };
        if !forwarded.is_empty() {
            let names: Vec<_> = forwarded.iter().map(|queue| queue.as_str()).collect();
            text += &format!("forwards {}\n", names.join(", "));
        }
        if sources > 0 {
            text += &format!("ingress  {sources}\n");
        }
        match token {
            Some(token) => {
                // Without the slash, so that paths can follow it.
                let api = address.trim_end_matches('/');
                text += &format!(
                    "token    {token}\n\n\
                     A browser asks for it as the password; any user name will do. Commands:\n\
                     \x20 export DQ_API={api} DQ_TOKEN={token}\n\x20 dq queues\n"
                );
            }
            None => text += "token    as configured\n",
        }
        text
    })?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use dq_core::config::Config;

    use super::*;

    fn refusal(tokens: &str) -> String {
        let toml = format!("[backend]\ntype = \"memory\"\n{tokens}");
        let settings = Config::from_toml(&toml).unwrap().serve;
        auth(Some("0123456789abcdef"), &settings).unwrap_err().report().unwrap()
    }

    #[test]
    fn bad_tokens_are_refused_with_their_place() {
        let short = refusal("[serve.tokens.ann]\nrole = \"viewer\"\ntoken = \"hunter2\"");
        assert!(short.contains("serve.tokens.ann: a token has 7 bytes"), "{short}");
        assert!(!short.contains("hunter2"));
        let role = refusal("[serve.tokens.ann]\nrole = \"boss\"\ntoken = \"fedcba9876543210\"");
        assert!(role.contains("serve.tokens.ann: \"boss\" is not a role"), "{role}");
        let same = refusal("[serve.tokens.ann]\nrole = \"viewer\"\ntoken = \"0123456789abcdef\"");
        assert!(same.contains("DQ_TOKEN and serve.tokens.ann are the same token"), "{same}");
        let empty = auth(Some(""), &ServeSettings::default()).unwrap_err().report().unwrap();
        assert!(empty.contains("DQ_TOKEN: a token has 0 bytes"), "{empty}");
        assert!(auth(None, &ServeSettings::default()).unwrap().generated_token().is_some());
    }
}
