//! `dq serve`: the dashboard and the HTTP API as a program.

use std::cell::OnceCell;
use std::net::SocketAddr;

use dq_core::config::ServeSettings;
use dq_core::{Backend as _, Dq, HistoryLimit, Ingress, QueueName, shutdown_signal};
// Links the crate, which registers forward and ingress types.
#[cfg(any(feature = "webhooks", feature = "redis", feature = "rabbitmq"))]
use dq_forward as _;
use dq_ops::{Actor, Ops, Role};
use dq_web::Auth;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::{ServeArgs, TargetArgs};
use crate::demo::Demo;
use crate::failure::{Failure, Result};
use crate::forwards::Forwards;
use crate::output::Output;
use crate::stores;

const ADDRESS: &str = "127.0.0.1:7373";

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
            let ops = Ops::new(dq.clone());
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
        let served = server.run(&Ops::new(dq.clone()), &place, history, output).await;
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
    forward: bool,
}

impl Server {
    async fn bind(token: Option<&str>, args: &ServeArgs, settings: &ServeSettings) -> Result<Self> {
        let auth = auth(token, settings)?;
        let address = args.address.as_deref().or(settings.address.as_deref()).unwrap_or(ADDRESS);
        let refused = |error| {
            let message = format!("the server cannot listen on {address}: {error}");
            Failure::new("listen", message, "choose another address by --address HOST:PORT")
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
        Ok(Self { listener, address, auth, forward: settings.forward })
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
        let metrics = forwards.metrics();
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
                        let _ = failure.set(error);
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
        tokens.push((Actor::new(name, role), owned.token.expose(), origin));
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
                let (max, age) = (history.max, humantime::format_duration(history.age));
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
